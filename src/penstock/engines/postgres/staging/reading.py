"""Reads mutations of several tables in order of time, a slice of whole times after the
other, with a page of each table in memory.

Not here: rows into batches (`rows.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
import pyarrow as pa

from penstock.engines.postgres.connect import server_errors, statement
from penstock.engines.postgres.staging.rows import batch_of_rows
from penstock.model.hlc import Hlc
from penstock.ports.staging import Slice, StagedTable

_COLUMNS: Final = "nanos, logical, key, mut, before"
_PAGE: Final = f"""
    select {_COLUMNS}
      from {{table}}
     where (nanos, logical) > (%s, %s) and (nanos, logical) <= (%s, %s) and {{wanted}}
     order by nanos, logical, key
     limit %s
"""
_REST_OF_A_TIME: Final = f"""
    select {_COLUMNS}
      from {{table}}
     where nanos = %s and logical = %s and key > %s and {{wanted}}
     order by key
"""
Row = tuple[Any, ...]


@dataclass(slots=True, kw_only=True)
class _Page:
    """Rows of a table that were read and not yet returned. read_to: the last time that was read."""

    place: str
    wanted: str
    read_to: Hlc
    is_whole: bool = False
    rows: list[Row] = field(default_factory=list)

    def fill(self, connection: psycopg.Connection[Any], through: Hlc, limit: int) -> None:
        """Read the next rows, to the end of the last one's time."""
        with connection.cursor(binary=True) as cursor:
            bounds = (self.read_to.nanos, self.read_to.logical, through.nanos, through.logical)
            cursor.execute(
                statement(_PAGE.format(table=self.place, wanted=self.wanted)), (*bounds, limit)
            )
            self.rows = cursor.fetchall()
            self.is_whole = len(self.rows) < limit
            if self.is_whole:
                self.read_to = through
                return
            nanos, logical, key, *_ = self.rows[-1]
            rest = statement(_REST_OF_A_TIME.format(table=self.place, wanted=self.wanted))
            cursor.execute(rest, (nanos, logical, key))
            self.rows += cursor.fetchall()
            self.read_to = Hlc(nanos, logical)

    def take(self, through: Hlc) -> list[Row]:
        """Return and remove the rows that are not later."""
        count = _count_through(self.rows, through)
        taken, self.rows = self.rows[:count], self.rows[count:]
        return taken


def _count_through(rows: list[Row], through: Hlc) -> int:
    """Return how many rows, which are in order, are at or before a time."""
    low, high = 0, len(rows)
    last = (through.nanos, through.logical)
    while low < high:
        middle = (low + high) // 2
        if rows[middle][:2] <= last:
            low = middle + 1
        else:
            high = middle
    return low


def read(
    connection: psycopg.Connection[Any],
    places: Mapping[StagedTable, str],
    after: Hlc,
    through: Hlc,
    *,
    limit: int,
    with_applied: bool = False,
) -> Iterator[Slice]:
    """Yield the slices of `StagingSession.read`. places: the mutation tables, as SQL names them."""
    wanted = "true" if with_applied else "not applied"
    pages = {
        table: _Page(place=place, wanted=wanted, read_to=after) for table, place in places.items()
    }
    while True:
        with server_errors("reading staged mutations"):
            for page in pages.values():
                if not page.rows and not page.is_whole:
                    page.fill(connection, through, limit)
        # No table may have unread rows at or before the end of a slice.
        end = min((page.read_to for page in pages.values()), default=through)
        rows: dict[StagedTable, pa.RecordBatch] = {
            table: batch_of_rows(table, taken)
            for table, page in pages.items()
            if (taken := page.take(end))
        }
        yield Slice(through=end, rows=rows)
        if end == through:
            return
