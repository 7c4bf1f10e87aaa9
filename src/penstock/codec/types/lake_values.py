"""Conversion of the log's values to the types of a lake's columns, column by column in Arrow.

Values arrive in the neutral types of a relation. A column whose values once did not fit its neutral
type is text from then on, while the lake's column keeps its type: such texts are read again here.
No value is changed silently: one that the type cannot hold raises `ValueUnfit`, or is treated as
`[target.types]` says. Pure.

Not here: the choice of a column's type (`to_lake.py`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.columns import arrow_type, cast_exactly
from penstock.codec.exact_text import exact_texts, time_text, uuid_texts
from penstock.codec.types.mapping import ERROR, NULL, ROUND
from penstock.codec.types.mapping import UTC as UTC_CHOICE
from penstock.codec.types.to_lake import LakeMapping

_NO_CHOICES: Mapping[str, str] = {}
_DATES = "dates out of range"
_ZERO_DATES = "zero dates"
_NANOSECONDS = "nanoseconds"
_OFFSETS = "offsets"
_NOT_A_NUMBER = "not a number"

_DAY_US = 86_400_000_000
_DAY_FIRST, _DAY_LAST = -719_162, 2_932_896  # 0001-01-01, 9999-12-31
_US_FIRST, _US_LAST = _DAY_FIRST * _DAY_US, (_DAY_LAST + 1) * _DAY_US - 1
_TEMPORAL_TEXT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d+))?)?"
    r"(?:\+00|Z|([-+])(\d\d):?(\d\d))?\Z"
)
_TRUE, _FALSE = frozenset(("t", "true", "1")), frozenset(("f", "false", "0"))


class ValueUnfit(ValueError):
    """The lake's column cannot hold a value.

    Attributes:
        loss: name of the loss in [target.types]; empty if there is no choice for it.
        count: number of such values in the array.
    """

    def __init__(self, loss: str, count: int, reason: str) -> None:
        super().__init__(reason)
        self.loss = loss
        self.count = count


def lake_arrow_type(name: str) -> pa.DataType:
    """Return the Arrow type of a lake's type. Raises KeyError for an unknown name."""
    return arrow_type(name)


def convert_values(
    values: pa.Array,
    name: str,
    *,
    neutral: str = "",
    mapping: LakeMapping | None = None,
) -> pa.Array:
    """Return values as those of a lake's type.

    Args:
        values: of a neutral type; of texts if the type no longer holds all of them.
        name: type of the lake's column.
        neutral: neutral type of the values; derived from them if empty.
        mapping: of the column, for choices and for the form of texts; None: every value that does
            not fit raises.

    Raises:
        ValueUnfit: A value does not fit, and the choice is `error`.
    """
    kind = lake_arrow_type(name)
    chosen = mapping.chosen if mapping is not None else _NO_CHOICES
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_large_string(values.type):
        values = values.cast(pa.string())
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), kind)
    if name == "string":
        return _to_text(values, neutral, mapping)
    if pa.types.is_string(values.type) and name != "binary":
        return _within(_from_text(values, name, chosen), chosen)
    if pa.types.is_fixed_size_binary(values.type) or pa.types.is_string(values.type):
        return values.cast(pa.binary())
    if values.type.equals(kind):
        return _within(values, chosen)
    try:
        return _within(cast_exactly(values, kind), chosen)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueUnfit("", len(values), f"{values.type} values do not fit {name}") from error


def parse_value(text: str, name: str, *, mapping: LakeMapping | None = None) -> pa.Scalar:
    r"""Return the value of rows that are older than their column, of a lake's type.

    Args:
        text: As `Column.missing` has it: bytes are hexadecimal, with or without `\x` before them.
        name: Type of the lake's column.
        mapping: As for `convert_values`.

    Raises ValueUnfit.
    """
    if name == "binary":
        try:
            return pa.scalar(bytes.fromhex(text.removeprefix("\\x")), pa.binary())
        except ValueError as error:
            raise ValueUnfit("", 1, "the text is not hexadecimal") from error
    return convert_values(pa.array([text], pa.string()), name, mapping=mapping)[0]


# -- ranges ----------------------------------------------------------------------------------------


