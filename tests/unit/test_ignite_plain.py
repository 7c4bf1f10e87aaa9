"""Columns that are read from bytes at once equal those of values that are decoded one by one."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.ignite.recordings import data_segment, entry_bytes
from harness.ignite.source import number, text
from penstock.codec.ignite import marshal, wal
from penstock.codec.ignite.changes import Changes, changes_of
from penstock.codec.ignite.types import BinaryType, Types
from penstock.engines.ignite.source.rows import KeyNotUsable, RowMaker
from penstock.engines.ignite.source.shapes import OF_VALUE, DeclaredColumn, Shapes

ZONE = "Europe/Berlin"
TYPES = {
    type_id: BinaryType(
        type_id=type_id,
        type_name=name,
        fields={"a": "int"},
        names={1: "a"},
        schemas={5: ("a",)},
    )
    for type_id, name in ((7, "First"), (8, "Second"))
}


def item(type_id: int, value: int) -> bytes:
    """Return a marshalled object with one field."""
    head = struct.pack("<BBHiiiii", 103, 1, 0x2B, type_id, 9, 30, 5, 29)
    return head + struct.pack("<Bi", 3, value) + b"\x18"


def maker_of(*declared: DeclaredColumn, backups: bool) -> RowMaker:
    """Return a maker of rows that keeps no learned shape."""
    files: Any = SimpleNamespace(save=lambda *_: None)
    shapes = Shapes(files, declared=lambda _: declared)
    return RowMaker(shapes, Types(TYPES.get), zone=ZONE, backups=backups)


def changes_in(*entries: bytes) -> Changes:
    """Return entries as the log has them."""
    known = Types(TYPES.get)

    def decode(data: bytes, kind: int) -> Any:
        return marshal.decode(data, kind, known)

    data = data_segment([list(entries)])
    walk = wal.Walk(data, number=0, name="0.wal", begin=0, decode=decode)
    return changes_of(list(walk), decode)


def check_alike(*batches: list[bytes], declared: tuple[DeclaredColumn, ...] = ()) -> list[Any]:
    """Make rows of some batches in both ways and return them. Both may refuse a key."""
    fast, slow = (maker_of(*declared, backups=True) for _ in "ab")
    slow._plain.of = lambda *_: None  # type: ignore[method-assign]
    rows: list[Any] = []
    for batch in batches:
        changes = changes_in(*batch)
        numbers = np.arange(len(batch), dtype=np.int64)
        try:
            wanted = slow.rows("c", changes, numbers, numbers)
        except KeyNotUsable:
            with pytest.raises(KeyNotUsable):
                fast.rows("c", changes, numbers, numbers)
            return rows
        found = fast.rows("c", changes, numbers, numbers)
        assert found.relation == wanted.relation
        found.batch.validate(full=True)
        assert found.batch.equals(wanted.batch)
        rows += found.batch.column("after").to_pylist()
    return rows


INT = number(5)
LONG = struct.pack("<Bq", 4, 1 << 40)
DATE = struct.pack("<Bq", 11, 1_767_323_045_678)
LATE = struct.pack("<Bq", 11, 1 << 60)  # a year that Python does not have


@pytest.mark.parametrize("pure", ["0", "1"])
@pytest.mark.parametrize(
    "batches",
    [
        [{"value": INT}, {"value": INT}, {"value": LONG}, {"value": INT}],
        [{"value": text("a")}, {"value": text("b")}, {"value": INT}, {"value": text("c")}],
        [{"value": INT}, {"value": INT}, {"value": item(7, 1), "kind": 100}],
        [{"value": item(7, 1), "kind": 100}] * 2 + [{"value": INT}] * 2
        + [{"value": item(7, 2), "kind": 100}] * 2,
        [{"value": item(7, 1), "kind": 100}] * 2 + [{"value": item(8, 1), "kind": 100}] * 2,
        [{"value": INT}, {"value": INT, "key": LONG}, {"value": INT, "key": LONG}],
        [{"value": INT}] * 2 + [{"value": INT, "key": item(7, 1)}],
        [{"value": INT}] * 2 + [{"value": INT, "expires": 9_000}, {"value": INT}] * 2,
        [{"value": INT}] * 2 + [{"value": None, "op": 3}] * 2 + [{"value": INT}],
        [{"value": DATE}] * 3 + [{"value": text("x")}] * 2,
        [{"value": DATE}] * 3 + [{"value": LATE}] * 2 + [{"value": DATE}],
        [{"value": INT}] * 3 + [{"value": INT, "flags": 0}] * 2,
    ],
)  # fmt: skip
def test_what_is_new_is_left_to_the_decoder(
    monkeypatch: pytest.MonkeyPatch, pure: str, batches: list[dict[str, Any]]
) -> None:
    """New are another kind of key or value, another type, an expiry, and a removal."""
    monkeypatch.setenv("PENSTOCK_PURE", pure)
    check_alike(*([entry_bytes(**one)] for one in batches))


def test_entries_that_expire_and_others_are_told_from_one_another() -> None:
    """NULL stands for an entry that never expires."""
    entry = [entry_bytes(value=INT, expires=9_000), entry_bytes(value=INT)]
    rows = check_alike(entry, entry, entry)
    assert [row["_expire_time"] is None for row in rows] == [False, True] * 3


def test_a_text_that_is_longer_than_its_column_widens_it() -> None:
    """The column is widened even if all earlier values were read at once."""
    column = DeclaredColumn(name="_val", side=OF_VALUE, field="", kind="varchar(3)")
    batches = [[entry_bytes(value=text(one))] for one in ("a", "abc", "äöü", "abcd", "e")]
    rows = check_alike(*batches, declared=(column,))
    assert [row["_val"] for row in rows] == ["a", "abc", "äöü", "abcd", "e"]


VALUES = st.sampled_from(
    [
        {"value": INT}, {"value": LONG}, {"value": text("a")}, {"value": text("längere")},
        {"value": DATE}, {"value": item(7, 3), "kind": 100}, {"value": item(8, 4), "kind": 100},
        {"value": None, "op": 3}, {"value": INT, "expires": 9_000},
    ]
)  # fmt: skip
KEYS = st.sampled_from([{"key": number(1)}, {"key": number(2)}, {"key": LONG}])


@given(batches=st.lists(st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=5), max_size=6))
@settings(deadline=None)
def test_any_batches_are_read_alike(
    batches: list[list[tuple[dict[str, Any], dict[str, Any]]]],
) -> None:
    """The batches are mixed at random."""
    check_alike(*([entry_bytes(**key, **value) for key, value in batch] for batch in batches))
