"""Column types as the catalogue has them: domains' base types, neutral types, CREATE TYPE texts.

Not here: which neutral type a built-in type has (`penstock.codec.postgres.pgtypes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from penstock.codec.postgres.pgtypes import neutral_type
from penstock.engines.postgres.connect import literal, quote
from penstock.model import TypeDefinition

# A domain may be over another domain: the innermost one's base type has the modifier that counts.
BASE_TYPES = """
    with recursive base as (
        select t.oid as id,
               t.oid as base_id,
               w.typmod,
               t.typtype,
               t.typbasetype,
               t.typtypmod,
               w.typmod as own_typmod
          from unnest(%(ids)s::bigint[], %(typmods)s::int[]) as w(id, typmod)
          join pg_type as t on t.oid = w.id::oid
         union all
        select b.id, t.oid, b.typtypmod, t.typtype, t.typbasetype, t.typtypmod, b.own_typmod
          from base as b
          join pg_type as t on t.oid = b.typbasetype
         where b.typtype = 'd'
    )
    select id::bigint,
           own_typmod,
           format_type(id, own_typmod) as type_text,
           base_id::bigint,
           typmod as base_typmod,
           format_type(base_id, typmod) as base_type
      from base
     where typtype <> 'd'
"""

USER_ID_MIN = 16384  # the server's own types have lower oids

ENCODING = """
    select pg_encoding_to_char(encoding)
      from pg_database
     where datname = current_database()
"""

USER_TYPES = """
    with recursive needed(id) as (
        select unnest(%(ids)s::bigint[])::oid
         union
        select d.id
          from needed as n
          join pg_type as t on t.oid = n.id
         cross join lateral (
               select t.typelem as id
                where t.typelem <> 0
                union all
               select t.typbasetype
                where t.typtype = 'd'
                union all
               select a.atttypid
                 from pg_attribute as a
                where t.typtype = 'c'
                  and a.attrelid = t.typrelid
                  and a.attnum > 0
                  and not a.attisdropped
                union all
               select case when r.rngtypid = t.oid then r.rngsubtype else r.rngtypid end
                 from pg_range as r
                where t.oid in (r.rngtypid, r.rngmultitypid)
               ) as d
    )
    select t.oid::bigint as id,
           s.nspname as schema,
           t.typname as name,
           t.typtype::text as kind,
           t.typelem::bigint as element,
           t.typbasetype::bigint as base,
           case when t.typtype = 'd' then format_type(t.typbasetype, t.typtypmod) end as base_text,
           t.typnotnull as not_null,
           t.typdefault as default_text,
           case when t.typtype = 'd' and t.typcollation <> b.typcollation
                then quote_ident(cs.nspname) || '.' || quote_ident(co.collname) end as collation,
           array(select e.enumlabel
                   from pg_enum as e
                  where e.enumtypid = t.oid
                  order by e.enumsortorder)::text[] as labels,
           array(select quote_ident(a.attname) || ' ' || format_type(a.atttypid, a.atttypmod)
                   from pg_attribute as a
                  where t.typtype = 'c'
                    and a.attrelid = t.typrelid
                    and a.attnum > 0
                    and not a.attisdropped
                  order by a.attnum)::text[] as fields,
           array(select a.atttypid::bigint
                   from pg_attribute as a
                  where t.typtype = 'c'
                    and a.attrelid = t.typrelid
                    and a.attnum > 0
                    and not a.attisdropped) as field_types,
           array(select 'constraint ' || quote_ident(c.conname) || ' '
                        || pg_get_constraintdef(c.oid)
                   from pg_constraint as c
                  where c.contypid = t.oid
                    and c.contype = 'c'
                  order by c.conname)::text[] as checks,
           r.rngtypid::bigint as range_of,
           r.rngsubtype::bigint as subtype,
           format_type(r.rngsubtype, null) as subtype_text,
           r.multirange,
           r.opclass,
           r.is_default_opclass
      from needed as n
      join pg_type as t on t.oid = n.id
      join pg_namespace as s on s.oid = t.typnamespace
      left join pg_type as b on b.oid = t.typbasetype
      left join pg_collation as co on co.oid = t.typcollation
      left join pg_namespace as cs on cs.oid = co.collnamespace
      left join pg_class as k on k.oid = t.typrelid
      left join lateral (
           select x.rngtypid,
                  x.rngsubtype,
                  m.typname as multirange,
                  quote_ident(os.nspname) || '.' || quote_ident(o.opcname) as opclass,
                  o.opcdefault as is_default_opclass
             from pg_range as x
             join pg_type as m on m.oid = x.rngmultitypid
             join pg_opclass as o on o.oid = x.rngsubopc
             join pg_namespace as os on os.oid = o.opcnamespace
            where t.oid in (x.rngtypid, x.rngmultitypid)
           ) as r on true
     where s.nspname not in ('pg_catalog', 'information_schema')
       and (t.typtype in ('e', 'd', 'r', 'm')
            or t.typtype = 'c' and k.relkind = 'c'
            or t.typtype = 'b' and t.typelem <> 0)
       and not exists (
               select
                 from pg_depend as x
                where x.classid = 'pg_type'::regclass
                  and x.objid = t.oid
                  and x.deptype = 'e')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseType:
    """A type with its modifier, seen through domains.

    type_text: as declared. neutral: the neutral type of the base, fit for this database's
    encoding. known: False when the catalogue has no such type (any more).
    """

    type_text: str
    base_type: str
    base_oid: int
    neutral: str
    known: bool = True


