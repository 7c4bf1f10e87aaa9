"""Mapping of a source's columns to a target, by engine and version.

Not here: each pair's rules (`to_postgres`, `to_mysql`, `among_mysql`), names (`names`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from penstock.codec.mysql.charsets import charset_named
from penstock.codec.types import (
    among_mysql,
    from_ignite,
    from_oracle,
    from_sqlserver,
    oracle_held,
    to_lake,
    to_mysql,
    to_oracle,
    to_postgres,
    to_sqlserver,
)
from penstock.codec.types.mapping import (
    NO_CHOICES,
    Choices,
    Form,
    Held,
    Kind,
    Mapping,
    column_scope,
    refuse,
    resolve,
)
from penstock.codec.types.mysql_text import CHARACTER_BYTES, KEY_BYTES_MAX, ROW_BYTES_MAX
from penstock.codec.types.source_type import Engine, Server, SourceType
from penstock.model import (
    Column,
    ColumnDefinition,
    Identity,
    Relation,
    TableDefinition,
    TableName,
)

_OTHER_BYTES = 36  # maximum for a column other than text in a key or row
_LONG_BYTES = 12  # of a blob or a long text in the row itself
_SIZED = re.compile(r"(var)?(char|binary)\((\d+)\)")
_MYSQL_COLUMNS_MAX = 1017
_POSTGRES_COLUMNS_MAX = 1600


def map_column(
    column: ColumnDefinition | Column,
    source: Server,
    target: Server,
    *,
    choices: Choices = NO_CHOICES,
    table: TableName | None = None,
    key_bytes: int | None = None,
    is_enum: bool = False,
) -> Mapping:
    """Return the mapping of one column to the target.

    Args:
        column: from the source's catalogue or from the log. Its neutral type determines how values
            are written, so call this again if a relation keeps it as text.
        source: server of the source.
        target: server of the target.
        choices: the user's choices.
        table: the source's table, for the choices of one column.
        key_bytes: room in the target's key; None if the column is not in a key.
        is_enum: whether its type is an enum of PostgreSQL.
    """
    kind = replace(SourceType.of(column, source.engine), is_enum=is_enum)
    if source.engine.is_mysql and kind.charset and charset_named(kind.charset) is None:
        return refuse(kind, f"penstock does not read the character set {kind.charset}")
    held = _hold_type(kind, source, target, key_bytes)
    if held is None and kind.engine is Engine.ORACLE:
        return refuse(kind, from_oracle.refusal_of(kind))
    if held is None:
        known = "carries no" if kind.is_builtin else "does not know the type"
        return refuse(kind, f"penstock {known} {kind.base}")
    mapping = resolve(held, kind, target.engine, choices, column_scope(table, column.name))
    return to_lake.choose_defaults(mapping) if target.engine.is_lake else mapping


def map_lake_column(
    column: ColumnDefinition | Column,
    source_engine: str,
    *,
    choices: Choices = NO_CHOICES,
    table: TableName | None = None,
    identifies: bool = False,
) -> to_lake.LakeMapping:
    """Return the mapping of one column to a lake, for the conversion of its values.

    Args:
        column: from the source's catalogue or from the log. The type at the source determines the
            result, so it is the same if a relation keeps the values as text.
        source_engine: engine whose types the source has, as a log names it. Columns of an unknown
            engine are mapped by their neutral types.
        choices: of [target.types].
        table: the source's table, for the choices of one column.
        identifies: whether rows are found by the column, so that no value may become NULL.
    """
    try:
        source = Server(engine=Engine(source_engine or "postgresql"), version=())
    except ValueError:
        return to_lake.LakeMapping(type=to_lake.type_of_neutral(column.neutral))
    target = Server(engine=Engine.DELTA, version=())  # both formats have the same types
    mapping = map_column(column, source, target, choices=choices, table=table)
    if identifies and mapping.may_be_null:
        mapping = _refuse_null(mapping, column_scope(table, column.name))
    return to_lake.read_mapping(mapping, SourceType.of(column, source.engine))


def _refuse_null(mapping: Mapping, scope: str) -> Mapping:
    return replace(
        mapping,
        target_type="",
        refused="NULL was chosen for some of its values, and rows are found by it: "
        f'choose otherwise for "{scope}"',
    )


def map_table(
    definition: TableDefinition,
    source: Server,
    target: Server,
    *,
    choices: Choices = NO_CHOICES,
) -> dict[str, Mapping]:
    """Return the mapping of each column of a table, also generated ones, in the table's order.

    The result is by name. The columns share the room of the target's keys and rows. If a table is
    too wide for the target, its first column is refused.
    """
    enums = {f"{t.schema}.{t.name}" for t in definition.types if t.kind == "e"}
    room = key_room(definition, source, target)
    result = {
        column.name: map_column(
            column,
            source,
            target,
            choices=choices,
            table=definition.name,
            key_bytes=room.get(column.name),
            is_enum=_bare(column.base_type or column.type_text) in enums,
        )
        for column in definition.columns
    }
    for name in _identifying(definition) & result.keys():
        if result[name].may_be_null:
            result[name] = _refuse_null(result[name], column_scope(definition.name, name))
    if target.engine in _FIND_TOO_MANY_COLUMNS:
        find_too_many = _FIND_TOO_MANY_COLUMNS[target.engine]
        _refuse_first(result, definition, find_too_many(definition))
        return result
    if source.engine is target.engine or target.engine.is_lake:
        return result
    if len(result) > _columns_max(target.engine):
        most = _columns_max(target.engine)
        reason = f"{target.engine.label} has at most {most} columns, this table {len(result)}"
        _refuse_first(result, definition, reason)
    elif target.engine.is_mysql:
        fit_row(result, room)
    return result


_FIND_TOO_MANY_COLUMNS = {
    Engine.SQLSERVER: to_sqlserver.find_too_many_columns,
    Engine.ORACLE: to_oracle.find_too_many_columns,
}


def _refuse_first(result: dict[str, Mapping], definition: TableDefinition, reason: str) -> None:
    """Refuse a table's first column, and with it the table. reason: empty for none."""
    if reason:
        first = definition.columns[0].name
        result[first] = replace(result[first], target_type="", refused=reason)


