"""Binary JSON: to the server's text, back to bytes, and partial updates."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from penstock.codec.mysql.binary_json import Opaque, double_text, encode_json, json_text, parse_json
from penstock.codec.mysql.json_diff import Diff, DiffKind, apply_diffs, parse_diffs, parse_path
from penstock.codec.mysql.malformed import Malformed


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0"), (-0.0, "-0.0"), (0.1, "0.1"), (1e14, "100000000000000.0"), (1e15, "1e15"),
        (1e16, "1e16"), (1e20, "1e20"), (1e100, "1e100"),
        (1e-5, "0.00001"), (1e-14, "0.00000000000001"),
        (1e-15, "0.000000000000001"), (1.5e-15, "0.0000000000000015"), (1.5e-16, "1.5e-16"),
        (5e-324, "5e-324"), (1.7976931348623157e308, "1.7976931348623157e308"),
        (1234567890123456.8, "1234567890123456.8"), (12345678901234568.0, "1.2345678901234568e16"),
        (1.23456789012345e17, "1.23456789012345e17"), (0.30000000000000004, "0.30000000000000004"),
        (-2.5e-7, "-0.00000025"),
    ],
)  # fmt: skip
def test_doubles_as_two_real_servers_print_them(value: float, text: str) -> None:
    """Doubles have the shortest digits, and an exponent only far from the point."""
    assert double_text(value) == text


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (None, "null"),
        ([], "[]"),
        ({}, "{}"),
        ([True, False, None, 1, -1, 2**64 - 1], "[true, false, null, 1, -1, 18446744073709551615]"),
        ({"b": 1, "aa": 2, "a": 3}, '{"a": 3, "b": 1, "aa": 2}'),
        ('\x00\x1f\b\f\n\r\t"\\/\x7fé\U0001f600',
         '"\\u0000\\u001f\\b\\f\\n\\r\\t\\"\\\\/\x7fé\U0001f600"'),
        (Opaque(15, b"\xca\xfe\0"), '"base64:type15:yv4A"'),
        (Opaque(246, b"\x0a\x04" + bytes.fromhex("7ffb2de9d1")), "-1234.5678"),
        ([[[1.5]]], "[[[1.5]]]"),
    ],
)  # fmt: skip
def test_trees_are_written_and_read(tree: Any, text: str) -> None:
    """Members are ordered by the length of their names, then by bytes."""
    assert json_text(encode_json(tree)) == text


def test_an_empty_value_is_null() -> None:
    """A column that ALTER set to NOT NULL may contain it."""
    assert json_text(b"") == "null"


def test_documents_of_the_small_form() -> None:
    """Their elements are inside their entries."""
    array = bytes((2,)) + struct.pack("<HH", 2, 10) + b"\5\xff\xff\4\1\0"
    assert json_text(array) == "[-1, true]"
    member = bytes((0,)) + struct.pack("<HHHHBH", 1, 12, 11, 1, 6, 65535) + b"k"
    assert json_text(member) == '{"k": 65535}'


def nest_arrays(depth: int) -> Any:
    """Return arrays in arrays."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "data",
    [
        b"\x0d",
        b"\x04\x03",
        b"\x04",
        b"\x05\x01",
        b"\x0b" + struct.pack("<d", float("nan")),
        b"\x0c\x05abc",
        b"\x0c\xff\xff\xff\xff\xff",
        b"\x0c\x01\xff",
        b"\x02\x01",
        bytes((2,)) + struct.pack("<HH", 1, 100) + b"\4\1\0",
        bytes((2,)) + struct.pack("<HH", 9, 7) + b"\4\1\0",
        bytes((2,)) + struct.pack("<HHBH", 1, 7, 2, 0),  # its own element
        bytes((0,)) + struct.pack("<HHHHBH", 1, 12, 11, 9, 6, 65535) + b"k",
        encode_json({"a": 1, "b": 2}).replace(b"b", b"a"),
        encode_json({"a": 1, "b": 2}).replace(b"b", b"A"),
        encode_json(nest_arrays(101)),
        encode_json(Opaque(246, b"\x0a\x04\0")),
        encode_json(Opaque(12, bytes(7))),
        encode_json(Opaque(12, b"\xff" * 8)),
        encode_json(Opaque(11, struct.pack("<q", 900 << 36))),
    ],
)
def test_broken_documents_are_refused(data: bytes) -> None:
    """Offsets that exceed it or form a cycle, names out of order, and depth are refused."""
    with pytest.raises(Malformed):
        json_text(data)


