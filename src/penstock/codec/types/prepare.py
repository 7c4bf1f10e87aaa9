"""Change or check values in our own process if the target cannot accept them otherwise."""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.types.lake_values import convert_values
from penstock.codec.types.mapping import NULL, PREPARE_SEPARATOR, ROUND, ZERO
from penstock.codec.types.oracle_held import (
    BYTES_OF_DIGITS,
    DIGITS,
    DIGITS_MAX,
    EMPTY,
    INTERVAL_TEXTS,
    MOMENT_TEXTS,
)
from penstock.codec.types.to_lake import LakeMapping
from penstock.codec.types.to_postgres import REMOVE_NUL
from penstock.codec.types.to_sqlserver import (
    AS_MYSQL_PRINTS,
    AS_SOURCE_PRINTS,
    DATES,
    NANOSECONDS,
    NOT_A_NUMBER,
    SUBNORMAL,
    SUBNORMAL_REAL,
    ZERO_DATES,
)
from penstock.model import PenstockError

_NUL = "\0"
_DAY_FIRST, _DAY_LAST = -719_162, 2_932_896  # 0001-01-01, 9999-12-31
_DAY_US = 86_400_000_000
_US_FIRST, _US_LAST = _DAY_FIRST * _DAY_US, (_DAY_LAST + 1) * _DAY_US - 1
_DATE = r"^\d{4}-\d\d-\d\d"
_IN_RANGE = r"^(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d\d\d)-\d\d-\d\d(?:[^C]*[^C])?$"
_TIME_IN_RANGE = r"^(?:[01]\d|2[0-3]):"
_NO_DAY = r"^\d{4}-(?:00-\d\d|\d\d-00|02-3[01]|(?:04|06|09|11)-31)"
_LEAP_DAY = r"^\d{4}-02-29"
_FINER = r"[.]\d{6}\d*[1-9]"
_FLOAT_MIN = 2.2250738585072014e-308
_REAL_MIN = 1.1754943508222875e-38


class ValueRefused(PenstockError):
    """Values do not exist in the target's type, and [target.types] says to stop there.

    fields: loss: as in [target.types]; count: of such values in the batch.
    """

    code = "CT73"
    retry = "operator"


def prepare_values(values: pa.Array, what: str) -> pa.Array:
    """Return a column's values as they are sent. what: `Write.prepare`, empty for no change.

    Raises KeyError, and ValueRefused for a value that the target's type does not have.
    """
    for one in what.split(PREPARE_SEPARATOR) if what else ():
        name, _, choice = one.partition("=")
        values = _CHANGES[name](values, choice)
    return values


def _without_nul(values: pa.Array, _: str) -> pa.Array:
    return pc.replace_substring(values, _NUL, "")


def _decide(values: pa.Array, is_unfit: Any, loss: str, choice: str, instead: Any = None) -> Any:
    """Return values in which unfit ones are replaced, or raise ValueRefused."""
    is_unfit = pc.fill_null(is_unfit, False)
    count = pc.sum(is_unfit).as_py() or 0
    if not count:
        return values
    if choice in (NULL, ZERO):
        return pc.if_else(is_unfit, pa.scalar(instead, values.type), values)
    raise ValueRefused(
        f"the target's type does not hold {count} of the values: {loss}",
        hint=f'Choose what to do with them in [target.types], for example "{loss}" = "null" or '
        '"text" (docs/types.md), or change them in the source.',
        loss=loss,
        count=count,
    )


def _is_text(values: Any) -> bool:
    return bool(pa.types.is_string(values.type) or pa.types.is_large_string(values.type))


def _finite(values: Any, choice: str) -> Any:
    if _is_text(values):
        is_unfit = pc.match_substring_regex(values, "(?i)^[-+]?(?:nan|inf)")
    elif pa.types.is_floating(values.type):
        is_unfit = pc.invert(pc.is_finite(values))
    else:
        return values
    return _decide(values, is_unfit, "not a number", choice)


def _normal(least: float) -> Callable[[Any, str], Any]:
    def change(values: Any, choice: str) -> Any:
        if not pa.types.is_floating(values.type):
            return values
        size = pc.abs(values)
        bound = pa.scalar(np.float32(least) if values.type == pa.float32() else least, values.type)
        is_unfit = pc.and_(pc.less(size, bound), pc.not_equal(values, pa.scalar(0.0, values.type)))
        return _decide(values, is_unfit, "subnormal numbers", choice, 0.0)

    return change


def _dates(values: Any, choice: str) -> Any:
    """Check the years 1 to 9999, and times of day."""
    if pa.types.is_date(values.type):
        numbers, low, high = values.view(pa.int32()), _DAY_FIRST, _DAY_LAST
    elif pa.types.is_timestamp(values.type):
        numbers, low, high = values.view(pa.int64()), _US_FIRST, _US_LAST
    elif pa.types.is_time(values.type):
        numbers, low, high = values.view(pa.int64()), 0, _DAY_US - 1
    else:
        return _decide(values, _is_outside(values), "dates out of range", choice)
    is_unfit = pc.or_(pc.less(numbers, low), pc.greater(numbers, high))
    return _decide(values, is_unfit, "dates out of range", choice)


def _is_outside(texts: Any) -> Any:
    is_within = pc.if_else(
        pc.match_substring_regex(texts, r"^\d\d:"),
        pc.match_substring_regex(texts, _TIME_IN_RANGE),
        pc.match_substring_regex(texts, _IN_RANGE),
    )
    return pc.invert(is_within)


