"""Functions about tables, types, publications and rights, answered from the model."""

from __future__ import annotations

import json
from typing import Any

from penstock.codec.postgres.names import quote_ident
from penstock.codec.postgres.pgwire_server import Refused
from penstock.model import Identity
from penstock.serve.catalog.functions import Context, function
from penstock.serve.catalog.model import OWNER_OID, CatalogTable
from penstock.serve.catalog.names import (
    path_of,
    relation_name,
    relation_oid,
    schema_names,
    type_oid,
    visible,
)
from penstock.serve.catalog.publications import find_publications
from penstock.serve.catalog.row_filter import shown_filter
from penstock.serve.catalog.rows import column_numbers
from penstock.serve.catalog.types import (
    BPCHAR,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    INTERVAL,
    NUMERIC,
    TIMES,
    VARCHAR,
)

_READ_RIGHTS = frozenset(("select", "usage", "connect", "member", "set"))
_OCTETS_PER_LETTER = 4


@function("format_type(oid, int4) -> text", strict=False)
def _format_type(context: Context, oid: int | None, typmod: int | None) -> str | None:
    return None if oid is None else context.types.name(oid, typmod)


@function("pg_get_userbyid(oid) -> name")
def _user_by_oid(context: Context, oid: int) -> str:
    return context.model.roles.get(oid) or f"unknown (OID={oid})"


@function("pg_table_is_visible(oid) -> bool")
def _table_visible(context: Context, oid: int) -> int | None:
    return visible(context, oid)


@function("pg_type_is_visible(oid) -> bool")
def _type_visible(context: Context, oid: int) -> int | None:
    kind = context.types.get(oid)
    if kind is None:
        return None
    schemas = schema_names(context)
    return int(schemas.get(kind.schema_oid) in path_of(context))


@function("pg_collation_is_visible(oid) -> bool")
@function("pg_function_is_visible(oid) -> bool")
@function("pg_operator_is_visible(oid) -> bool")
@function("pg_opclass_is_visible(oid) -> bool")
def _system_visible(_: Context, oid: int) -> int:
    return int(oid > 0)


@function("pg_get_expr(pg_node_tree, oid, bool?) -> text")
def _expression(_: Context, text: str, _relation: int, _pretty: int = 0) -> str:
    return text


def _of_index(context: Context, oid: int) -> CatalogTable | None:
    return next(
        (t for t in context.model.tables.values() if t.key and t.index_oid == oid),
        None,
    )


@function("pg_get_indexdef(oid, int4?, bool?) -> text")
def _index_definition(context: Context, oid: int, column: int = 0, pretty: int = 0) -> str | None:
    table = _of_index(context, oid)
    if table is None:
        return None
    names = [quote_ident(table.columns[place].name) for place in table.key]
    if column:
        return names[column - 1] if 0 < column <= len(names) else ""
    shown = visible(context, table.oid) if pretty else False
    on = (
        quote_ident(table.name)
        if shown
        else f"{quote_ident(table.schema)}.{quote_ident(table.name)}"
    )
    index = quote_ident(table.index_name)
    return f"CREATE UNIQUE INDEX {index} ON {on} USING btree ({', '.join(names)})"


@function("pg_get_constraintdef(oid, bool?) -> text")
def _constraint_definition(context: Context, oid: int, _pretty: int = 0) -> str | None:
    for table in context.model.tables.values():
        if table.key and table.constraint_oid == oid:
            names = ", ".join(quote_ident(table.columns[place].name) for place in table.key)
            return f"PRIMARY KEY ({names})"
    for table in context.model.tables.values():
        for column in table.columns:
            if (
                context.model.find_oid("not null", table.schema, f"{table.name}.{column.name}")
                == oid
            ):
                return f"NOT NULL {quote_ident(column.name)}"
    return None


@function("pg_get_replica_identity_index(regclass) -> regclass")
def _identity_index(context: Context, oid: int) -> int | None:
    table = context.model.tables.get(oid)
    if table is None or not table.key or table.identity in (Identity.FULL, Identity.NOTHING):
        return None
    return table.index_oid


def _list_published(context: Context, names: list[str], *, whole: bool) -> list[list[Any]]:
    found = []
    for publication in find_publications(context.publications(), names):
        for table in context.model.tables.values():
            published = publication.table(table.schema, table.name)
            if published is None:
                continue
            columns = published.columns
            if columns is None and whole:
                columns = tuple(column.name for column in table.columns)
            numbers = column_numbers(table, columns)
            qual = shown_filter(context.types, table, published.row_filter)
            found.append([publication.oid, table.oid, numbers, qual])
    return found