def _columns_max(engine: Engine) -> int:
    return _MYSQL_COLUMNS_MAX if engine.is_mysql else _POSTGRES_COLUMNS_MAX


def _key_bytes_max(engine: Engine) -> int:
    if engine is Engine.SQLSERVER:
        return to_sqlserver.KEY_BYTES_MAX
    if engine is Engine.ORACLE:
        return oracle_held.KEY_BYTES_MAX
    return KEY_BYTES_MAX if engine.is_mysql else to_postgres.KEY_BYTES_MAX


def _identifying(definition: TableDefinition) -> set[str]:
    columns = set(definition.primary_key)
    if definition.identity is not Identity.FULL:
        columns |= set(definition.identity_columns)
    return columns


def _bare(text: str) -> str:
    return text.replace('"', "")


def _hold_type(
    kind: SourceType, source: Server, target: Server, key_bytes: int | None
) -> Held | None:
    if target.engine is Engine.ORACLE:
        return to_oracle.hold_type(kind, target, key_bytes)
    if source.engine is Engine.ORACLE:
        return from_oracle.hold_type(kind, target, key_bytes)
    if target.engine.is_lake:
        return to_lake.hold_type(kind)
    if target.engine is Engine.SQLSERVER:
        return to_sqlserver.hold_type(kind, target, key_bytes)
    if source.engine is Engine.SQLSERVER:
        return from_sqlserver.hold_type(kind, target, key_bytes)
    if source.engine is Engine.POSTGRESQL:
        if target.engine is Engine.POSTGRESQL:
            form = Form(kind=Kind.PRINTED)
            return Held(target_type=kind.text, source_form=form, target_form=form)
        return to_mysql.hold_type(kind, target, key_bytes)
    if source.engine is Engine.IGNITE:
        return from_ignite.hold_type(kind, target, key_bytes)
    if target.engine is Engine.POSTGRESQL:
        return to_postgres.hold_type(kind, key_bytes)
    return among_mysql.hold_type(kind, target, key_bytes, source)


# -- room in keys and rows -------------------------------------------------------------------------


def key_room(definition: TableDefinition, source: Server, target: Server) -> dict[str, int]:
    """Return the bytes in the target's keys for each key column.

    Keys are primary and unique keys and the identity of rows. A column that needs less than its
    share leaves the rest to the others.
    """
    if source.engine is target.engine or target.engine.is_lake:
        return {}
    total = _key_bytes_max(target.engine)
    kinds = {c.name: SourceType.of(c, source.engine) for c in definition.columns}
    whole = {column.name for column in definition.columns if not column.generated}
    keys: list[Sequence[str]] = []
    if not any(definition.primary_key_prefixes):
        keys.append(definition.primary_key)
    keys += [key.columns for key in definition.unique_keys if not any(key.prefixes)]
    if set(definition.identity_columns) != whole:
        keys.append(definition.identity_columns)
    room: dict[str, int] = {}
    for key in keys:
        wanted = {name: _key_bytes(kinds[name]) for name in key if name in kinds}
        for name, share in _shares(wanted, total).items():
            room[name] = min(share, room.get(name, share))
    return room