def _within(values: pa.Array, chosen: Mapping[str, str]) -> pa.Array:
    """Return dates and times with those outside the years 1 to 9999 treated as chosen."""
    if pa.types.is_date(values.type):
        numbers, low, high = values.view(pa.int32()), _DAY_FIRST, _DAY_LAST
    elif pa.types.is_timestamp(values.type):
        numbers, low, high = values.view(pa.int64()), _US_FIRST, _US_LAST
    else:
        return values
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is None or (bounds["min"] >= low and bounds["max"] <= high):
        return values
    is_outside = pc.or_(pc.less(numbers, low), pc.greater(numbers, high))
    if chosen.get(_DATES, ERROR) != NULL:
        count = pc.sum(is_outside).as_py()
        raise ValueUnfit(_DATES, count, "the year is not between 1 and 9999")
    return pc.if_else(is_outside, pa.scalar(None, values.type), values)


# -- texts -----------------------------------------------------------------------------------------


def _to_text(values: pa.Array, neutral: str, mapping: LakeMapping | None) -> pa.Array:
    """Return the texts that the source prints."""
    kind = values.type
    if pa.types.is_string(kind):
        return values
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width == 16:
        return uuid_texts(values)
    if pa.types.is_integer(kind):
        return values.cast(pa.string())
    fraction = mapping.fraction if mapping is not None else None
    zone = mapping.zone if mapping is not None else ""
    if pa.types.is_time(kind):
        return _time_texts(values, fraction)
    if pa.types.is_timestamp(kind):
        return _timestamp_texts(values, fraction, zone)
    if pa.types.is_binary(kind):
        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise ValueUnfit("", len(values), "the bytes are not text in UTF-8") from error
    texts = exact_texts(values, neutral or _neutral_of(kind))
    if pa.types.is_date(kind) and fraction is not None:
        texts = [None if text is None else _in_mysql(text, 0) for text in texts]
    return pa.array(texts, pa.string())