@function("pg_get_publication_tables(text) -> setof (relid oid)", until=14)
def _published_names(context: Context, name: str) -> list[list[Any]]:
    return [[row[1]] for row in _list_published(context, [name], whole=False)]


@function(
    "pg_get_publication_tables(text) -> setof (relid oid, attrs int2vector, qual pg_node_tree)",
    since=15,
    until=15,
)
def _published_one(context: Context, name: str) -> list[list[Any]]:
    return [row[1:] for row in _list_published(context, [name], whole=True)]


@function(
    "pg_get_publication_tables(variadic text[]) -> "
    "setof (pubid oid, relid oid, attrs int2vector, qual pg_node_tree)",
    since=16,
)
def _published_all(context: Context, names: str) -> list[list[Any]]:
    return _list_published(context, json.loads(names), whole=True)


@function("pg_relation_is_publishable(regclass) -> bool")
def _publishable(context: Context, oid: int) -> int | None:
    if relation_name(context, oid) is None:
        return None
    return int(oid in context.model.tables)


@function("pg_relation_is_updatable(regclass, bool) -> int4")
def _updatable(_: Context, _oid: int, _triggers: int) -> int:
    return 0


@function("pg_column_is_updatable(regclass, int2, bool) -> bool")
def _column_updatable(_: Context, _oid: int, _number: int, _triggers: int) -> int:
    return 0


@function("pg_partition_root(regclass) -> regclass")
def _partition_root(_: Context, _oid: int) -> None:
    return None


@function("pg_partition_ancestors(regclass) -> setof regclass")
def _partition_ancestors(_: Context, _oid: int) -> list[list[Any]]:
    return []


@function(
    "pg_partition_tree(regclass) -> setof (relid regclass, parentrelid regclass, "
    "isleaf bool, level int4)"
)
def _partition_tree(_: Context, _oid: int) -> list[list[Any]]:
    return []


@function("obj_description(oid, name?) -> text")
def _description(context: Context, oid: int, _catalog: str = "pg_publication") -> str | None:
    return context.comment(oid) if _catalog == "pg_publication" else None


@function("shobj_description(oid, name) -> text")
def _shared_description(_: Context, _oid: int, _catalog: str) -> None:
    return None


@function("col_description(oid, int4) -> text")
def _column_description(_: Context, _oid: int, _number: int) -> None:
    return None


@function("to_regclass(text) -> regclass")
def _to_regclass(context: Context, text: str) -> int | None:
    try:
        return relation_oid(context, text)
    except Refused as refused:
        if refused.sqlstate in ("42P01", "3F000"):
            return None
        raise


@function("to_regtype(text) -> regtype")
def _to_regtype(context: Context, text: str) -> int | None:
    try:
        return type_oid(context, text)
    except Refused as refused:
        if refused.sqlstate in ("42704", "3F000"):
            return None
        raise


@function("pg_available_extensions() -> setof (name name, default_version text, comment text)")
def _extensions(_: Context) -> list[list[Any]]:
    return []


# Functions about things without rows in the catalogue.
@function("pg_get_viewdef(oid, bool?) -> text")
@function("pg_get_ruledef(oid, bool?) -> text")
@function("pg_get_triggerdef(oid, bool?) -> text")
@function("pg_get_partkeydef(oid) -> text")
@function("pg_get_statisticsobjdef(oid) -> text")
@function("pg_get_statisticsobjdef_columns(oid) -> text")
@function("pg_get_function_result(oid) -> text")
@function("pg_get_function_arguments(oid) -> text")
@function("pg_get_function_identity_arguments(oid) -> text")
@function("pg_get_functiondef(oid) -> text")
@function("pg_get_serial_sequence(text, text) -> text")
@function("pg_table_size(regclass) -> int8")
@function("pg_total_relation_size(regclass) -> int8")
@function("pg_relation_size(regclass, text?) -> int8")
@function("pg_database_size(oid) -> int8")
@function("pg_tablespace_size(oid) -> int8")
@function("pg_sequence_last_value(regclass) -> int8")
def _not_kept(_: Context, *_arguments: Any) -> str:
    raise Refused("0A000", "definitions and sizes are not kept by this server")


# -- rights -----------------------------------------------------------------------------------


def _has_rights(rights: str) -> int:
    """Return whether at least one of the rights is granted: rights to read are, rights to write are
    not.
    """
    words = (word.strip().lower() for word in rights.split(","))
    return int(any(word in _READ_RIGHTS for word in words))


@function("has_table_privilege(oid, text) -> bool")
@function("has_any_column_privilege(oid, text) -> bool")
@function("has_sequence_privilege(oid, text) -> bool")
@function("has_schema_privilege(oid, text) -> bool")
@function("has_schema_privilege(text, text) -> bool")
@function("has_table_privilege(text, text) -> bool")
@function("has_type_privilege(oid, text) -> bool")
@function("has_function_privilege(oid, text) -> bool")
@function("has_tablespace_privilege(oid, text) -> bool")
def _has_right(_: Context, _what: Any, rights: str) -> int:
    return _has_rights(rights)


