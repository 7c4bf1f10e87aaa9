"""Typed errors of the loader for statements that an Oracle target refuses.

The server puts values into few of its messages, but into some. Ours must not contain rows, so they
are worded here, with the error's number and the column or constraint that the server names.
Numbers: "Database Error Messages" of Oracle 19c.
"""

from __future__ import annotations

import re

from penstock.engines.oracle.connect import quote
from penstock.engines.oracle.server_errors import is_gone
from penstock.model import PenstockError, TableName
from penstock.ports.target import (
    ForeignKeyBlocked,
    TargetTableMissing,
    UniqueBlocked,
    ValueRefused,
)

DUPLICATE = 1
COMMIT_REFUSED = 2091
"""A constraint was checked at the end of the transaction, which is rolled back."""
NULL_REFUSED = frozenset({1400, 1407})
ALTERED_MEANWHILE = frozenset(
    {904, 955, 957, 1418, 1430, 1442, 1451, 2260, 2261, 2275, 2443, 2264, 14452}
)
"""A column, key or index is there already, or is gone: another session has altered the table."""
_FOREIGN = frozenset({2291, 2292, 2298})
_VALUES: dict[int, str] = {
    1400: "NULL is not allowed",
    1407: "NULL is not allowed",
    2290: "a check constraint is violated",
    12899: "a value is too long",
    1438: "a number has more digits than the column",
    1401: "a value is too long",
    1426: "a number is out of range",
    1722: "a value is not a number",
    1840: "a value is not a date or time",
    1841: "a year is out of range",
    1843: "a value is not a date or time",
    1847: "a value is not a date or time",
    1858: "a value is not a date or time",
    1861: "a value is not a date or time",
    1867: "a value is not an interval",
    1873: "an interval has more digits than the column",
    1461: "a text is longer than the column allows",
    1465: "a value is not in hexadecimal digits",
    22835: "a text is longer than the column allows",
    932: "a value cannot be converted to this type",
    1450: "a key is longer than an index allows",
    1792: "a table has more than the 1,000 columns that are allowed",
    32795: "an identity column takes no values: it is GENERATED ALWAYS",
    40441: "a value is not JSON",
}
_NAMED = re.compile(r'\(?((?:"[^"]+"\.)+"[^"]+")\)?')
_CONSTRAINT = re.compile(r"constraint \(([^)]+)\)", re.IGNORECASE)
_NUMBERS = re.compile(r"ORA-(\d{5})")


def refusal_number(error: PenstockError) -> int:
    """Return the server's number; for a refused COMMIT that of the constraint's error."""
    number = int(error.fields.get("errno", 0))
    if number == COMMIT_REFUSED:
        inner = [int(one) for one in _NUMBERS.findall(error.message) if int(one) != number]
        return inner[0] if inner else number
    return number


def apply_error(error: PenstockError, table: TableName) -> PenstockError:
    """Return the typed error for one of `server_errors` that an apply statement raised."""
    number = refusal_number(error)
    fields = {"table": str(table), "errno": number}
    if number == DUPLICATE:
        return UniqueBlocked(
            f"applying to {table}: rows of the target have values of a unique key already"
            f"{_name_constraint(error.message)}",
            hint="The target holds rows of its own: run `penstock verify`.",
            **fields,
        )
    if number in _FOREIGN:
        return ForeignKeyBlocked(
            f"applying to {table}: a foreign key is violated{_name_constraint(error.message)}",
            hint="Drop the foreign key in the target, create it DEFERRABLE, or capture the table "
            "that it refers to.",
            **fields,
        )
    if number in _VALUES:
        return value_refused(error.message, number, table)
    if is_gone(error):
        return TargetTableMissing(
            f"the target has no table {table}, or the user may not use it",
            hint="If it was dropped, load it again: penstock table resync FILE TABLE. Otherwise "
            f"run: GRANT SELECT, INSERT, UPDATE, DELETE ON {quote(*table)} TO [USER];",
            **fields,
        )
    error.fields.setdefault("table", str(table))
    return error


def value_refused(said: str, number: int, table: TableName) -> ValueRefused:
    """Return the error for a value that the target does not accept. said: the server's words."""
    said = said[max(said.rfind(f"ORA-{number:05}"), 0) :]  # not the statement's own names
    where = _name_column(said) or _name_constraint(said)
    hint = f"Make the column or constraint of {quote(*table)} as it is in the source"
    if number in NULL_REFUSED:
        hint += " (an empty text is NULL in Oracle)"
    return ValueRefused(
        f"applying to {table}: {_VALUES[number]}{where}, error ORA-{number:05}",
        hint=f"{hint}, then run again: nothing of the batch was applied.",
        table=str(table),
        errno=number,
    )


def _name_column(said: str) -> str:
    found = _NAMED.search(said)
    if found is None:
        return ""
    column = found[1].rpartition(".")[2].strip('"')
    return f" (column {column})"


def _name_constraint(said: str) -> str:
    found = _CONSTRAINT.search(said)
    return f": {found[1]}" if found else ""
