"""Round trips: any transactions are equal after the log; no flipped bit ever becomes rows."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.faults.disk import Disk
from harness.pipelines.log import (
    RELATIONS,
    SOURCE,
    Change,
    Row,
    inserts,
    number_rows,
    plain_batches,
    plain_rows,
    plain_segment,
    run_of,
    transactions,
    truncate,
)
from harness.twins.examples import examples
from penstock.codec.ckt import FormatUnknown
from penstock.log import SegmentCorrupt, check, list_segments, open_chain, open_segment
from penstock.log.change_tables import add_commit
from penstock.log.text import lines
from penstock.log.writer import Writer, WriterOptions
from penstock.model import Marker, Rows, TableName

COMPRESSIONS = ("lz4", "zstd", None)


def write_log(
    directory: Path, committed: list[list[Row]], actions: list[str], options: WriterOptions
) -> None:
    """Write each transaction, whole or row by row, followed by an action."""
    with Writer.open(directory, log_id=None, source=SOURCE, options=options) as log:
        for number, rows in enumerate(committed):
            action = actions[number % len(actions)]
            if "rows" in action:
                for row in rows[:-1]:
                    log.write(run_of([row], ended=False))
                log.write(run_of(rows[-1:]))
            else:
                log.write(run_of(rows))
            if "flush" in action:
                assert log.flush().gsn == rows[-1].gsn
            if "rotate" in action:
                assert log.rotate() is not None
        log.rotate()


@given(
    committed=transactions(),
    actions=st.lists(
        st.sampled_from(["", "rows", "flush", "rows flush", "rotate", "rows rotate"]), min_size=1
    ),
    compression=st.sampled_from(COMPRESSIONS),
    buffer_size=st.sampled_from([100, 10_000]),
)
def test_what_is_written_is_read(
    committed: list[list[Change]], actions: list[str], compression: str | None, buffer_size: int
) -> None:
    """Rows are read by table, from any row on, and in strict order."""
    groups = number_rows(committed)
    expected = plain_rows(row for group in groups for row in group)
    options = WriterOptions(buffer_size_bytes_max=buffer_size, compression=compression)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_log(directory, groups, actions, options)
        assert not check(directory)
        segments = open_chain(list_segments(directory), gsn_applied=0)
        batches = [add_commit(segment, rows) for segment in segments for rows in segment.rows()]
        assert plain_batches(batches) == expected
        ordered = [
            add_commit(segment, _single(item))
            for segment in segments
            for item in segment.in_order()
        ]
        assert plain_batches(ordered) == expected
        assert [one.batch.column(0)[0].as_py() for one in ordered] == [row[0] for row in expected]
        for relation in RELATIONS:
            table = TableName(relation.schema, relation.name)
            after = len(expected) // 2
            found = [
                add_commit(segment, rows)
                for segment in segments
                for rows in segment.rows(table=table, gsn_after=after)
            ]
            assert plain_batches(found) == [
                row for row in expected if row[0] > after and row[5] == relation.full_name
            ]
        printed = [line for segment in segments for line in lines(segment, str)]
        letters = [line.split("\t")[1] for line in printed if line.split("\t")[1] != "R"]
        assert letters == [chr(row[3]) for row in expected]
        assert not any("\n" in line or "\r" in line for line in printed)
        for segment in segments:
            segment.close()


def _single(item: Any) -> Rows:
    relation, index, batch = item
    return Rows(relation=relation, batch=batch.slice(index, 1))


@given(places=st.lists(st.integers(0, 12), max_size=5), splits=st.lists(st.integers(1, 4)))
def test_markers_stand_between_the_rows_they_were_put_between(
    places: list[int], splits: list[int]
) -> None:
    """A marker is after row gsn, before row gsn + 1; markers of one place keep their order."""
    rows = number_rows([inserts(12)])[0]
    markers = [truncate(gsn, 1, f"t{number}") for number, gsn in enumerate(places)]
    disk = Disk()
    with Writer.open(Path("/log"), log_id=None, source=SOURCE, files=disk) as log:
        start = 0
        for size in [*splits, 12]:
            part = rows[start : start + size]
            if not part:
                break
            first = part[0].gsn - (start == 0)
            these = [m for m in markers if first <= m.gsn <= part[-1].gsn]
            log.write(run_of(part, ended=part[-1].gsn == 12, markers=these))
            start += size
        log.rotate()
    with open_segment(Path("/log/0.ckt"), files=disk) as segment:
        found = list(segment.in_order())
        assert len(list(segment.markers())) == len(markers)
    gsn = 0
    seen = []
    for item in found:
        if isinstance(item, Marker):
            assert item.gsn == gsn
            seen.append(item)
        else:
            gsn = item[2].column(0)[item[1]].as_py()
    assert seen == sorted(markers, key=lambda marker: marker.gsn)


@pytest.fixture(scope="module")
def small_segment(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[Any]]:
    """The bytes of a closed segment with every kind of frame, and its rows."""
    directory = tmp_path_factory.mktemp("small")
    groups = number_rows([inserts(3), inserts(2, first=3)])
    with Writer.open(directory, log_id=None, source=SOURCE) as log:
        for group in groups:
            run = run_of(group, markers=[truncate(group[-1].gsn, group[0].trx, "item")])
            log.write(run)
            log.flush()
        log.rotate()
    return (directory / "0.ckt").read_bytes(), plain_rows(row for g in groups for row in g)


def test_no_flipped_bit_of_a_closed_segment_becomes_rows(
    small_segment: tuple[bytes, list[Any]],
) -> None:
    """Reading finds it or returns what was written; check always finds it."""
    content, expected = small_segment
    disk = Disk()
    disk.make_directory(Path("/log"))
    path = Path("/log/0.ckt")
    disk.create(path).append([content])
    unnoticed = 0
    for bit in _bits(content, disk, path):
        disk.flip(path, bit)
        try:
            with open_segment(path, files=disk) as segment:
                assert plain_segment(segment) == expected
            # Rows cannot notice frames that they do not touch (markers, flush points).
            findings = check(path.parent, files=disk)
            assert [f for f in findings if f.severity == "error"], f"bit {bit} is harmless"
            unnoticed += 1
        except (SegmentCorrupt, FormatUnknown):
            pass
        disk.flip(path, bit)
    assert unnoticed


def _bits(content: bytes, disk: Disk, path: Path) -> list[int]:
    """Return every bit of magic, frame heads and trailer, and one bit of each other byte."""
    with open_segment(path, files=disk) as segment:
        heads = [entry.offset_bytes for entry in segment.entries]
        footer = max(entry.offset_bytes + 16 + entry.length_bytes for entry in segment.entries)
    dense = set(range(8)) | set(range(len(content) - 32, len(content)))
    for head in (*heads, footer):
        dense |= set(range(head, head + 16))
    # The header ends in 3 kB of spaces, all alike.
    sparse = set(range(700, 4096)) - set(range(700, 4096, 50))
    return [
        byte * 8 + bit
        for byte in range(len(content))
        if byte not in sparse
        for bit in (range(8) if byte in dense else [byte % 8])
    ]


@given(data=st.data())
@examples(0.3)
def test_any_other_bytes_are_refused_with_a_typed_error(
    data: st.DataObject, small_segment: tuple[bytes, list[Any]]
) -> None:
    """A cut, extended or overwritten segment raises SegmentCorrupt and never gives wrong rows.

    There are 30 cases in `make check`, 60 in CI, 1,500 in `make soak`.
    """
    content = bytearray(small_segment[0])
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, len(content)))
    content[start:end] = data.draw(st.binary(max_size=64))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "0.ckt"
        path.write_bytes(content)
        fields = {"path": str(path), "offset_bytes": 0}
        try:
            with open_segment(path) as segment:
                assert plain_segment(segment) == small_segment[1]
        except SegmentCorrupt as error:
            fields = error.fields
    assert fields["path"] == str(path)
    assert "offset_bytes" in fields
