"""Plan a SELECT of MySQL or MariaDB: its list, and the form of its cells; see `sql/read_plan.py`.

Not here: the walk over the cells (`codec.mysql.mysqltext`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping as Namespace
from collections.abc import Sequence

from penstock.codec.lines import CellForm, TextCell
from penstock.codec.mysql.charsets import charset_named, label_charset
from penstock.codec.mysql.types import parse_type
from penstock.codec.server_pair import ReadPlan, ServerPair
from penstock.codec.types import FULL_YEAR, Engine, Mapping, SourceType, fill_template
from penstock.engines.mysql.connect import quote
from penstock.model import ColumnDefinition
from penstock.sql.read_plan import AS_IS

_DATES = frozenset({"date", "datetime", "timestamp"})
_BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_LABELS = frozenset({"enum", "set"})
_TEXTS = _LABELS | {"char", "varchar", "tinytext", "text", "mediumtext", "longtext"}
_GEOMETRIES = frozenset(
    {
        "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring",
        "multipolygon", "geometrycollection",
    }
)  # fmt: skip
_UTF8 = frozenset({"utf8mb3", "utf8mb4", "ascii"})
_PRINTED = frozenset({"uuid", "inet4", "inet6"})
_TARGET_CHARSET = re.compile(r"character set (\w+)")
# EWKB as `codec.mysql.values.ewkb_hex` has it, from the stored SRID, byte order and kind.
_EWKB = (
    "case when substr(hex({0}), 1, 8) = '00000000' then substr(hex({0}), 9) "
    "else concat(substr(hex({0}), 9, 8), "
    "lpad(hex(conv(substr(hex({0}), 17, 2), 16, 10) | 32), 2, '0'), "
    "substr(hex({0}), 1, 8), substr(hex({0}), 19)) end"
)


def read_plan(
    columns: Sequence[ColumnDefinition], mappings: Namespace[str, Mapping], servers: ServerPair
) -> ReadPlan:
    """Return how these columns are read; each template is for its column alone."""
    into = _into_mysql if servers.target.engine.is_mysql else _into_postgres
    read = [into(column, mappings[column.name]) for column in columns]
    return ReadPlan(
        columns=tuple(column.name for column in columns),
        expressions=tuple(expression for expression, _, _ in read),
        cells=tuple(cell for _, cell, _ in read),
        templates=tuple(template for _, _, template in read),
        enums=tuple(column.name for column in columns if _without_label(column)),
    )


def log_plan(columns: Sequence[ColumnDefinition]) -> ReadPlan:
    """Return how these columns are read in the form of the binlog: for lines of LOAD DATA."""
    read = [_into_log(column) for column in columns]
    return ReadPlan(
        columns=tuple(column.name for column in columns),
        expressions=tuple(expression for expression, _ in read),
        cells=tuple(cell for _, cell in read),
    )


def _into_log(column: ColumnDefinition) -> tuple[str, TextCell]:
    name, base = quote(column.name), _base(column)
    if base in _BYTES:
        return name, TextCell(form=CellForm.BYTES)
    if base in _GEOMETRIES:
        return _EWKB.format(name), TextCell(form=CellForm.UTF8)
    if base == "decimal":
        return f"{name} + 0", TextCell(form=CellForm.PLAIN)  # without the zeros of ZEROFILL
    if base in _TEXTS or base == "json":
        return name, _text_cell(_charset(column))
    return _number(column) or name, TextCell(form=CellForm.PLAIN)


def _base(column: ColumnDefinition) -> str:
    if column.type_text == "json":
        return "json"
    kind = SourceType.of(column, Engine.MYSQL)
    return kind.base


def _number(column: ColumnDefinition) -> str | None:
    """Return the expression of a number whose plain text is not exact; None for any other
    column.
    """
    name, base = quote(column.name), _base(column)
    if base in ("float", "double"):
        # A plain FLOAT is printed with six digits; times one, not plus zero, which would lose the
        # sign of -0.
        return f"{name} * 1e0"
    if base == "year" and SourceType.of(column, Engine.MYSQL).is_short_year:
        return fill_template(FULL_YEAR, name)
    return f"{name} + 0" if base == "bit" else None


def _text_cell(charset: str, *, remove_zero: bool = False) -> TextCell:
    if charset in _UTF8:
        return TextCell(form=CellForm.UTF8, remove_zero=remove_zero)
    return TextCell(form=CellForm.CHARSET, charset=charset, remove_zero=remove_zero)


def _into_postgres(column: ColumnDefinition, mapping: Mapping) -> tuple[str, TextCell, str]:
    name, base = quote(column.name), _base(column)
    if base in _BYTES:
        return name, TextCell(form=CellForm.BYTES), AS_IS
    if base in _GEOMETRIES:
        return f"concat('\\\\x', {_EWKB.format(name)})", TextCell(form=CellForm.UTF8), AS_IS
    if base == "bit":
        width = SourceType.of(column, Engine.MYSQL).length or 1
        return f"lpad(conv({name} + 0, 10, 2), {width}, '0')", TextCell(form=CellForm.PLAIN), AS_IS
    if base in _DATES and mapping.target_type != "text":
        is_null = mapping.chosen.get("zero dates") == "null"
        return name, TextCell(form=CellForm.DATE, zero_is_null=is_null), AS_IS
    if base in _TEXTS or base == "json":
        removed = mapping.chosen.get("nul characters") == "remove"
        return name, _text_cell(_charset(column), remove_zero=removed), AS_IS
    return _number(column) or name, TextCell(form=CellForm.PLAIN), AS_IS


def _charset(column: ColumnDefinition) -> str:
    """Return the character set in which a column's text is read."""
    charset = charset_named(column.charset) or "utf8mb4"
    return label_charset(charset) if _base(column) in _LABELS else charset


def target_charset(column: ColumnDefinition, mapping: Mapping) -> str:
    """Return the character set in which a bulk load writes a column's text into MySQL or
    MariaDB.
    """
    found = _TARGET_CHARSET.search(mapping.target_type)
    return charset_named(found[1] if found else column.charset) or "utf8mb4"


def _into_mysql(column: ColumnDefinition, mapping: Mapping) -> tuple[str, TextCell, str]:
    name, base = quote(column.name), _base(column)
    if base in _BYTES or base in _GEOMETRIES:
        return name, TextCell(form=CellForm.RAW), AS_IS
    if base == "json" and mapping.target_type == "json":
        return name, TextCell(form=CellForm.RAW), "convert({} using utf8mb4)"
    if base in _TEXTS or base == "json":
        charset = _charset(column)
        target = target_charset(column, mapping)
        if target == charset or {target, charset} <= {"utf8mb3", "utf8mb4"}:
            return name, TextCell(form=CellForm.RAW), AS_IS
        return name, _text_cell(charset), mapping.write.sql
    if base == mapping.target_type in _PRINTED:
        return (
            name,
            TextCell(form=CellForm.PLAIN),
            "convert({} using utf8mb4)",
        )  # 36 bytes are not a UUID
    is_whole = base == "year" or (base == "float" and "," not in column.type_text)
    template = AS_IS if is_whole else mapping.write.sql
    return _number(column) or name, TextCell(form=CellForm.PLAIN), template


def _without_label(column: ColumnDefinition) -> bool:
    kind = parse_type(column.type_text)
    return kind is not None and kind.base == "enum" and "" not in kind.labels
