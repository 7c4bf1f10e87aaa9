"""Statements on mutation tables: stage, filter, mark, retire, count. By the published meanings.

Mutations of several tables are read in order of time, a slice of whole times after the other, with
a page of each table in memory. Not here: which table is which (`session.py`), rows into batches
(`rows.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import errors

from penstock.engines.postgres.connect import server_errors, statement
from penstock.engines.postgres.feeds.rows import COPIED_COLUMNS, Rows, batch_of_rows
from penstock.model.hlc import Hlc
from penstock.ports.feeds import STUB, RowState, Slice, StagedTable
from penstock.sql.staging_tables import StagingDialect

MARK_ROWS_MAX: Final = 100_000
RETIRE_ROWS_MAX: Final = 10_000

_COPY: Final = f"copy {{table}} ({COPIED_COLUMNS}) from stdin (format binary)"
_STAGE: Final = """
    insert into {table} (nanos, logical, key, mut, before, deletion)
    select unnest(%b::bigint[]), unnest(%b::bigint[]), unnest(%b::text[]), unnest(%b::bytea[]),
           unnest(%b::bytea[]), unnest(%b::bool[])
        on conflict do nothing
"""
_STAGE_IF_EXISTS: Final = """
    with proposed (nanos, logical, key, mut, before, deletion) as (
      select unnest(%b::bigint[]), unnest(%b::bigint[]), unnest(%b::text[]), unnest(%b::bytea[]),
             unnest(%b::bytea[]), unnest(%b::bool[])
    ), waiting as (
      select distinct proposed.key
        from proposed
        join {table} staged on staged.key = proposed.key and not staged.applied
    ), added as (
      insert into {table} (nanos, logical, key, mut, before, deletion)
      select nanos, logical, key, mut, before, deletion
        from proposed
        join waiting using (key)
          on conflict do nothing
    )
    select key from waiting
"""
# In the order of the proposed ones. A later row is looked for by its key, of which it reads all.
_STATES: Final = """
    select staged.nanos is not null, coalesce(staged.applied, false),
           staged.nanos is null and exists (
             select from {table} later
              where later.key = proposed.key and later.applied
                and (later.nanos, later.logical) > (proposed.nanos, proposed.logical))
      from unnest(%b::bigint[], %b::bigint[], %b::text[])
           with ordinality as proposed (nanos, logical, key, place)
      left join {table} staged
        on staged.nanos = proposed.nanos and staged.logical = proposed.logical
       and staged.key = proposed.key
     order by place
"""
_APPLIED: Final = """
    with proposed (nanos, logical, key) as (
      select unnest(%b::bigint[]), unnest(%b::bigint[]), unnest(%b::text[])
    )
    select nanos, logical, key
      from proposed
      join {table} using (nanos, logical, key)
     where applied
"""
_MARK: Final = """
    insert into {table} (nanos, logical, key, mut, applied, applied_at)
    select unnest(%b::bigint[]), unnest(%b::bigint[]), unnest(%b::text[]), %b, true, now()
        on conflict (nanos, logical, key)
        do update set applied = true, applied_at = now()
"""
_MARK_WHOLE: Final = """
    insert into {table} (nanos, logical, key, mut, before, deletion, applied, applied_at)
    select unnest(%b::bigint[]), unnest(%b::bigint[]), unnest(%b::text[]), unnest(%b::bytea[]),
           unnest(%b::bytea[]), unnest(%b::bool[]), true, now()
        on conflict (nanos, logical, key)
        do update set applied = true, applied_at = now()
"""
_FORGET_STUBS: Final = """
    delete from {table} where (nanos, logical) > (%s, %s) and mut = %b
"""
_UNMARK: Final = """
    update {table}
       set applied = false, applied_at = null
     where (nanos, logical) > (%s, %s) and applied
"""
_MARK_THROUGH: Final = """
    update {table}
       set applied = true, applied_at = now()
     where (nanos, logical) > (%s, %s) and (nanos, logical) <= (%s, %s) and not applied
"""
_OLDEST: Final = """
    select 1
      from {table}
     where (nanos, logical) < (%s, %s) and applied
     order by nanos, logical
     limit 1
"""
_STALE: Final = """
    select count(*) from {table} where (nanos, logical) < (%s, %s) and not applied
"""
_INCONSISTENT: Final = """
    with ordered as (
      select key,
             row_number() over (partition by key order by nanos, logical) as in_source,
             row_number() over (partition by key
                                order by applied_at nulls last, nanos, logical) as in_target
        from (select key, nanos, logical, applied_at
                from {table}
               where (nanos, logical) > (%s, %s)
               order by nanos, logical
               limit %s) looked_at
    )
    select count(distinct key) from ordered where in_source <> in_target
