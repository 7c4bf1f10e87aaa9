"""Tables and publications that both a real server and the served catalogue have."""

from __future__ import annotations

from typing import Any

import psycopg

from penstock.codec.postgres.pgtypes import neutral_type
from penstock.model import Column, Identity, Relation

TABLES = """
create table public.t (id int primary key, name text, amt numeric(10,2), ts timestamptz, b bytea);
create table public.u (a int, b text);
alter table public.u replica identity full;
create table public.nothing (c varchar(20) not null, d date);
alter table public.nothing replica identity nothing;
create schema s2;
create table s2."Odd Name" ("Id" bigint, "x y" varchar(20), j jsonb, f float8, k smallint not null,
    primary key ("x y", "Id"));
create table s2.by_index (one int not null, two text not null, three uuid, four time);
create unique index by_index_one_two_idx on s2.by_index (one, two);
alter table s2.by_index replica identity using index by_index_one_two_idx;
create table public.wide (
    id int8 primary key, c1 char(3), c2 "char", c3 name, c4 bool, c5 real, c6 double precision,
    c7 timestamp(3), c8 interval, c9 inet, c10 int4[], c11 text[], c12 bit(4), c13 varbit, c14 xml,
    c15 json, c16 money, c17 point, c18 oid, c19 numeric, c20 timetz, c21 int4range, c22 tsvector);
"""
PUBLICATIONS = {
    "p": "create publication p for table public.t, public.u",
    "empty": "create publication empty",
    "ins": "create publication ins for table s2.by_index with (publish = 'insert, truncate')",
    "every": "create publication every for all tables",
}
NEWER_PUBLICATIONS = {
    "few": "create publication few for table public.t (id, amt), public.wide (id)",
    "part": "create publication part for table public.t "
    "where (id > 5 and (name = 'x' or name is null)"
    '), s2."Odd Name" where ("Id" between 1 and 10 and "x y" <> \'a\'\'b\') '
    "with (publish = 'insert')",
    "sch": "create publication sch for tables in schema s2, table public.t",
}


def publications(version: int) -> dict[str, str]:
    """Return statements by name, as far as a version supports them."""
    return PUBLICATIONS | (NEWER_PUBLICATIONS if version >= 15 else {})


_COLUMNS = """
    select a.attnum, a.attname, format_type(atttypid, atttypmod), atttypid, atttypmod, attnotnull
      from pg_attribute a where attrelid = $1 and attnum > 0 and not attisdropped order by attnum"""
_KEY = """
    select indkey::int2[] from pg_index
     where indrelid = $1 and (indisreplident or indisprimary)
     order by indisreplident desc limit 1"""


def relations_of(connection: psycopg.Connection[Any]) -> list[Relation]:
    """Return the relations that a log of this database would have."""
    found = connection.execute(
        "select c.oid, nspname, relname, relreplident from pg_class c "
        "join pg_namespace n on n.oid = relnamespace "
        "where relkind = 'r' and nspname in ('public', 's2') order by c.oid"
    ).fetchall()
    return [_relation(connection, *row) for row in found]


def _relation(
    connection: psycopg.Connection[Any], oid: int, schema: str, name: str, identity: str
) -> Relation:
    columns = tuple(
        Column(
            name=column,
            source_type=shown,
            neutral=neutral_type(type_oid, typmod),
            type_oid=type_oid,
            typmod=typmod,
            nullable=not not_null,
        )
        for _, column, shown, type_oid, typmod, not_null in connection.execute(_COLUMNS, (oid,))
    )
    row = connection.execute(_KEY, (oid,)).fetchone()
    key = tuple(number - 1 for number in row[0]) if row else ()
    before = {"d": key, "i": key, "f": tuple(range(len(columns))), "n": ()}[identity]
    return Relation(
        schema=schema,
        name=name,
        columns=columns,
        key=key,
        before=before,
        identity=Identity(identity),
        source_id=oid,
    )


NAMES = """
    select c.oid,
           case when relkind = 'i' then 'index ' else 'table ' end || nspname || '.' || relname
      from pg_class c join pg_namespace n on n.oid = relnamespace
     where c.oid >= 16384 and relkind in ('r', 'i')
    union all select oid, 'schema ' || nspname from pg_namespace where oid >= 16384
    union all select oid, 'publication ' || pubname from pg_publication
    union all select oid, 'constraint ' || conname from pg_constraint where oid >= 16384
    union all select oid, 'type ' || typname from pg_type where oid >= 16384
    union all select oid, 'member ' || prpubid || '.' || prrelid from pg_publication_rel
    union all select oid, 'database' from pg_database where datname = current_database()"""
