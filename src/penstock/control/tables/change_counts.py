"""Counts of the changes of each kind to a pipeline's tables, from the change log's segments.

Each frame is counted once, as the log grows; rows are opened only if a frame holds more than one
kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from penstock.codec.ckt import FrameEntry, FrameKind, RowsFlag
from penstock.host.files import FileMissing
from penstock.log.layout import SegmentFile, list_segments
from penstock.log.segment import Segment, list_begun_segments, open_segment
from penstock.model import MarkerKind, TableName
from penstock.ports.config import Config

ROWS_OPENED_MAX = 2_000_000  # per look: a log that was long at our start is counted in pieces
SEGMENTS_KNOWN_MAX = 20_000  # whose frames are remembered
SINGLE = {RowsFlag.INSERT: "insert", RowsFlag.UPDATE: "update", RowsFlag.DELETE: "delete"}
KINDS = ("insert", "update", "delete", "truncate")
LETTERS = {ord("I"): "insert", ord("U"): "update", ord("D"): "delete"}


@dataclass(slots=True, kw_only=True)
class KindCounts:
    """Changes of one table by kind."""

    insert: int = 0
    update: int = 0
    delete: int = 0
    truncate: int = 0

    def add(self, kind: str, count: int) -> None:
        """Count so many more changes of a kind."""
        setattr(self, kind, getattr(self, kind) + count)

    def as_dict(self) -> dict[str, int]:
        """Return the counts by kind."""
        return {kind: getattr(self, kind) for kind in KINDS}


@dataclass(slots=True, kw_only=True)
class ChangeCounts:
    """Counts so far.

    Attributes:
        gsn_first: The first row that could be counted, 0 before any; earlier ones were in segments
            that had been removed.
        complete: Everything up to the log's end is counted.
    """

    tables: dict[TableName, KindCounts] = field(default_factory=dict)
    gsn_first: int = 0
    complete: bool = False


class ChangeCounter:
    """Counter of the changes of a log as it grows. Used by one thread."""

    def __init__(self, config: Config) -> None:
        """Begin; nothing is read before the first look."""
        self._directory = config.layout.log
        self._extension = config.change_loader.change_file_extension
        self._number = -1
        self._entries_done = 0
        self.counts = ChangeCounts()

    def look(self) -> ChangeCounts:
        """Count new changes, at most about ROWS_OPENED_MAX opened rows. Raises SegmentCorrupt.

        Returns the same object each time.
        """
        budget = ROWS_OPENED_MAX
        self.counts.complete = False
        for file in self._segments():
            with (
                suppress(FileMissing),  # loaded and removed, or closed and renamed meanwhile
                open_segment(file.path, extension=self._extension) as segment,
            ):
                budget -= self._count(file.number, segment, budget)
            if budget <= 0:
                return self.counts
        self.counts.complete = True
        return self.counts

    def _segments(self) -> Iterator[SegmentFile]:
        # A segment that is closed between the two listings is then found under its new name.
        unfinished = list_begun_segments(self._directory, self._extension)
        closed = list_segments(self._directory, self._extension)
        numbers = {file.number for file in closed}
        files = [*closed, *(file for file in unfinished if file.number not in numbers)]
        return (file for file in files if file.number >= self._number)

    def _count(self, number: int, segment: Segment, budget: int) -> int:
        """Count the new frames of a segment; return how many rows were opened for that."""
        if number != self._number:
            self._number, self._entries_done = number, 0
            if not self.counts.gsn_first:
                self.counts.gsn_first = segment.start.gsn + 1
        opened = 0
        for entry in segment.entries[self._entries_done :]:
            opened += self._count_entry(segment, entry)
            self._entries_done += 1
            if opened >= budget:
                break
        return opened

    def _count_entry(self, segment: Segment, entry: FrameEntry) -> int:
        if entry.kind == FrameKind.MARKER:
            marker = segment.read_marker(entry)
            for table in marker.tables if marker.kind is MarkerKind.TRUNCATE else ():
                self._of(TableName(*table)).add("truncate", 1)
            return 0
        if entry.kind != FrameKind.ROWS:
            return 0
        relation = segment.relation(entry.relation_id)
        counts = self._of(TableName(relation.schema, relation.name))
        kinds = RowsFlag(entry.flags) & (RowsFlag.INSERT | RowsFlag.UPDATE | RowsFlag.DELETE)
        if kinds in SINGLE:
            counts.add(SINGLE[kinds], entry.row_count)
            return 0
        letters = segment.read_rows(entry).batch.column("op").to_numpy(zero_copy_only=False)
        for letter, count in enumerate(np.bincount(letters, minlength=256)):
            if count:
                counts.add(LETTERS[letter], int(count))
        return entry.row_count

    def _of(self, table: TableName) -> KindCounts:
        return self.counts.tables.setdefault(table, KindCounts())


def changes_between(
    config: Config, table: TableName, *, first_segment: int, after_gsn: int, until_gsn: int
) -> int:
    """Return the number of one table's row changes in closed segments between two places.

    Missing segments count for nothing. Raises SegmentCorrupt.
    """
    extension = config.change_loader.change_file_extension
    found = 0
    for file in list_segments(config.layout.log, extension):
        if file.number < first_segment:
            continue
        try:
            frames = _frames(file.path, extension, file.path.stat().st_mtime_ns)
        except (FileMissing, FileNotFoundError):
            continue  # applied and removed meanwhile
        for entry in frames.get(table, ()):
            if entry.gsn_last <= after_gsn or entry.gsn_first > until_gsn:
                continue
            if after_gsn < entry.gsn_first and entry.gsn_last <= until_gsn:
                found += entry.row_count
                continue
            with open_segment(file.path, extension=extension) as segment:
                gsn = segment.read_rows(entry).batch.column("gsn").to_numpy(zero_copy_only=False)
            found += int(np.count_nonzero((gsn > after_gsn) & (gsn <= until_gsn)))
    return found


@lru_cache(maxsize=SEGMENTS_KNOWN_MAX)
def _frames(
    path: Path, extension: str, _changed_ns: int
) -> Mapping[TableName, Sequence[FrameEntry]]:
    """Return the rows frames of a closed segment, by table: they never change within a log."""
    found: dict[TableName, list[FrameEntry]] = {}
    with open_segment(path, extension=extension) as segment:
        for entry in segment.entries:
            if entry.kind == FrameKind.ROWS:
                relation = segment.relation(entry.relation_id)
                found.setdefault(TableName(relation.schema, relation.name), []).append(entry)
    return found
