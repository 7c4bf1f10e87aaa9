"""How a table is read from one engine so that its rows fit another: expressions, forms, shapes.

The values that come out are those that the change path writes, for every type and character set:
text is decoded by the same tables, times are in UTC, floating numbers have all their digits.
Not here: the rows themselves (`codec.mysqltext`, `codec.copytext`), the statements that make
tables (`postgres.schema`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.codec.mysql_types import TypeText, parse_type
from penstock.codec.mysqltext import Dialect, Form, TextCell
from penstock.host.connect import quoted as postgres_quoted
from penstock.host.mysql.connect import quoted
from penstock.host.mysql.url import SCHEMES as MYSQL_SCHEMES
from penstock.model import ColumnDefinition, TableDefinition, UniqueKey

_TIMES = {"date", "time", "datetime", "timestamp"}
_BYTES = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_TEXTS = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"}
_GEOMETRIES = {
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring",
    "multipolygon", "geometrycollection",
}  # fmt: skip
_UTF8 = {"", "utf8mb3", "utf8mb4", "ascii"}

# EWKB as `codec.mysql_values.ewkb_hex` has it, from what the server stores: SRID, byte order, kind.
_EWKB = (
    "case when substr(hex({0}), 1, 8) = '00000000' then substr(hex({0}), 9) "
    "else concat(substr(hex({0}), 9, 8), "
    "lpad(hex(conv(substr(hex({0}), 17, 2), 16, 10) | 32), 2, '0'), "
    "substr(hex({0}), 1, 8), substr(hex({0}), 19)) end"
)


def is_mysql(url: str) -> bool:
    """Whether a URL is one of MySQL or MariaDB."""
    return url.partition("://")[0] in MYSQL_SCHEMES


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a table's rows are read. columns: their names; expressions: what the SELECT lists.

    cells: how each becomes text of the target.
    """

    columns: tuple[str, ...]
    expressions: tuple[str, ...]
    cells: tuple[TextCell, ...]


def mysql_reading(definition: TableDefinition, dialect: Dialect) -> Reading:
    """How a table of MySQL or MariaDB is read for lines of this dialect."""
    columns = [column for column in definition.columns if not column.generated]
    found = [_read(column, dialect) for column in columns]
    return Reading(
        columns=tuple(column.name for column in columns),
        expressions=tuple(expression for expression, _ in found),
        cells=tuple(cell for _, cell in found),
    )


def _read(column: ColumnDefinition, dialect: Dialect) -> tuple[str, TextCell]:
    name = quoted(column.name)
    parsed = parse_type(column.base_type or column.type_text)
    base = parsed.base if parsed is not None else ""
    if base in _BYTES:
        return name, TextCell(form=Form.BYTES)
    if base in _GEOMETRIES:
        if dialect is Dialect.LOAD_DATA:
            return name, TextCell(form=Form.RAW)
        return _EWKB.format(name), TextCell(form=Form.PLAIN)
    if base == "bit":
        return f"{name} + 0", TextCell(form=Form.PLAIN)
    if base in ("float", "double"):
        # As it stands a FLOAT is shown with six digits; times one, not plus nothing: of -0 too.
        return f"{name} * 1e0", TextCell(form=Form.PLAIN)
    if base in _TIMES:
        form = Form.PLAIN if base == "time" else Form.DATE
        return name, TextCell(form=form)
    if base in _TEXTS or column.type_text == "json":
        if dialect is Dialect.LOAD_DATA:
            return name, TextCell(form=Form.RAW)
        if column.charset in _UTF8 or base == "json":
            return name, TextCell(form=Form.UTF8)
        return name, TextCell(form=Form.CHARSET, charset=column.charset)
    if column.neutral == "string" and base != "decimal":
        return name, TextCell(form=Form.UTF8)
    return name, TextCell(form=Form.PLAIN)


# -- tables of PostgreSQL --------------------------------------------------------------------------

_SAME_NAME = {
    "int16": "smallint", "int32": "integer", "int64": "bigint", "uint32": "bigint",
    "uint64": "numeric(20,0)", "float32": "real", "float64": "double precision",
    "date": "date", "uuid": "uuid", "binary": "bytea", "bool": "boolean",
}  # fmt: skip


def postgres_type(column: ColumnDefinition) -> str:
    """The type that a column of MySQL or MariaDB gets in PostgreSQL."""
    parsed = parse_type(column.type_text) or TypeText(base="")
    digits = parsed.arguments[0] if parsed.arguments else 0
    if column.neutral in _SAME_NAME:
        return _SAME_NAME[column.neutral]
    if parsed.base == "decimal":
        precision, scale = (*(parsed.arguments or (10,)), 0)[:2]
        return f"numeric({precision},{scale})"
    if parsed.base == "time":
        return "interval"
    if parsed.base == "datetime":
        return f"timestamp({digits}) without time zone"
    if parsed.base == "timestamp":
        return f"timestamp({digits}) with time zone"
    if parsed.base == "varchar":
        return f"character varying({digits})" if digits else "text"
    return {"json": "jsonb", "inet4": "inet", "inet6": "inet"}.get(parsed.base, "text")


def postgres_definition(
    definition: TableDefinition, namespaces: Mapping[str, str]
) -> TableDefinition:
    """A table of MySQL or MariaDB as a table of PostgreSQL: columns, keys, indexes."""
    columns = tuple(
        replace(
            column,
            type_text=postgres_type(column),
            base_type=postgres_type(column),
            default=None,
            generated="",
            collation=None,
            charset="",
        )
        for column in definition.columns
        if not column.generated
    )
    name = postgres_quoted(
        namespaces.get(definition.name.schema, definition.name.schema), definition.name.name
    )
    unique = tuple(
        _unique_index(key, f"{definition.name.name}_{key.name}", name)
        for key in definition.unique_keys
        if not any(key.prefixes)
    )
    return replace(
        definition,
        columns=columns,
        unique_keys=unique,
        indexes=(),
        foreign_keys=(),
        types=(),
        primary_key=() if any(definition.primary_key_prefixes) else definition.primary_key,
        primary_key_prefixes=(),
    )


def _unique_index(key: UniqueKey, name: str, table: str) -> UniqueKey:
    columns = ", ".join(map(postgres_quoted, key.columns))
    return UniqueKey(
        name=name,
        columns=key.columns,
        definition=f"create unique index {postgres_quoted(name)} on {table} ({columns})",
        is_constraint=False,
    )
