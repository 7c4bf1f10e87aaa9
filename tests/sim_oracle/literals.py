"""Values as SQL_REDO writes them, and in the internal formats of `COL n` columns."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from sim_oracle.columns import FLOATS, INLINE_MAX, NUMBERS, TEXTS, Column, NanoTime, Value

DEFAULT_DATE = "DD-MON-RR"
DEFAULT_TIMESTAMP = "DD-MON-RR HH.MI.SSXFF AM"
DEFAULT_TIMESTAMP_TZ = "DD-MON-RR HH.MI.SSXFF AM TZR"
_PIECE = 1000  # characters of one UNISTR call


@dataclass(frozen=True, slots=True)
class Nls:
    """Settings of a session on which texts depend.

    Attributes:
        date: NLS_DATE_FORMAT.
        timestamp: NLS_TIMESTAMP_FORMAT.
        timestamp_tz: NLS_TIMESTAMP_TZ_FORMAT.
        numeric: NLS_NUMERIC_CHARACTERS.
        zone_minutes: Offset of TIME_ZONE in minutes.
        doubles_quotes: Whether the server doubles quotes in literals, as it should.
    """

    date: str = DEFAULT_DATE
    timestamp: str = DEFAULT_TIMESTAMP
    timestamp_tz: str = DEFAULT_TIMESTAMP_TZ
    numeric: str = ".,"
    zone_minutes: int = 0
    doubles_quotes: bool = True


def quote(text: str) -> str:
    """Return a text literal."""
    return "'" + text.replace("'", "''") + "'"


def number_text(value: int | Decimal | float, decimal_point: str = ".") -> str:
    """Return a number as TO_CHAR writes it: without a zero before the point."""
    number = value if isinstance(value, Decimal) else Decimal(str(value))
    text = format(number, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    if text.startswith("0.") or text.startswith("-0."):
        text = text.replace("0.", ".", 1)
    return text.replace(".", decimal_point) or "0"


def float_text(value: float) -> str:
    """Return a binary float as LogMiner writes it: rounded, exponent of three digits."""
    if value != value:
        return "Nan"
    if value in (float("inf"), float("-inf")):
        return "Inf" if value > 0 else "-Inf"
    mantissa, exponent = f"{value:.8E}".split("E")
    mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}E{int(exponent):+04d}"


def unistr(text: str) -> str:
    """Return UNISTR calls: UTF-16 units of what is not ASCII, long texts in several calls."""
    pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)] or [""]
    return " || ".join(f"UNISTR('{_escape(piece)}')" for piece in pieces)


def _escape(text: str) -> str:
    out = []
    for letter in text:
        if letter == "\\":
            out.append("\\\\")
        elif letter == "'":
            out.append("''")
        elif ord(letter) < 128:
            out.append(letter)
        else:
            units = letter.encode("utf-16-be")
            out += [f"\\{units[at : at + 2].hex().upper()}" for at in range(0, len(units), 2)]
    return "".join(out)


def format_time(picture: str, value: datetime | NanoTime, zone_minutes: int | None = None) -> str:
    """Return a time in a format picture of the session."""
    time, nanos = (value.time, value.nanos) if isinstance(value, NanoTime) else (value, 0)
    fraction = f"{time.microsecond * 1000 + nanos:09d}"
    zone = "" if zone_minutes is None else f"{'-' if zone_minutes < 0 else '+'}"
    hours, minutes = divmod(abs(zone_minutes or 0), 60)
    out = picture
    steps = [
        ("SYYYY", f"{time.year:04d}"),
        ("YYYY", f"{time.year:04d}"),
        ("HH24", f"{time.hour:02d}"),
        ("MON", time.strftime("%b").upper()),
        ("XFF", "." + fraction[:6]),
        ("FF9", fraction),
        ("FF6", fraction[:6]),
        ("FF", fraction[:6]),
        ("TZH", f"{zone}{hours:02d}" if zone else ""),
        ("TZM", f"{minutes:02d}" if zone else ""),
        ("TZR", f"{zone}{hours:02d}:{minutes:02d}" if zone else ""),
        ("HH", f"{(time.hour % 12) or 12:02d}"),
        ("MI", f"{time.minute:02d}"),
        ("MM", f"{time.month:02d}"),
        ("SS", f"{time.second:02d}"),
        ("DD", f"{time.day:02d}"),
        ("RR", f"{time.year % 100:02d}"),
        (" AM", " PM" if time.hour >= 12 else " AM"),
        ('"T"', "T"),
    ]
    marks: list[str] = []
    for name, text in steps:  # marks, so that a later step does not see an earlier one's text
        out = out.replace(name, chr(0xE000 + len(marks)))
        marks.append(text)
    for number, text in enumerate(marks):
        out = out.replace(chr(0xE000 + number), text)
    return out


def _offset_minutes(time: datetime) -> int:
    offset = time.utcoffset() or timedelta()
    return int(offset.total_seconds() // 60)


def _time_text(column: Column, value: datetime | NanoTime, nls: Nls) -> str:
    time = value.time if isinstance(value, NanoTime) else value
    nanos = value.nanos if isinstance(value, NanoTime) else 0
    if column.kind == "DATE":
        return f"TO_DATE('{format_time(nls.date, value)}', '{nls.date}')"
    if column.kind == "TIMESTAMP":
        return f"TO_TIMESTAMP('{format_time(nls.timestamp, value)}')"
    if column.kind == "TIMESTAMP WITH TIME ZONE":
        text = format_time(nls.timestamp_tz, value, _offset_minutes(time))
        # The mask has TZH:TZM; the region is lost.
        return f"TO_TIMESTAMP_TZ('{text}')"
    local = (time.astimezone(UTC) + timedelta(minutes=nls.zone_minutes)).replace(tzinfo=None)
    return f"TO_TIMESTAMP_TZ('{format_time(nls.timestamp, NanoTime(local, nanos))}')"


def _interval_text(column: Column, value: int | timedelta) -> str:
    digits = column.precision or 2
    if isinstance(value, int):
        years, months = divmod(abs(value), 12)
        sign = "-" if value < 0 else "+"
        return f"TO_YMINTERVAL('{sign}{years:0{digits}d}-{months:02d}')"
    sign = "-" if value < timedelta() else "+"
    value = abs(value)
    hours, rest = divmod(value.seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    scale = 6 if column.scale is None else column.scale
    fraction = f".{value.microseconds:06d}".ljust(10, "0")[: 1 + scale] if scale else ""
    clock = f"{hours:02d}:{minutes:02d}:{seconds:02d}{fraction}"
    return f"TO_DSINTERVAL('{sign}{value.days:0{digits}d} {clock}')"


def literal(column: Column, value: Value, nls: Nls) -> str:
    """Return the text that SQL_REDO has for a value."""
    if value is None:
        return "NULL"
    kind = column.kind
    if kind in NUMBERS and isinstance(value, int | Decimal):
        return f"'{number_text(value, nls.numeric[0])}'"
    if kind in FLOATS and isinstance(value, float):
        return f"'{float_text(value)}'"
    if isinstance(value, str) and (kind in TEXTS or kind in ("CLOB", "NCLOB", "ROWID", "UROWID")):
        if kind in ("NCHAR", "NVARCHAR2"):
            return unistr(value)
        if kind == "VARCHAR2" and len(value.encode()) > INLINE_MAX:
            return "LM_EMPTY_STRING"
        return quote(value) if nls.doubles_quotes else f"'{value}'"
    if isinstance(value, bytes) and kind in ("RAW", "LONG RAW", "BLOB"):
        return f"HEXTORAW('{value.hex()}')"
    if isinstance(value, bytes) and kind == "JSON":
        return f"/* JSON */ HEXTORAW('{value.hex()}')"
    if isinstance(value, datetime | NanoTime):
        return _time_text(column, value, nls)
    if kind.startswith("INTERVAL") and isinstance(value, int | timedelta):
        return _interval_text(column, value)
    return "Unsupported Type"


def internal_number(value: int | Decimal) -> bytes:
    """Return NUMBER's stored form: an exponent byte and digits of base 100."""
    number = Decimal(value)
    if number == 0:
        return b"\x80"
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    if exponent % 2:
        text, exponent = text + "0", exponent - 1
    if len(text) % 2:
        text = "0" + text
    pairs = [int(text[at : at + 2]) for at in range(0, len(text), 2)]
    power = exponent // 2 + len(pairs) - 1
    while pairs and pairs[-1] == 0:
        pairs.pop()
    if sign:
        tail = b"\x66" if len(pairs) < 20 else b""
        return bytes([62 - power]) + bytes(101 - pair for pair in pairs) + tail
    return bytes([193 + power]) + bytes(pair + 1 for pair in pairs)