def key_room_of_rows(relation: Relation, source: Server, target: Server) -> dict[str, int]:
    """Return the bytes in a target's primary key for each key column of a table's rows."""
    if source.engine is target.engine:
        return {}
    columns = [relation.columns[index] for index in relation.key]
    wanted = {one.name: _key_bytes(SourceType.of(one, source.engine)) for one in columns}
    return _shares(wanted, _key_bytes_max(target.engine))


def _key_bytes(kind: SourceType) -> int | None:
    """Return the bytes of the longest value in a key; None if there is no limit."""
    if kind.is_array or not kind.is_builtin:
        return None
    if kind.engine is Engine.ORACLE:
        return from_oracle.key_bytes_of(kind)
    if kind.base in ("varchar", "char"):
        none = CHARACTER_BYTES if kind.engine.is_mysql else None  # of `(max)` too
        return kind.length * CHARACTER_BYTES if kind.length is not None else none
    if kind.base in ("binary", "varbinary"):
        is_open = kind.engine is Engine.SQLSERVER and kind.length is None
        return None if is_open else kind.length or 1
    if kind.engine is Engine.POSTGRESQL:
        most = to_mysql.PRINTED.get(kind.base, 0 if kind.base in _PG_FIXED else None)
        return most * CHARACTER_BYTES if most else (_OTHER_BYTES if most == 0 else None)
    if kind.engine is Engine.SQLSERVER:
        return _sqlserver_key_bytes(kind)
    if kind.engine is Engine.IGNITE:
        return None if kind.base in ("binary", "enum", "object", "other") else _OTHER_BYTES
    longs = ("text", "blob")
    return None if kind.base.endswith(longs) else _OTHER_BYTES


def _sqlserver_key_bytes(kind: SourceType) -> int | None:
    if kind.base in ("nchar", "nvarchar") and kind.length is not None:
        return kind.length * CHARACTER_BYTES
    is_open = kind.base in (
        "nvarchar", "text", "ntext", "image", "xml", "json", "sql_variant", "hierarchyid",
    )  # fmt: skip
    return None if is_open else _OTHER_BYTES


_PG_FIXED = frozenset(
    (
        "boolean", "smallint", "integer", "bigint", "oid", "xid", "cid", "xid8", "real",
        "double precision", "numeric", "date", "time", "timestamp", "timestamptz", "uuid", "bit",
    )
)  # fmt: skip


def _shares(wanted: dict[str, int | None], total: int) -> dict[str, int]:
    """Distribute bytes: small needs are met, and the others get equal parts of the rest."""
    result: dict[str, int] = {}
    left = total
    order = sorted(wanted, key=lambda name: (wanted[name] is None, wanted[name] or 0))
    for place, name in enumerate(order):
        fair = left // (len(order) - place)
        want = wanted[name]
        result[name] = fair if want is None else min(want, fair)
        left -= result[name]
    return result


def fit_row(mappings: dict[str, Mapping], in_key: Collection[str] = ()) -> None:
    """Turn the longest varchars into long texts until a row of MySQL can hold all columns."""
    sizes = {name: _row_bytes(mapping.target_type) for name, mapping in mappings.items()}
    movable = [name for name in sizes if name not in in_key and sizes[name] > _LONG_BYTES]
    for name in sorted(movable, key=lambda name: -sizes[name]):
        if sum(sizes.values()) + len(sizes) // 8 <= ROW_BYTES_MAX:
            return
        match = _SIZED.match(mappings[name].target_type)
        if match is None:
            continue
        longer = "longblob" if match[2] == "binary" else "longtext"
        target = longer + mappings[name].target_type[match.end() :]
        note = "; ".join(filter(None, (mappings[name].note, "a row has no room for more varchars")))
        mappings[name] = replace(mappings[name], target_type=target, note=note)
        sizes[name] = _LONG_BYTES


def _row_bytes(target_type: str) -> int:
    match = _SIZED.match(target_type)
    if match is None:
        return _LONG_BYTES if target_type.startswith(("long", "text")) else _OTHER_BYTES
    each = 1 if match[2] == "binary" or "ascii" in target_type else CHARACTER_BYTES
    return int(match[3]) * each + 2
