"""Mutations in mutation tables: their rows, and the statements by the published meanings.

The statements stage, filter, mark, retire and count. Mutations of several tables are read in order
of time, a slice of whole times after the other, with a page of each table in memory. Rows are put
in order, without repeats, gzipped, and written by binary COPY: whole columns at a time; per row
only what Python cannot avoid, about half a microsecond. Not here: which table is which
(`database.py`).
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import errors

from penstock.engines.postgres.connect import server_errors, statement
from penstock.model.hlc import Hlc
from penstock.ports.feeds import (
    MUTATIONS,
    STUB,
    MutationBroken,
    RowState,
    Slice,
    StagedTable,
    StagingDialect,
    key_empty,
)

GZIP_BYTES_MIN: Final = 1025
"""Longer than 1024 bytes: worth trying to compress."""
DELETED: Final = b"null"
"""Value of `mut` for a removal."""
_MAGIC = b"\x1f\x8b"
_GZIP_LEVEL = 1  # a fifth of the time of level 6, for a tenth more bytes of JSON

COPIED_COLUMNS: Final = "deletion, nanos, logical, key, mut, before"
_COPY_HEAD: Final = b"PGCOPY\n\xff\r\n\0" + b"\0" * 8
_COPY_END: Final = b"\xff\xff"
# What stands before a row's key in binary COPY: six columns; their lengths, and the short ones.
_ROW_HEAD = np.dtype(
    [
        ("columns", ">i2"),
        ("deletion_bytes", ">i4"),
        ("deletion", "u1"),
        ("nanos_bytes", ">i4"),
        ("nanos", ">i8"),
        ("logical_bytes", ">i4"),
        ("logical", ">i8"),
        ("key_bytes", ">i4"),
    ]
)
_LENGTH = struct.Struct(">i").pack
_NULL = _LENGTH(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Mutations of one table as they are stored: distinct, in order of the primary key."""

    nanos: np.ndarray[Any, np.dtype[np.int64]]
    logical: np.ndarray[Any, np.dtype[np.int64]]
    key: list[bytes]
    mut: list[bytes]
    before: list[bytes | None]
    deletion: list[bool]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.key)

    def to_copy(self) -> bytes:
        """Return all rows as one binary COPY of `COPIED_COLUMNS`."""
        count = len(self)
        heads = np.empty(count, _ROW_HEAD)
        heads["columns"] = 6
        heads["deletion_bytes"] = 1
        heads["deletion"] = self.deletion
        heads["nanos_bytes"] = heads["logical_bytes"] = 8
        heads["nanos"] = self.nanos
        heads["logical"] = self.logical
        heads["key_bytes"] = np.fromiter(map(len, self.key), np.int64, count)
        muts = np.fromiter(map(len, self.mut), ">i4", count).tobytes()
        fixed, size = heads.tobytes(), _ROW_HEAD.itemsize
        parts: list[bytes] = [b""] * (5 * count)
        parts[0::5] = [fixed[at : at + size] for at in range(0, len(fixed), size)]
        parts[1::5] = self.key
        parts[2::5] = [muts[at : at + 4] for at in range(0, len(muts), 4)]
        parts[3::5] = self.mut
        parts[4::5] = [_NULL if one is None else _LENGTH(len(one)) + one for one in self.before]
        return b"".join((_COPY_HEAD, *parts, _COPY_END))

    def arrays(self) -> tuple[list[int], list[int], list[str], list[bytes], list[Any], list[bool]]:
        """Return the parameters: nanos, logical, key, mut, before, deletion."""
        return (
            self.nanos.tolist(),
            self.logical.tolist(),
            [one.decode() for one in self.key],
            self.mut,
            self.before,
            self.deletion,
        )


def rows_of(table: StagedTable, batch: pa.RecordBatch) -> Rows:
    """Return the rows of a batch to store: the last row of each time and key. Raises KeyEmpty."""
    if batch.num_rows and _has_empty_key(batch):
        raise key_empty(table)
    batch = _in_order(batch)
    after = _values(batch.column("after"))
    deletion = [one is None for one in after]
    return Rows(
        nanos=batch.column("nanos").to_numpy(),
        logical=batch.column("logical").to_numpy(),
        key=_values(batch.column("key").cast(pa.binary())),
        mut=[DELETED if one is None else _pack(one) for one in after],
        before=[None if one is None else _pack(one) for one in _values(batch.column("before"))],
        deletion=deletion,
    )