TypeKey = tuple[int, int]  # oid, modifier


class TypeBook:
    """Known types, queried in sets and kept until `forget`.

    In a SQL_ASCII database text is of no known encoding: it is kept as raw bytes.
    """

    def __init__(self) -> None:
        self._types: dict[TypeKey, BaseType] = {}
        self._text_neutral: str | None = None

    def forget(self) -> None:
        """Ask again: after a reconnect, types may have been renamed or dropped."""
        self._types.clear()

    def learn(self, connection: psycopg.Connection, wanted: Iterable[TypeKey]) -> None:
        """Read those of the wanted types that are not known yet, in one query."""
        if self._text_neutral is None:
            row = connection.execute(ENCODING).fetchone()
            self._text_neutral = "binary" if row and row[0] == "SQL_ASCII" else "string"
        missing = sorted(set(wanted) - self._types.keys())
        if not missing:
            return
        with connection.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute(
                BASE_TYPES, {"ids": [k[0] for k in missing], "typmods": [k[1] for k in missing]}
            ).fetchall()
        for row_ in rows:
            self._types[row_["id"], row_["own_typmod"]] = BaseType(
                type_text=row_["type_text"],
                base_type=row_["base_type"],
                base_oid=row_["base_id"],
                neutral=self.neutral(row_["base_id"], row_["base_typmod"]),
            )

    def neutral(self, base_oid: int, typmod: int) -> str:
        """Return the neutral type of a type other than a domain."""
        found = neutral_type(base_oid, typmod)
        return (self._text_neutral or "string") if found == "string" else found

    def get(self, type_oid: int, typmod: int) -> BaseType:
        """Return a type that was learnt; one that the catalogue does not have is kept as text."""
        known = self._types.get((type_oid, typmod))
        if known is not None:
            return known
        neutral = self.neutral(type_oid, typmod)
        text = f"type {type_oid}"
        return BaseType(
            type_text=text, base_type=text, base_oid=type_oid, neutral=neutral, known=False
        )


def user_types(
    connection: psycopg.Connection, columns: Mapping[int, Iterable[int]]
) -> dict[int, tuple[TypeDefinition, ...]]:
    """Return the types that tables need besides PostgreSQL's own and those of extensions.

    columns: per table oid, the oids of its columns' types. A type comes after those it depends on.
    Row types of tables are not listed.
    """
    ids = sorted({oid for oids in columns.values() for oid in oids if oid >= USER_ID_MIN})
    if not ids:
        return {}
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = {row["id"]: row for row in cursor.execute(USER_TYPES, {"ids": ids}).fetchall()}
    if not rows:
        return {}
    return {table: _order(rows, oids) for table, oids in columns.items()}


def _rests_on(row: dict[str, Any]) -> tuple[int, ...]:
    range_of = row["range_of"]
    below = row["subtype"] if range_of == row["id"] else range_of
    return (row["element"], row["base"], *row["field_types"], below or 0)


def _order(rows: dict[int, dict[str, Any]], oids: Iterable[int]) -> tuple[TypeDefinition, ...]:
    done: dict[int, TypeDefinition | None] = {}

    def visit(oid: int) -> None:
        if oid in done or oid not in rows:
            return
        done[oid] = None  # a type can depend on itself only through an array in a table's row type
        for below in _rests_on(rows[oid]):
            visit(below)
        done[oid] = done.pop(oid) or _definition(rows[oid])

    for oid in oids:
        visit(oid)
    return tuple(definition for definition in done.values() if definition is not None)


def _definition(row: dict[str, Any]) -> TypeDefinition | None:
    """Return the CREATE TYPE or CREATE DOMAIN of a type; None for arrays and multiranges."""
    name = quote(row["schema"], row["name"])
    if row["kind"] == "e":
        sql = f"create type {name} as enum ({', '.join(map(literal, row['labels']))})"
    elif row["kind"] == "c":
        sql = f"create type {name} as ({', '.join(row['fields'])})"
    elif row["kind"] == "d":
        sql = _domain(name, row)
    elif row["kind"] == "r":
        options = [f"subtype = {row['subtype_text']}"]
        if not row["is_default_opclass"]:
            options.append(f"subtype_opclass = {row['opclass']}")
        # Without a schema the multirange goes where the range goes.
        options.append(f"multirange_type_name = {quote(row['schema'], row['multirange'])}")
        sql = f"create type {name} as range ({', '.join(options)})"
    else:
        return None
    return TypeDefinition(
        schema=row["schema"],
        name=row["name"],
        kind=row["kind"],
        create_sql=sql,
        labels=tuple(row["labels"]),
    )


def _domain(name: str, row: dict[str, Any]) -> str:
    parts = [f"create domain {name} as {row['base_text']}"]
    if row["collation"]:
        parts.append(f"collate {row['collation']}")
    if row["default_text"] is not None:
        parts.append(f"default {row['default_text']}")
    if row["not_null"]:
        parts.append("not null")
    parts.extend(row["checks"])
    return " ".join(parts)
