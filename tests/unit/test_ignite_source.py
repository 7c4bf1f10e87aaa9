"""An Ignite node's log as the source of a change log: rows, shapes, transactions, places."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.ignite.recordings import (
    cdc_of,
    data_segment,
    entry_bytes,
    files_of,
    seal_record,
    types_of,
    unpack_recording,
    walk_entries,
)
from harness.ignite.source import (
    extract,
    fold_rows,
    make_work_directory,
    near,
    number,
    plain,
    rows_of,
    source_pipeline,
    text,
)
from penstock.codec.ignite import marshal, wal
from penstock.codec.ignite.changes import changes_of
from penstock.codec.ignite.types import BinaryType, Types, cache_id
from penstock.codec.ignite.values import BinaryObject
from penstock.consume import CdcConsumer
from penstock.consume import run as run_consumer
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.config_text import ConfigOtherEngine
from penstock.control.pipeline.consumers import register_configured
from penstock.engines.ignite.commands import delete_below_hole
from penstock.engines.ignite.directory import open_directory
from penstock.engines.ignite.extraction import TimeZoneUnknown
from penstock.engines.ignite.source import node
from penstock.engines.ignite.source.node import CacheEncrypted, Lives, NodeSegmentsMissed
from penstock.engines.ignite.source.position import IgnitePosition
from penstock.engines.ignite.source.rows import KeyNotUsable, RowMaker
from penstock.engines.ignite.source.shapes import SCHEMA, Shapes
from penstock.engines.ignite.state import CdcState, DirectoryOfOtherLog
from penstock.engines.ignite.tables import read_captured
from penstock.log.layout import list_segments as files_in_log
from penstock.model.position import PositionInvalid
from penstock.ports.direct import LogPlace

CACHE = cache_id("words")
KERNELS = (marshal.decode, wal.wal_kernel()[:2])


def word(key: int, value: str | None, **more: Any) -> bytes:
    """Return an entry of the cache `words`."""
    more.setdefault("cache", CACHE)
    shown = None if value is None else text(value)
    return entry_bytes(key=number(key), value=shown, op=3 if value is None else 2, **more)


def last_values(name: str, node_name: str) -> dict[int, dict[bytes, Any]]:
    """Return the last entries of a recording by cache and marshalled key, of primary copies."""
    found: dict[int, dict[bytes, Any]] = {}
    for entry in walk_entries(name, KERNELS[1], KERNELS[0], node_name):
        if entry.primary:
            table = found.setdefault(entry.cache_id, {})
            table.pop(entry.key_bytes, None)
            if entry.has_value:
                table[entry.key_bytes] = entry
    return found


@pytest.mark.parametrize(
    ("recording", "node_name", "consistent_id"),
    [("one", "node_1", "node-1"), ("full", "node_1", "node-1"), ("two", "node_1", "node-1"),
     ("two", "node_2", "node-2")],
)  # fmt: skip
def test_what_the_log_leaves_is_what_the_entries_leave(
    tmp_path: Path, recording: str, node_name: str, consistent_id: str
) -> None:
    """Each cache is compared by row and field; the node was active at first."""
    work = unpack_recording(recording, tmp_path / "work")
    path = source_pipeline(tmp_path, work, consistent_id, tables='"*", "!place"')
    extract(path)
    tables = fold_rows(rows_of(load_config(path)))
    expected = last_values(recording, node_name)
    caches = {one.split("/")[2][6:] for one in files_of(recording) if f"db/{node_name}/c" in one}
    caches -= {"ignite-sys-cache", "place"}
    assert sum(len(expected.get(cache_id(one), {})) for one in caches) >= 12
    for cache in caches:
        entries = expected.get(cache_id(cache), {})
        rows = list(tables.get(cache, {}).values())
        assert len(rows) == len(entries), cache
        if cache in ("value", "shape"):
            continue  # mixed: see the next lines
        for entry, row in zip(entries.values(), rows, strict=True):
            seen = {name: plain(value) for name, value in row.items() if value is not None}
            wanted: dict[str, Any] = {}
            for side, value in (("_key", entry.key), ("_val", entry.value)):
                fields = dict(value) if isinstance(value, BinaryObject) else {side: value}
                wanted |= {k: plain(v) for k, v in fields.items() if v is not None}
            seen.pop("_expire_time", None)
            if cache == "typed":
                wanted["ID"] = wanted.pop("_key")
                wanted["DE"] = wanted["DE"] and str(wanted["DE"])
            assert seen == {k: v for k, v in wanted.items() if v is not None}, cache


def maker_of(types: Types, zone: str) -> RowMaker:
    """Return a maker of rows that keeps no learned shape."""
    files: Any = SimpleNamespace(save=lambda *_: None)
    return RowMaker(Shapes(files), types, zone=zone, backups=True)


@pytest.mark.parametrize("size", [1, 3, 20])
@pytest.mark.parametrize("pure", ["0", "1"])
def test_rows_read_at_once_are_those_of_decoded_values(
    monkeypatch: pytest.MonkeyPatch, size: int, pure: str
) -> None:
    """Rows are equal by cell, in the same versions of each table; most rows are read at once."""
    monkeypatch.setenv("PENSTOCK_PURE", pure)
    counts = {True: 0, False: 0}
    for recording, node_name in (("one", "node_1"), ("full", "node_1"), ("two", "node_2")):
        first, second = (maker_of(types_of(recording, node_name), "Europe/Berlin") for _ in "ab")
        decode = marshal.decoder(types_of(recording, node_name))
        read = first._plain.of

        def count_and_read(*given: Any, read: Any = read) -> Any:
            found = read(*given)
            counts[found is not None] += len(given[3])
            return found

        monkeypatch.setattr(first._plain, "of", count_and_read)
        monkeypatch.setattr(second._plain, "of", lambda *_: None)
        caches: dict[int, list[Any]] = {}
        for entry in walk_entries(recording, wal.wal_kernel(), marshal.decode, node_name):
            caches.setdefault(entry.cache_id, []).append(entry)
        caches.pop(cache_id("place"), None)
        for cache, entries in caches.items():
            for at in range(0, len(entries), size):
                some = entries[at : at + size]
                numbers = np.arange(len(some), dtype=np.int64)
                changes = changes_of(some, decode)
                made = first.rows(str(cache), changes, numbers, numbers)
                wanted = second.rows(str(cache), changes, numbers, numbers)
                assert made.relation == wanted.relation
                made.batch.validate(full=True)
                assert made.batch.equals(wanted.batch)
    if size < 20:
        assert counts[True] > 100
    assert counts[False] > 50  # the cache with a value of every type


def test_a_second_type_with_the_same_fields_is_not_taken_for_the_first() -> None:
    """The table gets a column for the type, as it does when each value is decoded."""
    types = {
        number: BinaryType(
            type_id=number,
            type_name=name,
            fields={"a": "int"},
            names={1: "a"},
            schemas={5: ("a",)},
        )
        for number, name in ((7, "First"), (8, "Second"))
    }
    maker = maker_of(Types(types.get), "UTC")
    names = []
    for type_id in (7, 7, 8, 8, 7):
        head = struct.pack("<BBHiiiii", 103, 1, 0x2B, type_id, 9, 30, 5, 29)
        value = head + b"\x03\x05\0\0\0\x18"
        data = data_segment([[entry_bytes(key=number(1), value=value, kind=100)]])
        walk = wal.Walk(data, number=0, name="0.wal", begin=0, decode=make_decoder(types))
        entries = changes_of(list(walk), make_decoder(types))
        numbers = np.arange(1, dtype=np.int64)
        after = maker.rows("c", entries, numbers, numbers).batch.column("after")[0].as_py()
        names.append(after.get("_type"))
    assert names == [None, None, "Second", "Second", "First"]


def make_decoder(types: dict[int, BinaryType]) -> Any:
    """Return the decoder for a walk."""
    known = Types(types.get)
    return lambda data, kind: marshal.decode(data, kind, known)


def test_columns_of_a_table_have_its_names_order_and_types(tmp_path: Path) -> None:
    """Columns are those of CREATE TABLE, with later additions."""
    work = unpack_recording("one", tmp_path / "work")
    path = source_pipeline(tmp_path, work, tables='"typed", "SQL_PUBLIC_*"')
    before = read_captured(load_config(path), dropped=())
    extract(path)
    relations = {row.table: row.relation for row in rows_of(load_config(path))}
    typed = relations["typed"]
    assert typed is not None
    assert [(one.name, one.source_type) for one in typed.columns][:5] == [
        ("ID", "int"), ("BO", "boolean"), ("TI", "tinyint"), ("SM", "smallint"), ("BI", "bigint"),
    ]  # fmt: skip
    assert {one.name: one.source_type for one in typed.columns}["DA"] == "date"
    keyed = relations["SQL_PUBLIC_KEYED"]
    assert keyed is not None
    assert [keyed.columns[at].name for at in keyed.key] == ["A", "B"]
    known = {one.name.name: one for one in before}
    assert [one.name for one in known["typed"].columns] == [one.name for one in typed.columns]
    assert known["typed"].primary_key == ("ID",)


def test_a_cache_that_was_made_again_begins_with_truncate(tmp_path: Path) -> None:
    """Rows of its first life do not belong to the second."""
    work = unpack_recording("one", tmp_path / "work")
    entries = [
        e for e in walk_entries("one", KERNELS[1], KERNELS[0]) if e.cache_id == cache_id("again")
    ]
    born_s = (entries[0].time_ms + entries[1].time_ms) / 2000
    os.utime(work / "db/node_1/cache-again/cache_data.dat", (born_s, born_s))  # unchanged, in ms
    path = source_pipeline(tmp_path, work, tables='"again"')
    extract(path)
    rows = rows_of(load_config(path))
    shown = [(row.op, row.values.get("_val")) for row in rows]
    assert shown == [
        ("U", "first life"),
        ("T", None),
        ("U", "second life"),
        ("U", "cleared before"),
    ]
    assert len({row.trx for row in rows}) == 4


def test_a_cache_whose_node_came_back_keeps_its_rows(tmp_path: Path) -> None:
    """The cache's files begin again there, yet the cache is the same."""
    work = unpack_recording("two", tmp_path / "work")
    path = source_pipeline(tmp_path, work, "node-2", source="includeBackups = true")
    extract(path)
    assert all(row.op != "T" for row in rows_of(load_config(path)))


