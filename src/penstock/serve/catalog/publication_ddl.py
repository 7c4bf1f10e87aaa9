"""CREATE, ALTER and DROP PUBLICATION: read with the server's grammar, and carried out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.codec.postgres.pgwire_server import Refused
from penstock.model import Identity
from penstock.serve.catalog.functions import Context
from penstock.serve.catalog.grammar import Statement, make_unsupported
from penstock.serve.catalog.model import CatalogTable
from penstock.serve.catalog.names import path_of, search_path
from penstock.serve.catalog.publications import (
    Comment,
    Publication,
    PublishedTable,
    with_schemas,
    with_tables,
    without_schemas,
    without_tables,
)
from penstock.serve.catalog.row_filter import read_filter
from penstock.serve.catalog.statements import Words
from penstock.serve.row_filter import check_filter

_ACTIONS = ("insert", "update", "delete", "truncate")


def is_publication_ddl(statement: Statement) -> bool:
    """Return whether a statement changes publications."""
    words = statement.words(3)
    if words == ("COMMENT", "ON", "PUBLICATION"):
        return True
    return words[0] in ("CREATE", "ALTER", "DROP") and words[1:2] == ("PUBLICATION",)


def change_publication(context: Context, statement: Statement) -> str:
    """Carry out a statement, durably; return the command tag.

    Raises Refused, DiskFull, FileFailed.
    """
    words = Words(statement)
    verb = words.token().text.upper()
    tag = verb if words.take("ON") else f"{verb} PUBLICATION"
    words.need("PUBLICATION")
    if context.session.read_only:
        raise Refused("25006", f"cannot execute {tag} in a read-only transaction")
    change = {"CREATE": _create, "ALTER": _alter, "DROP": _drop, "COMMENT": _comment}[verb]
    change(context, words)
    if context.session.transaction == "I":
        context.commit_publications()
    return tag


def _comment(context: Context, words: Words) -> None:
    publication = _existing(context, words.name())
    words.need("IS")
    text = ""
    if not words.take("NULL"):
        if not words.is_string():
            raise words.error()
        text = words.token().text
    words.end()
    _save(context, publication.name, Comment(oid=publication.oid, text=text))


def _save(context: Context, name: str, publication: Publication | Comment | None) -> None:
    context.session.pending.append((name, publication))


def _existing(context: Context, name: str) -> Publication:
    found = context.publications().get(name)
    if found is None:
        raise Refused("42704", f'publication "{name}" does not exist')
    return found


def _create(context: Context, words: Words) -> None:
    name = words.name()
    if name in context.publications():
        raise Refused("42710", f'publication "{name}" already exists')
    made = Publication(name=name, oid=0, owner=context.session.user)
    if words.take("FOR", "ALL", "TABLES"):
        made = replace(made, all_tables=True)
    elif words.take("FOR"):
        tables, schemas = _objects(context, words)
        made = with_schemas(with_tables(made, tables), schemas)
    if words.take("WITH"):
        made = _options(made, words)
    words.end()
    _check(context, made)
    oid = context.model.new_oid("publication", name)
    _save(context, name, replace(made, oid=oid))


def _alter(context: Context, words: Words) -> None:
    publication = _existing(context, words.name())
    if words.take("RENAME", "TO"):
        _rename(context, publication, words)
        return
    if words.take("OWNER", "TO"):
        owner = words.name()
        words.end()
        if owner not in context.model.roles.values():
            raise Refused("42704", f'role "{owner}" does not exist')
        _save(context, publication.name, replace(publication, owner=owner))
        return
    if words.take("SET", "("):
        made = _listed_options(publication, words)
    else:
        made = _apply(context, publication, words)
    words.end()
    _check(context, made)
    _save(context, publication.name, made)


def _apply(context: Context, publication: Publication, words: Words) -> Publication:
    verb = words.token().text.upper()
    if verb not in ("ADD", "SET", "DROP"):
        raise words.error()
    if publication.all_tables:
        raise Refused("55000", f'publication "{publication.name}" is defined as FOR ALL TABLES')
    if publication.patterns:
        raise make_unsupported("tables of a publication that the pipeline file gives as patterns")
    tables, schemas = _objects(context, words, dropping=verb == "DROP")
    if verb == "DROP":
        names = [(table.schema, table.name) for table in tables]
        return without_schemas(without_tables(publication, names), schemas)
    if verb == "SET":
        publication = replace(publication, tables=(), schemas=())
    return with_schemas(with_tables(publication, tables), schemas)


def _rename(context: Context, publication: Publication, words: Words) -> None:
    name = words.name()
    words.end()
    if name in context.publications():
        raise Refused("42710", f'publication "{name}" already exists')
    _save(context, publication.name, None)
    _save(context, name, replace(publication, name=name))


def _drop(context: Context, words: Words) -> None:
    if_exists = words.take("IF", "EXISTS")
    names = [words.name()]
    while words.take(","):
        names.append(words.name())
    words.take("CASCADE")
    words.take("RESTRICT")
    words.end()
    there = context.publications()
    for name in names:
        if name not in there and not if_exists:
            raise Refused("42704", f'publication "{name}" does not exist')
    for name in names:
        if name in there:
            _save(context, name, None)


# -- objects of a publication -----------------------------------------------------------------


def _objects(
    context: Context, words: Words, *, dropping: bool = False
) -> tuple[list[PublishedTable], list[str]]:
    """Return the objects of `TABLE a, b (x), TABLES IN SCHEMA c`. Each keyword applies up to the
    next one.
    """
    tables: list[PublishedTable] = []
    schemas: list[str] = []
    kind = ""
    while True:
        if words.take("TABLES", "IN", "SCHEMA"):
            kind = "schema"
        elif words.take("TABLE"):
            kind = "table"
        elif not kind:
            raise words.error()
        if kind == "schema" and context.facts.version < 15:
            raise words.error()
        if kind == "schema":
            schemas.append(_schema(context, words))
        else:
            _append(tables, _table(context, words, dropping=dropping))
        if not words.take(","):
            return tables, schemas


def _append(tables: list[PublishedTable], table: PublishedTable) -> None:
    """Add a table; a repeated one counts once, unless it has conditions. Raises Refused: 42710."""
    twice = [t for t in tables if (t.schema, t.name) == (table.schema, table.name)]
    if not twice:
        tables.append(table)
    elif any(t.row_filter or t.columns is not None for t in (*twice, table)):
        raise Refused("42710", f'conflicting or redundant clauses for table "{table.name}"')


def _schema(context: Context, words: Words) -> str:
    name = words.name()
    if name == "current_schema":
        name = next(iter(search_path(context)), "")
    if name not in context.model.schemas and name not in context.facts.namespaces:
        raise Refused("3F000", f'schema "{name}" does not exist')
    return name


def _find(context: Context, parts: Sequence[str]) -> CatalogTable:
    if len(parts) > 2:
        raise Refused("42601", f"improper qualified name: {'.'.join(parts)}")
    schemas = path_of(context) if len(parts) == 1 else [parts[0]]
    for schema in schemas:
        found = context.model.table_named(schema, parts[-1])
        if found is not None:
            return found
        if (schema, parts[-1]) in context.facts.relations:
            raise Refused("22023", f'cannot add relation "{parts[-1]}" to publication')
    raise Refused("42P01", f'relation "{".".join(parts)}" does not exist')


def _table(context: Context, words: Words, *, dropping: bool) -> PublishedTable:
    words.take("ONLY")
    parts = [words.name()]
    while words.take("."):
        parts.append(words.name())
    words.take("*")
    table = _find(context, parts)
    columns: tuple[str, ...] | None = None
    row_filter = ""
    if words.peek() == "(":
        columns = _columns(table, words)
    if words.take("WHERE"):
        row_filter = words.take_parentheses()
        read_filter(context.types, table, row_filter)
        check_filter(row_filter, table)
    if (columns is not None or row_filter) and context.facts.version < 15:
        raise words.error()
    if dropping and row_filter:
        raise Refused("42601", "cannot use a WHERE clause when removing a table from a publication")
    if dropping and columns is not None:
        raise Refused("42601", "column list must not be specified in ALTER PUBLICATION ... DROP")
    return PublishedTable(
        schema=table.schema, name=table.name, columns=columns, row_filter=row_filter
    )


def _columns(table: CatalogTable, words: Words) -> tuple[str, ...]:
    words.need("(")
    names = [words.name()]
    while words.take(","):
        names.append(words.name())
    words.need(")")
    there = [column.name for column in table.columns]
    for number, name in enumerate(names):
        if name not in there:
            raise Refused("42703", f'column "{name}" of relation "{table.name}" does not exist')
        if name in names[:number]:
            raise Refused("42710", f'duplicate column "{name}" in publication column list')
    return tuple(name for name in there if name in names)


def _options(publication: Publication, words: Words) -> Publication:
    words.need("(")
    return _listed_options(publication, words)


def _listed_options(publication: Publication, words: Words) -> Publication:
    seen = set()
    while True:
        name = words.name()
        if name in seen:
            raise Refused("42601", "conflicting or redundant options")
        seen.add(name)
        value = words.token().text if words.take("=") else "true"
        publication = _option(publication, name, value)
        if words.take(")"):
            return publication
        words.need(",")


def _option(publication: Publication, name: str, value: str) -> Publication:
    if name == "publish":
        actions = [word.strip().lower() for word in value.split(",") if word.strip()]
        for action in actions:
            if action not in _ACTIONS:
                raise Refused(
                    "42601", f'unrecognized value for publication option "publish": "{action}"'
                )
        return replace(publication, actions=tuple(a for a in _ACTIONS if a in actions))
    if name == "publish_via_partition_root":
        if value.lower() not in ("true", "on", "1", "false", "off", "0"):
            raise Refused("42601", f"{name} requires a Boolean value")
        return replace(publication, via_root=value.lower() in ("true", "on", "1"))
    if name == "publish_generated_columns":
        if value.lower() in ("none", "false", "off"):
            return publication
        raise make_unsupported("publish_generated_columns")
    raise Refused("42601", f"unrecognized publication parameter: {name}")


def _check(context: Context, publication: Publication) -> None:
    """Check that the parts fit together. Raises Refused: 0A000, 42P10."""
    if publication.schemas and any(t.columns is not None for t in publication.tables):
        named = next(t for t in publication.tables if t.columns is not None)
        raise Refused(
            "22023",
            f'cannot use column list for relation "{named.schema}.{named.name}" in publication '
            f'"{publication.name}"',
        )
    for table in publication.tables:
        found = context.model.table_named(table.schema, table.name)
        if found is not None:
            _check_key(context, found, table, publication)


def _check_key(
    context: Context, table: CatalogTable, published: PublishedTable, publication: Publication
) -> None:
    """Refuse a column list or a filter that does not fit the replica identity, if updates or
    deletes are published.

    The list must have all columns of the identity, the filter no others. The real server refuses
    such updates when they arrive; here they have already been made at the source.
    """
    if not {"update", "delete"} & set(publication.actions):
        return
    whole = range(len(table.columns)) if table.identity is Identity.FULL else table.key
    identity = {table.columns[n].name for n in whole}
    missing = identity - set(published.columns) if published.columns is not None else set()
    if missing:
        raise Refused(
            "42P10",
            f'the column list of "{table.name}" lacks columns of its replica identity: '
            f"{', '.join(sorted(missing))}",
        )
    if published.row_filter:
        used = read_filter(context.types, table, published.row_filter).columns
        if used - identity:
            raise Refused(
                "42P10",
                f'the row filter of "{table.name}" has columns that are not part of its replica '
                f"identity: {', '.join(sorted(used - identity))}",
                hint="Publish inserts alone, or give the table REPLICA IDENTITY FULL.",
            )
