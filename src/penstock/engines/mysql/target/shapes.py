"""Statements that create tables of MySQL and MariaDB from a source's definitions.

Not here: running them (`bulk.py`), types of columns (`codec.types`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.codec.mysql.charsets import charset_named
from penstock.codec.server_pair import ServerPair
from penstock.codec.types import Engine, Mapping, Server, fill_template
from penstock.engines.mysql.connect import literal, quote
from penstock.engines.mysql.source.read_plan import target_charset
from penstock.engines.mysql.target.layout import TYPE_RULES, same_type
from penstock.engines.mysql.target.target import TargetTable
from penstock.model import ColumnDefinition, ForeignKey, TableDefinition, TableName, UniqueKey
from penstock.model.patterns import as_pattern
from penstock.ports.target import TargetDdlFailed, TargetShapeDiffers, TargetTypeMissing
from penstock.sql.read_plan import copied_columns
from penstock.sql.schema_translation import (
    FIXED_BYTES,
    Default,
    DefaultKind,
    Extras,
    Index,
    IndexPart,
    SchemaDescription,
    base_of,
    bits_sql,
    extras_of,
    length_of,
    now_sql,
    short_name,
)

index_bytes_max = 3072  # of InnoDB
PREFIX_CHARACTERS = 255
_CHARACTER_BYTES = 4
_WHOLE = ("tinyint", "smallint", "mediumint", "int", "bigint")


def may_number(
    definition: TableDefinition,
    description: SchemaDescription,
    column: ColumnDefinition,
    mapping: Mapping,
) -> bool:
    """Return whether AUTO_INCREMENT is allowed: integer, first in the key, one per table."""
    is_first = definition.primary_key[:1] == (column.name,)
    is_whole = base_of(mapping.target_type) in _WHOLE
    return is_whole and is_first and description.numbered[0] == column.name


def default_sql(
    default: Default, column: ColumnDefinition, mapping: Mapping, target: Server
) -> str | None:
    """Return a default as SQL of the target; None if the target has no equivalent."""
    match default.kind:
        case DefaultKind.NOW:
            return now_sql(mapping)
        case DefaultKind.BITS:
            return bits_sql(default.value, mapping)
        case DefaultKind.BOOL:
            return "1" if default.value == "true" else "0"
        case DefaultKind.NUMBER:
            return default.value
        case DefaultKind.LITERAL:
            return _literal(default.value, column, mapping, target)
    return None


def _literal(value: str, column: ColumnDefinition, mapping: Mapping, target: Server) -> str | None:
    """Return a text as default of the target's type; None if it would need a conversion."""
    if column.neutral in ("binary", "timestamptz", "bool") or "\0" in value:
        return None
    text = literal(value)
    if not base_of(mapping.target_type).endswith(("text", "json")):
        return text
    # MySQL has no ALTER TABLE that gives a text column its default.
    is_mariadb = target.engine is Engine.MARIADB
    return f"({fill_template(mapping.write.sql, text)})" if is_mariadb else None


def index_part(
    part: IndexPart, column: ColumnDefinition, mapping: Mapping
) -> tuple[IndexPart, int] | str:
    """Return a column in an index, which contains only the beginning of a long text."""
    if column.generated:
        return f"column {part.column} is not in the target"
    base = base_of(mapping.target_type)
    if base in ("varchar", "char"):
        return part, length_of(mapping.target_type, 1) * _CHARACTER_BYTES
    if base in ("varbinary", "binary"):
        return part, length_of(mapping.target_type, 1)
    if base.endswith(("text", "blob")):
        return part._replace(prefix=PREFIX_CHARACTERS), PREFIX_CHARACTERS * _CHARACTER_BYTES
    if base in ("json", "point") or base.endswith("geometry"):
        return f"column {part.column} is {base} there, which has no such index"
    return part, FIXED_BYTES


def refuses(key: ForeignKey) -> str:
    """Return why a foreign key cannot be created; empty if it can."""
    return (
        "the target has no SET DEFAULT" if "SET DEFAULT" in (key.on_delete, key.on_update) else ""
    )


MYSQL_NAME_CHARACTERS_MAX = 64
# The server refuses characters that only the larger one has.
_UTF8 = frozenset({"utf8mb3", "utf8mb4"})
# Columns that MariaDB computes for row history, which each server has on its own.
PERIOD = frozenset({"ROW START", "ROW END"})
_NOT_ASCII = frozenset({"ucs2", "utf16", "utf16le", "utf32"})


