"""The staging schema in PostgreSQL's dialect: the published tables, word by word where it can be.

STRING is text, BYTES bytea, INT bigint; virtual columns are generated ones. Text that is part of a
key has the collation "C": bytes decide, as in CockroachDB. Two things are PostgreSQL's own:

- The index of a mutation table has `key` alone. With `applied` stored in it, marking a row applied
  would write a new entry into every index: 10.5 us a row, where 2.5 us are enough without.
- For the same reason pages of mutation tables are not even half full: the marked version of a row,
  which is longer by its time, fits beside the first one, and no index needs to know.

Mutation tables are made and upgraded one at a time, each in a transaction of its own. Nothing is
locked but what has to be changed, and never two tables at once: so that two instances never wait
for each other in a circle.
"""

from __future__ import annotations

import hashlib
import json
from types import MappingProxyType
from typing import Any, Final

import psycopg

from penstock.engines.postgres.connect import quote, statement
from penstock.ports.feeds import Group, StagedTable, StagingDialect, StagingUnusable

CHECKPOINTS = """
create table if not exists public.checkpoints (
  group_name        text collate "C" not null,
  source_hlc        decimal          not null,
  partition         text collate "C" not null,
  first_seen        timestamptz      not null default now(),
  target_applied_at timestamptz,
  source_nanos      int8 generated always as (floor(source_hlc)::int8) {kept},
  source_logical    int8 generated always as (((source_hlc-floor(source_hlc))*1e10)::int8) {kept},
  source_wall_time  timestamptz
                    generated always as (to_timestamp(floor(source_hlc)::float8 / 1e9)) {kept},
  primary key (group_name, source_hlc, partition)
);
create index if not exists checkpoints_group_name_target_applied_at_partition_idx
    on public.checkpoints (group_name, target_applied_at, partition)
"""
LEASES = """
create table if not exists public.leases (
  name     text      primary key,
  expires  timestamp not null,
  nonce    uuid      not null,
  hostname text      not null
)"""
MEMO = """
create table if not exists public.memo (
  key   text  primary key,
  value bytea not null
)"""
JWT_PUBLIC_KEYS = """
create table if not exists public.jwt_public_keys (
  id         uuid primary key default gen_random_uuid(),
  public_key text not null,
  active     bool not null default true
)"""
JWT_REVOKED_IDS = """
create table if not exists public.jwt_revoked_ids (
  id text primary key
)"""
MUTATIONS = """
create table {table} (
       nanos int8 not null,
     logical int8 not null,
         key text collate "C" not null,
         mut bytea not null,
      before bytea null,
     applied bool not null default false,
  applied_at timestamptz null,
    deletion bool not null default false,
 source_time timestamptz generated always as (to_timestamp(nanos::float8/1e9)) {kept},
  primary key (nanos, logical, key)
) with (fillfactor = 45)"""
RETIRE = """
with old as (
  select ctid as place
    from {table}
   where (nanos, logical) >= (%s, %s) and (nanos, logical) < (%s, %s) and applied
   order by nanos, logical
   limit %s
), gone as (
  delete from {table}
   where ctid = any(array(select place from old))
  returning nanos
)
select count(*), max(nanos) from gone
"""

DIALECT = StagingDialect(
    shown="PostgreSQL",
    server="PostgreSQL",
    tables=MappingProxyType(
        {
            "checkpoints": CHECKPOINTS,
            "leases": LEASES,
            "memo": MEMO,
            "jwt_public_keys": JWT_PUBLIC_KEYS,
            "jwt_revoked_ids": JWT_REVOKED_IDS,
        }
    ),
    mutations=MUTATIONS,
    mutation_index="create index {index} on {table} (key)",
    mutation_columns=MappingProxyType(
        {
            "before": "alter table {table} add column before bytea null",
            "applied": "alter table {table} add column applied bool not null default false",
            "applied_at": "alter table {table} add column applied_at timestamptz null",
            "deletion": "alter table {table} add column deletion bool",
        }
    ),
    retire=RETIRE,
    name_bytes_max=63,
    copies=True,
    size="""
select pg_relation_size(place) / current_setting('block_size')::int, pg_total_relation_size(place)
  from (select %s::regclass as place) named
""",
    sample="tablesample system ({percent}) repeatable (1)",
)


_HASH_DIGITS = 8


def plain_name(table: StagedTable) -> str:
    """Return `_database_schema_table` in lower case; several tables may have the same."""
    return "_" + "_".join((*table.group, table.name)).lower()


def exact(table: StagedTable) -> bytes:
    """Return the exact name of a table, as memo keeps it: distinct tables differ."""
    return json.dumps({"table": [*table.group, table.name]}, ensure_ascii=False).encode()


def table_of(exactly: bytes) -> StagedTable:
    """Return the inverse of `exact`."""
    *group, name = json.loads(exactly)["table"]
    return StagedTable(tuple(group), name)


def hash_name(table: StagedTable, bytes_max: int, suffix: str = "") -> str:
    """Return a name with eight digits of a hash, if the plain one is taken or too long.

    The hash is of the exact name. suffix: end of the name, as for an index.
    """
    digits = hashlib.sha256(exact(table)).hexdigest()[:_HASH_DIGITS]
    end = f"_{digits}{suffix}"
    return shorten(plain_name(table), bytes_max - len(end)) + end


def shorten(name: str, bytes_max: int) -> str:
    """Return as many whole characters of a name as fit."""
    return name.encode()[:bytes_max].decode(errors="ignore")


OWNERS_PREFIX = "mutations "


def memo_key(name: str) -> str:
    """Return the key in memo for the owner of a mutation table."""
    return OWNERS_PREFIX + name