def test_changes_of_a_transaction_are_one_where_its_last_is(tmp_path: Path) -> None:
    """Other transactions between its records come first; one over two segments is two."""
    first = data_segment(
        [
            [word(1, "a", near=near(7))],
            [word(2, "b", near=near(8))],
            [word(3, "c")],
            [word(4, "d", near=near(7))],
            [word(5, "e", near=near(8)), word(6, "f")],
            [word(7, "g", near=near(9))],
        ]
    )
    second = data_segment([[word(8, "h", near=near(9))]], number=1)
    path = source_pipeline(
        tmp_path, make_work_directory(tmp_path, {0: first, 1: second}, "words"), "n"
    )
    extract(path)
    rows = rows_of(load_config(path))
    assert [row.values["_key"] for row in rows] == [3, 1, 4, 2, 5, 6, 7, 8]
    assert [row.trx for row in rows] == [1, 2, 2, 3, 3, 4, 5, 6]


def test_a_piece_never_ends_inside_a_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the log is cut, reading resumes without loss or repetition."""
    monkeypatch.setattr(node, "PIECE_ENTRIES_MAX", 1)
    records = [[word(n, f"v{n}", near=near(n % 3 + 1) if n % 2 else b"\0")] for n in range(12)]
    work = make_work_directory(tmp_path, {0: data_segment(records)}, "words")
    path = source_pipeline(tmp_path, work, "n")
    extract(path, flush_rows=1)
    rows = rows_of(load_config(path))
    assert sorted(row.values["_key"] for row in rows) == list(range(12))
    trx = {row.values["_key"]: row.trx for row in rows}
    assert trx[1] == trx[7]
    assert trx[3] == trx[9]
    assert len(set(trx.values())) == 9


def test_a_log_goes_on_where_it_ends(tmp_path: Path) -> None:
    """The log continues in the middle of a segment, whatever was saved at the node."""
    segments = {n: data_segment([[word(n, f"v{n}")]], number=n) for n in range(4)}
    work = make_work_directory(tmp_path, {0: segments[0], 1: segments[1]}, "words")
    path = source_pipeline(tmp_path, work, "n")
    extract(path)
    state = CdcState(cdc_of(work, "n"))
    saved = state.load_place()
    assert saved == LogPlace(1, len(segments[1]), 0)
    assert [one.name for one in sorted(cdc_of(work, "n").glob("*.wal"))] == [f"{1:016}.wal"]
    state.save_place(LogPlace(0, 0, 0))  # like after a crash before it
    for n in (2, 3):
        (cdc_of(work, "n") / f"{n:016}.wal").write_bytes(segments[n])
    extract(path)
    assert [row.values["_key"] for row in rows_of(load_config(path))] == [0, 1, 2, 3]
    assert state.load_place() == LogPlace(3, len(segments[3]), 0)


def test_a_segment_is_there_until_the_log_has_it(tmp_path: Path) -> None:
    """Before a flush no segment is removed, and no state saved."""
    segments = {n: data_segment([[word(n, f"v{n}")]], number=n) for n in range(3)}
    work = make_work_directory(tmp_path, segments, "words")
    path = source_pipeline(tmp_path, work, "n")
    extract(path, stop=lambda: True)
    assert len(list(cdc_of(work, "n").glob("*.wal"))) == 3
    assert CdcState(cdc_of(work, "n")).load_place() is None


def test_a_hole_ends_the_extraction_before_what_is_behind_it(tmp_path: Path) -> None:
    """The error has the commands that continue after it."""
    segments = {n: data_segment([[word(n, "x")]], number=n) for n in (0, 2)}
    path = source_pipeline(tmp_path, make_work_directory(tmp_path, segments, "words"), "n")
    with pytest.raises(NodeSegmentsMissed) as error:
        extract(path)
    assert "penstock ignite delete-lost-segment-links" in error.value.hint
    assert "penstock ignite resend" in error.value.hint
    assert "[lastSegment=0, nextSegment=2]" in error.value.message
    assert files_in_log(load_config(path).layout.log) == []


def test_a_log_goes_on_behind_a_hole_that_was_accepted(tmp_path: Path) -> None:
    """The command that deletes segments below the gap deletes the saved state: that is the sign."""
    segments = {n: data_segment([[word(n, "x")]], number=n) for n in range(6)}
    work = make_work_directory(tmp_path, {0: segments[0]}, "words")
    path = source_pipeline(tmp_path, work, "n")
    extract(path)
    for n in (1, 4, 5):
        (cdc_of(work, "n") / f"{n:016}.wal").write_bytes(segments[n])
    with pytest.raises(NodeSegmentsMissed):
        extract(path)
    assert delete_below_hole(cdc_of(work, "n")) == [0, 1]
    extract(path)
    assert [row.values["_key"] for row in rows_of(load_config(path))] == [0, 4, 5]
    assert CdcState(cdc_of(work, "n")).load_place() == LogPlace(5, len(segments[5]), 0)


def test_a_log_without_saved_state_goes_on_where_it_ends(tmp_path: Path) -> None:
    """No segment is missing: this happens after a crash before the first save."""
    segments = {n: data_segment([[word(n, "x")]], number=n) for n in range(2)}
    work = make_work_directory(tmp_path, {0: segments[0]}, "words")
    path = source_pipeline(tmp_path, work, "n")
    extract(path)
    CdcState(cdc_of(work, "n")).drop_place()
    (cdc_of(work, "n") / f"{1:016}.wal").write_bytes(segments[1])
    extract(path)
    assert [row.values["_key"] for row in rows_of(load_config(path))] == [0, 1]


@pytest.mark.parametrize("saved", [None, LogPlace(0, 0, 0), LogPlace(1, 29, 0)])
def test_a_log_does_not_go_on_with_a_node_whose_disk_was_replaced(
    tmp_path: Path, saved: LogPlace | None
) -> None:
    """The new segments have the numbers of those that were read: none is removed unread.

    saved: the place that Ignite's own utility has saved meanwhile.
    """
    work = make_work_directory(
        tmp_path, {n: data_segment([[word(n, "x")]], number=n) for n in range(4)}, "words"
    )
    path = source_pipeline(tmp_path, work, "n")
    extract(path)
    shutil.rmtree(cdc_of(work, "n"))
    new = {n: data_segment([[word(n, "new")]], number=n) for n in range(3)}
    make_work_directory(tmp_path, new, "words")
    if saved is not None:
        CdcState(cdc_of(work, "n")).save_place(saved)
    with pytest.raises(DirectoryOfOtherLog, match="disk was replaced") as error:
        extract(path)
    assert "penstock reset" in error.value.hint
    assert len(list(cdc_of(work, "n").glob("*.wal"))) == 3
    assert CdcState(cdc_of(work, "n")).load_place() == saved


def test_a_replaced_disk_is_seen_before_its_first_segment(tmp_path: Path) -> None:
    """The extraction would otherwise wait until the numbers reach the previous ones."""
    work = make_work_directory(
        tmp_path, {n: data_segment([[word(n, "x")]], number=n) for n in range(4)}, "words"
    )
    path = source_pipeline(tmp_path, work, "n")
    extract(path)
    shutil.rmtree(cdc_of(work, "n"))
    make_work_directory(tmp_path, {}, "words")
    with pytest.raises(DirectoryOfOtherLog):
        extract(path)


def test_a_node_that_another_log_has_read_since_is_refused(tmp_path: Path) -> None:
    """Two pipelines that alternate on a node would each lose what the other one has read."""
    segments = {n: data_segment([[word(n, "x")]], number=n) for n in range(3)}
    work = make_work_directory(tmp_path, {0: segments[0]}, "words")
    paths = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        paths.append(source_pipeline(tmp_path / name, work, "n"))
        extract(paths[-1])
    (cdc_of(work, "n") / f"{1:016}.wal").write_bytes(segments[1])
    with pytest.raises(DirectoryOfOtherLog, match="belongs to change log"):
        extract(paths[0])
    assert (cdc_of(work, "n") / f"{1:016}.wal").exists()
    extract(paths[1])


def test_a_log_whose_next_segment_is_gone_does_not_go_on(tmp_path: Path) -> None:
    """Another reader has read the directory meanwhile, and saved its own state."""
    segments = {n: data_segment([[word(n, "x")]], number=n) for n in range(4)}
    work = make_work_directory(tmp_path, {0: segments[0]}, "words")
    path = source_pipeline(tmp_path, work, "n")
    extract(path)
    (cdc_of(work, "n") / f"{0:016}.wal").unlink()
    (cdc_of(work, "n") / f"{3:016}.wal").write_bytes(segments[3])
    CdcState(cdc_of(work, "n")).save_place(LogPlace(3, 0, 0))
    with pytest.raises(NodeSegmentsMissed):
        extract(path)


def test_backups_come_when_they_are_asked_for(tmp_path: Path) -> None:
    """A column says from which copy a row is."""
    data = data_segment([[word(1, "primary"), word(2, "backup", flags=0)]])
    work = make_work_directory(tmp_path, {0: data}, "words")
    path = source_pipeline(tmp_path, work, "n")
    extract(path)
    assert [row.values["_val"] for row in rows_of(load_config(path))] == ["primary"]
    more = tmp_path / "more"
    more.mkdir()
    work = make_work_directory(more, {0: data}, "words")
    path = source_pipeline(more, work, "n", source="includeBackups = true")
    extract(path)
    shown = [(row.values["_val"], row.values["_primary"]) for row in rows_of(load_config(path))]
    assert shown == [("primary", True), ("backup", False)]


def test_a_value_of_another_type_widens_its_column(tmp_path: Path) -> None:
    """The table gets a new version, and the log continues."""
    long, low = struct.pack("<Bq", 4, 2**40), struct.pack("<Bb", 1, -5)
    entries = [low, number(70_000), long, text("a word"), struct.pack("<Bd", 6, 0.5)]
    path = source_pipeline(tmp_path, make_work_directory(tmp_path, {}, "words"), "n")
    for n, value in enumerate(entries):
        data = data_segment([[entry_bytes(key=number(n), value=value, cache=CACHE)]], number=n)
        (cdc_of(tmp_path / "work", "n") / f"{n:016}.wal").write_bytes(data)
        extract(path)
    rows = rows_of(load_config(path))
    assert [row.values["_val"] for row in rows] == [-5, 70_000, 2**40, "a word", "0.5"]
    relations = [row.relation for row in rows if row.relation is not None]
    assert [one.version for one in relations] == [1, 2, 3, 4, 4]
    types = [{c.name: c.source_type for c in one.columns} for one in relations]
    assert [one["_val"] for one in types] == ["tinyint", "int", "bigint", "varchar", "varchar"]
    assert "_type" not in types[0]
    assert [row.values.get("_type") for row in rows] == [None, "int", "bigint", "varchar", "double"]
    assert next(c.missing for c in relations[1].columns if c.name == "_type") == "tinyint"


def test_versions_stay_when_nothing_changes(tmp_path: Path) -> None:
    """Versions stay the same over restarts."""
    path = source_pipeline(tmp_path, make_work_directory(tmp_path, {}, "words"), "n")
    for n in range(3):
        data = data_segment([[word(n, "x")]], number=n)
        (cdc_of(tmp_path / "work", "n") / f"{n:016}.wal").write_bytes(data)
        extract(path)
    assert {r.relation.version for r in rows_of(load_config(path)) if r.relation} == {1}


def test_a_key_that_is_no_tables_key_is_refused_by_its_name(tmp_path: Path) -> None:
    """The other caches continue without it."""
    work = unpack_recording("one", tmp_path / "work")
    with pytest.raises(KeyNotUsable) as error:
        extract(source_pipeline(tmp_path, work, tables='"place"'))
    assert '"!place"' in error.value.hint


def test_an_own_key_of_the_engine_is_refused_elsewhere(tmp_path: Path) -> None:
    """The error has its name, and the engine to which it belongs."""
    path = source_pipeline(tmp_path, tmp_path, source="includeBackups = true")
    path.write_text(path.read_text().replace(f"ignite://{tmp_path}", "postgresql://h/d"))
    with pytest.raises(ConfigOtherEngine):
        load_config(path)


def test_a_time_zone_that_there_is_not_is_refused(tmp_path: Path) -> None:
    """The zone is refused before anything is read."""
    work = make_work_directory(tmp_path, {}, "words")
    with pytest.raises(TimeZoneUnknown):
        extract(source_pipeline(tmp_path, work, "n", source='timeZone = "Europe/Atlantis"'))


def test_positions_are_segment_and_offset() -> None:
    """Positions are ordered, and parsed back from their text."""
    assert str(IgnitePosition(5 << 32 | 29)) == "5/29"
    assert IgnitePosition.parse("5/29").ordinal == 5 << 32 | 29
    for wrong in ("5", "5/", "/5", "a/1", "1/4294967296", "1/-1", "-1/1", "18446744073709551616/0"):
        with pytest.raises(PositionInvalid):
            IgnitePosition.parse(wrong)


def test_groups_that_were_made_are_found_in_their_place(tmp_path: Path) -> None:
    """Only the first tree of their indexes marks a new group."""
    first = struct.pack("<iq", 5, 2 << 48 | 0xFFFF << 32 | 2) + bytes(49)
    later = struct.pack("<iq", 5, 2 << 48 | 0xFFFF << 32 | 5) + bytes(49)
    data = data_segment([[word(1, "x")]])
    for body in (later, first):
        data += seal_record(struct.pack("<Bqii", 60, 0, len(data), 21 + len(body)) + body)
    at, found = 29, []
    while True:
        record, at = wal.wal_kernel()[2](data, at, 0, wal.TREE_KINDS, "x")
        if record is None:
            break
        found.append(wal.find_created_group(data, record))
    assert found == [None, 5]


def test_partitions_that_go_on_counting_are_those_of_before() -> None:
    """The configuration is young, as after ALTER TABLE, but the partitions are the earlier ones."""
    entries = [
        SimpleNamespace(cache_id=7, offset=at, time_ms=at, partition=part, counter=count)
        for at, part, count in ((10, 0, 1), (11, 1, 1), (30, 2, 1), (31, 0, 2))
    ]
    lives = Lives(made_ms=lambda _: 20)
    mark = (7, LogPlace(0, 25, 0))
    caches = {7: "words"}
    assert lives.find_recreated([mark], iter(entries), lambda _: caches) == []
    entries[-1].counter = 1
    assert lives.find_recreated([mark], iter(entries), lambda _: caches) == [("words", mark[1])]
    old = Lives(made_ms=lambda _: 5)
    assert old.find_recreated([mark], iter(entries), lambda _: caches) == []
    later = Lives(made_ms=lambda _: 20, start_ms=21)
    assert later.find_recreated([mark], iter(entries[2:]), lambda _: caches) == []


class Noted(CdcConsumer):
    """Consumer that notes events, and ends when no more events arrive."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self._idle = 0

    def alive(self) -> bool:
        """Return False when called for the third time since the last event."""
        self._idle += 1
        return self._idle < 3

    def on_events(self, events: Iterator[Any]) -> bool:
        """Note all events, and let the position be saved."""
        for event in events:
            self.seen.append((event.op, event.table, event.key[0].as_py(), event.source_xid))
            self._idle = 0
        return True


