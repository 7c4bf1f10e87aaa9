"""Events of a segment: their fields, their order, and reading on after any of them."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.pipelines.consume import FULL, anything, is_full, write_segment
from harness.pipelines.log import (
    COMMIT_TIME_US,
    EVENT,
    ITEM,
    ITEM_2,
    SOURCE,
    Change,
    inserts,
    number_rows,
    run_of,
    transactions,
    truncate,
)
from penstock import ABSENT, read_log
from penstock.consume.events import CdcEvent, events_of
from penstock.consume.images import KeyNotSent
from penstock.consume.pieces import Piece
from penstock.log import Segment, Writer
from penstock.log.segment import LogFollower, SegmentOpener
from penstock.model import MarkerKind, Op, TableName

TOKEN = bytes(range(16))
KEYLESS = replace(FULL, name="keyless", key=(), source_id=8)


def pieces(
    segment: Segment,
    *,
    takes: Callable[[TableName], bool] = anything,
    gsn_after: int = 0,
    entries_after: int = 0,
    keep_binary: bool = False,
) -> list[tuple[Piece, list[CdcEvent]]]:
    """Return the pieces with their events."""
    found = events_of(
        segment,
        takes=takes,
        gsn_after=gsn_after,
        entries_after=entries_after,
        keep_binary=keep_binary,
    )
    return [(piece, list(piece.events)) for piece in found]


def events(segment: Segment, **options: Any) -> list[CdcEvent]:
    """Return all events."""
    return [event for _, found in pieces(segment, **options) for event in found]


def describe_event(event: CdcEvent) -> tuple[Any, ...]:
    """Return what an event says of its row."""
    value = None if event.value is None else dict(event.value)
    before = None if event.before is None else dict(event.before)
    return event.op, event.gsn, event.key, value, before, event.absent


def test_an_event_says_what_happened(tmp_path: Path) -> None:
    """Inserts, updates with unsent columns, and deletes have key, value, image, absent columns."""
    groups = [
        [Change(relation=ITEM, op=Op.INSERT, after=(1, None))],
        [Change(relation=ITEM, op=Op.UPDATE, after=(1, None), absent=b"\x02")],
        [Change(relation=ITEM, op=Op.DELETE, after=None, before=(1,))],
    ]
    with write_segment(tmp_path, groups) as segment:
        found = events(segment)
    assert [describe_event(event) for event in found] == [
        ("I", 1, (1,), {"id": 1, "note": None}, None, frozenset()),
        ("U", 2, (1,), {"id": 1}, None, frozenset({"note"})),
        ("D", 3, (1,), None, {"id": 1}, frozenset({"note"})),
    ]
    event = found[1]
    assert event.value is not None
    with pytest.raises(KeyError):
        event.value["note"]  # never an invented value
    assert (event.table, event.cache_id, event.trx, event.position) == ("public.item", 1, 2, 200)
    assert (event.source_xid, event.partition, event.primary, event.expire_time) == (702, 0, 1, 0)
    moment = datetime.datetime(2023, 11, 14, 22, 13, 20, 2, datetime.UTC)
    assert (event.commit_time, event.version, event.resent) == (moment, 2, False)
    assert repr(event) == "CdcEvent(U public.item gsn=2)"
    assert repr(event.value) == "{'id': 1}"
    assert found[0].version < event.version


def test_values_are_python_objects_or_as_they_are_in_the_log(tmp_path: Path) -> None:
    """Every type is checked in both modes; bytes and uuids are raw if they are kept."""
    change = Change(
        relation=EVENT, op=Op.INSERT, after=(COMMIT_TIME_US, b"\x00\xff", True, 0.5, 0, TOKEN)
    )
    price = Change(relation=ITEM_2, op=Op.INSERT, after=(3, "", Decimal("-0.05")))
    empty = Change(relation=EVENT, op=Op.INSERT, after=(None,) * 6)
    with write_segment(tmp_path, [[change, price, empty]]) as segment:
        plain = [event.value for event in events(segment)]
        kept = [event.value for event in events(segment, keep_binary=True)]
    moment = datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC)
    assert plain == [
        {
            **{"at": moment, "data": b"\x00\xff", "ok": True, "ratio": 0.5},
            **{
                "day": datetime.date(1970, 1, 1),
                "token": "00010203-0405-0607-0809-0a0b0c0d0e0f",
            },
        },
        {"id": 3, "note": "", "price": Decimal("-0.05")},
        dict.fromkeys(column.name for column in EVENT.columns),
    ]
    assert kept[0] == {
        "at": pa.scalar(COMMIT_TIME_US, pa.timestamp("us", "UTC")),
        "data": b"\x00\xff",
        "ok": pa.scalar(True),
        "ratio": pa.scalar(0.5),
        "day": pa.scalar(0, pa.date32()),
        "token": TOKEN,
    }
    assert kept[1] == {
        "id": pa.scalar(3, pa.int32()),
        "note": pa.scalar(""),
        "price": pa.scalar(Decimal("-0.05"), pa.decimal128(12, 2)),
    }
    assert kept[2] is not None
    assert kept[2]["token"] is None
    assert not kept[2]["ok"].is_valid


def test_a_key_that_changes_is_a_row_that_goes_and_one_that_comes(tmp_path: Path) -> None:
    """There are two events, the first with value None. An update with an unchanged key is one
    event.
    """
    groups = [
        [Change(relation=ITEM, op=Op.UPDATE, after=(2, "x"), before=(1,))],
        [Change(relation=FULL, op=Op.UPDATE, after=(2, "y"), before=(2, "x"))],
        [Change(relation=FULL, op=Op.UPDATE, after=(3, None), before=(2, "y"), absent=b"\x02")],
        [Change(relation=FULL, op=Op.UPDATE, after=(None, "y"), before=(3, "y"), absent=b"\x01")],
    ]
    with write_segment(tmp_path, groups) as segment:
        found = [describe_event(event) for event in events(segment)]
    assert found == [
        ("D", 1, (1,), None, {"id": 1}, frozenset({"note"})),
        ("I", 1, (2,), {"id": 2, "note": "x"}, {"id": 1}, frozenset()),
        ("U", 2, (2,), {"id": 2, "note": "y"}, {"id": 2, "note": "x"}, frozenset()),
        ("D", 3, (2,), None, {"id": 2, "note": "y"}, frozenset()),
        ("I", 3, (3,), {"id": 3}, {"id": 2, "note": "y"}, frozenset({"note"})),
        ("U", 4, (3,), {"note": "y"}, {"id": 3, "note": "y"}, frozenset({"id"})),
    ]


def test_a_changed_key_has_two_numbers(tmp_path: Path) -> None:
    """The deleted row has the number before the row's own; other rows have one number."""
    groups = [
        [Change(relation=ITEM, op=Op.UPDATE, after=(2, "x"), before=(1,)), *inserts(1, FULL)],
        [Change(relation=FULL, op=Op.UPDATE, after=(2, "y"), before=(2, "x"))],
        [Change(relation=FULL, op=Op.UPDATE, after=(3, None), before=(2, "y"), absent=b"\x02")],
    ]
    with write_segment(tmp_path, groups, keys_have_two=True) as segment:
        found = [describe_event(event) for event in events(segment)]
        taken = [event.gsn for event in events(segment, takes=is_full)]
        (last, _) = pieces(segment)[-1]
    assert found == [
        ("D", 1, (1,), None, {"id": 1}, frozenset({"note"})),
        ("I", 2, (2,), {"id": 2, "note": "x"}, {"id": 1}, frozenset()),
        ("I", 3, (0,), {"id": 0, "note": "note 0"}, None, frozenset()),
        ("U", 4, (2,), {"id": 2, "note": "y"}, {"id": 2, "note": "x"}, frozenset()),
        ("D", 5, (2,), None, {"id": 2, "note": "y"}, frozenset()),
        ("I", 6, (3,), {"id": 3}, {"id": 2, "note": "y"}, frozenset({"note"})),
    ]
    assert (taken, last.gsn_end) == ([3, 4, 5, 6], 6)
    assert [(change.gsn, change.op) for change in read_log(tmp_path)] == [
        (2, "update"),
        (3, "insert"),
        (4, "update"),
        (6, "update"),
    ]


