"""Definitions of tables, read from the catalogue for all of them at once.

A few queries whatever the number of tables: databases have thousands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from penstock.engines.postgres.connect import is_table_in_motion
from penstock.engines.postgres.source.column_types import TypeBook, user_types
from penstock.model import (
    ColumnDefinition,
    ForeignKey,
    Identity,
    PenstockError,
    TableDefinition,
    TableName,
    UniqueKey,
)

Row = dict[str, Any]
LOOKS_MAX = 10  # at a table that is altered at this moment

# Partitions come from pg_inherits and not from pg_partition_tree(), which waits for an ALTER of one
# of them; so do sizes and printed expressions, which are left out when `shape_only`.
TREE = """
    with recursive tree(root, id) as (
        select c.oid, c.oid
          from pg_class as c
         where c.oid = any(%(ids)s::bigint[]::oid[])
         union all
        select t.root, i.inhrelid
          from tree as t
          join pg_inherits as i on i.inhparent = t.id
          join pg_class as c on c.oid = i.inhrelid and c.relispartition
    )
"""

TABLES = f"""
    {TREE}
    select c.oid::bigint as id,
           n.nspname as schema,
           c.relname as name,
           c.relkind::text as kind,
           c.relreplident::text as identity,
           s.leaves,
           s.size_bytes,
           s.row_estimate
      from pg_class as c
      join pg_namespace as n on n.oid = c.relnamespace
     cross join lateral (
           select array_agg(l.oid::bigint order by l.oid) as leaves,
                  sum(case when %(shape_only)s then 0
                           else pg_table_size(l.oid) end)::bigint as size_bytes,
                  sum(greatest(l.reltuples, 0))::bigint as row_estimate
             from tree as t
             join pg_class as l on l.oid = t.id
            where t.root = c.oid
              and l.relkind <> 'p') as s
     where c.oid = any(%(ids)s::bigint[]::oid[])
"""

COLUMNS = """
    select a.attrelid::bigint as id,
           a.attnum as number,
           a.attname as name,
           a.atttypid::bigint as type_oid,
           a.atttypmod as typmod,
           -- 18 marks a column whose constraint is not validated, too: old rows may hold NULL
           a.attnotnull and not exists (
               select
                 from pg_constraint as u
                where u.conrelid = a.attrelid
                  and u.contype = 'n'
                  and u.conkey = array[a.attnum]
                  and not u.convalidated) as not_null,
           case when not %(shape_only)s or %(expressions)s and a.attgenerated <> ''
                then pg_get_expr(d.adbin, d.adrelid) end as default_sql,
           a.attgenerated::text as generated,
           a.attidentity::text as identity_kind,
           a.attgenerated = '' and (a.atthasdef or a.attidentity <> '') as is_filled,
           case when a.attcollation <> t.typcollation
                then quote_ident(cn.nspname) || '.' || quote_ident(co.collname) end as collation,
           -- an anyarray of one element, which may be an array itself: through text it is exact
           (a.attmissingval::text::text[])[1] as missing,
           -- of the moment at which the values of old rows are read
           c.relfilenode::bigint as file
      from pg_attribute as a
      join pg_class as c on c.oid = a.attrelid
      join pg_type as t on t.oid = a.atttypid
      left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
      left join pg_collation as co on co.oid = a.attcollation
      left join pg_namespace as cn on cn.oid = co.collnamespace
     where a.attrelid = any(%(ids)s::bigint[]::oid[])
       and a.attnum > 0
       and not a.attisdropped
     order by a.attrelid, a.attnum
"""

# A partitioned table has no rows, so only its leaves have the values of old rows.
MISSING_IN_LEAVES = f"""
    {TREE}
    select t.root::bigint as id,
           a.attname as name,
           max((a.attmissingval::text::text[])[1]) as missing
      from tree as t
      join pg_attribute as a on a.attrelid = t.id
     where a.atthasmissing
       and not a.attisdropped
     group by t.root, a.attname
