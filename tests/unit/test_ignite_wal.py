"""Segments of real Ignite nodes: the events that Ignite's utility delivered, and broken ones."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from harness.ignite.recordings import (
    data_segment,
    entry_bytes,
    events_of,
    plain_event,
    record_bytes,
    seal_record,
    segments_of,
    shown_entry,
    walk_entries,
)
from penstock.codec.ignite import _marshal, _wal, marshal, wal
from penstock.codec.ignite.errors import WalBroken, WalUnsupported
from penstock.codec.ignite.types import cache_id
from penstock.codec.ignite.wal import Place, Record, Version

TWIN = (wal.Walk, wal.Entry, wal.find_record)
KERNEL = (_wal.Walk, _wal.Entry, _wal.find_record)
BOTH = pytest.mark.parametrize("kernel", [TWIN, KERNEL], ids=["twin", "kernel"])
DATA_AT = 29


def walk(kernel: Any, data: bytes, begin: int = 0, number: int = 0) -> Any:
    """Return the changes of a segment, keys and values as they are in the log."""
    return kernel[0](
        data,
        number=number,
        name="0.wal",
        begin=begin,
        decode=lambda raw, kind: (kind, raw),
        kind=kernel[1],
    )


@BOTH
@pytest.mark.parametrize(
    ("recording", "calls", "node"),
    [
        ("one", "one-0", "node_1"),
        ("full", "full-0", "node_1"),
        ("two", "two-node-1", "node_1"),
        ("two", "two-node-2", "node_2"),
    ],
)
def test_events_are_those_of_the_utility(
    kernel: Any, recording: str, calls: str, node: str
) -> None:
    """Events are puts, removals, transactions, SQL, every type, with compact and full footers."""
    decode = marshal.decode if kernel is TWIN else _marshal.decode
    found = [shown_entry(entry) for entry in walk_entries(recording, kernel, decode, node)]
    wanted = [plain_event(event) for event in events_of(calls)]
    assert len(found) == len(wanted) > 40
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine == theirs


def test_segments_have_the_header_that_is_checked() -> None:
    """The header has its own checksum and the segment's number."""
    for number, data in segments_of("one"):
        wal.check_header(data, number, "a.wal")
    data = segments_of("one")[1][1]
    with pytest.raises(WalBroken, match=r"a\.wal, offset 0: its header is that of segment 1"):
        wal.check_header(data, 2, "a.wal")
    with pytest.raises(WalBroken, match="checksum of its header"):
        wal.check_header(data[:25] + b"....", 1, "a.wal")
    with pytest.raises(WalBroken, match="28 bytes"):
        wal.check_header(data[:28], 1, "a.wal")
    with pytest.raises(WalBroken, match="does not begin with"):
        wal.check_header(b"\x06" + data[1:], 1, "a.wal")
    older = struct.pack("<BqiQi", 5, 1, 0, wal.MAGIC, 1)
    with pytest.raises(WalUnsupported, match="serializer version 1"):
        wal.check_header(seal_record(older), 1, "a.wal")
    compacted = struct.pack("<BqiQi", 5, 1, 0, wal.MAGIC_COMPACTED, 2)
    with pytest.raises(WalUnsupported, match="compacted"):
        wal.check_header(seal_record(compacted), 1, "a.wal")


@BOTH
def test_a_torn_tail_is_told(kernel: Any) -> None:
    """A file that ends inside a record is torn; one that ends after a record is only short."""
    data = data_segment([[entry_bytes()], [entry_bytes(), entry_bytes()]])
    first = len(data_segment([[entry_bytes()]]))
    for end in range(first + 1, len(data)):
        with pytest.raises(WalBroken) as caught:
            list(walk(kernel, data[:end]))
        assert caught.value.fields["offset"] == first
        assert caught.value.fields["file"] == "0.wal"
        assert "ends inside a record" in caught.value.fields["cause"]
    assert len(list(walk(kernel, data[:first]))) == 1
    assert len(list(walk(kernel, data))) == 3