def test_a_table_is_emptied_in_front_of_both_rows_of_a_changed_key(tmp_path: Path) -> None:
    """The marker's gsn is that of the previous row, not one of the two."""
    changed = Change(relation=ITEM, op=Op.UPDATE, after=(2, "x"), before=(1,))
    markers = [truncate(1, 1, "full"), truncate(3, 1, "item")]
    groups = [[*inserts(1), changed, *inserts(1)]]
    with write_segment(tmp_path, groups, *markers, keys_have_two=True) as segment:
        found = [
            (len(piece.markers_before), [event.gsn for event in events], piece.gsn_end)
            for piece, events in pieces(segment)
        ]
        assert list(segment.in_order())[1] == markers[0]
        assert list(segment.in_order())[3] == markers[1]
    assert found == [(0, [1], 1), (1, [2, 3], 3), (1, [4], 4)]


def test_without_a_key_all_columns_are_the_key(tmp_path: Path) -> None:
    """An update is then a delete and an insert, unless all values are equal."""
    groups = [
        [Change(relation=KEYLESS, op=Op.INSERT, after=(1, None))],
        [Change(relation=KEYLESS, op=Op.UPDATE, after=(1, None), before=(1, None))],
        [Change(relation=KEYLESS, op=Op.UPDATE, after=(1, "x"), before=(1, None))],
        [Change(relation=KEYLESS, op=Op.DELETE, after=None, before=(1, "x"))],
    ]
    with write_segment(tmp_path, groups) as segment:
        found = [(event.op, event.key) for event in events(segment)]
    assert found == [
        ("I", (1, None)),
        ("U", (1, None)),
        ("D", (1, None)),
        ("I", (1, "x")),
        ("D", (1, "x")),
    ]


