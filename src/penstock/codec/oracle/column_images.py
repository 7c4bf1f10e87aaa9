"""Read statements with `COL n` columns, whose values are in the server's internal forms.

LogMiner writes them if its dictionary has another version of the table than the redo:

    insert into "SHOP"."LAG"("COL 1","COL 2","COL 3") values (HEXTORAW('c20d'),HEXTORAW('5a'),NULL)

`name_columns` returns the statement with the names and types of the table at that time, which the
caller knows, and the values as LogMiner prints them; `sql_redo.Decoder` reads it as any other one.
Column n is the n-th of the table, hidden ones included. Follows the reference, section 9. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.codec.oracle import intervals, moments, numbers
from penstock.codec.oracle.literals import read_hex
from penstock.codec.oracle.redo_outcome import Defect, Reason
from penstock.codec.oracle.statements import (
    DELETE,
    INSERT,
    UNTOLD,
    Cell,
    Statement,
    Value,
    ValueKind,
    scan_statement,
)
from penstock.codec.oracle.types import OracleType
from penstock.codec.oracle.values import FormatUnknown, Malformed

_GENERIC = re.compile(rb"COL ([0-9]{1,5})")
_DATE_LENGTHS = {"DATE": (7,), "TIMESTAMP": (7, 11), "TIMESTAMP WITH LOCAL TIME ZONE": (7, 11)}
LATER_TEXT = "LM_EMPTY_STRING"
"""Value of a long string, which rows of its own have."""

UTF16_NATIONAL = "utf-16-be"
"""Encoding of NCHAR, NVARCHAR2 and NCLOB if the national character set is AL16UTF16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumns:
    """Columns of a table at the time of the statement.

    Attributes:
        schema: owner of the table.
        table: its name.
        columns: name and type of each column in the order of their ids, hidden ones included.
        encoding: of the database's character set, as Python names it.
        national_encoding: that of NCHAR and its like.
        zone_offset: DBTIMEZONE in minutes east of UTC, in which values of TIMESTAMP WITH LOCAL TIME
            ZONE are stored; None for a region, and then these are refused.
        read_large: returns the literal of a large object, by its column's name: its internal form
            is not public. Without it the value is of an unsupported type.
    """

    schema: str
    table: str
    columns: Sequence[tuple[str, OracleType]]
    encoding: str = "utf-8"
    national_encoding: str = UTF16_NATIONAL
    zone_offset: int | None = None
    read_large: Callable[[str], str] | None = None


def name_columns(text: str, known: TableColumns) -> str:
    """Return a statement with `COL n` columns under their names, with values as they are printed.

    Raises:
        Defect: The text is not such a statement, it has a column that the table did not have, or a
            value of a form that its type does not have.
    """
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise Defect(Reason.TEXT, 0) from error
    statement = scan_statement(data)
    new = [_name_new(data, cell, statement, known) for cell in statement.new]
    old = [_name_cell(data, cell, known) for cell in statement.old]
    table = f'"{known.schema}"."{known.table}"'
    if statement.op == INSERT:
        names, values = ",".join(name for name, _ in new), ",".join(value for _, value in new)
        return f"insert into {table}({names}) values ({values})"
    where = " and ".join(_conditions(statement, old))
    if statement.op == DELETE:
        return f"delete from {table} where {where}"
    shown = ", ".join(f"{name} = {value}" for name, value in new)
    return f"update {table} set {shown} where {where}"


def _conditions(statement: Statement, cells: list[tuple[str, str]]) -> list[str]:
    shown = [f"{name} IS NULL" if value == "NULL" else f"{name} = {value}" for name, value in cells]
    return [*shown, f"ROWID = '{statement.row_id.decode()}'"] if statement.row_id else shown


def _name_new(
    data: bytes, cell: Cell, statement: Statement, known: TableColumns
) -> tuple[str, str]:
    """Return name and value of a cell that a statement sets.

    A large object that was written by rows of its own has its column's name already.
    """
    is_large = statement.op not in (INSERT, DELETE) and len(statement.new) == 1
    if is_large and _GENERIC.fullmatch(cell.name) is None:
        return f'"{cell.name.decode()}"', data[cell.value.start : cell.value.end].decode()
    return _name_cell(data, cell, known)


