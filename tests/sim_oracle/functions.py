"""Oracle's functions and operators for SQLite, on cells.

Names begin with ORA_, so that neither sqlglot nor SQLite takes them for its own.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
import struct
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from functools import lru_cache
from typing import Any

from sim_oracle.cells import Lob, Months, decode, encode
from sim_oracle.columns import NanoTime, parse_column
from sim_oracle.conversions import convert_value
from sim_oracle.errors import OraError
from sim_oracle.literals import Nls, number_text
from sim_oracle.views import Context

_FIELDS = re.compile(
    r'SYYYY|YYYY|MM|DD|HH24|HH12|HH|MI|SS|X?FF[1-9]?|TZH|TZM|TZR|AM|PM|"[^"]*"|.', re.DOTALL
)
_ZONE = re.compile(r"([+-])(\d{2}):?(\d{2})\Z")


class Functions:
    """Functions of one statement.

    Attributes:
        error: Error that a function raised; None if none did.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.error: OraError | None = None

    @property
    def nls(self) -> Nls:
        """Return the settings of the session."""
        return self.context.nls

    def add_to(self, store: sqlite3.Connection) -> None:
        """Register all functions."""
        for name, function in PLAIN.items():
            store.create_function(f"ORA_{name}", -1, self._wrap(function))
        own: dict[str, Callable[..., Any]] = {
            "NOW": lambda: self.context.database.now.replace(tzinfo=UTC),
            "NOW_DATE": lambda: self.context.database.now.replace(microsecond=0),
            "CAST": self._cast,
            "TO_DATE": lambda text, picture=None: _parse(picture or self.nls.date, text, self.nls),
            "TO_TIMESTAMP": lambda text, picture=None: _naive(
                _parse(picture or self.nls.timestamp, text, self.nls)
            ),
            "TO_TIMESTAMP_TZ": lambda text, picture=None: _aware(
                _parse(picture or self.nls.timestamp_tz, text, self.nls), self.nls
            ),
        }
        for name, function in own.items():
            store.create_function(f"ORA_{name}", -1, self._wrap(function))
        for name, kind in (("MAX", _Max), ("MIN", _Min), ("SUM", _Sum), ("AVG", _Average)):
            store.create_aggregate(f"ORA_{name}", 1, kind)

    def _wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*cells: Any) -> Any:
            try:
                value = function(*(decode(cell, {}) for cell in cells))
                is_big = type(value) is int and abs(value) >= 2**63
                return encode(Decimal(value) if is_big else value)
            except OraError as error:
                self.error = self.error or error
                raise

        return call

    def _cast(self, value: Any, declaration: str) -> Any:
        if value is None:
            return None
        column = parse_column("X", declaration)
        if isinstance(value, str) and column.kind.startswith(("DATE", "TIMESTAMP")):
            picture = {"DATE": self.nls.date, "TIMESTAMP": self.nls.timestamp}.get(
                column.kind, self.nls.timestamp_tz
            )
            value = _parse(picture, value, self.nls)
        if isinstance(value, Decimal) and value.is_nan():
            return value
        converted = convert_value(column, value, self.nls)
        if column.kind == "NUMBER" and column.scale is not None and converted is not None:
            with localcontext(prec=60):
                step = Decimal(1).scaleb(-column.scale)
                number = Decimal(str(converted)).quantize(step, ROUND_HALF_UP)
            if column.precision and number.copy_abs() >= 10 ** (column.precision - column.scale):
                raise OraError(1438)
            return number
        if isinstance(converted, str) and column.length is not None:
            cut = converted[: column.length]
            return cut.ljust(column.length) if column.kind in ("CHAR", "NCHAR") else cut or None
        if column.kind in ("CLOB", "NCLOB", "BLOB") and isinstance(converted, str | bytes):
            return Lob(column.kind, converted)
        return converted


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, Lob):
        value = value.data
    if isinstance(value, bytes):
        return value.hex().upper()
    if isinstance(value, int | float | Decimal):
        return number_text(value)
    return str(value)


def _number(value: Any) -> Any:
    """Return a number; raises OraError 1722 of a text that is not one."""
    if isinstance(value, str):
        try:
            return Decimal(value.strip())
        except InvalidOperation:
            raise OraError(1722) from None
    if isinstance(value, Lob | bytes):
        raise OraError(932, "NUMBER", "LOB")
    return value