def test_nan_is_the_same_key_and_zeros_are_one(tmp_path: Path) -> None:
    """A key of floats changes if an index would say so."""
    ratio = replace(ITEM.columns[0], name="ratio", neutral="float64")
    shape = replace(KEYLESS, name="ratios", columns=(ratio,), before=(0,))
    nan = float("nan")
    images = [(nan, nan), (0.0, -0.0), (1.0, 2.0), (None, 1.0)]
    groups = [
        [Change(relation=shape, op=Op.UPDATE, after=(a,), before=(b,)) for a, b in images],
    ]
    with write_segment(tmp_path, groups) as segment:
        assert [event.op for event in events(segment)] == ["U", "U", "D", "I", "D", "I"]


def test_a_key_that_was_not_sent_is_an_error_not_a_value(tmp_path: Path) -> None:
    """A consumer that does not ask for the key gets the event."""
    bare = replace(ITEM, before=())
    groups = [
        [Change(relation=bare, op=Op.DELETE, after=None, before=())],
        [Change(relation=ITEM, op=Op.UPDATE, after=(None, "x"), absent=b"\x01")],
    ]
    with write_segment(tmp_path, groups) as segment:
        gone, changed = events(segment)
    for event in (gone, changed):
        with pytest.raises(KeyNotSent) as error:
            event.key  # noqa: B018 - raises
        assert "public.item" in error.value.hint
    assert (changed.value, gone.absent) == ({"note": "x"}, {"id", "note"})