def create_sql(
    definition: TableDefinition, name: TableName, servers: ServerPair
) -> tuple[str, list[str]]:
    """Return CREATE TABLE with columns and primary key, and a sentence for each missing part.

    Raises TargetTypeMissing for a column that the target cannot hold, TargetDdlFailed for a table
    that would have no columns, or a key of columns that it lacks.
    """
    mappings = servers.mappings(definition)
    is_same = servers.source.engine is servers.target.engine
    parts, notes = [], []
    kept = {column.name for column in copied_columns(definition, servers)}
    counted = extras_in_mysql(definition, servers).counted
    for column in definition.columns:
        mapping = mappings[column.name]
        if mapping.refused:
            raise TargetTypeMissing(
                f"{name}.{column.name} is not possible in the target: {mapping.refused}",
                hint="Leave the table out with an entry like !schema.table in [source] tables.",
                table=str(name),
            )
        if column.name in kept:
            more = " auto_increment" if column.name in counted else ""
            parts.append(_column(column, mapping) + more)
        elif column.default in PERIOD:
            notes.append(f"{name} is not versioned, and has no column {column.name}")
        elif is_same:
            stored = "stored" if column.generated == "s" else "virtual"
            parts.append(
                f"{quote(column.name)} {mapping.target_type} "
                f"generated always as ({column.default}) {stored}"
            )
        else:
            notes.append(f"{name}.{column.name} is generated in the source and left out")
    if not parts:
        raise TargetDdlFailed(
            f"{definition.name} has no columns, or only generated ones: the target refuses such a "
            "table",
            hint=f"Leave it out: put '!{as_pattern(definition.name)}' into [source] tables and "
            "start again.",
            table=str(name),
        )
    lacking = [] if is_same else sorted({*definition.primary_key} - kept)
    if lacking:
        raise TargetDdlFailed(
            f"the primary key of {definition.name} has the generated column {lacking[0]}, which is "
            "not in the target",
            hint=f"Create it in the target without that key: {_create(name, parts)}; and "
            "start again.",
            table=str(name),
        )
    if definition.primary_key:
        parts.append(f"primary key ({_primary_key(definition)})")
    return _create(name, parts), notes


def _create(name: TableName, parts: Sequence[str]) -> str:
    options = "engine = InnoDB row_format = dynamic"
    return f"create table {quote(*name)} ({', '.join(parts)}) {options}"


def _column(column: ColumnDefinition, mapping: Mapping) -> str:
    # NULL is explicit, because older servers otherwise give a TIMESTAMP their own default.
    null = "not null" if column.not_null and not mapping.may_be_null else "null"
    return f"{quote(column.name)} {mapping.target_type} {null}"


def _primary_key(definition: TableDefinition) -> str:
    """Return the key without the period's end, which separates a row from its past versions."""
    period = {column.name for column in definition.columns if column.default in PERIOD}
    prefixes = definition.primary_key_prefixes or (0,) * len(definition.primary_key)
    kept = [
        (name, prefix)
        for name, prefix in zip(definition.primary_key, prefixes, strict=True)
        if name not in period
    ]
    return _key([name for name, _ in kept], [prefix for _, prefix in kept])


def _key(columns: Sequence[str], prefixes: Sequence[int]) -> str:
    lengths = prefixes or (0,) * len(columns)
    return ", ".join(
        quote(name) + (f"({length})" if length else "")
        for name, length in zip(columns, lengths, strict=True)
    )


def key_statements(definition: TableDefinition, name: TableName, servers: ServerPair) -> list[str]:
    """Return the statements that give a table its unique keys.

    Between servers of MySQL's family these are the source's; a unique index of PostgreSQL over
    expressions or a part of the rows has no counterpart.
    """
    return [key_statement(key, name, "unique key") for key in unique_keys(definition, servers)]


def unique_keys(definition: TableDefinition, servers: ServerPair) -> list[UniqueKey]:
    """Return the unique keys that the target can have."""
    kept = {column.name for column in definition.columns}
    return [
        key
        for key in definition.unique_keys
        if key.columns
        and set(key.columns) <= kept
        and (servers.source.engine.is_mysql or key.is_constraint)
    ]


def key_statement(key: UniqueKey, name: TableName, kind: str) -> str:
    """Return the statement that creates a key. kind: `unique key` or `key`."""
    columns = _key(key.columns, key.prefixes)
    return f"alter table {quote(*name)} add {kind} {quote(key.name)} ({columns})"


def extras_in_mysql(definition: TableDefinition, servers: ServerPair) -> Extras:
    """Return what a table gets besides columns and keys: everything if both servers are of MySQL's
    family.
    """
    extras = extras_of(definition, servers.source, servers.target, servers.mappings(definition))
    if servers.source.engine.is_mysql:
        extras.defaults = {
            column.name: column.default
            for column in definition.columns
            if column.default is not None and not column.generated
        }
        extras.indexes = []
        extras.lacking = []
    return extras


