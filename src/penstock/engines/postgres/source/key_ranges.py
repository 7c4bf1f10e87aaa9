"""Ranges of a key, for tables that cannot be read by ranges of heap blocks.

Where to cut is taken from a sample of the rows. However good it is, together the ranges hold every
row once: a row belongs to the last range whose lower bound it is not below, and one that cannot
be compared, having NULL there, to the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
import structlog
from psycopg.rows import dict_row

from penstock.engines.postgres.connect import literal, quote
from penstock.model import TableName

logger = structlog.get_logger()

SAMPLE_BLOCKS = 1000

# Unique btree indexes over whole columns in the default order of < and >=, with the columns that
# can be compared together: up to the first that may be NULL or has the other direction.
KEYS = """
    select i.indisprimary,
           array_agg(a.attname order by k.place) as names,
           array_agg(format_type(a.atttypid, a.atttypmod) order by k.place) as types,
           array_agg(case when a.attcollation <> 0
                          then quote_ident(n.nspname) || '.' || quote_ident(l.collname)
                          else '' end
                     order by k.place) as collations,
           array_agg(a.attnotnull order by k.place) as not_null,
           array_agg(i.indoption[k.place - 1] & 1 order by k.place) as directions
      from pg_index as i
      join pg_class as x on x.oid = i.indexrelid
      join pg_am as m on m.oid = x.relam and m.amname = 'btree'
     cross join lateral generate_series(1, i.indnkeyatts) as k(place)
      join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = i.indkey[k.place - 1]
      join pg_opclass as o on o.oid = i.indclass[k.place - 1]
      left join pg_collation as l on l.oid = a.attcollation
      left join pg_namespace as n on n.oid = l.collnamespace
     where i.indrelid = %(id)s::bigint::oid
       and i.indisunique
       and i.indisvalid
       and i.indpred is null
       and i.indexprs is null
     group by i.indexrelid, i.indisprimary, i.indnkeyatts
    having count(*) = i.indnkeyatts
       and bool_and(o.opcdefault
                    and o.opcnamespace = 'pg_catalog'::regnamespace
                    and i.indcollation[k.place - 1] = a.attcollation)
     order by i.indisprimary desc, bool_and(a.attnotnull) desc, i.indnkeyatts, i.indexrelid
"""

# First rows of equally large parts of the rows seen; no two that are equal.
CUTS = """
    with seen as (
        select {columns}
          from {rows}
         where {first} is not null
    ),
    placed as (
        select {names},
               row_number() over (order by {names}) - 1 as place,
               count(*) over () as total
          from seen
    ),
    cuts as (
        select {names}, {before}, place
          from placed
         where place > 0
           and place * {count} / total <> (place - 1) * {count} / total
        window w as (order by place)
    )
    select {texts}
      from cuts
     where before0 is null
        or ({names}) > ({names_before})
     order by place
"""
SAMPLED = "{table} tablesample system ({share:.6f}) repeatable (1)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Columns by whose values a table can be cut.

    columns: names. types: as the server prints them. collations: quoted, empty for types without.
    nullable: there is one column, and it may be NULL.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]
    collations: tuple[str, ...]
    nullable: bool

    @property
    def sql(self) -> str:
        """The columns as one side of a comparison."""
        return self._row([quote(column) for column in self.columns])

    def bind_values(self, values: Sequence[str]) -> str:
        """Return values, as the server prints them, as the other side of a comparison."""
        parts = []
        for value, type_text, collation in zip(values, self.types, self.collations, strict=True):
            part = f"{literal(value)}::{type_text}"
            parts.append(f"({part} collate {collation})" if collation else part)
        return self._row(parts)

    def _row(self, parts: Sequence[str]) -> str:
        return f"({', '.join(parts)})" if len(parts) > 1 else parts[0]

    def ranges(self, cuts: Sequence[Sequence[str]]) -> list[str]:
        """Return the conditions of the ranges between cuts, which must be ascending."""
        bounds = [self.bind_values(cut) for cut in cuts]
        conditions = []
        for low, high in zip([None, *bounds], [*bounds, None], strict=True):
            parts = []
            if low is not None:
                parts.append(f"{self.sql} >= {low}")
            if high is not None:
                parts.append(f"{self.sql} < {high}")
            condition = " and ".join(parts)
            if low is None and self.nullable and high is not None:
                condition = f"({condition} or {self.sql} is null)"
            conditions.append(condition)
        return conditions


def key_ranges(
    connection: psycopg.Connection, storage_oid: int, storage: TableName, *, blocks: int, count: int
) -> list[str]:
    """Return SQL conditions that cut a storage into about `count` parts, with each row in exactly
    one.

    connection: of a transaction that sees the rows, or one in autocommit. blocks: how many blocks
    it has, to tell how much is sampled. A single empty condition when there is no unique key to
    cut by, or too few rows. Raises psycopg's errors.
    """
    keys = read_keys(connection, storage_oid) if count > 1 else []
    if not keys:
        return [""]
    key = keys[0]
    return key.ranges(read_cuts(connection, key, storage, blocks=blocks, count=count))


def read_keys(connection: psycopg.Connection, storage_oid: int) -> list[Key]:
    """Return the keys that a storage can be cut by, the best one first."""
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(KEYS, {"id": storage_oid}).fetchall()
    keys = []
    for row in rows:
        alike = 0
        for not_null, direction in zip(row["not_null"], row["directions"], strict=True):
            if not not_null or direction != row["directions"][0]:
                break
            alike += 1
        width = max(alike, 1)
        keys.append(
            Key(
                columns=tuple(row["names"][:width]),
                types=tuple(row["types"][:width]),
                collations=tuple(row["collations"][:width]),
                nullable=alike == 0,
            )
        )
    return keys


def read_cuts(
    connection: psycopg.Connection, key: Key, storage: TableName, *, blocks: int, count: int
) -> list[tuple[str, ...]]:
    """Return ascending values of the key that cut a storage into about `count` equal parts."""
    table = f"only {quote(*storage)}"
    share = min(100.0, 100.0 * SAMPLE_BLOCKS / max(blocks, 1))
    try:
        with connection.transaction():
            return _cuts(connection, key, SAMPLED.format(table=table, share=share), count)
    except psycopg.errors.FeatureNotSupported:
        # An access method need not know how to sample: then all values of the key are looked at.
        logger.info("table cannot be sampled", table=str(storage))
        with connection.transaction():
            return _cuts(connection, key, table, count)


def _cuts(connection: psycopg.Connection, key: Key, rows: str, count: int) -> list[tuple[str, ...]]:
    # Names of our own: a column may be called place.
    named = [(quote(column), f"key{n}", f"before{n}") for n, column in enumerate(key.columns)]
    statement = CUTS.format(
        columns=", ".join(f"{column} as {name}" for column, name, _ in named),
        rows=rows,
        first=named[0][0],
        names=", ".join(name for _, name, _ in named),
        names_before=", ".join(before for _, _, before in named),
        before=", ".join(f"lag({name}) over w as {before}" for _, name, before in named),
        texts=", ".join(f"{name}::text" for _, name, _ in named),
        count=count,
    )
    return connection.execute(statement.encode()).fetchall()