def _has_empty_key(batch: pa.RecordBatch) -> bool:
    key = batch.column("key")
    return bool(key.null_count) or pc.min(pc.binary_length(key)).as_py() == 0


def _in_order(batch: pa.RecordBatch) -> pa.RecordBatch:
    nanos, logical = batch.column("nanos").to_numpy(), batch.column("logical").to_numpy()
    later = (nanos[1:] > nanos[:-1]) | ((nanos[1:] == nanos[:-1]) & (logical[1:] > logical[:-1]))
    if bool(later.all()):
        return batch
    place = pa.array(np.arange(batch.num_rows))  # the last of equal ones is the one that counts
    numbered = pa.table(
        [batch.column("nanos"), batch.column("logical"), batch.column("key"), place],
        names=["nanos", "logical", "key", "place"],
    )
    order = pc.sort_indices(
        numbered, sort_keys=[(name, "ascending") for name in numbered.column_names]
    )
    batch = batch.take(order)
    same = np.ones(max(batch.num_rows - 1, 0), bool)
    for name in ("nanos", "logical", "key"):
        column = batch.column(name)
        same &= pc.equal(column[:-1], column[1:]).to_numpy(zero_copy_only=False)
    if same.any():
        batch = batch.filter(pa.array(np.append(~same, True)))
    return batch


def _values(column: pa.Array) -> list[Any]:
    """Return the bytes of each value, None for null: several times as fast as to_pylist()."""
    if column.null_count == len(column):
        return [None] * len(column)
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[
        column.offset : column.offset + len(column) + 1
    ].tolist()
    text = b"" if data is None else memoryview(data)[ends[0] : ends[-1]].tobytes()
    first = ends[0]
    found = [text[low - first : high - first] for low, high in pairwise(ends)]
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False).tolist()
        return [one if is_there else None for one, is_there in zip(found, valid, strict=True)]
    return found


def _pack(value: bytes) -> bytes:
    """Return the value compressed if it is long and becomes shorter."""
    if len(value) < GZIP_BYTES_MIN:
        return value
    packed = gzip.compress(value, compresslevel=_GZIP_LEVEL, mtime=0)
    return packed if len(packed) < len(value) else value


def unpack(value: bytes, table: StagedTable) -> bytes:
    """Return the plain value; a packed one is known by the two bytes that every gzip file begins
    with.
    """
    if value[:2] != _MAGIC:
        return value
    try:
        return gzip.decompress(value)
    except (OSError, EOFError, zlib.error) as error:
        raise MutationBroken(
            f"a staged mutation of {table} is not a gzip file: {error}",
            hint="Look at the mutation table: mut and before hold JSON, or gzip of it. Put the row "
            "right, or delete it and have the changefeed send it again.",
            table=str(table),
        ) from error


def batch_of_rows(table: StagedTable, found: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return the batch of rows as tables have them: nanos, logical, key, mut, before."""
    if not found:
        return _empty()
    nanos, logical, key, mut, before = zip(*found, strict=True)
    after = [None if one == DELETED else unpack(one, table) for one in mut]
    earlier = [None if one is None else unpack(one, table) for one in before]
    return pa.record_batch(
        [
            pa.array(nanos, pa.int64()),
            pa.array(logical, pa.int64()),
            pa.array(key, pa.string()),
            pa.array(after, pa.binary()),
            pa.array(earlier, pa.binary()),
        ],
        schema=MUTATIONS,
    )


def _empty() -> pa.RecordBatch:
    return pa.record_batch([pa.array([], field.type) for field in MUTATIONS], schema=MUTATIONS)


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
            for table, some in _in_order_of_name(rows):
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
                for table, some in _in_order_of_name(rows)
            }


def _in_order_of_name(rows: Mapping[str, Rows]) -> Iterator[tuple[str, Rows]]:
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
