"""Convert decoded values of one column to Arrow, as the log has them, and values to text. Pure.

The log of a node and a scan share this code. A value that the column cannot hold raises NotHeld
with a type that holds it. If only the neutral type cannot hold it, NotHeld has the same type, and
the column is kept as text. Columns that hold several types have texts, and so has JSON: nothing is
cut, moments are UTC and end in `+00`.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import arrow_type, cast_exactly
from penstock.codec.ignite.kinds import OF_VALUES, holder, neutral_of, parts_of
from penstock.codec.ignite.values import (
    UUID,
    BinaryObject,
    Class,
    Date,
    Enum,
    JavaMap,
    Opaque,
    SqlDate,
    Time,
    Timestamp,
)

Values = Sequence[Any]
UTC = "UTC"
NONE = type(None)
_HELD: dict[str, frozenset[type]] = {
    "boolean": frozenset((bool, NONE)),
    "tinyint": frozenset((int, NONE)),
    "smallint": frozenset((int, NONE)),
    "int": frozenset((int, NONE)),
    "bigint": frozenset((int, NONE)),
    "real": frozenset((float, int, NONE)),
    "double": frozenset((float, int, NONE)),
    "uuid": frozenset((UUID, NONE)),
    "binary": frozenset((bytes, NONE)),
    "date": frozenset((SqlDate, NONE)),
    "time": frozenset((Time, NONE)),
    "timestamp": frozenset((Timestamp, Date, SqlDate, NONE)),
    "other": frozenset((Opaque, NONE)),
}
MS_MAX = (2**63 - 1) // 1000  # of which microseconds fit into 64 bits
_INT_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


class NotHeld(Exception):
    """Error: a column cannot hold a value.

    kind: the type that can hold it; the column's own type means that it must become text.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def column_of(kind: str, neutral: str, values: Values, zone: str = UTC) -> pa.Array:
    """Return the values of a column. zone: time zone of the node, for dates and times of day.
    Raises NotHeld.
    """
    base, length, _ = parts_of(kind)
    if base == "object":
        return _strings([json_of(one) for one in values])
    found = set(map(type, values))
    if base == "varchar":
        return _texts(values, found, length)
    _check(kind, base, values, found)
    if neutral == "string":
        return _strings([text_of(one) for one in values])
    return _MAKERS.get(base, _plain)(kind, neutral, values, zone)


def _check(kind: str, base: str, values: Values, found: set[type]) -> None:
    held = _HELD.get(base)
    if held is None:  # enum, decimal: their own values
        held = frozenset(one for one, name in OF_VALUES.items() if name == base) | {NONE}
        if base == "decimal":
            held |= {int}
    if not found <= held:
        others = {OF_VALUES[one] for one in found - held}
        raise NotHeld(holder([kind, *sorted(others)]))
    if int in found and base in ("real", "double"):
        most = 24 if base == "real" else 53
        if any(type(one) is int and abs(one) > 1 << most for one in values):
            raise NotHeld(holder([kind, "bigint"]))


def _texts(values: Values, found: set[type], length: int) -> pa.Array:
    texts = values if found <= {str, NONE} else [text_of(one) for one in values]
    made = _strings(texts)
    if length and (pc.max(pc.utf8_length(made)).as_py() or 0) > length:
        raise NotHeld("varchar")
    return made


def _strings(texts: Values) -> pa.Array:
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:  # a char may be half of a pair; in JSON this is its form, too
        texts = [one and one.encode("utf-8", "backslashreplace").decode() for one in texts]
        return pa.array(texts, pa.string())


def _plain(kind: str, neutral: str, values: Values, _: str) -> pa.Array:
    """Return an array of numbers, booleans or bytes."""
    try:
        made = pa.array(values, arrow_type(neutral))
    except (pa.ArrowInvalid, OverflowError):
        if kind not in _INT_BITS:
            raise
        raise NotHeld(_wider(values)) from None
    if kind == "tinyint" and len(made) and (pc.min_max(made)["max"].as_py() or 0) > 127:
        raise NotHeld(_wider(values))
    return made


def _wider(values: Values) -> str:
    most = max(one if one >= 0 else ~one for one in values if one is not None)
    return next((one for one, bits in _INT_BITS.items() if most < 1 << (bits - 1)), "decimal")


def _decimals(_: str, neutral: str, values: Values, __: str) -> pa.Array:
    try:
        return pa.array(values, arrow_type(neutral))
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        raise NotHeld("decimal") from None


def _uuids(_: str, neutral: str, values: Values, __: str) -> pa.Array:
    return pa.array([one and one.bytes for one in values], arrow_type(neutral))


def _opaque(_: str, neutral: str, values: Values, __: str) -> pa.Array:
    return pa.array([one and one.data for one in values], arrow_type(neutral))


