"""Writer of the served catalogue's facts.tsv.gz from real servers: `make_catalog_facts.py
BINDIR...`.

A fact is a line: the major versions that have it, its kind, its values as JSON. Only facts: names,
numbers and definitions that the servers' own catalogues print.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import psycopg

from penstock.engines.postgres.server.embedded import EmbeddedPostgres

OUT = Path(__file__).resolve().parent.parent / "src/penstock/serve/catalog/facts.tsv.gz"
VIEWS = {
    "pg_catalog": (
        *("pg_tables", "pg_indexes", "pg_roles", "pg_user", "pg_group", "pg_shadow"),
        *("pg_publication_tables", "pg_matviews", "pg_policies"),
    ),
    "information_schema": (
        *("tables", "columns", "schemata", "table_constraints", "key_column_usage"),
        *("referential_constraints", "constraint_column_usage", "check_constraints", "views"),
        *("information_schema_catalog_name", "enabled_roles", "applicable_roles", "triggers"),
        *("sequences", "domains", "table_privileges", "constraint_table_usage"),
    ),
}
QUERIES = {
    "namespace": "select oid, nspname from pg_namespace where nspname !~ '^pg_t(oast|emp)'",
    "am": "select oid, amname, amhandler::oid, amtype from pg_am",
    "language": "select oid, lanname, lanispl, lanpltrusted from pg_language where oid < 13000",
    "range": "select rngtypid, rngsubtype, rngmultitypid, rngcollation, rngsubopc, "
    "rngcanonical::oid, rngsubdiff::oid from pg_range",
    "collation": "select oid, collname, collprovider, collisdeterministic, collencoding, "
    "collcollate, collctype from pg_collation where oid in (100, 950, 951)",
    "proc": """
        select oid, proname, prokind, proretset, prorettype, proargtypes::text from pg_proc
         where oid in (select unnest(array[typinput, typoutput, typreceive, typsend, typmodin,
                                           typmodout, typanalyze, typsubscript]::oid[])
                         from pg_type)
            or oid in (select amhandler::oid from pg_am)""",
    "setting": "select name, boot_val, unit, category, short_desc, extra_desc, context, vartype, "
    "min_val, max_val, enumvals from pg_settings where name !~ '[.]'",
}
RELATIONS = """
    select c.oid, n.nspname, c.relname, c.relkind, c.reltype,
           (select json_agg(json_build_array(attname, atttypid::int8, attnotnull::int, atttypmod)
                            order by attnum)
              from pg_attribute a where attrelid = c.oid and attnum > 0),
           c.relisshared
      from pg_class c join pg_namespace n on n.oid = relnamespace
     where nspname in ('pg_catalog', 'information_schema') and relkind in ('r', 'v')"""


def rows_of(connection: psycopg.Connection[Any], query: str) -> list[list[Any]]:
    """Return the rows of a query in a form that JSON can hold."""
    return [list(row) for row in connection.execute(query).fetchall()]


def type_query(connection: psycopg.Connection[Any]) -> str:
    """Return a query of pg_type in the order of its columns, with functions by their numbers."""
    columns = connection.execute(
        "select attname, atttypid::regtype::text from pg_attribute "
        "where attrelid = 'pg_type'::regclass and attnum > 0 order by attnum"
    ).fetchall()
    parts = []
    for name, kind in columns:
        if kind == "regproc":
            parts.append(f"{name}::oid")
        elif kind in ("pg_node_tree", "aclitem[]"):
            parts.append(f"null as {name}")
        else:
            parts.append(name)
    return f"select {', '.join(parts)} from pg_type where oid < 16384 and typname !~ '^_?pg_toast'"


def facts_of(url: str) -> list[tuple[str, str]]:
    """Return kind and JSON of each fact of one server."""
    found: list[tuple[str, str]] = []
    with psycopg.connect(url, autocommit=True) as connection:
        for kind, query in {
            **QUERIES,
            "type": type_query(connection),
            "relation": RELATIONS,
        }.items():
            for row in rows_of(connection, query):
                found.append((kind, json.dumps(row, separators=(",", ":"), ensure_ascii=False)))
        for schema, names in VIEWS.items():
            for name in names:
                definition = connection.execute(
                    "select pg_get_viewdef(to_regclass(%s))", (f"{schema}.{name}",)
                ).fetchone()
                assert definition is not None, name
                text = " ".join(definition[0].split())
                found.append(("view", json.dumps([schema, name, text], ensure_ascii=False)))
        version = connection.execute("show server_version").fetchone()
        assert version is not None
        found.append(("version", json.dumps([version[0].split()[0]])))
    return found


def main(folders: list[str]) -> None:
    """Ask a server of each folder and merge the answers."""
    versions: dict[tuple[str, str], list[int]] = {}
    for folder in folders:
        with EmbeddedPostgres(bindir=Path(folder)) as server:
            for fact in facts_of(server.url()):
                versions.setdefault(fact, []).append(server.version)
    lines = [
        f"{','.join(map(str, sorted(majors)))}\t{kind}\t{text}"
        for (kind, text), majors in versions.items()
    ]
    text = "\n".join(lines) + "\n"
    OUT.write_bytes(gzip.compress(text.encode(), 9, mtime=0))  # the same facts give the same bytes


if __name__ == "__main__":
    main(sys.argv[1:])