@BOTH
def test_every_broken_byte_is_told(kernel: Any) -> None:
    """No byte changes an event silently; among the types only an end of the log looks valid."""
    data = data_segment([[entry_bytes()], [entry_bytes(key=b"\x03\x05\0\0\0")]])
    for at in range(DATA_AT, len(data)):
        for change in (0x01, 0x80):
            broken = bytearray(data)
            broken[at] ^= change
            with pytest.raises((WalBroken, WalUnsupported)) as caught:
                list(walk(kernel, bytes(broken)))
            assert caught.value.fields["offset"] <= at


@BOTH
def test_causes_are_told_apart(kernel: Any) -> None:
    """Causes are a checksum, an unknown record, one from elsewhere, and one without length."""
    data = data_segment([[entry_bytes()]])

    def cause(changed: bytes) -> str:
        with pytest.raises((WalBroken, WalUnsupported)) as caught:
            list(walk(kernel, changed))
        return str(caught.value.fields["cause"])

    assert cause(data[:-1] + bytes([data[-1] ^ 1])) == "the checksum of a record is wrong"
    assert cause(data[:29] + b"\x60" + data[30:]) == "an unknown record of type 95"
    moved = data[:30] + struct.pack("<qi", 7, 29) + data[42:]
    assert cause(moved) == "a record of segment 7, offset 29"
    short = data[:42] + struct.pack("<i", 5) + data[46:]
    assert cause(short) == "a record of 5 bytes"


@BOTH
def test_records_that_do_not_fit_their_entries(kernel: Any) -> None:
    """Such records have a valid checksum, as a node of another kind would write them."""
    whole = entry_bytes()
    for entries, count, cause in (
        ([whole[:-1]], 1, wal.ENDS),
        ([whole + b"\0"], 1, "a record has bytes after its last entry"),
        ([whole], 2, wal.ENDS),
        ([], -1, "a record of -1 entries"),
    ):
        data = data_segment([entries], count=count)
        with pytest.raises(WalBroken, match=cause) as caught:
            list(walk(kernel, data))
        assert caught.value.fields["offset"] == DATA_AT
    with pytest.raises(WalBroken, match="a version of form 3"):
        list(walk(kernel, data_segment([[entry_bytes(near=b"\x03")]])))
    with pytest.raises(WalBroken, match="a key or value of -2 bytes"):
        list(walk(kernel, data_segment([[entry_bytes(value_length=-2)]])))


@BOTH
def test_what_an_entry_says(kernel: Any) -> None:
    """An entry has its fields, the versions of both clusters, and nothing for a missing value."""
    both = b"\x02" + struct.pack("<iiqiiq", 7, (3 << 27) | 9, 1 << 40, 8, 1, 2)
    entry = entry_bytes(
        value=None, op=3, write=both, partition=5, counter=6, expires=7, flags=1, cache=-4
    )
    found = next(walk(kernel, data_segment([[entry]], time_ms=99)))
    assert (found.cache_id, found.operation, found.partition, found.counter) == (-4, 3, 5, 6)
    assert (found.expire_time_ms, found.primary, found.time_ms) == (7, True, 99)
    assert found.write_version == Version(7, 1 << 40, 9, 3)
    assert found.conflict_version == Version(8, 2, 1, 0)
    assert found.near_version is None
    assert found.key == (1, b"\x03\x01\0\0\0")
    assert found.key_bytes == b"\x03\x01\0\0\0"
    assert found.value is None
    assert found.value_bytes is None
    assert not found.has_value
    assert (found.offset, found.index) == (DATA_AT, 0)


@BOTH
def test_places_are_those_of_the_next_entry(kernel: Any) -> None:
    """Skipped entries count; at the end, the place is after the last data record."""
    told, loaded = entry_bytes(), entry_bytes(flags=2)
    data = data_segment([[told, loaded, told], [loaded]], more=[record_bytes(46, b"x")])
    second = DATA_AT + len(data_segment([[told, loaded, told]])) - DATA_AT
    found = walk(kernel, data)
    assert found.place == Place(0, DATA_AT, 0)
    assert next(found).index == 0
    assert found.place == Place(0, DATA_AT, 1)
    assert next(found).index == 2
    assert found.place == Place(0, second, 0)
    assert not found.is_drained
    assert next(found, None) is None
    end = second + len(data_segment([[loaded]])) - DATA_AT
    assert found.place == Place(0, end, 0)
    assert found.is_drained
    assert found.count == 4
    again = walk(kernel, data, begin=DATA_AT)
    assert again.skip(2) == 2
    assert next(again).index == 2
    assert again.skip(2) == 1