def _neutral_of(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_decimal(kind):
        return "decimal"
    if pa.types.is_date(kind):
        return "date"
    return "float32" if kind.equals(pa.float32()) else "float64"


def _time_texts(values: pa.Array, fraction: int | None) -> pa.Array:
    bounds = pc.min_max(values.view(pa.int64())).as_py()
    if bounds["min"] is not None and not 0 <= bounds["min"] <= bounds["max"] < _DAY_US:
        numbers = values.view(pa.int64()).to_pylist()
        return pa.array([_long_time_text(one, fraction) for one in numbers], pa.string())
    return _cut_fraction(values.cast(pa.string()), fraction)


def _long_time_text(microseconds: int | None, fraction: int | None) -> str | None:
    """Return MySQL's TIME, which goes from -838 to 838 hours."""
    if microseconds is None:
        return None
    sign = "-" if microseconds < 0 else ""
    text = sign + time_text(abs(microseconds))
    return text if fraction is None else _in_mysql(text, fraction)


def _in_mysql(text: str, fraction: int) -> str:
    """Return a time that PostgreSQL prints as MySQL does, with the column's number of digits."""
    if text.endswith(" BC"):
        text = f"0000{text[4:-3]}"  # the only such year that MySQL has
    whole, _, digits = text.partition(".")
    return f"{whole}.{digits.ljust(fraction, '0')[:fraction]}" if fraction else whole


def _timestamp_texts(values: pa.Array, fraction: int | None, zone: str) -> pa.Array:
    numbers = values.view(pa.int64())
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is not None and not _US_FIRST <= bounds["min"] <= bounds["max"] <= _US_LAST:
        printed = exact_texts(values, "timestamptz" if zone else "timestamp")
        if fraction is not None:
            printed = [None if text is None else _in_mysql(text, fraction) for text in printed]
        return pa.array(printed, pa.string())
    texts = _cut_fraction(numbers.view(pa.timestamp("us")).cast(pa.string()), fraction)
    return pc.binary_join_element_wise(texts, zone, "") if zone else texts


def _cut_fraction(texts: pa.Array, fraction: int | None) -> pa.Array:
    """Return texts with six digits at their end with as many as the source prints."""
    if fraction is not None:
        less = 6 - fraction if fraction else 7
        return pc.utf8_slice_codeunits(texts, 0, -less) if less else texts
    trimmed = pc.utf8_rtrim(texts, "0")
    # Whole seconds keep their own zeros: they end at the point.
    is_whole = pc.ends_with(trimmed, ".")
    return pc.if_else(is_whole, pc.utf8_rtrim(trimmed, "."), trimmed)


# -- values from texts -----------------------------------------------------------------------------


def _from_text(texts: pa.Array, name: str, chosen: Mapping[str, str]) -> pa.Array:
    """Return the values that texts stand for: all at once, or one by one if some do not fit."""
    kind = lake_arrow_type(name)
    # Arrow would take an offset into account in silence.
    if name != "bool" and _OFFSETS not in chosen:
        with contextlib.suppress(pa.ArrowInvalid):
            return cast_exactly(texts, kind)
    read = _READERS[name.partition("(")[0]]
    found: list[Any] = []
    count, first = 0, None
    for text in texts.to_pylist():
        try:
            found.append(None if text is None else read(text, kind, chosen))
        except ValueUnfit as error:
            if error.loss and chosen.get(error.loss, ERROR) == NULL:
                found.append(None)
                continue
            first = first or error
            count += 1
    if first is not None:
        raise ValueUnfit(first.loss, count, str(first))
    return pa.array(found, kind)


def _read_bool(text: str, _kind: pa.DataType, _chosen: Mapping[str, str]) -> bool:
    word = text.lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueUnfit("", 1, "the text is neither true nor false")


def _read_integer(text: str, kind: pa.DataType, _chosen: Mapping[str, str]) -> int:
    try:
        return int(pa.scalar(int(text), kind).as_py())
    except (ValueError, OverflowError, pa.ArrowInvalid) as error:
        raise ValueUnfit("", 1, f"the text is not an {kind}") from error


def _read_float(text: str, kind: pa.DataType, _chosen: Mapping[str, str]) -> float:
    try:
        return float(cast_exactly(pa.array([text]), kind)[0].as_py())
    except pa.ArrowInvalid as error:
        raise ValueUnfit("", 1, "the text is not a number in the type's range") from error


def _read_decimal(text: str, kind: pa.DataType, _chosen: Mapping[str, str]) -> Decimal:
    try:
        is_finite = Decimal(text).is_finite()
    except InvalidOperation:
        is_finite = True  # so that the cast refuses it
    if not is_finite:
        raise ValueUnfit(_NOT_A_NUMBER, 1, "the number is NaN or infinite")
    try:
        found: Decimal = cast_exactly(pa.array([text]), kind)[0].as_py()
    except pa.ArrowInvalid as error:
        raise ValueUnfit("digits", 1, "the number has too many digits") from error
    return found


def _read_date(text: str, _kind: pa.DataType, _chosen: Mapping[str, str]) -> date:
    return _read_temporal(text, _NO_CHOICES).date()


def _read_timestamp(text: str, kind: pa.DataType, chosen: Mapping[str, str]) -> datetime:
    found = _read_temporal(text, chosen)
    return found if kind.tz is None else found.replace(tzinfo=UTC)


def _read_temporal(text: str, chosen: Mapping[str, str]) -> datetime:
    """Return the time that a text means. Raises ValueUnfit with its loss."""
    match = _TEMPORAL_TEXT.match(text)
    if match is None:
        raise ValueUnfit(_DATES, 1, "the value is infinite, or its year is not from 1 to 9999")
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    digits = match[7] or ""
    if digits[6:].strip("0") and chosen.get(_NANOSECONDS, ERROR) != ROUND:
        raise ValueUnfit(_NANOSECONDS, 1, "the time has digits after the microsecond")
    if not month or not day:
        raise ValueUnfit(_ZERO_DATES, 1, "no calendar has this date")
    if not year:
        raise ValueUnfit(_DATES, 1, "the year is not between 1 and 9999")
    try:
        whole = datetime(year, month, day, hour, minute, second)  # noqa: DTZ001 - as in the text
    except ValueError as error:
        raise ValueUnfit(_ZERO_DATES, 1, "no calendar has this date") from error
    nanoseconds = int(digits.ljust(9, "0")[:9]) if digits else 0
    microseconds = (nanoseconds + 500) // 1000
    east = timedelta(0)
    if match[8]:
        east = timedelta(hours=int(match[8] + match[9]), minutes=int(match[8] + match[10]))
    if east and chosen.get(_OFFSETS, ERROR) != UTC_CHOICE:
        raise ValueUnfit(_OFFSETS, 1, "the moment has an offset from UTC")
    return _add(whole, timedelta(microseconds=microseconds) - east)


def _add(whole: datetime, more: timedelta) -> datetime:
    try:
        return whole + more
    except OverflowError as error:
        raise ValueUnfit(_DATES, 1, "the year is not between 1 and 9999") from error


_READERS: dict[str, Callable[[str, pa.DataType, Mapping[str, str]], Any]] = {
    "bool": _read_bool,
    "int32": _read_integer,
    "int64": _read_integer,
    "float32": _read_float,
    "float64": _read_float,
    "decimal": _read_decimal,
    "date": _read_date,
    "timestamp": _read_timestamp,
    "timestamptz": _read_timestamp,
}
