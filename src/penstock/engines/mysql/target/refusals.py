"""Typed errors of the loader for apply statements that a MySQL or MariaDB target refuses.

The servers put values into their messages. Ours must not contain rows, so they are worded here,
with the error's number and the column or key that the server names.
"""

from __future__ import annotations

import re
from typing import ClassVar

from penstock.engines.mysql.connect import quote
from penstock.model import PenstockError, Retry, TableName
from penstock.ports.target import ForeignKeyBlocked, TargetTableMissing, UniqueBlocked, ValueRefused


class RowsUnexpected(PenstockError):
    """A row that the log inserts exists in the target already, or one that it changes does not
    exist.

    This happens if changes are applied that a copy of the table already contains, or if another
    program writes to the table. schema, name: the table's at the source.
    """

    code = "LD23"
    retry: ClassVar[Retry] = "backoff"


DUPLICATE = frozenset({1022, 1062, 1169, 1586, 1859})
ROW_SIZE = 1118  # of the definition, however short the rows are
_FOREIGN = frozenset({1216, 1217, 1451, 1452, 1557, 3780})
_VALUES: dict[int, str] = {
    1048: "null is not allowed",
    1138: "null is not allowed",
    1263: "null is not allowed",
    1364: "a value is missing and has no default",
    1264: "a number is out of range",
    1690: "a number is out of range",
    1265: "a value would be cut or rounded",
    1366: "a value cannot be converted to this type or character set",
    1292: "a value cannot be converted to this type",
    1406: "a value is too long",
    1416: "a value is not a geometry",
    3037: "a value is not a geometry",
    3140: "a value is not JSON",
    3141: "a value is not JSON",
    3144: "a value is not JSON",
    3156: "a value is not JSON",
    3819: "a check constraint is violated",
    4025: "a check constraint is violated",
    1300: "a value is not in this character set",
    1367: "a value cannot be converted to this type",
    1411: "a value cannot be converted to this type",
    1441: "a time is out of range",
    ROW_SIZE: "a row is too long",
    1301: "a value is longer than max_allowed_packet",
    1153: "a value is longer than max_allowed_packet",
}
_COLUMN = re.compile(r"(?:column|field) [`']([^`']+)[`']", re.IGNORECASE)
_KEY = re.compile(r"for key [`']([^`']+)[`']")
_CHECK = re.compile(r"(?:constraint|CONSTRAINT) [`']([^`']+)[`']")
# Warnings that are not about values: deprecations, statements unsafe for replicas.
HARMLESS = frozenset({1287, 1592, 1681, 1831, 3778, 3719, 4166})


def apply_error(error: PenstockError, table: TableName) -> PenstockError:
    """Return the typed error for one of `server_errors` that an apply statement raised."""
    number = error.fields.get("errno", 0)
    fields = {"table": str(table), "errno": number}
    if number in DUPLICATE:
        key = _KEY.search(error.message)
        named = f": {key[1]}" if key else ""
        return UniqueBlocked(
            f"applying to {table}: rows of the target have values of a unique key already{named}",
            hint="The target holds rows of its own, or compares keys less strictly than the source "
            "(collation): run `penstock verify`.",
            **fields,
        )
    if number in _FOREIGN:
        return ForeignKeyBlocked(
            f"applying to {table}: a foreign key is violated (error {number})",
            hint="Drop the foreign key in the target, or capture the table that it refers to.",
            **fields,
        )
    if number in _VALUES:
        return value_refused(error.message, number, table)
    if number == 1146:
        return TargetTableMissing(
            f"the target has no table {table}",
            hint="If it was dropped, load it again: penstock table resync FILE TABLE. Otherwise "
            "create it as the source has it.",
            **fields,
        )
    error.fields.setdefault("table", str(table))
    return error


def is_of_rows(error: UniqueBlocked | ValueRefused) -> bool:
    """Return whether an ALTER was refused because of the table's rows, not of its definition."""
    return error.fields.get("errno") != ROW_SIZE


def value_refused(said: str, number: int, table: TableName) -> ValueRefused:
    """Return the error for a value that the target does not accept."""
    named = _COLUMN.search(said) or _CHECK.search(said)
    where = f" ({named[1]})" if named else ""
    what = _VALUES.get(number, "a value is refused")
    return ValueRefused(
        f"applying to {table}: {what}{where}, error {number}",
        hint=f"Make the column or constraint of {quote(*table)} as it is in the source, then "
        "run again: nothing of the batch was applied.",
        table=str(table),
        errno=number,
    )
