"""Values of rows as JSON: exact, and the same text for the same value."""

from __future__ import annotations

import base64
import datetime
import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any


def json_text(value: Any) -> str:
    """Return one line of JSON, without blanks; see `json_value`."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with values that JSON has."""
    return {name: json_value(value) for name, value in row.items()}


def json_value(value: Any) -> Any:
    """Return a value that JSON has. Decimals are text, as JSON numbers are read as floats.

    Bytes are base64; dates and times ISO 8601; a duration `[-]H:MM:SS[.ffffff]`; NaN and the
    infinities text.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Decimal():
            return format(value, "f")
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode("ascii")
        case datetime.date() | datetime.time():  # a datetime is a date
            return value.isoformat()
        case datetime.timedelta():
            return _duration(value)
        case Mapping():
            return {str(name): json_value(inner) for name, inner in value.items()}
        case list() | tuple():
            return [json_value(inner) for inner in value]
    return str(value)


def _duration(value: datetime.timedelta) -> str:
    microseconds = value // datetime.timedelta(microseconds=1)
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    sign = "-" if microseconds < 0 else ""
    text = f"{sign}{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}" if fraction else text