def internal_time(kind: str, value: datetime | NanoTime) -> bytes:
    """Return the 7, 11 or 13 bytes in which times are stored."""
    time, nanos = (value.time, value.nanos) if isinstance(value, NanoTime) else (value, 0)
    zone = _offset_minutes(time)
    if time.tzinfo is not None:
        time = time.astimezone(UTC)
    century, year = divmod(time.year, 100)
    clock = [time.hour + 1, time.minute + 1, time.second + 1]
    base = bytes([century + 100, year + 100, time.month, time.day, *clock])
    if kind == "DATE":
        return base
    base += (time.microsecond * 1000 + nanos).to_bytes(4, "big")
    if kind != "TIMESTAMP WITH TIME ZONE":
        return base
    hours, minutes = divmod(abs(zone), 60)
    sign = -1 if zone < 0 else 1
    return base + bytes([20 + sign * hours, 60 + sign * minutes])


def internal_float(kind: str, value: float) -> bytes:
    """Return the stored form, which sorts as the numbers do: IEEE 754 with the sign bit inverted,
    or all bits of a negative number.
    """
    data = struct.pack(">f" if kind == "BINARY_FLOAT" else ">d", value)
    if data[0] & 0x80:
        return bytes(byte ^ 0xFF for byte in data)
    return bytes([data[0] | 0x80]) + data[1:]