SCHEMA = "public"
LOCK: Final = "select pg_advisory_xact_lock(hashtext('penstock staging'))"
"""Lock that is held while the staging schema is changed, until the end of the transaction."""

_COLUMNS: Final = """
    select column_name, data_type
      from information_schema.columns
     where table_schema = %s and table_name = %s
"""
_SUFFIX: Final = "_key_applied"
_MUT_TYPE: Final = "bytea"
_PUBLISHED = frozenset({"nanos", "logical", "key", "mut"})
_TAKEN: Final = """
    select 1
      from pg_class c
      join pg_namespace n on n.oid = c.relnamespace
     where n.nspname = %s and c.relname = %s
"""
_INDEXES: Final = """
    select 1
      from pg_indexes
     where schemaname = %s and tablename = %s and indexname = any(%s::text[])
"""
_OWNER: Final = "select value from public.memo where key = %s"
_OWNERS: Final = "select key, value from public.memo where starts_with(key, %s)"
_OWN: Final = "insert into public.memo (key, value) values (%s, %s) on conflict do nothing"


def storage_of_generated(server_version: int) -> str:
    """Return the storage of a generated column: virtual, which PostgreSQL has since 18, or
    stored.
    """
    return "virtual" if server_version >= 180000 else "stored"


def prepare(
    connection: psycopg.Connection[Any], dialect: StagingDialect, table: StagedTable
) -> str:
    """Create or upgrade the mutation table of a target table; return its name.

    Raises StagingUnusable if other tables have its names.
    """
    with connection.transaction():
        connection.execute(LOCK)
        name = _name_of(connection, dialect, table)
        columns = _columns(connection, name)
        place = quote(SCHEMA, name)
        if not columns:
            index = _index_name(connection, dialect, table, name)
            connection.execute(
                statement(
                    dialect.mutations.format(
                        table=place,
                        index=quote(index),
                        kept=storage_of_generated(connection.info.server_version),
                    )
                )
            )
        for column, ddl in dialect.mutation_columns.items():
            if columns and column not in columns:
                connection.execute(statement(ddl.format(table=place)))
        if not _has_index(connection, dialect, table, name):
            index = _index_name(connection, dialect, table, name)
            connection.execute(
                statement(dialect.mutation_index.format(table=place, index=quote(index)))
            )
    return name


def staged_tables(connection: psycopg.Connection[Any], group: Group) -> tuple[StagedTable, ...]:
    """Return the tables of a target schema that have mutation tables."""
    return tuple(mutation_tables(connection, group))


def staged_groups(connection: psycopg.Connection[Any]) -> tuple[Group, ...]:
    """Return the target schemas whose tables have mutation tables."""
    return tuple(sorted({table.group for table in _owners(connection)}))


def mutation_tables(connection: psycopg.Connection[Any], group: Group) -> dict[StagedTable, str]:
    """Return the tables of a target schema, in order, with their mutation tables' SQL names."""
    names = _owners(connection)
    return {table: quote(SCHEMA, names[table]) for table in sorted(names) if table.group == group}


def _owners(connection: psycopg.Connection[Any]) -> dict[StagedTable, str]:
    found = connection.execute(_OWNERS, (OWNERS_PREFIX,)).fetchall()
    return {table_of(bytes(value)): key.removeprefix(OWNERS_PREFIX) for key, value in found}


def _name_of(
    connection: psycopg.Connection[Any], dialect: StagingDialect, table: StagedTable
) -> str:
    """Return the name of a target table's mutation table, and reserve it."""
    ours = exact(table)
    plain = plain_name(table)
    is_long = len(plain.encode()) > dialect.name_bytes_max
    names = [] if is_long else [plain]
    names.append(hash_name(table, dialect.name_bytes_max))
    for name in names:
        found = connection.execute(_OWNER, (memo_key(name),)).fetchone()
        if found is not None and bytes(found[0]) == ours:
            return name
    for name in names:
        owned = connection.execute(_OWNER, (memo_key(name),)).fetchone() is not None
        if not owned and _is_free(connection, name):
            connection.execute(_OWN, (memo_key(name), ours))
            return name
    raise StagingUnusable(
        f"no mutation table can be created for {table}: {' and '.join(names)} are other relations",
        hint=f"Rename what has the name: alter table {quote(SCHEMA, names[-1])} rename to NAME;",
        table=str(table),
    )


def _is_free(connection: psycopg.Connection[Any], name: str) -> bool:
    """Return whether the name is free, or that of a mutation table without an owner."""
    if connection.execute(_TAKEN, (SCHEMA, name)).fetchone() is None:
        return True
    columns = _columns(connection, name)
    return columns.keys() >= _PUBLISHED and columns["mut"] == _MUT_TYPE


def _columns(connection: psycopg.Connection[Any], name: str) -> dict[str, str]:
    return dict(connection.execute(_COLUMNS, (SCHEMA, name)).fetchall())


def _index_names(dialect: StagingDialect, table: StagedTable, name: str) -> list[str]:
    plain = name + _SUFFIX
    names = [plain] if len(plain.encode()) <= dialect.name_bytes_max else []
    return [*names, hash_name(table, dialect.name_bytes_max, _SUFFIX)]


def _has_index(
    connection: psycopg.Connection[Any], dialect: StagingDialect, table: StagedTable, name: str
) -> bool:
    names = _index_names(dialect, table, name)
    return connection.execute(_INDEXES, (SCHEMA, name, names)).fetchone() is not None


def _index_name(
    connection: psycopg.Connection[Any], dialect: StagingDialect, table: StagedTable, name: str
) -> str:
    """Return an unused name for the index: `t_key_applied` may be a target table's name, too."""
    *plain, other = _index_names(dialect, table, name)
    free = [one for one in plain if connection.execute(_TAKEN, (SCHEMA, one)).fetchone() is None]
    return free[0] if free else other