def test_the_deepest_document() -> None:
    """The document has a hundred levels, which is the servers' limit."""
    assert parse_json(encode_json(nest_arrays(100))) == nest_arrays(100)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("$", ()),
        ("$.a", ("a",)),
        ('$.a."two words"[3]', ("a", "two words", 3)),
        ('$."q\\"uote"', ('q"uote',)),
        ("$[0][10].x_1", (0, 10, "x_1")),
        ("$.日本", ("日本",)),
    ],
)
def test_paths(text: str, path: tuple[str | int, ...]) -> None:
    """Paths have names, quoted names and positions."""
    assert parse_path(text) == path


@pytest.mark.parametrize("text", ["", "a", "$.", "$[*]", "$.*", "$[", "$[last]", "$..a", '$."a'])
def test_paths_that_are_never_stored(text: str) -> None:
    """Such paths have wildcards or noise."""
    with pytest.raises(Malformed):
        parse_path(text)


def test_stored_changes() -> None:
    """The bytes are of a real update: replace $.a by 2, $.e by text."""
    data = bytes.fromhex("0003242e6103050200" + "0003242e65050c03737432")
    assert parse_diffs(data) == (
        Diff(kind=DiffKind.REPLACE, path=("a",), value=2),
        Diff(kind=DiffKind.REPLACE, path=("e",), value="st2"),
    )
    for end in (1, 3, 6, 8, 12):
        with pytest.raises(Malformed):
            parse_diffs(data[:end])
    with pytest.raises(Malformed):
        parse_diffs(b"\3" + data[1:])


def diff(kind: DiffKind, *path: str | int, value: Any = None) -> tuple[Diff, ...]:
    """Return one change."""
    return (Diff(kind=kind, path=path, value=value),)


def test_changes_are_applied() -> None:
    """Changes are applied in order, and the document before stays as it is."""
    before = {"a": [1, 2], "b": {"c": 1}}
    changed = apply_diffs(before, diff(DiffKind.REPLACE, "a", 0, value=9))
    changed = apply_diffs(changed, diff(DiffKind.INSERT, "a", 1, value="in"))
    changed = apply_diffs(changed, diff(DiffKind.INSERT, "a", 99, value="last"))
    changed = apply_diffs(changed, diff(DiffKind.INSERT, "b", "d", value=None))
    changed = apply_diffs(changed, diff(DiffKind.REMOVE, "b", "c"))
    assert changed == {"a": [9, "in", 2, "last"], "b": {"d": None}}
    assert before == {"a": [1, 2], "b": {"c": 1}}
    assert apply_diffs(before, diff(DiffKind.REPLACE, value=7)) == 7


@pytest.mark.parametrize(
    "change",
    [
        diff(DiffKind.REPLACE, "x", value=1),
        diff(DiffKind.REMOVE, "x"),
        diff(DiffKind.INSERT, "a", value=1),
        diff(DiffKind.REPLACE, "a", 5, value=1),
        diff(DiffKind.REMOVE, "a", 5),
        diff(DiffKind.REPLACE, "a", "b", value=1),
        diff(DiffKind.REPLACE, 0, value=1),
        diff(DiffKind.INSERT, "b", 0, value=1),
        diff(DiffKind.REPLACE, "x", "y", value=1),
        diff(DiffKind.REPLACE, "a", 7, "y", value=1),
    ],
)
def test_changes_for_another_document_are_refused(change: tuple[Diff, ...]) -> None:
    """The changes do not fit, so the known document is wrong."""
    with pytest.raises(Malformed):
        apply_diffs({"a": [1], "b": 2}, change)