def internal_interval(value: int | timedelta) -> bytes:
    """Return 5 bytes of months, or the 11 of days to nanoseconds; each part has the sign."""
    if isinstance(value, int):
        sign = -1 if value < 0 else 1
        years, months = divmod(abs(value), 12)
        return (2**31 + sign * years).to_bytes(4, "big") + bytes([60 + sign * months])
    sign = -1 if value < timedelta(0) else 1
    value = abs(value)
    hours, rest = divmod(value.seconds, 3600)
    clock = (hours, *divmod(rest, 60))
    nanos = 2**31 + sign * value.microseconds * 1000
    return (
        (2**31 + sign * value.days).to_bytes(4, "big")
        + bytes(60 + sign * part for part in clock)
        + nanos.to_bytes(4, "big")
    )


def internal_literal(column: Column, value: Value) -> str:
    """Return HEXTORAW of the stored form, which a log shows without its dictionary."""
    if value is None:
        return "NULL"
    if column.kind in NUMBERS and isinstance(value, int | Decimal):
        data = internal_number(value)
    elif isinstance(value, datetime | NanoTime):
        data = internal_time(column.kind, value)
    elif isinstance(value, str):
        wide = column.kind in ("NCHAR", "NVARCHAR2")
        data = value.encode("utf-16-be" if wide else "utf-8")
    elif isinstance(value, bytes):
        data = value
    elif column.kind in FLOATS and isinstance(value, float):
        data = internal_float(column.kind, value)
    elif column.kind.startswith("INTERVAL") and isinstance(value, int | timedelta):
        data = internal_interval(value)
    else:
        return "Unsupported Type"
    return f"HEXTORAW('{data.hex()}')"
