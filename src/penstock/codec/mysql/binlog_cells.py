"""Plan for reading a table's columns, shared by the twin and the kernel.

A plan is created once for each TABLE_MAP and relation, from the event, the relation's types and the
character sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from penstock.codec.mysql.binlog_tables import ShapeMismatch, TableMap, check_relation
from penstock.codec.mysql.charsets import charset_named, single_byte_table
from penstock.codec.mysql.decimals import decimal_bytes
from penstock.codec.mysql.temporals import (
    HIRES_DATETIME_BYTES,
    HIRES_FRACTION_BYTES,
    HIRES_TIME_BYTES,
    fraction_bytes,
)
from penstock.codec.mysql.types import (
    CHARACTER,
    INTEGERS,
    OLD_TEMPORALS,
    TypeCode,
    TypeText,
    WireColumn,
    neutral_type,
    parse_type,
)
from penstock.model import Column, Relation


class How(IntEnum):
    """Form of a value's bytes. The kernel has the same numbers."""

    SIGNED = 1
    UNSIGNED = 2
    FLOAT = 3
    DOUBLE = 4
    DECIMAL = 5
    BIT = 6
    YEAR = 7
    DATE = 8
    TIME = 9
    DATETIME = 10
    TIMESTAMP = 11
    UTF8 = 12
    SINGLE_BYTE = 13
    BYTES = 14
    PADDED = 15  # zeros at the end are not stored
    ENUM = 16
    SET = 17
    JSON = 18
    GEOMETRY = 19
    # From here on the kernel asks the twin.
    OTHER_TEXT = 20
    OLD_TIME = 21
    OLD_DATETIME = 22
    OLD_TIMESTAMP = 23
    HIRES_TIME = 24
    HIRES_DATETIME = 25
    HIRES_TIMESTAMP = 26
    INET4 = 27
    INET6 = 28
    COMPRESSED_TEXT = 29
    COMPRESSED_BYTES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Plan for reading one column's values, and their neutral type.

    Attributes:
        prefix: bytes of the length before a value, 0 for values of `size` bytes.
        size: of a value without prefix; with How.PADDED the size to fill up to.
        precision: of DECIMAL; also the digits of a time's fraction.
        scale: of DECIMAL.
        charset: of text.
        labels: of ENUM and SET.
    """

    how: How
    neutral: str
    prefix: int = 0
    size: int = 0
    precision: int = 0
    scale: int = 0
    charset: str = ""
    labels: tuple[str, ...] = ()


_FIXED = {
    TypeCode.FLOAT: (How.FLOAT, 4),
    TypeCode.DOUBLE: (How.DOUBLE, 8),
    TypeCode.YEAR: (How.YEAR, 1),
    TypeCode.DATE: (How.DATE, 3),
}
_NEW_TEMPORALS = {
    TypeCode.TIME: (How.TIME, 3),
    TypeCode.DATETIME: (How.DATETIME, 5),
    TypeCode.TIMESTAMP: (How.TIMESTAMP, 4),
}
_OLD = {
    TypeCode.OLD_TIME: (How.OLD_TIME, How.HIRES_TIME, 3),
    TypeCode.OLD_DATETIME: (How.OLD_DATETIME, How.HIRES_DATETIME, 8),
    TypeCode.OLD_TIMESTAMP: (How.OLD_TIMESTAMP, How.HIRES_TIMESTAMP, 4),
}
_SPECIAL = {"uuid": (How.PADDED, 16), "inet4": (How.INET4, 4), "inet6": (How.INET6, 16)}
# What may be kept as text although it has a neutral type of its own.
_TEXTABLE = frozenset(
    (
        How.SIGNED, How.UNSIGNED, How.DECIMAL, How.BIT, How.YEAR, How.DATE, How.TIME,
        How.DATETIME, How.TIMESTAMP, How.OLD_TIME, How.OLD_DATETIME, How.OLD_TIMESTAMP,
        How.HIRES_TIME, How.HIRES_DATETIME, How.HIRES_TIMESTAMP,
    )
)  # fmt: skip


def cells(
    table: TableMap, relation: Relation, charsets: Sequence[str | None] = ()
) -> tuple[Cell, ...]:
    """Return the plan for reading rows of a table as a relation.

    charsets: as for `check_relation`. Raises ShapeMismatch, TypeRefused.
    """
    check_relation(table, relation, charsets)
    planned = []
    for index, (wire, column) in enumerate(zip(table.columns, relation.columns, strict=True)):
        text = column.base_type or column.source_type
        parsed = parse_type(text)
        assert parsed is not None, "check_relation has parsed it"
        if wire.labels is None and any("?" in label for label in parsed.labels):
            # The catalogue has a question mark for each character beyond utf8mb3.
            raise ShapeMismatch(
                f"column {column.name} of {relation.full_name} has a member with a question mark "
                "in the catalogue, which may be another character, and the binlog does not say "
                "which",
                hint="Run `set global binlog_row_metadata = 'FULL'` so that the binlog itself says "
                "what members are called, then load the table again.",
                table=relation.full_name,
                column=column.name,
            )
        given = charsets[index] if index < len(charsets) else None
        cell = _cell(wire, column, parsed, wire.charset or charset_named(given or "") or "")
        expected = neutral_type(text)
        fits = (
            column.neutral == expected
            or (column.neutral == "string" and cell.how in _TEXTABLE)
            or (column.neutral == "bool" and wire.code is TypeCode.TINY)
        )
        if not fits or (cell.charset == "" and cell.how in (How.UTF8, How.OTHER_TEXT)):
            missing = "its character set is not known"
            raise ShapeMismatch(
                f"column {column.name} of {relation.full_name}, a {text}, cannot be kept as "
                f"{column.neutral}" + ("" if not fits else f": {missing}"),
                hint="Run `set global binlog_row_metadata = 'FULL'` so that the binlog itself says "
                "what tables look like, then load the table again.",
                table=relation.full_name,
                column=column.name,
            )
        planned.append(cell)
    return tuple(planned)


def _cell(wire: WireColumn, column: Column, parsed: TypeText, charset: str) -> Cell:
    code, neutral = wire.code, column.neutral
    if code in INTEGERS:
        unsigned = parsed.unsigned if wire.unsigned is None else wire.unsigned
        how = How.UNSIGNED if unsigned else How.SIGNED
        return Cell(how=how, neutral=neutral, size=INTEGERS[code][1])
    if code in _FIXED:
        how, size = _FIXED[code]
        return Cell(how=how, neutral=neutral, size=size)
    if code in _NEW_TEMPORALS:
        how, size = _NEW_TEMPORALS[code]
        size += fraction_bytes(wire.precision)
        return Cell(how=how, neutral=neutral, size=size, precision=wire.precision)
    if code in OLD_TEMPORALS:
        return _old_temporal(code, neutral, parsed.arguments[0] if parsed.arguments else 0)
    if code in CHARACTER:
        return _characters(wire, neutral, parsed, charset)
    if code in (TypeCode.ENUM, TypeCode.SET):
        how = How.ENUM if code is TypeCode.ENUM else How.SET
        labels = wire.labels if wire.labels is not None else parsed.labels
        return Cell(how=how, neutral=neutral, size=wire.size, labels=labels)
    if code is TypeCode.DECIMAL:
        return Cell(
            how=How.DECIMAL,
            neutral=neutral,
            size=decimal_bytes(wire.precision, wire.scale),
            precision=wire.precision,
            scale=wire.scale,
        )
    if code is TypeCode.BIT:
        return Cell(how=How.BIT, neutral=neutral, size=(wire.size + 7) // 8, precision=wire.size)
    how = How.JSON if code is TypeCode.JSON else How.GEOMETRY
    return Cell(how=how, neutral=neutral, prefix=wire.size)


def _old_temporal(code: TypeCode, neutral: str, fsp: int) -> Cell:
    plain, hires, size = _OLD[code]
    if fsp == 0:
        return Cell(how=plain, neutral=neutral, size=size)
    size = {
        How.HIRES_TIME: HIRES_TIME_BYTES[fsp],
        How.HIRES_DATETIME: HIRES_DATETIME_BYTES[fsp],
        How.HIRES_TIMESTAMP: 4 + HIRES_FRACTION_BYTES[fsp],
    }[hires]
    return Cell(how=hires, neutral=neutral, size=size, precision=fsp)


def _characters(wire: WireColumn, neutral: str, parsed: TypeText, charset: str) -> Cell:
    if wire.code in (TypeCode.BLOB, TypeCode.BLOB_COMPRESSED):
        prefix = wire.size
    else:
        prefix = 1 if wire.size < 256 else 2
    if parsed.base in _SPECIAL:
        how, size = _SPECIAL[parsed.base]
        return Cell(how=how, neutral=neutral, prefix=prefix, size=size)
    is_bytes = neutral_type(parsed.base) == "binary"
    if parsed.compressed:
        how = How.COMPRESSED_BYTES if is_bytes else How.COMPRESSED_TEXT
        return Cell(how=how, neutral=neutral, prefix=prefix, charset=charset)
    if is_bytes:
        how = How.PADDED if parsed.base == "binary" else How.BYTES
        return Cell(how=how, neutral=neutral, prefix=prefix, size=wire.size)
    if charset in ("utf8mb3", "utf8mb4", ""):
        return Cell(how=How.UTF8, neutral=neutral, prefix=prefix, charset=charset)
    known = single_byte_table(charset) is not None
    how = How.SINGLE_BYTE if known else How.OTHER_TEXT
    return Cell(how=how, neutral=neutral, prefix=prefix, charset=charset)
