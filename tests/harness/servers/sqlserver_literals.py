"""Values of SQL Server's types (`sqlserver_types.TYPES`) as literals of T-SQL.

Not here: values of rowversion, which the server makes, and texts with U+0000, which the simulator
cannot keep.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from harness.servers.sqlserver_types import TYPES

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - without a zone
_NS_OF_TICK = 100


def storable_values(type_text: str) -> list[Any]:
    """Return a type's values that a statement can insert, and NULL as the last one."""
    if type_text == "rowversion":
        return [None]
    return [value for value in TYPES[type_text].values if "\0" not in str(value)] + [None]


def literal_of(type_text: str, value: Any) -> str:
    """Return a value, as the driver returns it, as T-SQL."""
    base = type_text.partition("(")[0]
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, bool):
        return str(int(value))
    if base in ("geometry", "geography"):
        srid, _, digits = value.partition(":")
        return f"{base}::STGeomFromWKB(0x{digits}, {srid})"
    if base == "sql_variant":
        kind, _, text = value.partition(":")
        return f"CAST(CAST({_quote(text)} AS {kind}) AS sql_variant)"
    if isinstance(value, float | Decimal):
        shown = f"{value:f}" if isinstance(value, Decimal) else repr(value)
        return f"CAST('{shown}' AS {type_text})"
    if isinstance(value, int) and base not in ("tinyint", "smallint", "int", "bigint"):
        return _quote(_time_text(base, value))
    return str(value) if isinstance(value, int) else _quote(str(value))


def _time_text(base: str, number: int) -> str:
    """Return a time of day in nanoseconds, or a date and time in microseconds, as text."""
    if base != "time":
        return (_EPOCH + dt.timedelta(microseconds=number)).isoformat()
    seconds, rest = divmod(number, 1_000_000_000)
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours:02}:{minutes:02}:{seconds % 60:02}.{rest // _NS_OF_TICK:07}"


def _quote(text: str) -> str:
    return "N'" + text.replace("'", "''") + "'"