"""

Connection = psycopg.Connection[Any]


class Stager:
    """Stages rows: by COPY as long as nothing was staged before, by ON CONFLICT when something was.

    COPY takes half of the server's time, but one row that is there already makes it fail. A
    changefeed sends nothing twice for hours, and then, after it was begun again, a lot. So a
    conflict makes this session go the careful way until a call has had no duplicate.
    """

    def __init__(self, dialect: StagingDialect) -> None:
        self._copies = dialect.copies
        self._is_careful = not dialect.copies

    def stage(
        self,
        connection: Connection,
        rows: Mapping[str, Rows],
        check: Callable[[], None] = lambda: None,
    ) -> dict[str, int]:
        """Insert rows into tables (as SQL names them) in one transaction; returns the new ones.

        check: called first in that transaction.
        """
        if not self._is_careful:
            try:
                return self._copy(connection, rows, check)
            except errors.UniqueViolation:
                self._is_careful = True
        added = self._insert(connection, rows, check)
        proposed = sum(len(one) for one in rows.values())
        if self._copies and sum(added.values()) == proposed:
            self._is_careful = False
        return added

    def _copy(
        self, connection: Connection, rows: Mapping[str, Rows], check: Callable[[], None]
    ) -> dict[str, int]:
        with connection.transaction(), connection.cursor() as cursor:
            check()
            for table, some in _in_order(rows):
                with cursor.copy(statement(_COPY.format(table=table))) as copy:
                    copy.write(some.to_copy())
        return {table: len(some) for table, some in rows.items()}

    def _insert(
        self, connection: Connection, rows: Mapping[str, Rows], check: Callable[[], None]
    ) -> dict[str, int]:
        with connection.transaction():
            check()
            return {
                table: connection.execute(
                    statement(_STAGE.format(table=table)), some.arrays()
                ).rowcount
                for table, some in _in_order(rows)
            }


def _in_order(rows: Mapping[str, Rows]) -> Iterator[tuple[str, Rows]]:
    """Sort rows, so that two sessions that stage the same rows cannot deadlock."""
    return ((table, rows[table]) for table in sorted(rows))


def stage_if_exists(
    connection: Connection, table: str, rows: Rows, batch: pa.RecordBatch
) -> pa.RecordBatch:
    """Stage rows of keys that have an unapplied row; return the remaining rows of the batch."""
    found = connection.execute(statement(_STAGE_IF_EXISTS.format(table=table)), rows.arrays())
    waiting = {key for (key,) in found}
    others = [key not in waiting for key in batch.column("key").to_pylist()]
    return batch.filter(pa.array(others, pa.bool_()))


def states_of(connection: Connection, table: str, batch: pa.RecordBatch) -> list[RowState]:
    """Return the state of each mutation of a batch, in their order."""
    columns = [batch.column(name).to_pylist() for name in ("nanos", "logical", "key")]
    found = connection.execute(statement(_STATES.format(table=table)), columns).fetchall()
    return [_state(*one) for one in found]


def _state(is_staged: bool, is_applied: bool, is_superseded: bool) -> RowState:
    if is_staged:
        return RowState.APPLIED if is_applied else RowState.WAITING
    return RowState.SUPERSEDED if is_superseded else RowState.NEW


def unapplied_of(connection: Connection, table: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of a batch that are not marked applied, in their order."""
    columns = [batch.column(name).to_pylist() for name in ("nanos", "logical", "key")]
    applied = set(connection.execute(statement(_APPLIED.format(table=table)), columns))
    wanted = [one not in applied for one in zip(*columns, strict=True)]
    return batch.filter(pa.array(wanted, pa.bool_()))


def mark_applied(connection: Connection, table: str, rows: Rows, *, keep: bool) -> None:
    """Mark rows as applied, in one transaction. A missing row gets a stub, or is kept."""
    nanos, logical, keys, muts, befores, deletions = rows.arrays()
    text = statement((_MARK_WHOLE if keep else _MARK).format(table=table))
    with connection.transaction():
        for first in range(0, len(rows), MARK_ROWS_MAX):
            part = slice(first, first + MARK_ROWS_MAX)
            place = (nanos[part], logical[part], keys[part])
            whole = (*place, muts[part], befores[part], deletions[part])
            connection.execute(text, whole if keep else (*place, STUB))


def empty(connection: Connection, table: str) -> None:
    """Delete all rows."""
    connection.execute(statement(f"delete from {table}"))


def unmark(connection: Connection, table: str, after: Hlc) -> None:
    """Mark the rows later than a time as unapplied, and delete their stubs."""
    bounds = (after.nanos, after.logical)
    connection.execute(statement(_FORGET_STUBS.format(table=table)), (*bounds, STUB))
    connection.execute(statement(_UNMARK.format(table=table)), bounds)


def mark_applied_through(
    connection: Connection, tables: Collection[str], after: Hlc, through: Hlc
) -> dict[str, int]:
    """Mark unapplied rows of a range of times as applied, in one transaction; return their number.

    To return which of them were removals would make the update a third slower.
    """
    bounds = (after.nanos, after.logical, through.nanos, through.logical)
    with connection.transaction():
        return {
            table: connection.execute(statement(_MARK_THROUGH.format(table=table)), bounds).rowcount
            for table in sorted(tables)
        }


def retire(
    connection: Connection, dialect: StagingDialect, table: str, low: Hlc, before: Hlc
) -> tuple[int, Hlc]:
    """Delete the first applied rows with low <= time < before: how many, and where others begin."""
    bounds = (low.nanos, low.logical, before.nanos, before.logical, RETIRE_ROWS_MAX)
    text = statement(dialect.retire.format(table=table))
    count, nanos = connection.execute(text, bounds).fetchone() or (0, 0)
    # Rows of equal nanos may be left: the next part begins with them.
    return count, before if count < RETIRE_ROWS_MAX else Hlc(nanos)


def stale_count(connection: Connection, table: str, before: Hlc) -> int | None:
    """Return the number of unapplied rows older than this; None while applied rows are, which may
    be millions.
    """
    bounds = (before.nanos, before.logical)
    if connection.execute(statement(_OLDEST.format(table=table)), bounds).fetchone() is not None:
        return None
    return _number(connection.execute(statement(_STALE.format(table=table)), bounds))


def inconsistent_count(connection: Connection, table: str, after: Hlc, limit: int | None) -> int:
    """Return the number of keys whose rows were not applied in the order of their times."""
    text = statement(_INCONSISTENT.format(table=table))
    return _number(connection.execute(text, (after.nanos, after.logical, limit)))


def _number(cursor: psycopg.Cursor[Any]) -> int:
    (found,) = cursor.fetchone() or (0,)
    return int(found)


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
        """Read the next rows, and all others of the last row's time."""
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