def _timestamps(kind: str, neutral: str, values: Values, _: str) -> pa.Array:
    found: list[int | None] = []
    add = found.append
    for one in values:
        if one is None:
            add(None)
            continue
        ms = one[0]
        nanos = one[1] if len(one) > 1 else 0
        if nanos % 1000 or not -MS_MAX < ms < MS_MAX:
            raise NotHeld(kind)
        add(ms * 1000 + nanos // 1000)
    return cast_exactly(pa.array(found, pa.int64()), arrow_type(neutral))


def column_of_ms(kind: str, neutral: str, ms: pa.Array, zone: str = UTC) -> pa.Array:
    """Return dates or times of day from int64 milliseconds since 1970. Raises NotHeld."""
    if neutral == "string":
        raise NotHeld(kind)
    return (_date_column if kind == "date" else _time_column)(kind, neutral, ms, zone)


def _dates(kind: str, neutral: str, values: Values, zone: str) -> pa.Array:
    return _date_column(kind, neutral, _ms(values), zone)


def _times(kind: str, neutral: str, values: Values, zone: str) -> pa.Array:
    return _time_column(kind, neutral, _ms(values), zone)


def _date_column(_: str, neutral: str, ms: pa.Array, zone: str) -> pa.Array:
    local = _local(ms, zone)
    days = pc.divide(local, DAY_MS)
    is_midnight = pc.fill_null(pc.equal(pc.multiply(days, DAY_MS), local), fill_value=True)
    if not pc.all(is_midnight, min_count=0).as_py():
        raise NotHeld("timestamp")
    try:
        return cast_exactly(days.cast(pa.int32()), arrow_type(neutral))
    except pa.ArrowInvalid:  # a day of another age
        raise NotHeld("date") from None


def _time_column(kind: str, neutral: str, ms: pa.Array, zone: str) -> pa.Array:
    local = _local(ms, zone)
    inside = pc.and_(pc.greater_equal(local, 0), pc.less(local, DAY_MS))
    if pc.any(pc.invert(inside)).as_py():
        raise NotHeld(kind)
    return cast_exactly(pc.multiply(local, 1000), arrow_type(neutral))


def _ms(values: Values) -> pa.Array:
    return pa.array([one and one[0] for one in values], pa.int64())


def _local(ms: pa.Array, zone: str) -> pa.Array:
    """Convert milliseconds since 1970 UTC to the local clock of a time zone."""
    if zone == UTC:
        return ms
    return pc.local_timestamp(ms.cast(pa.timestamp("ms", zone))).cast(pa.int64())


_MAKERS: dict[str, Callable[[str, str, Values, str], pa.Array]] = {
    "decimal": _decimals,
    "uuid": _uuids,
    "other": _opaque,
    "timestamp": _timestamps,
    "date": _dates,
    "time": _times,
}


def first_kind(kind: str) -> tuple[str, str]:
    """Return a type and its neutral type, unless a value does not fit."""
    return kind, neutral_of(kind)


DAY_MS = 86_400_000
SCALE_SHOWN_MAX = 1000  # a number with more zeros is written with an exponent


def text_of(value: Any) -> str | None:
    """Return a value as text; None for null."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return decimal_text(value)
    if isinstance(value, Timestamp):
        return moment_text(value.ms, value.nanos)
    if isinstance(value, Date):
        return moment_text(value.ms)
    if isinstance(value, Time):
        return time_text(value)
    if isinstance(value, Enum):
        return str(value.ordinal) if value.name is None else value.name
    if isinstance(value, Class):
        return value.type_name or str(value.type_id)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Opaque):
        return base64.b64encode(value.data).decode()
    if isinstance(value, int | float | UUID):
        return str(value)
    return json_of(value)


def decimal_text(value: Decimal) -> str:
    """Return all digits, without an exponent unless there would be too many zeros."""
    exponent = value.as_tuple().exponent
    if isinstance(exponent, int) and abs(exponent) > SCALE_SHOWN_MAX:
        return str(value)
    return format(value, "f")


def moment_text(ms: int, nanos: int = 0) -> str:
    """Return `2024-02-29 12:34:56.789+00`; years before 1 end in BC. nanos: within the
    millisecond.
    """
    days, rest = divmod(ms, DAY_MS)
    return f"{_day(days, f' {_clock(rest, nanos)}+00')}"


def time_text(value: Time) -> str:
    """Return `12:34:56.789`; the whole moment if the day is not 1970-01-01."""
    days, rest = divmod(value.ms, DAY_MS)
    return moment_text(value.ms) if days else _clock(rest, 0)


def _clock(ms: int, nanos: int) -> str:
    seconds, ms = divmod(ms, 1000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    fraction = f"{ms * 1_000_000 + nanos:09}".rstrip("0")
    return f"{hour:02}:{minute:02}:{second:02}{'.' + fraction if fraction else ''}"


def _day(days: int, behind: str) -> str:
    """Return year, month and day of a day since 1970-01-01, for any year."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    year = year_of_era + era * 400 + (month <= 2)
    if year < 1:
        return f"{1 - year:04}-{month:02}-{day:02}{behind} BC"
    return f"{year:04}-{month:02}-{day:02}{behind}"


# -- JSON --------------------------------------------------------------------------------------


def json_of(value: Any) -> str | None:
    """Return a value as JSON; None for null.

    An object becomes its fields by name, a map with a key that is not text a list of pairs, and
    bytes base64. A container within itself becomes `{"$up": levels}`.
    """
    return None if value is None else _json(value, [])


def _json(value: Any, above: list[int]) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Decimal):
        return decimal_text(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else json.dumps(str(value))
    if isinstance(value, list | JavaMap | BinaryObject):
        return _container(value, above)
    return json.dumps(text_of(value), ensure_ascii=False)


def _container(value: Any, above: list[int]) -> str:
    if id(value) in above:
        return f'{{"$up":{len(above) - above.index(id(value))}}}'
    inner = [*above, id(value)]
    if isinstance(value, list):
        return f"[{','.join(_json(one, inner) for one in value)}]"
    pairs = value.pairs if isinstance(value, JavaMap) else list(value.fields.items())
    if all(isinstance(key, str) for key, _ in pairs):
        shown = (f"{json.dumps(k, ensure_ascii=False)}:{_json(v, inner)}" for k, v in pairs)
        return f"{{{','.join(shown)}}}"
    return f"[{','.join(f'[{_json(k, inner)},{_json(v, inner)}]' for k, v in pairs)}]"