def test_a_consumer_reads_the_log_of_a_node(tmp_path: Path) -> None:
    """The consumer reads changes of the log with `direct = false`, not of the directory."""
    records = [[word(1, "a")], [word(2, "b", near=near(7))], [word(1, None)]]
    work = make_work_directory(tmp_path, {0: data_segment(records)}, "words")
    more = '[consumers.all]\nclass = "none:None"\ncheckFrequency = 20\ndirect = false\n'
    path = source_pipeline(tmp_path, work, "n", source=more)
    register_configured(load_config(path))
    extract(path)
    consumer = Noted()
    run_consumer(path, "all", consumer)
    table = f"{SCHEMA}.words"
    assert consumer.seen == [
        ("U", table, 1, 0), ("U", table, 2, 7), ("D", table, 1, 0),
    ]  # fmt: skip


def test_changes_of_an_encrypted_cache_are_no_silent_gap(tmp_path: Path) -> None:
    """The extraction ends with its name; without that cache the others continue."""
    work = unpack_recording("forms", tmp_path / "work")
    with pytest.raises(CacheEncrypted) as error:
        extract(source_pipeline(tmp_path, work))
    assert '"!hidden"' in error.value.hint
    path = source_pipeline(tmp_path, work, tables='"*", "!hidden"')
    extract(path)
    assert {row.table for row in rows_of(load_config(path))} == {"shown", "form"}


def test_from_every_end_of_a_piece_the_rest_comes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No piece ends in an open transaction: its first changes would not be read again."""
    monkeypatch.setattr(node, "PIECE_ENTRIES_MAX", 1)
    open_ones = {2: 7, 4: 7, 5: 8, 6: 8, 9: 9, 11: 9}
    records = [
        [word(n, f"v{n}", near=near(open_ones[n]) if n in open_ones else b"\0")] for n in range(14)
    ]
    work = make_work_directory(tmp_path, {0: data_segment(records)}, "words")

    def keys_from(place: LogPlace | None) -> list[tuple[list[int], LogPlace | None]]:
        reader = node.NodeReader(open_directory(f"ignite://{work}?consistentId=n"), takes=bool)
        reader.begin(place)
        found = list(reader.pieces())
        return [(one.entries.list_values("key") if one.entries else [], one.end) for one in found]

    pieces = keys_from(None)
    given: list[int] = []
    ends = 0
    for keys, end in pieces:
        given += keys
        if end is not None:
            ends += 1
            rest = [key for some, _ in keys_from(end) for key in some]
            assert sorted(given + rest) == list(range(14)), end
    assert 5 < ends < len(pieces)