@function("has_column_privilege(oid, int2, text) -> bool")
@function("has_column_privilege(oid, text, text) -> bool")
def _has_column_right(_: Context, _oid: int, _column: Any, rights: str) -> int:
    return _has_rights(rights)


@function("has_table_privilege(name, oid, text) -> bool")
@function("has_schema_privilege(name, oid, text) -> bool")
@function("has_database_privilege(name, oid, text) -> bool")
@function("has_database_privilege(name, text, text) -> bool")
def _role_has_right(_: Context, _role: Any, _what: Any, rights: str) -> int:
    return int(_has_rights(rights) or "create" in rights.lower())


@function("has_database_privilege(oid, text) -> bool")
@function("has_database_privilege(text, text) -> bool")
def _has_database_right(_: Context, _what: Any, rights: str) -> int:
    return int(_has_rights(rights) or "create" in rights.lower())  # publications are made


def _role_oid(context: Context, role: Any) -> int:
    if isinstance(role, int):
        return role
    for oid, name in context.model.roles.items():
        if name == role:
            return oid
    raise Refused("42704", f'role "{role}" does not exist')


@function("pg_has_role(oid, text) -> bool")
@function("pg_has_role(name, text) -> bool")
def _has_role(context: Context, role: Any, _right: str) -> int:
    return int(_role_oid(context, role) == _role_oid(context, context.session.user))


@function("pg_has_role(name, oid, text) -> bool")
@function("pg_has_role(name, name, text) -> bool")
@function("pg_has_role(oid, oid, text) -> bool")
def _has_role_of(context: Context, user: Any, role: Any, _right: str) -> int:
    one, other = _role_oid(context, user), _role_oid(context, role)
    return int(one in (other, OWNER_OID))


# -- information_schema's own -----------------------------------------------------------------


@function("information_schema._pg_char_max_length(oid, int4) -> int4")
def _char_length(_: Context, oid: int, typmod: int) -> int | None:
    if typmod == -1:
        return None
    if oid in (BPCHAR, VARCHAR):
        return typmod - 4
    return typmod if oid in (1560, 1562) else None


@function("information_schema._pg_char_octet_length(oid, int4) -> int4")
def _octet_length(_: Context, oid: int, typmod: int) -> int | None:
    if oid not in (25, BPCHAR, VARCHAR):
        return None
    return 2**30 if typmod == -1 else (typmod - 4) * _OCTETS_PER_LETTER


@function("information_schema._pg_numeric_precision(oid, int4) -> int4")
def _precision(_: Context, oid: int, typmod: int) -> int | None:
    if oid == NUMERIC:
        return None if typmod == -1 else (typmod - 4) >> 16 & 0xFFFF
    return {INT2: 16, INT4: 32, INT8: 64, FLOAT4: 24, FLOAT8: 53}.get(oid)


@function("information_schema._pg_numeric_precision_radix(oid, int4) -> int4")
def _radix(_: Context, oid: int, _typmod: int) -> int | None:
    return 10 if oid == NUMERIC else 2 if oid in (INT2, INT4, INT8, FLOAT4, FLOAT8) else None


@function("information_schema._pg_numeric_scale(oid, int4) -> int4")
def _scale(_: Context, oid: int, typmod: int) -> int | None:
    if oid in (INT2, INT4, INT8):
        return 0
    return (typmod - 4) & 0x7FF if oid == NUMERIC and typmod != -1 else None


@function("information_schema._pg_datetime_precision(oid, int4) -> int4")
def _time_precision(_: Context, oid: int, typmod: int) -> int | None:
    if oid == TIMES[0]:
        return 0
    if oid in (1083, 1266, *TIMES):
        return 6 if typmod < 0 else typmod
    if oid == INTERVAL:
        return 6 if typmod < 0 or typmod & 0xFFFF == 0xFFFF else typmod & 0xFFFF
    return None


@function("information_schema._pg_interval_type(oid, int4) -> text")
def _interval_type(context: Context, oid: int, typmod: int) -> str | None:
    if oid != INTERVAL:
        return None
    text = context.types.name(oid, typmod)
    return text.removeprefix("interval").strip().upper().partition("(")[0] or None


@function("information_schema._pg_index_position(oid, int2) -> int4")
def _index_position(context: Context, oid: int, number: int) -> int | None:
    table = _of_index(context, oid)
    if table is None or number - 1 not in table.key:
        return None
    return table.key.index(number - 1) + 1