"""

INDEXES = """
    select i.indrelid::bigint as id,
           c.relname as name,
           i.indisprimary as is_primary,
           -- 18: keys without overlaps are exclusion constraints that are called unique
           i.indisunique and not i.indisexclusion as is_unique,
           i.indimmediate as is_immediate,
           i.indisreplident as is_identity,
           array(select a.attname
                   from unnest(i.indkey::int2[]) with ordinality as k(attnum, place)
                   join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = k.attnum
                  where k.place <= i.indnkeyatts
                  order by k.place)::text[] as columns,
           case when i.indisexclusion
                then regexp_replace(pg_get_indexdef(i.indexrelid), '^CREATE UNIQUE', 'CREATE')
                else pg_get_indexdef(i.indexrelid) end as definition,
           i.indexprs is null and i.indpred is null as is_whole,
           k.oid is not null as is_constraint,
           coalesce(k.condeferrable, false) as is_deferrable
      from pg_index as i
      join pg_class as c on c.oid = i.indexrelid
      left join pg_constraint as k
             on k.conindid = i.indexrelid
            and k.conrelid = i.indrelid
            and k.contype in ('p', 'u', 'x')
     where i.indrelid = any(%(ids)s::bigint[]::oid[])
       and i.indisvalid
       and i.indislive
     order by i.indrelid, c.relname
"""

FOREIGN_KEYS = """
    select k.conrelid::bigint as id,
           k.conname as name,
           array(select a.attname
                   from unnest(k.conkey) with ordinality as p(attnum, place)
                   join pg_attribute as a on a.attrelid = k.conrelid and a.attnum = p.attnum
                  order by p.place)::text[] as columns,
           n.nspname as target_schema,
           t.relname as target_name,
           array(select a.attname
                   from unnest(k.confkey) with ordinality as p(attnum, place)
                   join pg_attribute as a on a.attrelid = k.confrelid and a.attnum = p.attnum
                  order by p.place)::text[] as target_columns,
           pg_get_constraintdef(k.oid) as definition,
           k.condeferrable as is_deferrable
      from pg_constraint as k
      join pg_class as t on t.oid = k.confrelid
      join pg_namespace as n on n.oid = t.relnamespace
     where k.conrelid = any(%(ids)s::bigint[]::oid[])
       and k.contype = 'f'
       and k.conparentid = 0
       -- 18: a foreign key with PERIOD needs a key without overlaps
       and coalesce(to_jsonb(k) ->> 'conperiod', 'false') = 'false'
     order by k.conrelid, k.conname
