"""How a table's rows are read from one engine so that they fit another: a `Way` per table.

What holds a column is the table of types' business (`codec.types`); here is how its values get
there in bulk without becoming objects: what the SELECT lists, what the walk over the bytes does to
each cell, and for MySQL what LOAD DATA computes. The values that arrive are those of the change
path, for every type and character set: text is decoded by the same tables, times are in UTC,
floating numbers have all their digits. Not here: the walk (`codec.mysql.mysqltext`,
`codec.postgres.copytext`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping as Namespace
from collections.abc import Sequence
from dataclasses import replace

from penstock.codec import types as typemap
from penstock.codec.mysql.charsets import charset_named, label_charset
from penstock.codec.mysql.mysqltext import Form, TextCell
from penstock.codec.mysql.types import parse_type
from penstock.codec.postgres.copytext import LineCell, LineForm
from penstock.codec.types import FULL_YEAR, Mapping, SourceType, filled
from penstock.engines.mysql.url import SCHEMES as MYSQL_SCHEMES
from penstock.engines.postgres.connect import quoted as postgres_quoted
from penstock.engines.postgres.target.shaped import (
    postgres_foreign_key,
    postgres_index,
    postgres_name,
)
from penstock.model import ColumnDefinition, TableDefinition, UniqueKey
from penstock.ports.server_pair import Ends, Way
from penstock.sql.schema_translation import extras_of

AS_IS = "{}"  # the value as text in utf8mb4, where anything is computed of it
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

# EWKB as `codec.mysql.values.ewkb_hex` has it, from what the server stores: SRID, byte order, kind.
_EWKB = (
    "case when substr(hex({0}), 1, 8) = '00000000' then substr(hex({0}), 9) "
    "else concat(substr(hex({0}), 9, 8), "
    "lpad(hex(conv(substr(hex({0}), 17, 2), 16, 10) | 32), 2, '0'), "
    "substr(hex({0}), 1, 8), substr(hex({0}), 19)) end"
)


def is_mysql(url: str) -> bool:
    """Whether a URL is one of MySQL or MariaDB."""
    return url.partition("://")[0] in MYSQL_SCHEMES


def way_of(definition: TableDefinition, ends: Ends) -> Way:
    """How a table's rows are read and written. Not for PostgreSQL at both ends."""
    columns = carried(definition, ends)
    mappings = ends.mappings(definition)
    names = tuple(column.name for column in columns)
    if not ends.source.engine.is_mysql:
        found = [_from_postgres(column, mappings[column.name], ends) for column in columns]
        return Way(
            columns=names,
            lines=tuple(cell for cell, _ in found),
            templates=_with_keys(definition, columns, [template for _, template in found]),
        )
    into = _into_mysql if ends.target.engine.is_mysql else _into_postgres
    read = [into(column, mappings[column.name]) for column in columns]
    return Way(
        columns=names,
        expressions=tuple(expression for expression, _, _ in read),
        cells=tuple(cell for _, cell, _ in read),
        templates=_with_keys(definition, columns, [template for _, _, template in read]),
        enums=tuple(column.name for column in columns if _without_label(column)),
    )


def _with_keys(
    definition: TableDefinition, columns: Sequence[ColumnDefinition], templates: Sequence[str]
) -> tuple[str, ...]:
    """The templates; where there are any, of whole numbers in the key as well.

    Where LOAD DATA computes anything, MySQL before 9 gives a 0 in an AUTO_INCREMENT column the next
    number, in spite of NO_AUTO_VALUE_ON_ZERO, unless that is computed, too.
    """
    if all(template == AS_IS for template in templates):
        return tuple(templates)
    key = set(definition.primary_key)
    return tuple(
        f"({template})" if column.name in key and "int" in column.neutral else template
        for column, template in zip(columns, templates, strict=True)
    )


# -- from MySQL and MariaDB ------------------------------------------------------------------------


