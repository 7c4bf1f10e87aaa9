"""Reading tables at one consistent point: snapshots, chunks, and the COPY that reads a chunk.

A chunk is a range of heap blocks of one storage relation (a table, or a partition of it), or a
range of its key for other storages. Rows that move between ranges while others write do no harm
under one snapshot; without a common snapshot such ranges would be wrong. Not here: the copying
process (`penstock.load`), and the slot that gives the point (`slot.py`).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg.rows import dict_row

from penstock.codec.postgres.lsn import Lsn
from penstock.engines.postgres.connect import (
    EXACT_TEXT_SETTINGS,
    connect,
    literal,
    quote,
    server_errors,
)
from penstock.engines.postgres.source.key_ranges import key_ranges
from penstock.engines.postgres.source.slot import ConsistentPoint, Watch, consistent_point
from penstock.model import PenstockError, TableDefinition, TableName

PLAIN_POINT = """
    select pg_export_snapshot(),
           (case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
                 else pg_current_wal_insert_lsn()
            end)::text
"""

CHUNK_SIZE_BYTES = 64 * 2**20
LOCK_TIMEOUT_S = 60
SNAPSHOT_SETTINGS = {
    **EXACT_TEXT_SETTINGS,
    "synchronize_seqscans": "off",  # a table is read from its first block on, every time
}

COLUMNS_THEN = """
    select attrelid::bigint, attnum::int4, attname::text, atttypid::bigint, atttypmod
      from pg_attribute
     where attrelid = any(%(ids)s::bigint[])
       and attnum > 0
       and not attisdropped
     order by attrelid, attnum
"""
# The catalogue as the snapshot saw it, beside functions that look at it as it is now.
REWRITTEN = """
    with recursive tree(root, id) as (
        select w.id, w.id::oid
          from unnest(%(ids)s::bigint[]) as w(id)
         union all
        select t.root, i.inhrelid
          from tree as t
          join pg_inherits as i on i.inhparent = t.id
          join pg_class as c on c.oid = i.inhrelid and c.relispartition
    ),
    seen as (
        select t.root, t.id, c.relkind,
               c.relfilenode::bigint as before,
               pg_relation_filenode(c.oid)::bigint as after
          from tree as t
          join pg_class as c on c.oid = t.id
    )
    select w.id
      from unnest(%(ids)s::bigint[]) as w(id)
     where not exists (select from seen as s where s.id = w.id::oid)
        or exists (select
                     from seen as s
                    where s.root = w.id
                      and s.relkind = 'r'
                      and s.before is distinct from s.after)
        or exists (select
                     from seen as s
                    where s.id = w.id::oid
                      and s.relkind = 'p'
                      and (select array_agg(p.relid::oid order by p.relid::oid)
                             from pg_partition_tree(s.id) as p)
                          is distinct from
                          (select array_agg(x.id order by x.id)
                             from seen as x
                            where x.root = w.id))
"""

STORAGES = """
    select s.root::bigint as root,
           c.oid::bigint as id,
           n.nspname as schema,
           c.relname as name,
           c.relkind::text as kind,
           coalesce(a.amname, '') as access_method,
           case when c.relkind = 'r' then pg_relation_size(c.oid) else 0 end as heap_bytes,
           case when c.relkind = 'r' then pg_table_size(c.oid) else 0 end as table_bytes,
           greatest(c.reltuples, 0)::bigint as row_estimate,
           current_setting('block_size')::int as block_bytes
      from (select r.oid, t.relid
              from pg_class as r
             cross join lateral pg_partition_tree(r.oid) as t
             where r.oid = any(%(ids)s::bigint[]::oid[])
               and r.relkind = 'p'
               and t.isleaf
             union all
            select r.oid, r.oid
              from pg_class as r
             where r.oid = any(%(ids)s::bigint[]::oid[])
               and r.relkind <> 'p') as s(root, id)
      join pg_class as c on c.oid = s.id
      join pg_namespace as n on n.oid = c.relnamespace
      left join pg_am as a on a.oid = c.relam
     where c.relkind <> 'p'
     order by n.nspname, c.relname
