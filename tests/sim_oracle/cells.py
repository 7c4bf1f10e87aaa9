"""Values in SQLite: what SQLite has no exact type for is a text with a mark.

A mark is the character 1 and a letter. Texts of one letter order as their values do, except those
of numbers with a fraction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal, localcontext
from typing import Any

from sim_oracle.columns import LOBS, NanoTime
from sim_oracle.rowids import RowId, order_key

MARK = "\x01"
_MAX = 2**63
_EPOCH_DAYS = 10**6
_LOWER = re.compile(r"[a-z]")
_UPPER = re.compile(r"~([A-Z])")


def column_name(name: str) -> str:
    """Return SQLite's name for a column or table, since SQLite ignores the case."""
    return _LOWER.sub(lambda match: f"~{match[0].upper()}", name)


def plain_name(name: str) -> str:
    """Return the name for which SQLite has another one."""
    return _UPPER.sub(lambda match: match[1].lower(), name)


@dataclass(frozen=True, slots=True)
class Lob:
    """A LOB value of a result.

    Attributes:
        kind: CLOB, NCLOB or BLOB.
        data: Text or bytes.
    """

    kind: str
    data: str | bytes


@dataclass(frozen=True, slots=True)
class Months:
    """An interval in months."""

    count: int


class RowIdText(str):
    """A row id of a result."""

    __slots__ = ()


def encode(value: Any, kind: str | None = None) -> Any:  # noqa: C901 - one case per type
    """Return what SQLite stores for a value of a column's kind."""
    if value is None:
        return None
    if kind in LOBS:
        if isinstance(value, bytes):
            return f"{MARK}B{value.hex()}"
        return f"{MARK}{'M' if kind == 'NCLOB' else 'C'}{value}"
    if kind == "INTERVAL YEAR TO MONTH":
        return f"{MARK}Y{value + _EPOCH_DAYS:08d}"
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        if -_MAX <= value < _MAX:
            return value
        return float(value) if kind is None else f"{MARK}N{value}"
    if isinstance(value, Decimal):
        if value == value.to_integral_value() and value.copy_abs() < _MAX:
            return int(value)
        with localcontext(prec=80):  # the default of 28 digits would round
            return f"{MARK}N{value.normalize():f}"
    if isinstance(value, float):
        return f"{MARK}Fnan" if value != value else value
    if isinstance(value, NanoTime):
        return f"{encode(value.time)}+{value.nanos:03d}"
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return f"{MARK}D{value.isoformat(timespec='microseconds')}"
        offset = value.utcoffset() or timedelta()
        utc = value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
        return f"{MARK}Z{utc}|{int(offset.total_seconds() // 60)}"
    if isinstance(value, timedelta):
        micros = (value + timedelta(days=_EPOCH_DAYS)) // timedelta(microseconds=1)
        return f"{MARK}I{micros:020d}"
    if isinstance(value, RowIdText):
        return f"{MARK}R{order_key(value)}"
    if isinstance(value, Lob):
        return encode(value.data, value.kind)
    if isinstance(value, Months):
        return encode(value.count, "INTERVAL YEAR TO MONTH")
    return value


def decode(value: Any, big: dict[float, int]) -> Any:
    """Return the value of a cell.

    Args:
        value: Cell of SQLite.
        big: Integers above 63 bits, by the float that stands for them.
    """
    if isinstance(value, float) and value in big:
        return big[value]
    if not isinstance(value, str) or not value.startswith(MARK):
        return value
    kind, text = value[1], value[2:]
    if kind == "N":
        return Decimal(text)
    if kind == "F":
        return float("nan")
    if kind in "DZ":
        text, _, nanos = text.partition("+")
        text, _, offset = text.partition("|")
        time = datetime.fromisoformat(text)
        if kind == "Z":
            zone = timezone(timedelta(minutes=int(offset.partition("+")[0])))
            time = time.replace(tzinfo=UTC).astimezone(zone)
        return NanoTime(time, int(nanos)) if nanos else time
    if kind == "I":
        return timedelta(microseconds=int(text)) - timedelta(days=_EPOCH_DAYS)
    if kind == "Y":
        return Months(int(text) - _EPOCH_DAYS)
    if kind == "R":
        parts = (text[:10], text[10:15], text[15:25], text[25:])
        return RowIdText(str(RowId(*map(int, parts))))
    if kind == "B":
        return Lob("BLOB", bytes.fromhex(text))
    if kind in "CM":
        return Lob("NCLOB" if kind == "M" else "CLOB", text)
    raise AssertionError(value)
