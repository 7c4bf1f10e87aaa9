"""Typed errors of the loader for statements that a SQL Server target refuses.

The server puts values into some of its messages. Ours must not contain rows, so they are worded
here, with the error's number and the column or constraint that the server names. Numbers:
sys.messages of SQL Server 2019.
"""

from __future__ import annotations

import re

from penstock.engines.sqlserver.connect import quote
from penstock.model import PenstockError, TableName
from penstock.ports.target import (
    ForeignKeyBlocked,
    TargetTableMissing,
    UniqueBlocked,
    ValueRefused,
)

DUPLICATE = frozenset({2601, 2627})
CONSTRAINT = 547  # a foreign key or a check
NULL_REFUSED = 515
ROW_TOO_LONG = frozenset({511, 1701})
NO_TRUNCATE = frozenset({3729, 4711, 4712})  # a view, replication or CDC, a foreign key
_NOT_THERE = 208
_VALUES: dict[int, str] = {
    NULL_REFUSED: "NULL is not allowed",
    220: "a number is out of range",
    232: "a number is out of range",
    8115: "a number is out of range",
    8152: "a value is too long",
    2628: "a value is too long",
    241: "a value is not a date or time",
    242: "a date is out of range",
    517: "a date is out of range",
    295: "a value is not a date or time",
    245: "a value cannot be converted to this type",
    248: "a number is out of range",
    8114: "a value cannot be converted to this type",
    8169: "a value is not a uniqueidentifier",
    257: "a value is not converted to this type",
    206: "a value cannot be converted to this type",
    529: "a value cannot be converted to this type",
    6522: "a value is not a geometry",
    9400: "a value is not XML",
    9402: "a value is not XML",
    9411: "a value is not XML",
    9420: "a value is not XML",
    9436: "a value is not XML",
    511: "a row is longer than the 8,060 bytes that a row may have outside of large values",
    1701: "a row may be longer than the 8,060 bytes that a row may have",
    1946: "a key is longer than the 900 bytes, or 1,700 without clustering, that an index allows",
    8003: "a statement has more than the 2,100 parameters that are allowed",
    1702: "a table has more than the 1,024 columns that are allowed",
    3981: "a value is refused",
    6340: "a value is not XML",
    13608: "a value is not JSON",
    13609: "a value is not JSON",
}
_COLUMN = re.compile(r"column '([^']+)'", re.IGNORECASE)
_CONSTRAINT = re.compile(r"(?:constraint|index) [\"']([^\"']+)[\"']", re.IGNORECASE)
# The server's words; the message also has our statement, which may be WITH CHECK CHECK CONSTRAINT.
_IS_CHECK = re.compile(r"\bwith the CHECK constraint\b", re.IGNORECASE)


def apply_error(error: PenstockError, table: TableName) -> PenstockError:
    """Return the typed error for one of `server_errors` that an apply statement raised."""
    number = error.fields.get("errno", 0)
    fields = {"table": str(table), "errno": number}
    if number in DUPLICATE:
        return UniqueBlocked(
            f"applying to {table}: rows of the target have values of a unique key already"
            f"{_name_object(error.message)}",
            hint="The target holds rows of its own, or compares keys less strictly than the source "
            "(its collation, and blanks at the end): run `penstock verify`.",
            **fields,
        )
    if number == CONSTRAINT and not _IS_CHECK.search(error.message):
        return ForeignKeyBlocked(
            f"applying to {table}: a foreign key is violated{_name_object(error.message)}",
            hint="Drop the foreign key in the target, or capture the table that it refers to.",
            **fields,
        )
    if number == CONSTRAINT or number in _VALUES:
        return value_refused(error.message, number, table)
    if number == _NOT_THERE:
        return TargetTableMissing(
            f"the target has no table {table}",
            hint="If it was dropped, load it again: penstock table resync FILE TABLE. Otherwise "
            "create it as the source has it.",
            **fields,
        )
    error.fields.setdefault("table", str(table))
    return error


def value_refused(said: str, number: int, table: TableName) -> ValueRefused:
    """Return the error for a value that the target does not accept. said: the server's words."""
    column = _COLUMN.search(said)
    where = f" (column {column[1]})" if column else _name_object(said)
    what = _VALUES.get(number, "a check constraint is violated")
    if number in ROW_TOO_LONG:
        return row_refused(f"applying to {table}", table, number)
    return ValueRefused(
        f"applying to {table}: {what}{where}, error {number}",
        hint=f"Make the column or constraint of {quote(*table)} as it is in the source, then run "
        "again: nothing of the batch was applied.",
        table=str(table),
        errno=number,
    )


def row_refused(doing: str, table: TableName, number: int) -> ValueRefused:
    """Return the error for a row that does not fit a page. doing: the work that met it."""
    return ValueRefused(
        f"{doing}: {_VALUES[number]}, error {number}",
        hint="Columns of fixed length count in full, others with at most 24 bytes each, and texts "
        "in the merge table with 24: make the row's columns fewer or shorter, or leave the table "
        "out of [source] tables. Nothing of the batch was applied.",
        table=str(table),
        errno=number,
    )


def _name_object(said: str) -> str:
    found = _CONSTRAINT.search(said)
    return f": {found[1]}" if found else ""