@BOTH
def test_a_segment_without_changes(kernel: Any) -> None:
    """The segment's place is after its last record, or missing."""
    data = data_segment([], more=[record_bytes(46, b"x")])
    assert walk(kernel, data).place == Place(0, len(data), 0)
    assert walk(kernel, data_segment([])).place is None
    assert walk(kernel, data + b"\0\0\0").place == Place(0, len(data), 0)
    assert list(walk(kernel, data + bytes([41]))) == []
    assert walk(kernel, b"").place is None


@BOTH
def test_changes_of_encrypted_caches_are_told(kernel: Any) -> None:
    """Each record of a real node is reported with its cache group; other changes are read."""
    (number, data), *_ = segments_of("forms")
    told: list[wal.Encrypted] = []
    found = kernel[0](
        data, number=number, name="0.wal", begin=0, decode=lambda raw, _: raw, kind=kernel[1],
        unreadable=told.append,
    )  # fmt: skip
    assert cache_id("hidden") not in {entry.cache_id for entry in found}
    assert found.unreadable == len(told) == 7
    assert {(one.kind, one.groups) for one in told} == {(71, (cache_id("hidden"),))}
    for one in told:
        record, _ = kernel[2](data, one.offset, number, wal.ENCRYPTED_DATA_KINDS, "0.wal")
        assert wal.read_encrypted(data, record) == one
        assert one.data == data[one.offset + 17 : one.offset + record.length_bytes - 4]
        assert b"hidden" not in one.data
    pages, _ = kernel[2](data, DATA_AT, number, wal.ENCRYPTED_KINDS, "0.wal")
    assert pages.kind == 63
    silent = walk(kernel, data, number=number)
    assert (silent.skip(99), silent.unreadable) == (found.count, 7)


def test_groups_of_encrypted_records() -> None:
    """Older forms are read as far as their groups are known, and no further."""
    entry = struct.pack("<Bii", 1, 5, 3)
    for kind, content, groups in (
        (53, (entry + b"abc") * 2 + struct.pack("<Bii", 1, 6, 0), (5, 6)),
        (64, entry + b"kabc" + struct.pack("<Bii", 1, 7, 1) + b"k.", (5, 7)),
        (71, entry + b"kabc" + b"\0" + entry_bytes(), (5,)),
        (71, struct.pack("<Bii", 1, 5, -9) + b"abc", ()),
        (71, struct.pack("<Bii", 2, 5, 0) + b"abc", ()),
        (71, b"", ()),
    ):
        data = data_segment([], more=[record_bytes(kind, struct.pack("<iq", 1, 9) + content)])
        found = wal.read_encrypted(data, Record(DATA_AT, len(data) - DATA_AT, kind))
        assert found.groups == groups


@BOTH
def test_the_state_of_a_node_that_was_active(kernel: Any) -> None:
    """The node's manager wrote records for the utility that takes over."""
    record = record_bytes(79, struct.pack("<qiii", 3, 700, 0, 2))
    data = data_segment([], more=[record_bytes(46, b""), record, record_bytes(80, b"")])
    found, end = kernel[2](data, DATA_AT, 0, wal.MANAGER_KINDS, "0.wal")
    assert found == Record(DATA_AT + 21, len(record_bytes(79, b"")) + 20, 79)
    assert wal.manager_place(data, found, "0.wal") == Place(3, 700, 2)
    stopped, end = kernel[2](data, end, 0, wal.MANAGER_KINDS, "0.wal")
    assert (stopped.kind, end) == (80, len(data))
    assert kernel[2](data, end, 0, wal.MANAGER_KINDS, "0.wal") == (None, len(data))
    with pytest.raises(WalBroken, match="a state record of another length"):
        wal.manager_place(data, stopped, "0.wal")
