"""Catalogue in plain queries that YugabyteDB and a server in its dialect both answer.

Tables need a primary key there, and a slot keeps the replica identity that they had when it was
created; INDEX does not exist. Partitions are separate tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import psycopg

from penstock.codec.postgres.pgtypes import neutral_type
from penstock.engines.postgres.connect import literal, server_errors
from penstock.engines.postgres.source.catalog import TableNotCapturable, open_catalog
from penstock.engines.postgres.source.column_types import BaseType, TypeBook, TypeKey
from penstock.engines.postgres.source.relations import RelationResolver
from penstock.engines.yugabyte.options import wire_url
from penstock.model import ColumnDefinition, Identity, PenstockError, TableDefinition, TableName
from penstock.model.patterns import Selection

TABLES = """
    select c.oid::bigint, n.nspname, c.relname, c.relreplident::text
      from pg_class as c
      join pg_namespace as n on n.oid = c.relnamespace
     where c.relkind = 'r'
     order by n.nspname, c.relname
"""
COLUMNS = """
    select a.attrelid::bigint, a.attnum, a.attname, a.atttypid::bigint, a.atttypmod, a.attnotnull,
           a.attgenerated::text, format_type(a.atttypid, a.atttypmod)
      from pg_attribute as a
     where a.attnum > 0
       and not a.attisdropped
       and a.attrelid in ({ids})
     order by a.attrelid, a.attnum
"""
KEYS = """
    select indrelid::bigint, indkey::text, indnkeyatts
      from pg_index
     where indisprimary
       and indrelid in ({ids})
"""
TYPES = """
    select oid::bigint, typtype::text, typbasetype::bigint, typtypmod, format_type(oid, null)
      from pg_type
     where oid in ({ids})
"""
_OWN = ("information_schema", "wirekite")


class TableUnfit(PenstockError):
    """A table's changes cannot be followed: it has no primary key, or no usable identity."""

    code = "YB01"
    retry = "operator"


class PlainTypes(TypeBook):
    """Types by plain queries: each domain is followed down to its base type."""

    def learn(self, connection: psycopg.Connection, wanted: Iterable[TypeKey]) -> None:
        self._text_neutral = "string"
        missing = set(wanted) - self._types.keys()
        rows = _types(connection, {oid for oid, _ in missing})
        for oid, typmod in missing & {(key[0], key[1]) for key in missing if key[0] in rows}:
            base, modifier = oid, typmod
            while rows[base][1] == "d":
                modifier = rows[base][3]
                base = rows[base][2]
                if base not in rows:
                    rows |= _types(connection, {base})
            self._types[oid, typmod] = BaseType(
                type_text=rows[oid][4],
                base_type=rows[base][4],
                base_oid=base,
                neutral=neutral_type(base, modifier),
            )

    def learn_texts(self, connection: psycopg.Connection, columns: Sequence[Sequence[Any]]) -> None:
        """Learn the types of rows of COLUMNS, which already contain their texts."""
        self.learn(connection, {(row[3], row[4]) for row in columns})
        for row in columns:
            known = self._types[row[3], row[4]]
            if known.base_oid == row[3]:
                self._types[row[3], row[4]] = BaseType(
                    type_text=row[7],
                    base_type=row[7],
                    base_oid=row[3],
                    neutral=known.neutral,
                )


class Resolver(RelationResolver):
    """PostgreSQL's resolver with the plain queries. It never reads a table again."""

    reloads = False

    def __init__(
        self, connection: psycopg.Connection, tables: Iterable[TableDefinition], **more: Any
    ) -> None:
        super().__init__(connection, tables, **more)
        self._book = PlainTypes()

    def _read(self, source_id: int) -> TableDefinition | None:
        return next(iter(_definitions(self.connection, only={source_id})), None)

    def _primary_key(self, source_id: int) -> tuple[str, ...] | None:
        found = self._read(source_id)
        return found.primary_key if found is not None else None


def connect_catalog(url: str, *, application_name: str = "penstock catalog") -> psycopg.Connection:
    """Open a connection to the catalogue. Raises the errors of connecting."""
    return open_catalog(wire_url(url), application_name=application_name)


