"""Names of things and their oids: the search path, and reading and printing of reg* types."""

from __future__ import annotations

import re

from penstock.codec.postgres.names import quote_ident
from penstock.codec.postgres.pgwire_server import Refused
from penstock.serve.catalog.functions import Context
from penstock.serve.catalog.grammar import parse_query, type_name
from penstock.serve.catalog.types import (
    REGCLASS,
    REGCOLLATION,
    REGNAMESPACE,
    REGPROC,
    REGPROCEDURE,
    REGROLE,
    REGTYPE,
)

_NAME = re.compile(r'\s*(?:"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^\s".]+))\s*(?P<dot>\.)?')
DEFAULT_PATH = '"$user", public'


def split_name(text: str) -> list[str]:
    """Return the parts of a name with dots, folded. Raises Refused: 42602."""
    parts: list[str] = []
    at, more = 0, True
    while more:
        match = _NAME.match(text, at)
        if match is None:
            raise Refused("42602", "invalid name syntax")
        inside = match["quoted"]
        parts.append(inside.replace('""', '"') if inside is not None else match["plain"].lower())
        at, more = match.end(), match["dot"] is not None
    if at != len(text):
        raise Refused("42602", "invalid name syntax")
    return parts


def search_path(context: Context) -> list[str]:
    """Return the existing schemas of the search path, without implicit ones."""
    text = context.session.settings.get("search_path", DEFAULT_PATH)
    names = []
    for word in text.split(","):
        plain = word.strip()
        if plain.startswith('"') and plain.endswith('"') and len(plain) > 1:
            plain = plain[1:-1].replace('""', '"')
        else:
            plain = plain.lower()
        name = context.session.user if plain == "$user" else plain
        if name in context.model.schemas or name in context.facts.namespaces:
            names.append(name)
    return names


def path_of(context: Context) -> list[str]:
    """Return the search path with pg_catalog, which is first unless it is named."""
    path = search_path(context)
    return path if "pg_catalog" in path else ["pg_catalog", *path]


def schema_names(context: Context) -> dict[int, str]:
    """Return the names of all schemas by oid."""
    return {oid: name for name, oid in (context.facts.namespaces | context.model.schemas).items()}


def relation_name(context: Context, oid: int) -> tuple[str, str] | None:
    """Return schema and name of a table, view or index."""
    system = context.facts.relation_by_oid.get(oid)
    if system is not None:
        return system.schema, system.name
    table = context.model.tables.get(oid)
    if table is not None:
        return table.schema, table.name
    for table in context.model.tables.values():
        if table.key and table.index_oid == oid:
            return table.schema, table.index_name
    return None


def find_relation(context: Context, schema: str, name: str) -> int | None:
    """Return the oid of a table, view or index."""
    system = context.facts.relations.get((schema, name))
    if system is not None:
        return system.oid
    table = context.model.table_named(schema, name)
    if table is not None:
        return table.oid
    for table in context.model.tables.values():
        if table.key and (table.schema, table.index_name) == (schema, name):
            return table.index_oid
    return None


def visible(context: Context, oid: int) -> int | None:
    """Return whether a relation's name alone finds it; None if it does not exist."""
    found = relation_name(context, oid)
    if found is None:
        return None
    for schema in path_of(context):
        other = find_relation(context, schema, found[1])
        if other is not None:
            return int(other == oid)
    return 0


def relation_oid(context: Context, text: str) -> int:
    """Return the oid for a text of regclass. Raises Refused: 42P01, 3F000, 0A000, 42602."""
    parts = split_name(text)
    if len(parts) == 3:
        if parts[0] != context.database:
            raise Refused("0A000", f"cross-database references are not implemented: {text}")
        parts = parts[1:]
    if len(parts) == 1:
        for schema in path_of(context):
            found = find_relation(context, schema, parts[0])
            if found is not None:
                return found
        raise Refused("42P01", f'relation "{parts[0]}" does not exist')
    schema, name = parts[0], parts[1]
    if schema not in context.model.schemas and schema not in context.facts.namespaces:
        raise Refused("3F000", f'schema "{schema}" does not exist')
    found = find_relation(context, schema, name)
    if found is None:
        raise Refused("42P01", f'relation "{schema}.{name}" does not exist')
    return found


def type_oid(context: Context, text: str) -> int:
    """Return the oid for a text of regtype. Raises Refused: 42704, 42601."""
    tree = parse_query(f"select null::{text}").expressions[0]
    schema, name, _ = type_name(tree.args["to"])
    for candidate in path_of(context) if schema is None else (schema,):
        table = context.model.table_named(candidate, name.removesuffix("[]"))
        if table is not None:
            return table.array_type if name.endswith("[]") else table.row_type
    return context.types.find_oid(name, schema)


def _function_oid(context: Context, text: str) -> int:
    name = split_name(text)[-1]
    for oid, found, *_ in context.facts.rows["proc"]:
        if found == name:
            return int(oid)
    raise Refused("0A000", f"functions are not all kept by this server's catalogue: {text}")


def read_reg(context: Context, kind: int, text: str) -> int:
    """Return the oid for a text of a reg* type. `-` is 0. Raises Refused."""
    if text == "-":
        return 0
    if kind == REGCLASS:
        return relation_oid(context, text)
    if kind == REGTYPE:
        return type_oid(context, text)
    if kind == REGPROC:
        return _function_oid(context, text)
    if kind == REGNAMESPACE:
        name = split_name(text)[0]
        schemas = context.facts.namespaces | context.model.schemas
        if name not in schemas:
            raise Refused("3F000", f'schema "{name}" does not exist')
        return schemas[name]
    if kind == REGROLE:
        name = split_name(text)[0]
        for oid, role in context.model.roles.items():
            if role == name:
                return oid
        raise Refused("42704", f'role "{name}" does not exist')
    raise Refused("0A000", f"not supported: names of type {context.types.name(kind)}")


def print_reg(context: Context, kind: int, oid: int) -> str:
    """Return the name that a reg* type prints for an oid; the number if it has none."""
    if oid == 0:
        return "-"
    if kind == REGCLASS:
        found = relation_name(context, oid)
        if found is None:
            return str(oid)
        shown = visible(context, oid)
        return (
            quote_ident(found[1]) if shown else f"{quote_ident(found[0])}.{quote_ident(found[1])}"
        )
    if kind == REGTYPE:
        return context.types.name(oid) if context.types.get(oid) else str(oid)
    if kind in (REGPROC, REGPROCEDURE, REGCOLLATION):
        rows = context.facts.rows["collation" if kind == REGCOLLATION else "proc"]
        return next((quote_ident(row[1]) for row in rows if row[0] == oid), str(oid))
    if kind == REGNAMESPACE:
        return quote_ident(schema_names(context).get(oid, str(oid)))
    if kind == REGROLE:
        return quote_ident(context.model.roles.get(oid, str(oid)))
    return str(oid)
