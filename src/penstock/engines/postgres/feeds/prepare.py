"""Makes and upgrades mutation tables, one at a time, each in a transaction of its own.

Nothing is locked but what has to be changed, and never two tables at once: so that two instances
never wait for each other in a circle. Not here: their DDL (`tables.py`).
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

import psycopg

from penstock.engines.postgres.connect import quote, statement
from penstock.ports.feeds import Group, StagedTable, StagingUnusable
from penstock.sql.staging_tables import StagingDialect

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
        f"no mutation table can be made for {table}: {' and '.join(names)} are other relations",
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