def _name_cell(data: bytes, cell: Cell, known: TableColumns) -> tuple[str, str]:
    """Return the name of a cell in quotes, and its value as LogMiner prints it."""
    match = _GENERIC.fullmatch(cell.name)
    number = int(match[1]) if match is not None else 0
    if not 1 <= number <= len(known.columns):
        raise Defect(Reason.COLUMN, cell.offset)
    name, kind = known.columns[number - 1]
    if kind.is_large and cell.value.kind is ValueKind.HEX and known.read_large is not None:
        return f'"{name}"', known.read_large(name)
    return f'"{name}"', _print_value(data, cell.value, kind, known)


def _print_value(data: bytes, value: Value, kind: OracleType, known: TableColumns) -> str:
    if value.kind is ValueKind.HEX:
        try:
            return print_internal(read_hex(data[value.first : value.last]), kind, known)
        except (Malformed, FormatUnknown, UnicodeDecodeError) as error:
            raise Defect(Reason.IMAGE, value.start) from error
    if value.kind is ValueKind.NULL:
        return "NULL"
    if value.kind in (ValueKind.EMPTY_CLOB, ValueKind.EMPTY_BLOB):
        return data[value.start : value.end].decode()
    text = data[value.start : value.end].decode()
    if value.kind in UNTOLD and (kind.is_large or text == LATER_TEXT):
        return text
    raise Defect(Reason.IMAGE, value.start)  # a value left out would be taken for an unchanged one


def print_internal(data: bytes, kind: OracleType, known: TableColumns) -> str:
    """Return a value in its internal form as the literal that LogMiner prints.

    Raises:
        Malformed: The type has no such value.
        UnicodeDecodeError: A text is not in the character set.
    """
    base = kind.base
    if not data:
        return "NULL"
    if kind.is_number:
        shown = numbers.read_internal_number(data)
        return f"'{shown.replace('Infinity', '~')}'"
    if base in ("BINARY_FLOAT", "BINARY_DOUBLE"):
        if len(data) != (4 if base == "BINARY_FLOAT" else 8):
            raise Malformed
        return f"'{numbers.read_internal_float(data)}'"
    if base in _DATE_LENGTHS or base == "TIMESTAMP WITH TIME ZONE":
        return _print_moment(data, base, known.zone_offset)
    if base == "INTERVAL YEAR TO MONTH":
        return f"TO_YMINTERVAL('{intervals.read_internal_months(data)}')"
    if base == "INTERVAL DAY TO SECOND":
        return f"TO_DSINTERVAL('{intervals.read_internal_seconds(data)}')"
    if base in ("RAW", "LONG RAW"):
        return f"HEXTORAW('{data.hex()}')"
    if base in ("CHAR", "VARCHAR2", "LONG", "NCHAR", "NVARCHAR2"):
        is_national = base.startswith("N")
        text = data.decode(known.national_encoding if is_national else known.encoding)
        return "'" + text.replace("'", "''") + "'"
    if kind.is_large:
        return "Unsupported Type"  # a locator
    raise Malformed  # a ROWID, or a type without a public form


def _print_moment(data: bytes, base: str, zone_offset: int | None) -> str:
    if len(data) not in _DATE_LENGTHS.get(base, (13,)):
        raise Malformed
    if base == "TIMESTAMP WITH LOCAL TIME ZONE":
        if zone_offset is None:
            raise Malformed
        hours, minutes = divmod(abs(zone_offset), 60)
        zone = f"{'-' if zone_offset < 0 else '+'}{hours:02}:{minutes:02}"
        return f"TO_TIMESTAMP_TZ('{moments.read_internal_moment(data)} {zone}')"
    shown = moments.read_internal_moment(data)
    if base == "DATE":
        return f"TO_DATE('{shown}', 'SYYYY-MM-DD HH24:MI:SS')"
    function = "TO_TIMESTAMP" if base == "TIMESTAMP" else "TO_TIMESTAMP_TZ"
    return f"{function}('{shown}')"