def _quoted(name: str) -> str:
    from penstock.engines.mysql.connect import quoted  # with the driver: not all have it

    return quoted(name)


def _base(column: ColumnDefinition) -> str:
    if column.type_text == "json":
        return "json"
    kind = SourceType.of(column, typemap.Engine.MYSQL)
    return kind.base


def _number(column: ColumnDefinition) -> str | None:
    """The expression of a number whose plain text would not do; None for any other column."""
    name, base = _quoted(column.name), _base(column)
    if base in ("float", "double"):
        # As it stands a FLOAT is shown with six digits; times one, not plus nothing: of -0 too.
        return f"{name} * 1e0"
    if base == "year" and SourceType.of(column, typemap.Engine.MYSQL).is_short_year:
        return filled(FULL_YEAR, name)
    return f"{name} + 0" if base == "bit" else None


def _text_cell(charset: str, *, remove_zero: bool = False) -> TextCell:
    if charset in _UTF8:
        return TextCell(form=Form.UTF8, remove_zero=remove_zero)
    return TextCell(form=Form.CHARSET, charset=charset, remove_zero=remove_zero)


def _into_postgres(column: ColumnDefinition, mapping: Mapping) -> tuple[str, TextCell, str]:
    name, base = _quoted(column.name), _base(column)
    if base in _BYTES:
        return name, TextCell(form=Form.BYTES), AS_IS
    if base in _GEOMETRIES:
        return f"concat('\\\\x', {_EWKB.format(name)})", TextCell(form=Form.UTF8), AS_IS
    if base == "bit":
        width = SourceType.of(column, typemap.Engine.MYSQL).length or 1
        return f"lpad(conv({name} + 0, 10, 2), {width}, '0')", TextCell(form=Form.PLAIN), AS_IS
    if base in _DATES and mapping.target_type != "text":
        is_null = mapping.chosen.get("zero dates") == "null"
        return name, TextCell(form=Form.DATE, zero_is_null=is_null), AS_IS
    if base in _TEXTS or base == "json":
        removed = mapping.chosen.get("nul characters") == "remove"
        return name, _text_cell(_charset(column), remove_zero=removed), AS_IS
    return _number(column) or name, TextCell(form=Form.PLAIN), AS_IS


def _charset(column: ColumnDefinition) -> str:
    """What the text of a column is read in."""
    charset = charset_named(column.charset) or "utf8mb4"
    return label_charset(charset) if _base(column) in _LABELS else charset


def target_charset(column: ColumnDefinition, mapping: Mapping) -> str:
    """The character set in which a bulk load writes the text of a column into MySQL or MariaDB."""
    found = _TARGET_CHARSET.search(mapping.target_type)
    return charset_named(found[1] if found else column.charset) or "utf8mb4"


def _into_mysql(column: ColumnDefinition, mapping: Mapping) -> tuple[str, TextCell, str]:
    name, base = _quoted(column.name), _base(column)
    if base in _BYTES or base in _GEOMETRIES:
        return name, TextCell(form=Form.RAW), AS_IS
    if base == "json" and mapping.target_type == "json":
        return name, TextCell(form=Form.RAW), "convert({} using utf8mb4)"
    if base in _TEXTS or base == "json":
        charset = _charset(column)
        target = target_charset(column, mapping)
        if target == charset or {target, charset} <= {"utf8mb3", "utf8mb4"}:
            return name, TextCell(form=Form.RAW), AS_IS
        return name, _text_cell(charset), mapping.write.sql
    if base == mapping.target_type in _PRINTED:
        return name, TextCell(form=Form.PLAIN), "convert({} using utf8mb4)"  # 36 bytes are no UUID
    is_whole = base == "year" or (base == "float" and "," not in column.type_text)
    template = AS_IS if is_whole else mapping.write.sql
    return _number(column) or name, TextCell(form=Form.PLAIN), template


def _without_label(column: ColumnDefinition) -> bool:
    kind = parse_type(column.type_text)
    return kind is not None and kind.base == "enum" and "" not in kind.labels


