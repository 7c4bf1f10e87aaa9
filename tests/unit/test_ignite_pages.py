"""Pages of a scan: the bytes of keys and values are those of the log."""

from __future__ import annotations

import struct

import pytest

from harness.ignite.recordings import segments_of, show_value, types_of
from penstock.codec.ignite import marshal, wal
from penstock.codec.ignite.errors import ValueBroken
from penstock.codec.ignite.pages import Entry, end_of, entries_of


def wrap_value(kind: int, data: bytes) -> bytes:
    """Return a value as a node sends it: objects are wrapped, bytes are an array."""
    if kind == marshal.OBJECT:
        return b"\x1b" + struct.pack("<i", len(data)) + data + struct.pack("<i", 0)
    if kind == marshal.BYTES:
        return b"\x0c" + struct.pack("<i", len(data)) + data
    return data


def page_of(entries: list[Entry]) -> bytes:
    """Return a page with these entries which says that there are more."""
    cells = b"".join(wrap_value(one[0], one[1]) + wrap_value(one[2], one[3]) for one in entries)
    return struct.pack("<i", len(entries)) + cells + b"\x01"


def read_recording(name: str) -> list[Entry]:
    """Return each put of a recording."""
    decode = marshal.decoder(types_of(name))
    found = []
    for number, data in segments_of(name):
        for entry in wal.Walk(data, number=number, name="", begin=0, decode=decode):
            if entry.value_bytes is not None:
                (key, key_kind), (value, kind) = entry._key, entry._value
                found.append((key_kind, key, kind, value))
    return found


@pytest.mark.parametrize("name", ["one", "full"])
def test_values_have_the_bytes_of_the_log(name: str) -> None:
    """One decoder reads both, for every type, field and form that a real node wrote."""
    entries = read_recording(name)
    assert len({value[:1] for _, _, _, value in entries}) > 20
    found, at = entries_of(page_of(entries), 0)
    assert len(found) == len(entries)
    assert page_of(entries)[at:] == b"\x01"
    types = types_of(name)
    for (key_kind, key, kind, value), sent_as in zip(found, entries, strict=True):
        if sent_as[2] == marshal.BYTES:
            assert marshal.decode(value, kind, types) == sent_as[3]
            continue
        assert (key_kind, key) == sent_as[:2]
        assert value == sent_as[3]
        assert show_value(marshal.decode(value, kind, types)) == show_value(
            marshal.decode(sent_as[3], sent_as[2], types)
        )


def test_object_within_a_larger_one_is_read_where_it_begins() -> None:
    """An object sent inside a larger one keeps its form, which tells where it begins."""
    inner = b"\0\0" + b"\x03\x07\0\0\0"
    wrapped = b"\x1b" + struct.pack("<i", len(inner)) + inner + struct.pack("<i", 2)
    (entry,), _ = entries_of(struct.pack("<i", 1) + b"\x03\x01\0\0\0" + wrapped, 0)
    assert entry[2:] == (marshal.REGULAR, wrapped)
    assert marshal.decode(entry[3], entry[2], types_of("one")) == 7


def test_pages_that_end_early_are_refused() -> None:
    """No byte after the end is read, and no error but ours is raised."""
    page = page_of(read_recording("one")[-40:])
    for length in range(4, len(page) - 1, 7):
        with pytest.raises(ValueBroken):
            entries_of(page[:length], 0)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"\xfa", "of type 250"),
        (b"\x09\xff\xff\xff\xff", "a count of -1"),
        (b"\x67\x01\0\0" + b"\0" * 20, "it would end at 0"),
        (b"\x17\x01\0\0\0\x01\0\0\0" * 300 + b"\x65", "within each other"),
    ],
)
def test_values_that_are_none_are_refused(data: bytes, cause: str) -> None:
    """The error names the cause of each."""
    with pytest.raises(ValueBroken, match=cause):
        end_of(data, 0)