def _zero_dates(values: Any, choice: str) -> Any:
    """Check for days that no calendar has; only texts can be such."""
    if not _is_text(values):
        return values
    is_unfit = pc.match_substring_regex(values, _NO_DAY)
    if pc.any(is_leap := pc.match_substring_regex(values, _LEAP_DAY)).as_py():
        years = pc.cast(pc.utf8_slice_codeunits(pc.fill_null(values, "2000"), 0, 4), pa.int32())
        number = np.asarray(years)
        has_day = (number % 4 == 0) & ((number % 100 != 0) | (number % 400 == 0))
        is_unfit = pc.or_(is_unfit, pc.and_(is_leap, pa.array(~has_day)))
    return _decide(values, is_unfit, "zero dates", choice)


def _micros(values: Any, choice: str) -> Any:
    """Check for digits after the microsecond; only texts have them."""
    if not _is_text(values) or choice == ROUND:
        return values  # the server rounds
    return _decide(values, pc.match_substring_regex(values, _FINER), "nanoseconds", choice)


def _as_source_prints(values: Any, zone: str) -> Any:
    return convert_values(values, "string", mapping=LakeMapping(type="string", zone=zone))


def _as_mysql_prints(values: Any, fraction: str) -> Any:
    return convert_values(
        values, "string", mapping=LakeMapping(type="string", fraction=int(fraction))
    )


# -- Oracle ----------------------------------------------------------------------------------------

_WHOLE_DIGITS_MAX = 125  # in front of the point
_TINY = r"^0*\.0{129}"  # less than 1e-130 is 0
_NUMBER = Context(prec=DIGITS_MAX, rounding=ROUND_HALF_UP)


def _not_empty(values: Any, choice: str) -> Any:
    """Check for texts and bytes of length 0, which Oracle takes for NULL."""
    return _decide(values, pc.equal(pc.binary_length(values), 0), "empty values", choice)


def _digits(values: Any, choice: str) -> Any:
    """Check numbers, given as texts, for more digits or another size than a NUMBER has."""
    plain = pc.utf8_ltrim(values, "+-")
    is_number = pc.match_substring_regex(plain, r"^[0-9.]+$")
    digits = pc.utf8_trim(pc.replace_substring(plain, ".", ""), "0")
    whole = pc.utf8_ltrim(pc.replace_substring_regex(plain, r"\..*$", ""), "0")
    is_large = pc.greater(pc.utf8_length(whole), _WHOLE_DIGITS_MAX)
    is_long = pc.greater(pc.utf8_length(digits), DIGITS_MAX)
    is_tiny = pc.and_(pc.match_substring_regex(plain, _TINY), pc.not_equal(digits, ""))
    is_unfit = pc.and_(is_number, pc.or_(is_long, is_tiny))
    if choice != ROUND:
        return _decide(values, pc.or_(is_unfit, pc.and_(is_number, is_large)), "digits", choice)
    _decide(values, pc.and_(is_number, is_large), "digits", choice)
    if not pc.any(is_unfit).as_py():
        return values
    chosen = pc.fill_null(is_unfit, False).to_pylist()
    rounded = (
        _round(one) if unfit else one for one, unfit in zip(values.to_pylist(), chosen, strict=True)
    )
    return pa.array(rounded, values.type)


def _round(text: str) -> str:
    number = _NUMBER.create_decimal(Decimal(text))
    return "0" if number.adjusted() < -130 else f"{number:f}"


def _moment_texts(texts: Any, _: str) -> Any:
    """Return moments as `-0044-03-15 01:30:00.5 +05:30`: with a fraction, a blank and a sign."""
    is_before = pc.match_substring_regex(texts, " BC$")
    texts = pc.replace_substring_regex(texts, " BC$", "")
    texts = pc.replace_substring_regex(texts, r"(:\d\d:\d\d)([^.\d]|$)", r"\1.0\2")
    texts = pc.replace_substring_regex(texts, r"(\.\d+) ?([+-]\d\d)$", r"\1 \2:00")
    texts = pc.replace_substring_regex(texts, r"(\.\d+) ?([+-]\d\d:\d\d)(?::\d\d)?$", r"\1 \2")
    return pc.if_else(is_before, pc.binary_join_element_wise("-", texts, ""), texts)


def _interval_texts(texts: Any, _: str) -> Any:
    """Return intervals with one sign in front, `-P12Y3M`, in place of one for each part."""
    unsigned = pc.replace_substring(texts, "-", "")
    is_negative = pc.match_substring(texts, "-")
    return pc.if_else(is_negative, pc.binary_join_element_wise("-", unsigned, ""), unsigned)


def _bytes_of_digits(texts: Any, _: str) -> Any:
    """Return the bytes of hexadecimal digits."""
    raw = [None if one is None else bytes.fromhex(one) for one in texts.to_pylist()]
    return pa.array(raw, pa.binary())


_CHANGES: dict[str, Callable[[Any, str], Any]] = {
    REMOVE_NUL: _without_nul,
    NOT_A_NUMBER: _finite,
    SUBNORMAL: _normal(_FLOAT_MIN),
    SUBNORMAL_REAL: _normal(_REAL_MIN),
    DATES: _dates,
    ZERO_DATES: _zero_dates,
    NANOSECONDS: _micros,
    AS_SOURCE_PRINTS: _as_source_prints,
    AS_MYSQL_PRINTS: _as_mysql_prints,
    EMPTY: _not_empty,
    DIGITS: _digits,
    MOMENT_TEXTS: _moment_texts,
    INTERVAL_TEXTS: _interval_texts,
    BYTES_OF_DIGITS: _bytes_of_digits,
}
