"""Views of the dictionary: constraints, indexes, triggers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sim_oracle.constraints import Constraint
from sim_oracle.tables import Table
from sim_oracle.views import Context, Rows, View


def tables_of(context: Context) -> Iterator[Table]:
    """Yield the tables that the session's container has."""
    for (container, _, _), table in sorted(context.database.tables.items()):
        if container == context.container:
            yield table


def _constraints(context: Context) -> Rows:
    for table in tables_of(context):
        version = table.version
        if version.key:
            yield _row(table, table.key_name, "P", index=table.key_name)
        for number, column in enumerate(version.columns):
            if not column.is_nullable and column.name not in version.key:
                name = f"SYS_C{version.object_id:07d}{number}"
                yield _row(table, name, "C", condition=f'"{column.name}" IS NOT NULL')
        for one in table.constraints.values():
            if one.condition == "INDEX":
                continue
            index = one.name if one.kind == "U" else None
            yield _row(table, one.name, one.kind, one, condition=one.condition, index=index)


def _row(
    table: Table,
    name: str,
    kind: str,
    one: Constraint | None = None,
    *,
    condition: str | None = None,
    index: str | None = None,
) -> tuple[Any, ...]:
    version = table.version
    parent = None if one is None else one.parent
    is_generated = name.startswith("SYS_C")
    return (
        version.owner,
        name,
        kind,
        version.name,
        condition,
        condition,
        None if parent is None else parent.version.owner,
        None if parent is None or one is None else _parent_key(parent, one),
        "DISABLED" if one is not None and not one.is_enabled else "ENABLED",
        "NOT VALIDATED" if one is not None and not one.is_validated else "VALIDATED",
        "DEFERRABLE" if one is not None and one.is_deferrable else "NOT DEFERRABLE",
        "DEFERRED" if one is not None and one.is_deferred else "IMMEDIATE",
        one.on_delete if one is not None and kind == "R" else None,
        None if index is None else version.owner,
        index,
        "GENERATED NAME" if is_generated else "USER NAME",
        None,
        None,
    )


def _parent_key(parent: Table, one: Constraint) -> str:
    if one.parent_columns == parent.version.key:
        return parent.key_name
    return next(
        other.name
        for other in parent.constraints.values()
        if other.kind == "U" and other.columns == one.parent_columns
    )


def _constraint_columns(context: Context) -> Rows:
    for table in tables_of(context):
        version = table.version
        for place, column in enumerate(version.key, 1):
            yield version.owner, table.key_name, version.name, column, place
        for number, one in enumerate(version.columns):
            if not one.is_nullable and one.name not in version.key:
                name = f"SYS_C{version.object_id:07d}{number}"
                yield version.owner, name, version.name, one.name, None
        for constraint in table.constraints.values():
            if constraint.condition != "INDEX":
                for place, column in enumerate(constraint.columns, 1):
                    yield version.owner, constraint.name, version.name, column, place


def _listed_indexes(context: Context) -> Iterator[tuple[Table, str, tuple[str, ...], bool, str]]:
    for table in tables_of(context):
        if table.version.key:
            yield table, table.key_name, table.version.key, True, "VALID"
        for one in table.constraints.values():
            if one.kind == "U" and one.condition != "INDEX":
                yield table, one.name, one.columns, True, "VALID"
        for index in table.indexes.values():
            yield table, index.name, index.columns, index.is_unique, index.status


def _indexes(context: Context) -> Rows:
    for table, name, columns, is_unique, status in _listed_indexes(context):
        owner = table.version.owner
        known = {column.name for column in table.version.columns}
        is_plain = set(columns) <= known
        kind = "NORMAL" if is_plain else "FUNCTION-BASED NORMAL"
        if table.is_index_organized and name == table.key_name:
            kind = "IOT - TOP"
        unique = "UNIQUE" if is_unique else "NONUNIQUE"
        yield (
            owner, name, kind, owner, table.name, "TABLE", unique, status, "NO",
            "USERS", "N", "VISIBLE", None if is_plain else "ENABLED",
        )  # fmt: skip


def _index_columns(context: Context) -> Rows:
    for table, name, columns, _, _ in _listed_indexes(context):
        owner = table.version.owner
        for place, column in enumerate(columns, 1):
            yield owner, name, owner, table.name, column, place, 22, 0, "ASC"


def _triggers(context: Context) -> Rows:
    for table in tables_of(context):
        for one in table.triggers.values():
            status = "ENABLED" if one.is_enabled else "DISABLED"
            owner = table.version.owner
            yield owner, one.name, one.kind, one.event, owner, "TABLE", table.name, status, "PL/SQL"


CONSTRAINTS: dict[str, View] = {
    "ALL_CONSTRAINTS": (
        (
            "OWNER",
            "CONSTRAINT_NAME",
            "CONSTRAINT_TYPE",
            "TABLE_NAME",
            "SEARCH_CONDITION",
            "SEARCH_CONDITION_VC",
            "R_OWNER",
            "R_CONSTRAINT_NAME",
            "STATUS",
            "VALIDATED",
            "DEFERRABLE",
            "DEFERRED",
            "DELETE_RULE",
            "INDEX_OWNER",
            "INDEX_NAME",
            "GENERATED",
            "INVALID",
            "VIEW_RELATED",
        ),
        _constraints,
    ),
    "ALL_CONS_COLUMNS": (
        ("OWNER", "CONSTRAINT_NAME", "TABLE_NAME", "COLUMN_NAME", "POSITION"),
        _constraint_columns,
    ),
    "ALL_INDEXES": (
        (
            "OWNER",
            "INDEX_NAME",
            "INDEX_TYPE",
            "TABLE_OWNER",
            "TABLE_NAME",
            "TABLE_TYPE",
            "UNIQUENESS",
            "STATUS",
            "PARTITIONED",
            "TABLESPACE_NAME",
            "GENERATED",
            "VISIBILITY",
            "FUNCIDX_STATUS",
        ),
        _indexes,
    ),
    "ALL_IND_COLUMNS": (
        (
            "INDEX_OWNER",
            "INDEX_NAME",
            "TABLE_OWNER",
            "TABLE_NAME",
            "COLUMN_NAME",
            "COLUMN_POSITION",
            "COLUMN_LENGTH",
            "CHAR_LENGTH",
            "DESCEND",
        ),
        _index_columns,
    ),
    "ALL_TRIGGERS": (
        (
            "OWNER",
            "TRIGGER_NAME",
            "TRIGGER_TYPE",
            "TRIGGERING_EVENT",
            "TABLE_OWNER",
            "BASE_OBJECT_TYPE",
            "TABLE_NAME",
            "STATUS",
            "ACTION_TYPE",
        ),
        _triggers,
    ),
}
