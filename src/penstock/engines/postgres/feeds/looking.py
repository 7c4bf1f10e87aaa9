"""State of a target schema in a staging database, for pages and metrics. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import psycopg

from penstock.engines.postgres.connect import statement
from penstock.model.hlc import Hlc
from penstock.ports.feeds import Holder, StagedRows, StagingDialect

LOOK_ROWS_MAX: Final = 50_000
PAGES_MIN: Final = 2_048

_NEXT: Final = """
    select count(*), count(*) filter (where not applied), min(nanos) filter (where not applied)
      from (select nanos, applied
              from {table}
             where (nanos, logical) > (%s, %s)
             order by nanos, logical
             limit %s) as next
"""
_FIRST: Final = """
    select nanos, logical
      from {table}
     where (nanos, logical) > (%s, %s) and nanos <= %s and not applied
     order by nanos, logical
     limit 1
"""
_ROWS: Final = """
    select count(*), count(*) filter (where not applied and (nanos, logical) > (%s, %s))
      from {table}
"""
_SOME: Final = "select count(*) from (select from {table} limit %s) as first_ones"
_HOLDER: Final = "select hostname, expires from public.leases where name = %s"
_APPLIED_AT: Final = """
    select max(target_applied_at)
      from public.checkpoints
     where group_name = %s and source_hlc = %s
"""
_NOW: Final = "select now()"

Connection = psycopg.Connection[Any]


def holder(connection: Connection, lease: str) -> Holder | None:
    """Return the holder of a lease."""
    found = connection.execute(_HOLDER, (lease,)).fetchone()
    return None if found is None else Holder(hostname=found[0], expires=_utc(found[1]))


def applied_at(connection: Connection, group: str, committed: Hlc) -> datetime | None:
    """Return when a checkpoint was marked."""
    (found,) = connection.execute(_APPLIED_AT, (group, committed.decimal)).fetchone() or (None,)
    return None if found is None else _utc(found)


def now(connection: Connection) -> datetime:
    """Return the server's clock."""
    (found,) = connection.execute(_NOW).fetchone() or (None,)
    assert found is not None, "every server has a clock"
    return _utc(found)


def _utc(time: datetime) -> datetime:
    return time.astimezone(UTC) if time.tzinfo is not None else time.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Next:
    """Rows after the committed time, as far as they were read."""

    rows: int
    waiting: int
    oldest: Hlc | None

    @property
    def is_all(self) -> bool:
        return self.rows < LOOK_ROWS_MAX


def staged_rows(
    connection: Connection, dialect: StagingDialect, table: str, committed: Hlc
) -> StagedRows:
    """Count the rows of a mutation table. committed: the group's committed time."""
    behind = _next(connection, table, committed)
    if not dialect.size:
        return _without_size(connection, table, behind)
    pages, size_bytes = connection.execute(dialect.size, (table,)).fetchone() or (0, 0)
    percent = _share(pages)
    place = table if percent == 100 else f"{table} {dialect.sample.format(percent=percent)}"
    bounds = (committed.nanos, committed.logical)
    counted = connection.execute(statement(_ROWS.format(table=place)), bounds).fetchone() or (0, 0)
    rows, waiting = (round(count * 100 / percent) for count in counted)
    if behind.is_all:
        rows, waiting = max(rows, behind.rows), behind.waiting
    else:
        waiting = max(waiting, behind.waiting)
    return StagedRows(
        rows=max(rows, waiting),
        waiting=waiting,
        oldest=behind.oldest,
        is_estimate=percent != 100,
        size_bytes=size_bytes,
    )


def _share(pages: int) -> float:
    """Return the percentage of a table's pages to read. It only changes when the table doubles in
    size.
    """
    percent = 100.0
    while pages * percent / 100 > 2 * PAGES_MIN:
        percent /= 2
    return percent


def _next(connection: Connection, table: str, committed: Hlc) -> _Next:
    bounds = (committed.nanos, committed.logical)
    text = statement(_NEXT.format(table=table))
    rows, waiting, nanos = connection.execute(text, (*bounds, LOOK_ROWS_MAX)).fetchone() or (
        0,
        0,
        0,
    )
    oldest = None
    if waiting:
        first = connection.execute(statement(_FIRST.format(table=table)), (*bounds, nanos))
        found = first.fetchone()  # it may have been applied meanwhile
        oldest = None if found is None else Hlc(*found)
    return _Next(rows, waiting, oldest)


def _without_size(connection: Connection, table: str, behind: _Next) -> StagedRows:
    """Count as far as possible at once, for an engine that neither reports sizes nor samples."""
    text = statement(_SOME.format(table=table))
    (rows,) = connection.execute(text, (LOOK_ROWS_MAX,)).fetchone() or (0,)
    return StagedRows(
        rows=rows if rows < LOOK_ROWS_MAX else None,
        waiting=behind.waiting if behind.is_all else None,
        oldest=behind.oldest,
        is_estimate=False,
        size_bytes=None,
    )