def tables_of(
    connection: psycopg.Connection,
    patterns: Sequence[str],
    *,
    dropped: Collection[TableName] = (),
) -> list[TableDefinition]:
    """Return the tables that match the patterns, by name.

    dropped: tables that a pattern may name although they are gone. Raises TableNotCapturable,
    TableUnfit, PatternInvalid.
    """
    selection = Selection.parse(patterns)
    with server_errors("reading the source's catalogue"):
        everything = _definitions(connection)
    names = {table.name for table in everything}
    for pattern in selection.patterns:
        lacking = pattern.exact and not pattern.excludes
        if lacking and not any(pattern.matches(name) for name in (*names, *dropped)):
            raise TableNotCapturable(
                f"no table {pattern.text} in the source",
                hint="Write names as the catalogue has them (case counts), or remove the entry "
                "from [source] tables.",
            )
    found = [table for table in everything if selection.takes(table.name)]
    for table in found:
        check_table(table)
    return found


def check_table(table: TableDefinition) -> None:
    """Raise TableUnfit if the changes of a table cannot be followed. Pure."""
    if not table.primary_key:
        raise TableUnfit(
            f"{table.name} has no primary key, which the server needs to send its changes",
            hint=f'Give it one, or take it out: add "!{table.name}" to [source] tables.',
            table=str(table.name),
        )
    if table.identity in (Identity.NOTHING, Identity.INDEX):
        raise TableUnfit(
            f"{table.name} has a replica identity that does not identify rows",
            hint=f"alter table {table.name} replica identity default; -- then begin with a new "
            "slot, for a slot keeps the identity that a table had when it was created",
            table=str(table.name),
        )


def _definitions(
    connection: psycopg.Connection, *, only: Collection[int] = ()
) -> list[TableDefinition]:
    rows = [
        row
        for row in connection.execute(TABLES).fetchall()
        if not row[1].startswith("pg_") and row[1] not in _OWN and (not only or row[0] in only)
    ]
    if not rows:
        return []
    ids = ", ".join(str(int(row[0])) for row in rows)
    columns: defaultdict[int, list[Any]] = defaultdict(list)
    all_columns = connection.execute(COLUMNS.format(ids=ids).encode()).fetchall()
    for column in all_columns:
        columns[column[0]].append(column)
    keys = {
        row[0]: [int(one) for one in str(row[1]).split()[: row[2]]]
        for row in connection.execute(KEYS.format(ids=ids).encode()).fetchall()
    }
    book = PlainTypes()
    book.learn_texts(connection, all_columns)
    return [_table(row, columns[row[0]], keys.get(row[0], ()), book) for row in rows]


def _table(
    row: Sequence[Any], columns: Sequence[Any], key: Sequence[int], book: TypeBook
) -> TableDefinition:
    names = {column[1]: column[2] for column in columns}
    primary = tuple(names[number] for number in key)
    identity = Identity.DEFAULT if row[3] == "c" else Identity(row[3])
    everything = tuple(column[2] for column in columns if not column[6])
    return TableDefinition(
        name=TableName(row[1], row[2]),
        source_id=row[0],
        columns=tuple(_column(column, book) for column in columns),
        primary_key=primary,
        identity=identity,
        identity_columns={Identity.FULL: everything, Identity.DEFAULT: primary}.get(identity, ()),
    )


def _column(row: Sequence[Any], book: TypeBook) -> ColumnDefinition:
    kind = book.get(row[3], row[4])
    return ColumnDefinition(
        name=row[2],
        type_text=kind.type_text,
        type_oid=row[3],
        typmod=row[4],
        not_null=bool(row[5]),
        generated=row[6],
        base_type=kind.base_type,
        base_oid=kind.base_oid,
        neutral=kind.neutral,
        id=row[1],
    )


def _types(connection: psycopg.Connection, oids: Collection[int]) -> dict[int, Sequence[Any]]:
    if not oids:
        return {}
    ids = ", ".join(str(int(oid)) for oid in sorted(oids))
    return {row[0]: row for row in connection.execute(TYPES.format(ids=ids).encode()).fetchall()}


def read_published(connection: psycopg.Connection, publication: str) -> set[TableName]:
    """Return the tables of a publication; an empty set if there is no such publication."""
    with server_errors(f"looking at publication {publication}"):
        rows = connection.execute(
            "select schemaname, tablename from pg_publication_tables where pubname = "
            f"{literal(publication)}".encode()
        ).fetchall()
    return {TableName(schema, name) for schema, name in rows}