"""


# SQLSTATEs of a statement that names a table or schema which is not there.
NOT_THERE = ("42P01", "3F000")


class SnapshotGone(PenstockError):
    """The exported snapshot cannot be imported, because the session that kept it has ended."""

    code = "PG44"
    retry = "operator"


class TableRewritten(PenstockError):
    """A table was truncated, rewritten or got other partitions since the snapshot was taken.

    In that snapshot it would look empty or changed, so a later point is needed.
    """

    code = "PG45"
    retry = "backoff"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageChunk:
    """A piece of a table: blocks first_block to last_block, both included, of one storage.

    number: from 1 within the table, over all its storages. storage: the table itself or a
    partition. last_block None: to the end, however far that is. condition: SQL that selects the
    piece's rows by their key, where blocks do not. size_bytes, row_estimate: for planning and
    progress; TOAST counted.
    """

    table: TableName
    number: int
    storage_oid: int
    storage: TableName
    first_block: int = 0
    last_block: int | None = None
    condition: str = ""
    size_bytes: int = 0
    row_estimate: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A table that is to be cut, by its oid, into chunks of about this size."""

    source_id: int
    size_bytes: int


# -- snapshots -----------------------------------------------------------------------------------


def open_snapshot(
    url: str, snapshot_id: str, *, application_name: str = "penstock copy"
) -> psycopg.Connection:
    """Return a connection whose transaction sees the database as the exported snapshot does.

    Read only, repeatable read, SNAPSHOT_SETTINGS; ends with close(). Raises SnapshotGone when the
    snapshot's keeper is no more, and what `penstock.engines.postgres.connect.connect` raises.
    """
    connection = connect(url, application_name=application_name, options=SNAPSHOT_SETTINGS)
    try:
        with server_errors("opening a snapshot"):
            connection.execute("begin isolation level repeatable read read only")
            try:
                connection.execute(f"set transaction snapshot {literal(snapshot_id)}")
            except (
                # No such file; no such snapshot (18); the process that exported it is gone.
                psycopg.errors.InvalidParameterValue,
                psycopg.errors.UndefinedObject,
                psycopg.errors.ObjectNotInPrerequisiteState,
            ) as error:
                raise SnapshotGone(
                    f"snapshot {snapshot_id} is gone: {error.diag.message_primary}",
                    hint="Start again: unfinished tables are then loaded at a new point.",
                ) from error
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def temporary_consistent_point(
    url: str, *, on_blocked: Watch | None = None
) -> Iterator[ConsistentPoint]:
    """Provide a position and a snapshot for a with block, from a temporary slot of its own.

    Transactions whose commit record starts before `position` are in the snapshot, all others are
    not. Waits for every transaction that runs now: see `slot.create_slot`, also for on_blocked
    and the errors.
    """
    name = f"penstock_tmp_{secrets.token_hex(8)}"
    with consistent_point(url, name, temporary=True, on_blocked=on_blocked) as point:
        yield point


@contextmanager
def plain_point(url: str) -> Iterator[ConsistentPoint]:
    """Export a snapshot for the length of a with block, without a slot.

    It is for rows that no changes follow: the position is where the log ended about then, and the
    server needs no logical decoding, nor the role REPLICATION.
    """
    keeper = connect(
        url, application_name="penstock snapshot", autocommit=True, options=EXACT_TEXT_SETTINGS
    )
    with closing(keeper):
        with server_errors("exporting a snapshot"):
            keeper.execute("begin isolation level repeatable read read only")
            row = keeper.execute(PLAIN_POINT).fetchone()
        assert row is not None
        yield ConsistentPoint(Lsn.parse(row[1]).ordinal, row[0], keeper)