def default_statements(
    definition: TableDefinition, name: TableName, servers: ServerPair
) -> dict[str, str]:
    """Return, for each column with a default, the statement that sets it. Rows never need it."""
    return {
        column: f"alter table {quote(*name)} alter column {quote(column)} set default "
        + (f"({sql})" if sql.lower().startswith("current_timestamp") else sql)
        for column, sql in extras_in_mysql(definition, servers).defaults.items()
    }


def index_statements(
    definition: TableDefinition, name: TableName, servers: ServerPair
) -> dict[str, str]:
    """Return the statement for each index that is not a key, keyed by description."""
    if servers.source.engine.is_mysql:
        return {text: f"alter table {quote(*name)} add {text}" for text in definition.indexes}
    return {
        f"index {index.name}": f"alter table {quote(*name)} {mysql_index(index)}"
        for index in extras_in_mysql(definition, servers).indexes
    }


def foreign_key_statement(
    key: ForeignKey, name: TableName, parent: TableName, servers: ServerPair
) -> str:
    """Return the statement that creates a foreign key. Its name must be unique in a database."""
    if not servers.source.engine.is_mysql:
        key = replace(key, name=f"{name.name}_{key.name}")
    return f"alter table {quote(*name)} {mysql_foreign_key(key, parent)}"


def _takes(charset: str, written: str) -> bool:
    """Return whether bytes of a character set mean the same in a column with another one.

    A bulk load sends bytes, which the server stores unchanged; in another character set they would
    silently become other characters.
    """
    found = charset_named(charset) or charset
    if found == written or {found, written} <= _UTF8:
        return True
    return written == "ascii" and found not in _NOT_ASCII


def check_shape(definition: TableDefinition, table: TargetTable, servers: ServerPair) -> None:
    """Compare a target table with the definition. Raises TargetShapeDiffers naming the columns.

    More columns in the target are allowed if they can be left out of an insert.
    """
    mappings = servers.mappings(definition)
    kept = copied_columns(definition, servers)
    differing = []
    for column in kept:
        found = table.column(column.name)
        expected = mappings[column.name].target_type
        if found is None:
            differing.append(f"{column.name} is missing, expected {expected}")
        elif not _fits(found.type_text, expected.partition(" character set")[0], definition):
            differing.append(f"{column.name} is {found.type_text}, expected {expected}")
        elif found.is_text and not _takes(
            found.charset, wanted := target_charset(column, mappings[column.name])
        ):
            differing.append(
                f"{column.name} is in character set {found.charset}, expected {wanted}"
            )
    named = {column.name.lower() for column in definition.columns}
    differing += [
        f"{extra.name} is not null, has no default and is not in the source"
        for extra in table.columns
        if extra.name.lower() not in named
        and extra.not_null
        and not extra.has_default
        and not extra.generated
    ]
    if differing:
        raise TargetShapeDiffers(
            f"target table {table.name} has another shape than the source's: "
            + "; ".join(differing),
            hint=f"Alter it, or rename it so that penstock makes its own: rename table "
            f"{table.sql_name} to {quote(table.name.schema, table.name.name + '_before')};",
            table=str(table.name),
        )


def _fits(found: str, expected: str, definition: TableDefinition) -> bool:
    return same_type(found, expected) or (definition.widens and TYPE_RULES.holds(found, expected))


def mysql_name(name: str) -> str:
    """Return the name of a key or constraint, cut without making two names equal."""
    return short_name(name, lambda text: len(text) <= MYSQL_NAME_CHARACTERS_MAX)


def mysql_index(index: Index) -> str:
    """Return the clause of an ALTER TABLE that creates an index."""
    parts = ", ".join(
        quote(name) + (f"({prefix})" if prefix else "") + (" desc" if is_down else "")
        for name, prefix, is_down in index.parts
    )
    return f"add key {quote(mysql_name(index.name))} ({parts})"


def mysql_foreign_key(key: ForeignKey, target: TableName) -> str:
    """Return the clause of an ALTER TABLE that creates a foreign key. target: referenced table."""
    columns = ", ".join(map(quote, key.columns))
    referred = ", ".join(map(quote, key.target_columns))
    return (
        f"add constraint {quote(mysql_name(key.name))} foreign key ({columns}) references "
        f"{quote(*target)} ({referred}) on delete {key.on_delete.lower()} "
        f"on update {key.on_update.lower()}"
    )
