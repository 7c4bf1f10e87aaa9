"""Rows of a scan in a shape that does not grow, and the current end of a node's log."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from harness.ignite.recordings import segments_of, types_of, unpack_recording
from penstock.codec.errors import CellUnfit
from penstock.codec.ignite import marshal
from penstock.codec.ignite.changes import changes_of
from penstock.codec.ignite.types import BinaryType, Types, cache_id
from penstock.codec.lines import LineDialect
from penstock.engines.ignite.bulk_reader import ChunkScan, IgniteReader, RowUnfit, ScannedLines
from penstock.engines.ignite.directory import Segment, open_directory
from penstock.engines.ignite.handover import capture
from penstock.engines.ignite.planner import _ranges
from penstock.engines.ignite.source.node import node_end
from penstock.engines.ignite.source.position import IgnitePosition, position_of
from penstock.engines.ignite.source.read_plan import ColumnRead, Exact
from penstock.engines.ignite.source.rows import RowMaker
from penstock.engines.ignite.source.scan import FixedRows, InMemory, ScanEntry, ShapeUnfit
from penstock.engines.ignite.source.shapes import KeptShape, Shapes
from penstock.engines.ignite.url import IgniteUrl
from penstock.ports.direct import LogPlace

CACHE = "words"
NUMBER = cache_id(CACHE)


def number(value: int) -> bytes:
    """Return an int."""
    return b"\x03" + struct.pack("<i", value)


def text(value: str) -> bytes:
    """Return a string."""
    return b"\x09" + struct.pack("<i", len(value)) + value.encode()


def entry(key: bytes, value: bytes, types: Types) -> ScanEntry:
    """Return the entry of a page for a key."""
    kind = marshal.OBJECT if value[0] == marshal.OBJ else marshal.REGULAR
    return ScanEntry(NUMBER, (marshal.REGULAR, key, kind, value), marshal.decoder(types))


def learn_shape(entries: list[ScanEntry], types: Types) -> KeptShape:
    """Return the shape that holds these entries."""
    shapes = Shapes(files=InMemory())
    zeros = np.zeros(len(entries), np.int64)
    RowMaker(shapes, types, zone="UTC", backups=False).rows(
        CACHE, changes_of(entries, marshal.decoder(types)), zeros, zeros
    )
    return shapes.all_kept()[CACHE]


def fix_rows(kept: KeptShape, types: Types, *, skips: bool) -> FixedRows:
    """Return rows of these entries in that shape."""
    order = [one.name for one in kept.columns]
    return FixedRows(CACHE, kept, types, order=order, zone="UTC", backups=False, skips=skips)


def values_of(parts: list[list[Any]]) -> list[tuple[Any, ...]]:
    """Return the rows of columns."""
    return [row for part in parts for row in zip(*(one.to_pylist() for one in part), strict=True)]


def test_rows_without_a_place_are_left_to_the_log() -> None:
    """One row among many has another type: the others are each read once, and the shape stays."""
    types = Types()
    entries = [entry(number(at), text(f"w{at}"), types) for at in range(40)]
    kept = learn_shape(entries, types)
    before = msgspec.json.encode(kept)
    entries[13] = entry(number(13), number(7), types)
    entries[39] = entry(text("a key"), text("x"), types)
    rows = fix_rows(kept, types, skips=True)
    found = values_of(rows.columns(entries))
    assert found == [(at, f"w{at}") for at in range(39) if at != 13]
    assert rows.skipped == 2
    assert msgspec.json.encode(kept) == before
    with pytest.raises(ShapeUnfit):
        fix_rows(kept, types, skips=False).columns(entries)


def person(type_id: int, schema: int, fields: bytes, places: list[int]) -> bytes:
    """Return a binary object with a compact footer."""
    length = 24 + len(fields) + len(places)
    head = struct.pack("<BBHiiiii", 103, 1, 0x2B, type_id, 0, length, schema, 24 + len(fields))
    return head + fields + bytes(places)


def test_a_field_that_was_added_counts_when_it_has_a_value() -> None:
    """Rows without the field are read too, wherever they are."""
    first = BinaryType(
        type_id=7, type_name="P", fields={"a": "int"}, names={1: "a"}, schemas={5: ("a",)}
    )
    later = BinaryType(
        type_id=7,
        type_name="P",
        fields={"a": "int", "b": "int"},
        names={1: "a", 2: "b"},
        schemas={5: ("a",), 6: ("a", "b")},
    )
    plain = person(7, 5, number(1), [24])
    kept = learn_shape([entry(number(1), plain, Types({7: first}.get))], Types({7: first}.get))
    types = Types({7: later}.get)
    rows = fix_rows(kept, types, skips=True)
    more = person(7, 6, number(2) + number(3), [24, 29])
    null = person(7, 6, number(4) + b"\x65", [24, 29])
    for _ in range(2):
        found = rows.columns(
            [
                entry(number(1), plain, types),
                entry(number(2), more, types),
                entry(number(3), null, types),
                entry(number(4), plain, types),
            ]
        )
        assert values_of(found) == [(1, 1), (3, 4), (4, 1)]
    assert rows.skipped == 2


class Pages:
    """A client with one page."""

    def __init__(self, *entries: tuple[bytes, bytes]) -> None:
        self._page = [(marshal.REGULAR, key, marshal.REGULAR, value) for key, value in entries]

    def scan(self, _cache: str, _number: int, _partition: int) -> Any:
        """Yield the page, whichever partition is scanned."""
        yield self._page


def lines_of(pages: Pages, kept: KeptShape, **more: Any) -> ScannedLines:
    """Return the lines of a chunk."""
    types = Types()
    chunk = ChunkScan(
        cache=CACHE, cache_id=NUMBER, partitions=(), shape=kept, skips=False, zone="UTC",
        order=("_key", "_val"), backups=False,
        reads=(ColumnRead(neutral="int32"), ColumnRead(neutral="string", **more)),
    )  # fmt: skip
    rows = FixedRows(CACHE, kept, types, order=chunk.order, zone="UTC", backups=False, skips=False)
    return ScannedLines(pages, types, chunk, rows, LineDialect.COPY)  # type: ignore[arg-type]


def test_a_row_that_the_log_does_not_have_begins_its_table_anew() -> None:
    """The pipeline does not fail: the table is planned again, with the shape that it needs."""
    types = Types()
    kept = learn_shape([entry(number(1), text("one"), types)], types)
    good = lines_of(Pages((number(1), text("one"))), kept)
    assert b"".join(good) == b"1\tone\n"
    assert good.row_count == 1
    with pytest.raises(RowUnfit, match="words") as caught:
        list(lines_of(Pages((number(2), number(2))), kept))
    reader = IgniteReader.__new__(IgniteReader)
    assert reader.tells_rewritten(caught.value)
    assert not reader.tells_rewritten(CellUnfit("another", hint="none"))


def test_times_finer_than_the_target_are_refused_or_left_out() -> None:
    """The statement of the change path does the same."""
    types = Types()
    kept = learn_shape([entry(number(1), text("one"), types)], types)
    fine, coarse = "2024-02-29 12:00:00.1234567+00", "2024-02-29 12:00:00.5+00"
    pages = Pages((number(1), text(coarse)), (number(2), text(fine)))
    with pytest.raises(CellUnfit, match="nanoseconds") as caught:
        list(lines_of(pages, kept, exact=Exact.REFUSED))
    assert caught.value.fields["row"] == 2
    found = b"".join(lines_of(pages, kept, exact=Exact.NULL))
    assert found == f"1\t{coarse}\n2\t\\N\n".encode()
    whole = b"".join(lines_of(pages, kept, exact=Exact.AS_IS))
    assert whole == f"1\t{coarse}\n2\t{fine}\n".encode()


def test_ranges_hold_each_partition_once() -> None:
    """Any number of chunks has each partition once."""
    for partitions, count in ((1024, 7), (8, 8), (10, 3)):
        parts = list(_ranges(partitions, count))
        assert [one for part in parts for one in part] == list(range(partitions))
        assert len(parts) == count


def test_the_point_is_behind_what_is_archived(tmp_path: Path) -> None:
    """The node must have left changes to others; before, the point is at the first segment."""
    work = unpack_recording("one", tmp_path)
    directory = open_directory(f"ignite://{work}?consistentId=node-1")
    last = segments_of("one")[-1][0]
    assert capture(directory) == position_of(LogPlace(last + 1, 0, 0))
    assert not directory.is_active()
    assert capture(directory, saves=True) == position_of(LogPlace(last + 1, 0, 0))
    assert directory.is_active()
    directory.save_place(LogPlace(last + 3, 29, 0))
    assert str(IgnitePosition(capture(directory))) == f"{last + 3}/29"


def test_the_point_of_a_node_that_gives_its_changes_is_the_first_segment(tmp_path: Path) -> None:
    """The stop record is in a later one, which has to be read."""
    work = unpack_recording("one", tmp_path)
    directory = open_directory(f"ignite://{work}?consistentId=node-1")
    first = directory.segments()[0]
    for segment in directory.segments()[:-1]:
        if any(place is None for place in directory.node_states(segment, 0)):
            directory.remove(segment)
            first = directory.segments()[0]
    assert capture(directory, saves=True) == position_of(LogPlace(first, 0, 0))
    assert not directory.is_active()


def test_the_node_ends_at_its_last_change(tmp_path: Path) -> None:
    """The numbers in the files count, not their names; an incomplete record is not waited for."""
    work = unpack_recording("one", tmp_path)
    url = IgniteUrl.parse(f"ignite://{work}?consistentId=node-1")
    directory = open_directory(f"ignite://{work}?consistentId=node-1")
    assert node_end(url, directory) is None
    folder = work / "db/wal/node_1"
    folder.mkdir(parents=True)
    segments = segments_of("one")
    for name, (_, data) in zip("ba", segments[-2:], strict=True):
        (folder / f"{name}.wal").write_bytes(data)
    (folder / "c.wal").write_bytes(b"")
    found = node_end(url, directory)
    walk = directory.walk(segments[-1][0], 0, Segment(segments[-1][1], 0))
    offsets = [one.offset for one in walk]
    assert found is not None
    if offsets:
        assert found == LogPlace(segments[-1][0], offsets[-1] + 1, 0)
        torn = segments[-1][1][: offsets[-1] + 20]
        (folder / "a.wal").write_bytes(torn)
        again = node_end(url, directory)
        assert again is not None
        assert again < found
    else:
        assert found.segment == segments[-2][0]


def test_types_of_a_recording_are_read() -> None:
    """The fixture has the types that the other tests need."""
    assert types_of("one").find(32693303) is not None