def lock_tables(
    connection: psycopg.Connection,
    tables: Sequence[TableDefinition],
    *,
    timeout_s: float = LOCK_TIMEOUT_S,
) -> None:
    """Lock tables and their partitions against DDL until the transaction ends.

    Not the tables that inherit from them, which are read by themselves.

    connection: in a transaction, after its snapshot was set. ACCESS SHARE keeps off only changes
    of the table itself; those wait, so hold it no longer than needed. Raises StatementInterrupted
    when such a change has been running for timeout_s. Never take these locks before a slot is
    made: the slot would wait for a change that waits for the lock.
    """
    if not tables:
        return
    names = ", ".join(
        f"{'' if table.is_partitioned else 'only '}{quote(*table.name)}" for table in tables
    )
    with server_errors("locking the tables against changes of their shape"):
        connection.execute(f"set local lock_timeout = '{int(timeout_s * 1000)}ms'")
        connection.execute(f"lock table {names} in access share mode")
        connection.execute("set local lock_timeout = 0")


def check_not_rewritten(connection: psycopg.Connection, tables: Sequence[TableDefinition]) -> None:
    """Check that the snapshot shows the tables' rows.

    connection: from `open_snapshot` (or a consistent point's keeper), after `lock_tables`. What
    TRUNCATE or a rewriting ALTER committed between snapshot and lock shows as an empty table.
    Raises TableRewritten with the names in `fields["tables"]`.
    """
    changed = sorted(map(str, rewritten_tables(connection, tables)))
    if changed:
        raise TableRewritten(
            f"{', '.join(changed)} changed after the snapshot",
            hint="Nothing to do: the tables are read at a later point.",
            tables=changed,
        )


def rewritten_tables(
    connection: psycopg.Connection, tables: Sequence[TableDefinition]
) -> set[TableName]:
    """Return the tables whose rows the snapshot does not show; see check_not_rewritten."""
    if not tables:
        return set()
    names = {table.source_id: table.name for table in tables}
    with server_errors("checking that tables were not rewritten"):
        rows = connection.execute(REWRITTEN, {"ids": sorted(names)}).fetchall()
    return {names[row[0]] for row in rows}


def reshaped_tables(
    connection: psycopg.Connection, tables: Sequence[TableDefinition]
) -> set[TableName]:
    """Return the tables whose columns are not those in the snapshot's catalogue."""
    seen: dict[int, list[tuple[int, str, int, int]]] = {one.source_id: [] for one in tables}
    with server_errors("reading the columns that tables had"):
        for source_id, *column in connection.execute(COLUMNS_THEN, {"ids": sorted(seen)}):
            seen[source_id].append(tuple(column))
    return {
        one.name
        for one in tables
        if seen[one.source_id] != [(c.id, c.name, c.type_oid, c.typmod) for c in one.columns]
    }


# -- chunks --------------------------------------------------------------------------------------


def plan_chunks(
    connection: psycopg.Connection,
    definition: TableDefinition,
    *,
    size_bytes_target: int = CHUNK_SIZE_BYTES,
) -> list[StorageChunk]:
    """Cut a table into chunks of about size_bytes_target that together hold every row once.

    The last chunk of each storage is open at its end, so any earlier sizes will do.
    Storages that are not heaps are cut by a unique key, if they have one. A table without
    storages, a partitioned one without partitions, has none.
    """
    if size_bytes_target < 1:
        raise ValueError(f"not a chunk size: {size_bytes_target}")
    cut = Cut(source_id=definition.source_id, size_bytes=size_bytes_target)
    return plan_all_chunks(connection, {definition.name: cut})[definition.name]