def test_tables_interleave_in_the_order_of_the_log(tmp_path: Path) -> None:
    """Rows of one run are in a frame per table, yet events are in gsn order."""
    changes = [
        *(Change(relation=ITEM, op=Op.INSERT, after=(n, "x")) for n in range(3)),
        *(Change(relation=FULL, op=Op.INSERT, after=(n, "y")) for n in range(3)),
    ]
    mixed = [change for pair in zip(changes[:3], changes[3:], strict=True) for change in pair]
    with write_segment(tmp_path, [mixed, mixed[::-1]]) as segment:
        found = [(event.gsn, event.table) for event in events(segment)]
        taken = [(event.gsn, event.table) for event in events(segment, takes=is_full)]
    names = [change.relation.full_name for change in (*mixed, *mixed[::-1])]
    assert found == list(enumerate(names, 1))
    assert taken == [pair for pair in found if pair[1] == "public.full"]


def test_what_is_filtered_out_is_not_read_and_moves_the_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames of other tables are not read; the piece ends after them."""
    with write_segment(tmp_path, [inserts(2), inserts(1, FULL), inserts(3)]) as segment:
        read: list[int] = []
        original = Segment.read_rows
        monkeypatch.setattr(
            Segment, "read_rows", lambda self, entry: read.append(1) or original(self, entry)
        )
        ((piece, found),) = pieces(segment, takes=is_full)
        assert [event.gsn for event in found] == [3]
        assert (piece.gsn_end, piece.events.gsn_read, len(read)) == (6, 6, 1)
        ((piece, found),) = pieces(segment, takes=lambda _: False)
        assert (found, piece.gsn_end, piece.events.gsn_read, len(read)) == ([], 6, 6, 1)


def test_markers_come_between_their_rows(tmp_path: Path) -> None:
    """TRUNCATE and RELOAD of all tables come after their row and before the next one."""
    heartbeat = replace(truncate(1, 1), kind=MarkerKind.HEARTBEAT, tables=())
    markers = [truncate(2, 1, "item"), truncate(2, 1, "full", "item"), truncate(1, 1, "full")]
    last = truncate(4, 1, "item")
    with write_segment(tmp_path, [inserts(4)], heartbeat, *markers, last) as segment:
        found = pieces(segment)
        assert [
            (len(piece.markers_before), [event.gsn for event in events], piece.gsn_end)
            for piece, events in found
        ] == [(0, [1], 1), (1, [2], 2), (2, [3, 4], 4), (1, [], 4)]
        assert found[2][0].markers_before == tuple(markers[:2])
        behind = pieces(segment, gsn_after=2)
        assert [(len(p.markers_before), len(e)) for p, e in behind] == [(2, 2), (1, 0)]
        only = pieces(segment, takes=is_full)
        assert [(len(p.markers_before), p.gsn_end) for p, _ in only] == [
            (0, 1),
            (1, 2),
            (2, 4),
            (1, 4),
        ]


def test_rows_of_a_reload_are_said_to_be_resent(tmp_path: Path) -> None:
    """Later rows of the transaction in its table are resent, also if reading begins among them."""
    reload = replace(truncate(1, 1, "item"), kind=MarkerKind.RELOAD)
    groups = [[*inserts(3), *inserts(1, FULL)], inserts(1)]
    with write_segment(tmp_path, groups, reload) as segment:
        assert [e.resent for e in events(segment)] == [False, True, True, False, False]
        assert [e.resent for e in events(segment, gsn_after=2)] == [True, False, False]


def test_an_event_outlives_its_segment(tmp_path: Path) -> None:
    """A consumer that collects events may read their fields later."""
    with write_segment(tmp_path, [inserts(2), inserts(1)]) as segment:
        found = events(segment)
    assert [(event.position, event.key, event.source_xid) for event in found] == [
        (100, (0,), 701),
        (100, (1,), 701),
        (200, (0,), 702),
    ]


def test_the_open_segment_is_read_as_far_as_it_is_durable(tmp_path: Path) -> None:
    """Each look reads further."""
    first, second = number_rows([inserts(2), inserts(3)])
    follower, opener = LogFollower(tmp_path / "log"), SegmentOpener()

    def look() -> tuple[list[int], int]:
        found = follower.find(number=0, trx_after=0)
        assert found is not None
        with opener.open(found) as segment:
            ((piece, events),) = pieces(segment)
            return [event.gsn for event in events], piece.gsn_end

    with Writer.open(tmp_path / "log", log_id=None, source=SOURCE) as log:
        log.write(run_of(first))
        log.flush()
        assert look() == ([1, 2], 2)
        log.write(run_of(second))
        assert look() == ([1, 2], 2)
        log.flush()
        assert look() == ([1, 2, 3, 4, 5], 5)
    follower.close()


def test_an_iterator_that_is_left_says_where(tmp_path: Path) -> None:
    """gsn_read is that of the last returned event; the half of a key change is counted."""
    groups = [[*inserts(2), Change(relation=ITEM, op=Op.UPDATE, after=(9, "x"), before=(1,))]]
    with write_segment(tmp_path, groups) as segment:
        (piece,) = events_of(segment, takes=anything, gsn_after=0, keep_binary=False)
        places = [piece.events.place_read]
        for _ in piece.events:
            places.append(piece.events.place_read)
        assert places == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0)]
        assert piece.events.is_drained
        ((_, rest),) = pieces(segment, gsn_after=2, entries_after=1)
        assert [(event.op, event.key) for event in rest] == [("I", (9,))]
    with write_segment(tmp_path / "two", groups, keys_have_two=True) as segment:
        (piece,) = events_of(segment, takes=anything, gsn_after=0, keep_binary=False)
        places = [(event.gsn, piece.events.place_read) for event in piece.events]
        assert places == [(n, (n, 0)) for n in (1, 2, 3, 4)]
        ((_, rest),) = pieces(segment, gsn_after=3)
        assert [(event.op, event.key) for event in rest] == [("I", (9,))]


@given(transactions(), st.booleans())
def test_events_are_the_changes_of_the_log(tmp_path_factory: Any, groups: Any, two: bool) -> None:
    """Each event says what `read_log` says of its change, whatever the log contains."""
    folder = tmp_path_factory.mktemp("log")
    with write_segment(folder, groups, keys_have_two=two) as segment:
        found = events(segment)
        own = [int(event.frame.gsns[event.row]) for event in found]
    changes = {change.gsn: change for change in read_log(folder)}
    assert list(dict.fromkeys(own)) == list(changes)
    if two:
        assert sorted({event.gsn for event in found}) == [event.gsn for event in found]
    for event, gsn in zip(found, own, strict=True):
        change = changes[gsn]
        row = {n: v for n, v in (change.row or {}).items() if v is not ABSENT}
        before = {n: v for n, v in (change.before or {}).items() if v is not ABSENT}
        assert event.table == change.table
        assert (event.trx, event.position, event.commit_time) == (
            change.trx,
            change.position,
            change.commit_time,
        )
        assert event.value in (None, row)
        assert (event.value is None) == (event.op == "D")
        assert (event.before or {}) == before
    for gsn, same in itertools.groupby(zip(own, found, strict=True), lambda pair: pair[0]):
        said = [(event.op, event.gsn) for _, event in same]
        letter = changes[gsn].op[0].upper()
        halves = [("D", gsn - two), ("I", gsn)]
        assert said in ([[("U", gsn)], halves] if letter == "U" else [[(letter, gsn)]])


@given(transactions(max_size=4), st.booleans())
def test_reading_goes_on_behind_any_event(tmp_path_factory: Any, groups: Any, two: bool) -> None:
    """Stopped after any number of events and resumed there, it neither misses nor repeats one."""
    with write_segment(tmp_path_factory.mktemp("log"), groups, keys_have_two=two) as segment:
        whole = [(event.op, event.gsn) for event in events(segment)]
        for count in range(len(whole) + 1):
            (piece,) = events_of(segment, takes=anything, gsn_after=0, keep_binary=False)
            front = [(event.op, event.gsn) for event in itertools.islice(piece.events, count)]
            gsn, entries = piece.events.place_read
            assert not (two and entries)
            rest = events(segment, gsn_after=gsn, entries_after=entries)
            assert [*front, *((event.op, event.gsn) for event in rest)] == whole
