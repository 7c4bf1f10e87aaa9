"""Statements that create a published table at a subscriber of the served log. Pure.

The types are those that the stream announces, so PostgreSQL's own ones in each case: a type that a
client cannot know is text. What the log does not know (defaults, foreign keys, checks) is missing.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.codec.postgres.names import quote_ident
from penstock.codec.postgres.pgtypes import wire_type
from penstock.model import Column, Relation
from penstock.serve.catalog.publications import Publication

_TEXT_OID = 25


def announced_type(column: Column) -> str:
    """Return the type that a subscriber needs for an announced column."""
    if wire_type(column)[0] == _TEXT_OID:
        return "text"
    return column.base_type or column.source_type


def published_columns(
    relation: Relation, publications: Iterable[Publication]
) -> tuple[str, ...] | None:
    """Return the columns that at least one of the publications sends; None for no table at all."""
    names: set[str] | None = None
    for publication in publications:
        table = publication.table(relation.schema, relation.name)
        if table is None:
            continue
        every = {column.name for column in relation.columns}
        names = (names or set()) | (every if table.columns is None else set(table.columns))
    if names is None:
        return None
    return tuple(column.name for column in relation.columns if column.name in names)


def create_table(relation: Relation, columns: Iterable[str]) -> str:
    """Return CREATE TABLE for these columns of an announced relation, with its key."""
    wanted = set(columns)
    lines = [
        f"    {quote_ident(column.name)} {announced_type(column)}"
        for column in relation.columns
        if column.name in wanted
    ]
    key = [relation.columns[index].name for index in relation.key]
    if key and wanted.issuperset(key):
        lines.append(f"    primary key ({', '.join(map(quote_ident, key))})")
    name = f"{quote_ident(relation.schema)}.{quote_ident(relation.name)}"
    body = ",\n".join(lines)
    return f"create table {name} (\n{body}\n);" if lines else f"create table {name} ();"


def subscriber_ddl(relations: Iterable[Relation], publications: Iterable[Publication]) -> list[str]:
    """Return the statements for all published tables, by name: schemas, then tables.

    Without a publication all tables are listed, because a client may create one.
    """
    publications = list(publications)
    schemas: list[str] = []
    tables: list[str] = []
    for relation in sorted(relations, key=lambda one: (one.schema, one.name)):
        names: tuple[str, ...] | None = tuple(column.name for column in relation.columns)
        if publications:
            names = published_columns(relation, publications)
        if names is None:
            continue
        if relation.schema != "public" and relation.schema not in schemas:
            schemas.append(relation.schema)
        tables.append(create_table(relation, names))
    return [*(f"create schema if not exists {quote_ident(one)};" for one in schemas), *tables]