def plan_all_chunks(
    connection: psycopg.Connection, cuts: Mapping[TableName, Cut]
) -> dict[TableName, list[StorageChunk]]:
    """Cut several tables, see `plan_chunks`, by one look at the catalogue.

    Also reads a sample of a storage other than a heap, if it is larger than a chunk.
    """
    with server_errors("planning the chunks of tables"):
        with connection.cursor(row_factory=dict_row) as cursor:
            ids = [cut.source_id for cut in cuts.values()]
            found = cursor.execute(STORAGES, {"ids": ids}).fetchall()
        storages: dict[int, list[dict[str, Any]]] = {}
        for storage in found:
            storages.setdefault(storage["root"], []).append(storage)
        return {
            name: _cut_storages(connection, name, storages.get(cut.source_id, []), cut.size_bytes)
            for name, cut in cuts.items()
        }


def _cut_storages(
    connection: psycopg.Connection,
    table: TableName,
    storages: Sequence[dict[str, Any]],
    size_bytes: int,
) -> list[StorageChunk]:
    chunks: list[StorageChunk] = []
    for storage in storages:
        if storage["access_method"] in ("heap", ""):
            pieces = _by_blocks(table, storage, size_bytes)
        else:
            pieces = _by_key(connection, table, storage, size_bytes)
        chunks.extend(
            replace(piece, number=number)
            for number, piece in enumerate(pieces, start=len(chunks) + 1)
        )
    return chunks


def _by_blocks(
    table: TableName, storage: dict[str, Any], size_bytes_target: int
) -> list[StorageChunk]:
    block_bytes, size_bytes = storage["block_bytes"], storage["table_bytes"]
    blocks = storage["heap_bytes"] // block_bytes
    step = 1
    if blocks:
        # A heap block counts with its share of the values that are stored out of line.
        bytes_per_block = max(size_bytes / blocks, block_bytes)
        step = max(int(size_bytes_target // bytes_per_block), 1)
        step = math.ceil(
            blocks / math.ceil(blocks / step)
        )  # of equal size: the last one is not a small rest
    starts = range(0, max(blocks, 1), step)
    return [
        _piece(
            table,
            storage,
            share=min(step, blocks - start) / blocks if blocks else 1.0,
            first_block=start,
            last_block=None if start + step >= blocks else start + step - 1,
        )
        for start in starts
    ]


def _by_key(
    connection: psycopg.Connection,
    table: TableName,
    storage: dict[str, Any],
    size_bytes_target: int,
) -> list[StorageChunk]:
    conditions = key_ranges(
        connection,
        storage["id"],
        TableName(storage["schema"], storage["name"]),
        blocks=storage["heap_bytes"] // storage["block_bytes"],
        count=math.ceil(storage["table_bytes"] / size_bytes_target),
    )
    return [
        _piece(table, storage, share=1 / len(conditions), condition=condition)
        for condition in conditions
    ]


def _piece(
    table: TableName,
    storage: dict[str, Any],
    *,
    share: float,
    first_block: int = 0,
    last_block: int | None = None,
    condition: str = "",
) -> StorageChunk:
    return StorageChunk(
        table=table,
        number=0,
        storage_oid=storage["id"],
        storage=TableName(storage["schema"], storage["name"]),
        first_block=first_block,
        last_block=last_block,
        condition=condition,
        size_bytes=int(storage["table_bytes"] * share),
        row_estimate=int(storage["row_estimate"] * share),
    )


def copy_sql(chunk: StorageChunk, columns: Sequence[str], *, binary: bool = False) -> str:
    """Return the COPY TO STDOUT that reads a chunk's rows, columns in the given order."""
    names = ", ".join(quote(column) for column in columns)
    bounds = [chunk.condition] if chunk.condition else []
    if chunk.first_block > 0:
        bounds.append(f"ctid >= '({chunk.first_block},0)'::tid")
    if chunk.last_block is not None:
        bounds.append(f"ctid < '({chunk.last_block + 1},0)'::tid")
    where = f" where {' and '.join(bounds)}" if bounds else ""
    form = " (format binary)" if binary else ""
    return f"copy (select {names} from only {quote(*chunk.storage)}{where}) to stdout{form}"