"""


class SettingsWrong(PenstockError):
    """A catalogue connection on which values would be printed in another form (a bug of ours)."""

    code = "PG41"
    retry = "never"


_REPORTED = {"DateStyle": "ISO, YMD", "IntervalStyle": "postgres", "TimeZone": "UTC"}


def require_exact_text(connection: psycopg.Connection) -> None:
    """Refuse a connection without EXACT_TEXT_SETTINGS, whose texts could differ from the log's.

    This costs no round trip, because the server has reported these settings.
    """
    for name, wanted in _REPORTED.items():
        actual = connection.info.parameter_status(name)
        if actual != wanted:
            raise SettingsWrong(
                f"this connection has {name} = {actual}, expected {wanted}",
                hint="Report this with the command that led to it; nothing was read.",
            )


def definitions_of(
    connection: psycopg.Connection,
    source_ids: Sequence[int],
    *,
    book: TypeBook | None = None,
    shape_only: bool = False,
    expressions: bool = False,
) -> dict[int, TableDefinition]:
    """Return definitions by oid, as of one moment; an oid that is not there is left out.

    connection: autocommit or in a transaction, with EXACT_TEXT_SETTINGS. book: types already
    known. shape_only: without sizes, defaults and foreign keys, so that nothing waits
    for an ALTER TABLE in progress. expressions: with those of generated columns nevertheless, which
    waits for an ALTER TABLE of a table that has such columns. Raises SettingsWrong on a connection
    without those settings.
    """
    require_exact_text(connection)
    book = book or TypeBook()
    asked = {
        "ids": sorted(set(source_ids)),
        "shape_only": shape_only,
        "expressions": expressions,
    }
    if not connection.autocommit or connection.info.transaction_status != TransactionStatus.IDLE:
        return _read_all(connection, asked, book)
    for attempt in range(LOOKS_MAX):
        try:
            with connection.transaction():
                # Otherwise columns may be those before an ALTER TABLE, and the key that after it.
                connection.execute("set transaction isolation level repeatable read, read only")
                return _read_all(connection, asked, book)
        except psycopg.errors.InternalError_ as error:
            if attempt == LOOKS_MAX - 1 or not is_table_in_motion(error):
                raise
    raise AssertionError("unreachable")


def _read_all(
    connection: psycopg.Connection, asked: Mapping[str, Any], book: TypeBook
) -> dict[int, TableDefinition]:
    """Read definitions by several queries. asked: parameters of these."""
    with connection.cursor(row_factory=dict_row) as cursor:
        tables = cursor.execute(TABLES, asked).fetchall()
        columns = _by_table(cursor.execute(COLUMNS, asked).fetchall())
        indexes = _by_table(cursor.execute(INDEXES, asked).fetchall())
        foreign = _by_table(
            [] if asked["shape_only"] else cursor.execute(FOREIGN_KEYS, asked).fetchall()
        )
        roots = [row["id"] for row in tables if row["kind"] == "p"]
        if roots:
            for row in cursor.execute(MISSING_IN_LEAVES, {"ids": roots}).fetchall():
                for column in columns[row["id"]]:
                    if column["name"] == row["name"]:
                        column["missing"] = row["missing"]
    wanted = {(c["type_oid"], c["typmod"]) for rows in columns.values() for c in rows}
    book.learn(connection, wanted)
    type_oids = {id_: [c["type_oid"] for c in rows] for id_, rows in columns.items()}
    types = user_types(connection, type_oids)
    return {
        row["id"]: _table(
            row,
            columns[row["id"]],
            book,
            indexes[row["id"]],
            foreign[row["id"]],
            types=types.get(row["id"], ()),
        )
        for row in tables
    }


def _by_table(rows: Sequence[Row]) -> defaultdict[int, list[Row]]:
    result: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows:
        result[row["id"]].append(row)
    return result


def _column(row: Row, book: TypeBook) -> ColumnDefinition:
    kind = book.get(row["type_oid"], row["typmod"])
    return ColumnDefinition(
        name=row["name"],
        type_text=kind.type_text,
        type_oid=row["type_oid"],
        typmod=row["typmod"],
        not_null=row["not_null"],
        default=row["default_sql"],
        generated=row["generated"],
        identity_kind=row["identity_kind"],
        collation=row["collation"],
        missing=row["missing"],
        base_type=kind.base_type,
        base_oid=kind.base_oid,
        neutral=kind.neutral,
        id=row["number"],
        is_filled=row["is_filled"],
    )


def _table(
    row: Row,
    found: Sequence[Row],
    book: TypeBook,
    indexes: Sequence[Row],
    foreign: Sequence[Row],
    *,
    types: tuple[Any, ...],
) -> TableDefinition:
    columns = tuple(_column(one, book) for one in found)
    primary = next((i for i in indexes if i["is_primary"]), None)
    identity = Identity(row["identity"])
    return TableDefinition(
        name=TableName(row["schema"], row["name"]),
        source_id=row["id"],
        columns=columns,
        primary_key=tuple(primary["columns"]) if primary else (),
        primary_key_deferrable=bool(primary and not primary["is_immediate"]),
        identity=identity,
        identity_columns=_identity_columns(
            identity, columns, primary, indexes, is_partitioned=row["kind"] == "p"
        ),
        unique_keys=tuple(
            UniqueKey(
                name=i["name"],
                columns=tuple(i["columns"]),
                definition=i["definition"],
                is_constraint=i["is_constraint"],
                deferrable=i["is_deferrable"],
                is_whole=i["is_whole"],
            )
            for i in indexes
            if i["is_unique"] and not i["is_primary"]
        ),
        indexes=tuple(
            i["definition"] for i in indexes if not i["is_unique"] and not i["is_primary"]
        ),
        foreign_keys=tuple(
            ForeignKey(
                name=f["name"],
                columns=tuple(f["columns"]),
                target=TableName(f["target_schema"], f["target_name"]),
                target_columns=tuple(f["target_columns"]),
                definition=f["definition"],
                deferrable=f["is_deferrable"],
            )
            for f in foreign
        ),
        types=types,
        is_partitioned=row["kind"] == "p",
        partition_leaves=tuple(row["leaves"] or ()) if row["kind"] == "p" else (),
        size_bytes=row["size_bytes"] or 0,
        row_estimate=row["row_estimate"] or 0,
        file=found[0]["file"] if found else 0,
    )


def _identity_columns(
    identity: Identity,
    columns: Sequence[ColumnDefinition],
    primary: Row | None,
    indexes: Sequence[Row],
    *,
    is_partitioned: bool,
) -> tuple[str, ...]:
    """Return the columns that a before image holds, as the server chooses them."""
    everything = tuple(column.name for column in columns if not column.generated)
    chosen: tuple[str, ...] = ()
    if identity is Identity.FULL:
        chosen = everything
    elif identity is Identity.DEFAULT and primary and primary["is_immediate"]:
        chosen = tuple(primary["columns"])
    elif identity is Identity.INDEX:
        index = next((i for i in indexes if i["is_identity"]), None)
        chosen = tuple(index["columns"]) if index else ()
    if chosen or not is_partitioned:
        return chosen
    return tuple(primary["columns"]) if primary and primary["is_immediate"] else everything