def compare(first: Any, second: Any) -> int | None:
    """Return -1, 0 or 1; None if a value is NULL."""
    if first is None or second is None:
        return None
    if isinstance(first, Lob) or isinstance(second, Lob):
        raise OraError(932, "-", "CLOB")
    if isinstance(first, str) != isinstance(second, str) and not isinstance(
        first, datetime | NanoTime | bytes
    ):
        first, second = _number(first), _number(second)
    if isinstance(first, NanoTime) or isinstance(second, NanoTime):
        first, second = _moment(first), _moment(second)
    is_time = isinstance(first, datetime) and isinstance(second, datetime)
    if is_time and (first.tzinfo is None) != (second.tzinfo is None):
        first, second = (one.replace(tzinfo=one.tzinfo or UTC) for one in (first, second))
    if isinstance(first, float) != isinstance(second, float):
        first, second = float(first), float(second)
    if first != first or second != second:  # NaN is equal to itself and above all numbers
        return int(first != first) - int(second != second)
    return int(first > second) - int(first < second)


def _moment(value: Any) -> tuple[datetime, int]:
    time, nanos = value if isinstance(value, NanoTime) else (value, 0)
    return (time if time.tzinfo is None else time.astimezone(UTC).replace(tzinfo=None)), nanos


def _add(first: Any, second: Any, sign: int = 1) -> Any:
    if first is None or second is None:
        return None
    if isinstance(second, datetime | NanoTime) and sign > 0:
        first, second = second, first
    if isinstance(first, NanoTime):
        return NanoTime(_add(first.time, second, sign), first.nanos)
    if isinstance(first, datetime):
        if isinstance(second, NanoTime):
            second = second.time
        if isinstance(second, datetime):
            if first.tzinfo is not None or second.tzinfo is not None or first.microsecond:
                return first.replace(tzinfo=first.tzinfo or UTC) - second.replace(
                    tzinfo=second.tzinfo or UTC
                )
            return Decimal((first - second) // timedelta(seconds=1)) / 86_400
        step = second if isinstance(second, timedelta) else timedelta(days=float(second))
        return first + step * sign
    if isinstance(first, timedelta):
        return first + second * sign
    return _exact(lambda a, b: a + b * sign, first, second)


def _exact(action: Callable[[Any, Any], Any], first: Any, second: Any) -> Any:
    if first is None or second is None:
        return None
    if isinstance(first, timedelta) or isinstance(second, timedelta):
        return action(first, second)
    first, second = _number(first), _number(second)
    if isinstance(first, float) or isinstance(second, float):
        return action(float(first), float(second))
    with localcontext(prec=40):
        return action(Decimal(first), Decimal(second))


def _divide(first: Any, second: Any) -> Any:
    if second is not None and _number(second) == 0:
        raise OraError(1476, text="divisor is equal to zero")
    return _exact(lambda a, b: a / b, first, second)


def _round(value: Any, digits: int = 0, how: str = ROUND_HALF_UP) -> Any:
    if value is None:
        return None
    with localcontext(prec=60):
        return Decimal(str(_number(value))).quantize(Decimal(1).scaleb(-digits), how)


def _truncate(value: Any, unit: Any = None) -> Any:
    if isinstance(value, NanoTime):
        value = value.time
    if isinstance(value, datetime):
        return value.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    return _round(value, unit or 0, "ROUND_DOWN")


def _substring(value: Any, start: int, count: int | None = None) -> Any:
    text = value if isinstance(value, bytes) else _text(value)
    if text is None or (count is not None and count < 1):
        return None
    at = start - 1 if start > 0 else max(len(text) + start, 0) if start < 0 else 0
    part = text[at:] if count is None else text[at : at + count]
    if isinstance(value, Lob):
        return Lob(value.kind, part)
    return part or None


def _decode(value: Any, *rest: Any) -> Any:
    for place in range(0, len(rest) - 1, 2):
        other = rest[place]
        if (value is None and other is None) or compare(value, other) == 0:
            return rest[place + 1]
    return rest[-1] if len(rest) % 2 else None


def _extreme(sign: int) -> Callable[..., Any]:
    def choose(*values: Any) -> Any:
        if any(one is None for one in values):
            return None
        best = values[0]
        for one in values[1:]:
            if (compare(one, best) or 0) * sign > 0:
                best = one
        return best

    return choose


def _concatenate(*values: Any) -> Any:
    parts = [_text(one) or "" for one in values]
    if any(isinstance(one, Lob) for one in values):
        return Lob("CLOB", "".join(parts))
    return "".join(parts) or None


def _hash(value: Any, kind: str = "SHA1") -> bytes:
    data = value if isinstance(value, bytes) else (_text(value) or "").encode()
    return hashlib.new(kind.lower().replace("sha512/256", "sha512_256"), data).digest()


def _small_hash(value: Any, buckets: int = 2**32 - 1, seed: int = 0) -> int:
    data = repr((value, seed)).encode()
    return int(int.from_bytes(hashlib.md5(data).digest()[:4], "big") % (buckets + 1))


def _pad(side: str) -> Callable[..., Any]:
    def pad(value: Any, count: int, filler: str = " ") -> Any:
        text = _text(value)
        if text is None:
            return None
        missing = (filler * count)[: max(count - len(text), 0)]
        return (missing + text if side == "left" else text + missing)[:count] or None

    return pad


def _lob_compare(first: Any, second: Any) -> int | None:
    if first is None or second is None:
        return None
    one: Any = first.data if isinstance(first, Lob) else first
    two: Any = second.data if isinstance(second, Lob) else second
    return int(one > two) - int(one < two)


def _length(value: Any) -> int | None:
    if isinstance(value, Lob):
        return len(value.data)
    text = _text(value)
    return None if text is None else len(text)


def _bytes_length(value: Any) -> int | None:
    text = _text(value)
    return None if text is None else len(text.encode())


def _trim(side: str) -> Callable[..., Any]:
    def trim(value: Any, letters: str = " ") -> Any:
        text = _text(value)
        if text is None:
            return None
        out = text.lstrip(letters) if side != "right" else text
        return (out.rstrip(letters) if side != "left" else out) or None

    return trim


def _unistr(text: str | None) -> str | None:
    if text is None:
        return None
    units = re.sub(
        r"\\([0-9A-Fa-f]{4})|\\\\",
        lambda match: chr(int(match[1], 16)) if match[1] else "\\",
        text,
    )
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _months_interval(text: str) -> Months:
    match = re.match(r"([+-]?)(\d+)-(\d+)\Z", text.strip())
    if match is None:
        raise OraError(1867, text="the interval is invalid")
    count = int(match[2]) * 12 + int(match[3])
    return Months(-count if match[1] == "-" else count)


def _seconds_interval(text: str) -> timedelta:
    match = re.match(r"([+-]?)(\d+) (\d+):(\d+):(\d+)(?:\.(\d+))?\Z", text.strip())
    if match is None:
        raise OraError(1867, text="the interval is invalid")
    days, hours, minutes, seconds = (int(match[n]) for n in range(2, 6))
    micros = int((match[6] or "0").ljust(6, "0")[:6])
    value = timedelta(days, seconds, micros, 0, minutes, hours)
    return -value if match[1] == "-" else value


def _interval_of(number: Any, unit: str) -> timedelta:
    unit = unit.upper().strip() + "S"
    return timedelta(**{unit.lower(): float(number)})


def _utc(value: Any) -> Any:
    if isinstance(value, NanoTime):
        return NanoTime(_utc(value.time), value.nanos)
    return None if value is None else value.astimezone(UTC).replace(tzinfo=None)


def _from_tz(value: Any, zone: str) -> Any:
    if isinstance(value, NanoTime):
        return NanoTime(_from_tz(value.time, zone), value.nanos)
    return None if value is None else value.replace(tzinfo=_zone_of(zone))


def _zone_of(text: str) -> timezone:
    match = _ZONE.match("+00:00" if text.upper() in ("UTC", "GMT") else text)
    if match is None:
        raise OraError(1882, text="timezone region not found")
    minutes = int(match[2]) * 60 + int(match[3])
    return timezone(timedelta(minutes=-minutes if match[1] == "-" else minutes))


@lru_cache(maxsize=256)
def _fields_of(picture: str) -> tuple[str, ...]:
    return tuple(_FIELDS.findall(picture.upper() if '"' not in picture else picture))


def _parse(picture: str, text: Any, nls: Nls) -> Any:  # noqa: C901, PLR0915 - one case per field
    """Return the time in a text by a format picture; raises OraError 1861 if they differ."""
    if text is None:
        return None
    if isinstance(text, datetime | NanoTime):
        return text
    parts: dict[str, int] = {}
    sign, at, has_zone = 1, 0, False
    body = str(text)
    for one in _fields_of(picture):
        if at >= len(body) and one not in ("TZH", "TZM", "TZR"):
            break
        if one in ("SYYYY", "YYYY", "MM", "DD", "HH24", "HH12", "HH", "MI", "SS"):
            size = 4 if "Y" in one else 2
            if one == "SYYYY" and body[at : at + 1] in ("-", " ", "+"):
                if body[at] == "-":
                    raise OraError(1841, text="the simulator has no years before 1")
                at += 1
            match = re.compile(rf"\d{{1,{size}}}").match(body, at)
            if match is None:
                raise OraError(1861)
            parts[one.lstrip("S") if "Y" in one else one[:2]] = int(match[0])
            at = match.end()
        elif one.lstrip("X").startswith("FF"):
            at += one.startswith("X")
            match = re.compile(r"\d{1,9}").match(body, at)
            parts["FF"] = int((match[0] if match else "0").ljust(9, "0"))
            at = match.end() if match else at
        elif one in ("TZH", "TZR"):
            match = re.compile(r"\s*([+-]?)(\d{1,2})(?::?(\d{2}))?" if one == "TZR" else
                               r"\s*([+-]?)(\d{1,2})").match(body, at)  # fmt: skip
            if match is None:
                raise OraError(1861)
            sign, has_zone = (-1 if match[1] == "-" else 1), True
            parts["TZH"] = int(match[2])
            if one == "TZR" and match[3]:
                parts["TZM"] = int(match[3])
            at = match.end()
        elif one == "TZM":
            match = re.compile(r"\d{2}").match(body, at)
            parts["TZM"] = int(match[0]) if match else 0
            at = match.end() if match else at
        elif one.startswith('"'):
            at += len(one) - 2
        elif body[at : at + 1].isalnum():
            raise OraError(1861)
        else:
            at += 1
    if body[at:].strip():
        raise OraError(1830, text="date format picture ends before converting entire input string")
    fraction = parts.get("FF", 0)
    try:
        time = datetime(  # noqa: DTZ001 - the zone follows
            parts.get("YYYY", 2026), parts.get("MM", 1), parts.get("DD", 1),
            parts.get("HH", 0), parts.get("MI", 0), parts.get("SS", 0), fraction // 1000,
        )  # fmt: skip
    except ValueError:
        raise OraError(1839, text="date not valid for month specified") from None
    if has_zone:
        offset = timedelta(minutes=sign * (parts["TZH"] * 60 + parts.get("TZM", 0)))
        time = time.replace(tzinfo=timezone(offset))
    return NanoTime(time, fraction % 1000) if fraction % 1000 or "FF" in picture.upper() else time


def _naive(value: Any) -> Any:
    if isinstance(value, NanoTime):
        return NanoTime(value.time.replace(tzinfo=None), value.nanos)
    return None if value is None else value.replace(tzinfo=None)


def _aware(value: Any, nls: Nls) -> Any:
    if value is None:
        return None
    time, nanos = value if isinstance(value, NanoTime) else (value, 0)
    if time.tzinfo is None:
        time = time.replace(tzinfo=timezone(timedelta(minutes=nls.zone_minutes)))
    return NanoTime(time, nanos)


def _binary_float(value: Any) -> Any:
    number = _binary_double(value)
    return None if number is None else struct.unpack("f", struct.pack("f", number))[0]


def _binary_double(value: Any) -> Any:
    return None if value is None else float(value)


def _nulls(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is NULL where its first argument is."""
    return lambda *values: None if values[0] is None else function(*values)


PLAIN: dict[str, Callable[..., Any]] = {
    "DEC": Decimal,
    "TO_NUMBER": lambda value, *_: _number(value),
    "ADD": _add,
    "SUB": lambda first, second: _add(first, second, -1),
    "MUL": lambda first, second: _exact(lambda a, b: a * b, first, second),
    "DIV": _divide,
    "NEG": _nulls(lambda value: _add(0, value, -1)),
    "LT": lambda a, b: None if (c := compare(a, b)) is None else int(c < 0),
    "LTE": lambda a, b: None if (c := compare(a, b)) is None else int(c <= 0),
    "GT": lambda a, b: None if (c := compare(a, b)) is None else int(c > 0),
    "GTE": lambda a, b: None if (c := compare(a, b)) is None else int(c >= 0),
    "CONCAT": _concatenate,
    "FROM_TZ": _from_tz,
    "LENGTH": _length,
    "LENGTHB": _bytes_length,
    "SUBSTR": _substring,
    "INSTR": _nulls(lambda value, part, start=1: (_text(value) or "").find(part, start - 1) + 1),
    "NVL": lambda first, second: second if first is None else first,
    "NVL2": lambda value, there, missing: missing if value is None else there,
    "NULLIF": lambda first, second: None if compare(first, second) == 0 else first,
    "NANVL": lambda first, second: second if first != first else first,
    "DECODE": _decode,
    "GREATEST": _extreme(1),
    "LEAST": _extreme(-1),
    "TRUNC": _truncate,
    "ROUND": _round,
    "CEIL": _nulls(lambda value: _round(value, 0, "ROUND_CEILING")),
    "FLOOR": _nulls(lambda value: _round(value, 0, "ROUND_FLOOR")),
    "ABS": _nulls(lambda value: abs(_number(value))),
    "SIGN": _nulls(lambda value: compare(_number(value), 0)),
    "MOD": lambda a, b: _exact(lambda x, y: x - y * (x / y).to_integral_value("ROUND_DOWN"), a, b),
    "LPAD": _pad("left"),
    "RPAD": _pad("right"),
    "TRIM": _trim("both"),
    "LTRIM": _trim("left"),
    "RTRIM": _trim("right"),
    "UPPER": _nulls(lambda value: (_text(value) or "").upper()),
    "LOWER": _nulls(lambda value: (_text(value) or "").lower()),
    "REPLACE": _nulls(
        lambda value, old, new="": (_text(value) or "").replace(old, new or "") or None
    ),
    "BITAND": lambda first, second: (
        None if first is None or second is None else int(first) & int(second)
    ),
    "STANDARD_HASH": _hash,
    "ORA_HASH": _small_hash,
    "EMPTY_CLOB": lambda: Lob("CLOB", ""),
    "EMPTY_BLOB": lambda: Lob("BLOB", b""),
    "TO_CLOB": _nulls(lambda value: Lob("CLOB", _text(value) or "")),
    "TO_NCLOB": _nulls(lambda value: Lob("NCLOB", _text(value) or "")),
    "TO_BLOB": _nulls(lambda value: Lob("BLOB", value.data if isinstance(value, Lob) else value)),
    "TO_BINARY_DOUBLE": _binary_double,
    "TO_BINARY_FLOAT": _binary_float,
    "NUMTODSINTERVAL": _nulls(_interval_of),
    "TO_DSINTERVAL": _nulls(_seconds_interval),
    "TO_YMINTERVAL": _nulls(_months_interval),
    "SYS_EXTRACT_UTC": _utc,
    "SYS_GUID": lambda: uuid.uuid4().bytes,
    "CHR": chr,
    "UNISTR": _unistr,
    "LOB_COMPARE": _lob_compare,
    "LOB_GETLENGTH": _length,
    "LOB_SUBSTR": lambda value, count=32_767, start=1: (
        None if value is None else (value.data[start - 1 : start - 1 + count] or None)
    ),
    "CAST_TO_RAW": _nulls(lambda value: (_text(value) or "").encode()),
    "CAST_TO_VARCHAR2": _nulls(lambda value: value.decode()),
}


class _Aggregate:
    def __init__(self) -> None:
        self.values: list[Any] = []

    def step(self, cell: Any) -> None:
        """Take a cell; NULLs do not count."""
        if cell is not None:
            self.values.append(decode(cell, {}))


class _Max(_Aggregate):
    def finalize(self) -> Any:
        """Return the largest value."""
        return encode(_extreme(1)(*self.values)) if self.values else None


class _Min(_Aggregate):
    def finalize(self) -> Any:
        """Return the smallest value."""
        return encode(_extreme(-1)(*self.values)) if self.values else None


class _Sum(_Aggregate):
    def finalize(self) -> Any:
        """Return the sum."""
        if not self.values:
            return None
        total = self.values[0]
        for one in self.values[1:]:
            total = _add(total, one)
        return encode(total)


class _Average(_Aggregate):
    def finalize(self) -> Any:
        """Return the mean."""
        if not self.values:
            return None
        return encode(_divide(_number_sum(self.values), len(self.values)))


def _number_sum(values: list[Any]) -> Any:
    total: Any = 0
    for one in values:
        total = _add(total, one)
    return total