# -- from PostgreSQL -------------------------------------------------------------------------------

_LINE_FORMS = {
    "boolean": LineForm.BOOL, "bytea": LineForm.BYTES, "date": LineForm.DATE,
    "timestamp": LineForm.DATE, "timestamptz": LineForm.ZONED, "numeric": LineForm.NUMBER,
    "real": LineForm.NUMBER, "double precision": LineForm.NUMBER, "smallint": LineForm.PLAIN,
    "integer": LineForm.PLAIN, "bigint": LineForm.PLAIN, "oid": LineForm.PLAIN,
    "uuid": LineForm.PLAIN, "time": LineForm.PLAIN, "bit": LineForm.PLAIN,
}  # fmt: skip
_REFUSED_HERE = {
    LineForm.DATE: "dates out of range",
    LineForm.ZONED: "dates out of range",
    LineForm.NUMBER: "not a number",
}


def _from_postgres(column: ColumnDefinition, mapping: Mapping, ends: Ends) -> tuple[LineCell, str]:
    kind = SourceType.of(column, ends.source.engine)
    form = LineForm.TEXT if kind.is_array else _LINE_FORMS.get(kind.base, LineForm.TEXT)
    if kind.base == "char" and not kind.is_array:
        return LineCell(form=LineForm.TEXT), mapping.write.sql
    if form is LineForm.TEXT or mapping.target_type.startswith(("longtext", "varchar")):
        return LineCell(form=LineForm.TEXT), AS_IS
    loss = _REFUSED_HERE.get(form, "")
    cell = LineCell(form=form, unfit_is_null=mapping.chosen.get(loss) == "null")
    # What LOAD DATA need not compute is refused by the walk or, with a warning, by the server.
    is_computed = kind.base in ("real", "bit") or "digits" in mapping.chosen
    if kind.base == "uuid" and ends.target.engine is typemap.Engine.MARIADB:
        # A column that is there already may be a UUID: 36 bytes are none, 36 characters are.
        return cell, "convert({} using utf8mb4)"
    return cell, mapping.write.sql if is_computed else AS_IS


# -- definitions -----------------------------------------------------------------------------------


def carried(definition: TableDefinition, ends: Ends) -> list[ColumnDefinition]:
    """The columns whose values are copied.

    Values that MySQL computes are in its log, and PostgreSQL has not the same functions: there
    they are values like others. What PostgreSQL computes, it does not send.
    """
    if ends.source.engine.is_mysql and not ends.target.engine.is_mysql:
        return list(definition.columns)
    return [column for column in definition.columns if not column.generated]


def postgres_definition(
    definition: TableDefinition, ends: Ends, namespaces: Namespace[str, str]
) -> TableDefinition:
    """A table of MySQL or MariaDB as a table of PostgreSQL, with what has an equal there.

    Left out: keys over parts of a text, and what `extras_of` says.
    """
    mappings = ends.mappings(definition)
    extras = extras_of(definition, ends.source, ends.target, mappings)
    columns = tuple(
        replace(
            column,
            type_text=mappings[column.name].target_type,
            base_type=mappings[column.name].target_type,
            default=extras.defaults.get(column.name),
            not_null=column.not_null and not mappings[column.name].may_be_null,
            generated="",
            identity_kind="d" if column.name in extras.counted else "",
            collation=None,
            charset="",
        )
        for column in carried(definition, ends)
    )
    schema, table = definition.name
    name = postgres_quoted(namespaces.get(schema, schema), table)
    unique = tuple(
        _unique_index(key, postgres_name(f"{table}_{key.name}"), name)
        for key in definition.unique_keys
        if not any(key.prefixes)
    )
    return replace(
        definition,
        columns=columns,
        unique_keys=unique,
        indexes=tuple(postgres_index(index, definition.name) for index in extras.indexes),
        foreign_keys=tuple(map(postgres_foreign_key, extras.foreign_keys)),
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
