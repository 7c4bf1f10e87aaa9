"""JSON values of one column, as a changefeed writes them, converted to the log's Arrow types. Pure.

Input: the raw JSON text of each row's value, `null` for none. Output: an array of the column's
neutral type. Columns are decoded whole: their values are joined to one JSON array, which is read as
a list of one type; only if that fails is each value decoded separately. A value that the neutral
type cannot hold raises NotNeutral: then the column is kept as text, which the target reads as its
own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from penstock.codec.columns import arrow_type, cast_exactly
from penstock.model import Column

Raws = Sequence[Any]
NULL = b"null"
JSON_TYPES = ("json", "jsonb")
DIMENSIONS_MAX = 6  # of arrays, as in PostgreSQL
ZEROS_MAX = 1_000  # zeros that a number's exponent may stand for, as text
INTEGER_DIGITS_MAX = 40  # more than any neutral type has


class NotNeutral(Exception):
    """A value does not fit the neutral type of its column. args: place, text."""


def column_of(column: Column, raws: Raws) -> pa.Array:
    """Return the values of a column. Raises NotNeutral with the first one that does not fit."""
    kind = column.neutral
    if kind.startswith("decimal"):
        return _cast(column, _numerals(raws), raws)
    return _READERS.get(kind, _integers)(column, raws)


def _decode_all(raws: Raws, kind: Any) -> list[Any]:
    return msgspec.json.decode(b"[" + b",".join(raws) + b"]", type=kind)  # type: ignore[no-any-return]


def _each(raws: Raws, read: Callable[[Any], Any]) -> list[Any]:
    """Convert each value: numbers by Decimal, the others as in JSON."""
    found = []
    for place, raw in enumerate(raws):
        value = plain(raw)
        try:
            found.append(None if value is None else read(value))
        except (ValueError, TypeError, ArithmeticError) as error:
            raise NotNeutral(place, bytes(raw).decode()) from error
    return found


def plain(raw: Any) -> Any:
    """Return a value as None, bool, str or Decimal; an object or array as its own text in bytes."""
    text = bytes(raw)
    if text[:1] in b"{[":
        return text
    if text[:1] in b'"nt' or text == b"false":
        return msgspec.json.decode(text)
    return Decimal(text.decode())


def _array(column: Column, values: list[Any], raws: Raws) -> pa.Array:
    kind = arrow_type(column.neutral)
    first = pa.float64() if pa.types.is_floating(kind) else kind
    try:
        return cast_exactly(pa.array(values, first), kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        for place, value in enumerate(values):
            try:
                cast_exactly(pa.array([value], first), kind)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                raise NotNeutral(place, bytes(raws[place]).decode()) from error
        raise


def _cast(column: Column, texts: list[str | None], raws: Raws) -> pa.Array:
    kind = arrow_type(column.neutral)
    try:
        return cast_exactly(pa.array(texts, pa.string()), kind)
    except pa.ArrowInvalid:
        for place, text in enumerate(texts):
            try:
                cast_exactly(pa.array([text], pa.string()), kind)
            except pa.ArrowInvalid as error:
                raise NotNeutral(place, bytes(raws[place]).decode()) from error
        raise


# --- by neutral type ------------------------------------------------------------------------------


def _integers(column: Column, raws: Raws) -> pa.Array:
    try:
        values = _decode_all(raws, list[int | None])
    except msgspec.ValidationError:
        is_bits = column.base_type.startswith("bit")
        values = _each(raws, lambda value: _integer(value, is_bits=is_bits))
    return _array(column, values, raws)


def _integer(value: Any, *, is_bits: bool) -> int:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        return int(value, 2 if is_bits else 10)
    if isinstance(value, bytes) or not value.is_finite() or value.adjusted() > INTEGER_DIGITS_MAX:
        raise ValueError(value)
    if value != value.to_integral_value():
        raise ValueError(value)
    return int(value)


def _floats(column: Column, raws: Raws) -> pa.Array:
    try:
        values = _decode_all(raws, list[float | None])
        is_exact = 0.0 not in values  # a number too small for a float is read as 0
    except msgspec.ValidationError:
        is_exact = False
    if not is_exact:
        values = _each(raws, _float)
    return _array(column, values, raws)


def _float(value: Any) -> float:
    if isinstance(value, bytes):
        raise ValueError(value)
    number = Decimal(value)  # a text is accepted, too: NaN, Infinity
    found = float(number)
    if number.is_finite() and (math.isinf(found) or (found == 0 != number)):
        raise ValueError(value)
    return found


def _bools(column: Column, raws: Raws) -> pa.Array:
    try:
        values = _decode_all(raws, list[bool | None])
    except msgspec.ValidationError:
        values = _each(raws, _bool)
    return _array(column, values, raws)


def _bool(value: Any) -> bool:
    if isinstance(value, Decimal) and value in (0, 1):
        return bool(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in ("0", "1"):
        return value == "1"
    raise ValueError(value)


def _strings(raws: Raws) -> list[str | None]:
    try:
        return _decode_all(raws, list[str | None])
    except msgspec.ValidationError:
        return [None if raw == NULL else _text(plain(raw)) for raw in map(bytes, raws)]


def _text(value: Any) -> str:
    """Return the text for a text column: strings unchanged, numbers in plain digits."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    return plain_digits(value) if isinstance(value, Decimal) else str(value)


def plain_digits(value: Decimal) -> str:
    """Return a number without an exponent, with its scale.

    A very large or small number keeps its exponent, which the target reads too: so a few bytes of
    JSON never become a text of any length.
    """
    exponent = value.as_tuple().exponent
    if isinstance(exponent, int) and abs(exponent) > ZEROS_MAX:
        return str(value)
    return f"{value:f}"


def _numerals(raws: Raws) -> list[str | None]:
    whole = b",".join(raws)
    if not (b'"' in whole or b"e" in whole or b"E" in whole):
        texts = whole.decode().split(",")
        if len(texts) == len(raws):  # no array or object has a comma inside
            return [None if text == "null" else text for text in texts]
    found: list[str | None] = []
    for raw in raws:
        text = bytes(raw)
        if text == NULL:
            found.append(None)
        elif text[:1] == b'"' or b"e" in text or b"E" in text:
            found.append(_text(plain(text)))
        else:
            found.append(text.decode())
    return found


def _dates(column: Column, raws: Raws) -> pa.Array:
    texts = _strings(raws)
    return _cast(column, [text if text is None else text.partition("T")[0] for text in texts], raws)


def _times(_column: Column, raws: Raws) -> pa.Array:
    texts = _strings(raws)
    dated = [None if text is None else f"1970-01-01T{text}" for text in texts]
    try:
        return pa.array(dated, pa.string()).cast(pa.timestamp("us")).cast(pa.time64("us"))
    except pa.ArrowInvalid:
        for place, text in enumerate(dated):
            try:
                pa.array([text], pa.string()).cast(pa.timestamp("us"))
            except pa.ArrowInvalid as error:
                raise NotNeutral(place, bytes(raws[place]).decode()) from error
        raise


def _timestamps(column: Column, raws: Raws) -> pa.Array:
    texts = _strings(raws)
    ends = {text[-1:] == "Z" for text in texts if text is not None}
    wants_zone = column.neutral == "timestamptz"
    if ends != {wants_zone}:
        texts = [None if text is None else _set_zone(text, wants_zone) for text in texts]
    return _cast(column, texts, raws)


def _set_zone(text: str, wants_zone: bool) -> str:
    """Return the text with Z or without it: times without a zone are UTC."""
    return text.removesuffix("Z") + ("Z" if wants_zone else "")


def _uuids(column: Column, raws: Raws) -> pa.Array:
    return _array(column, _each(raws, _uuid), raws)


def _uuid(value: Any) -> bytes:
    if not isinstance(value, str):
        raise ValueError(value)
    return bytes.fromhex(value.replace("-", ""))


def _binaries(column: Column, raws: Raws) -> pa.Array:
    return _array(column, [_bytes(text) for text in _strings(raws)], raws)


def _bytes(text: str | None) -> bytes | None:
    if text is None:
        return None
    if text.startswith("\\x"):
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            pass
    return text.encode()


def _texts(column: Column, raws: Raws) -> pa.Array:
    if column.base_type in JSON_TYPES or column.source_type in JSON_TYPES:
        values = [None if raw == NULL else raw.decode() for raw in map(bytes, raws)]
        return pa.array(values, pa.string())
    if column.source_type.endswith("[]") or column.base_type.endswith("[]"):
        return pa.array(_each(raws, _array_text), pa.string())
    try:
        texts = _decode_all(raws, list[str | None])
    except msgspec.ValidationError:
        texts = _numerals(raws)
    return pa.array(texts, pa.string())


def _array_text(value: Any, dimensions: int = DIMENSIONS_MAX) -> str:
    """Return an array in PostgreSQL's syntax, including nested arrays."""
    if not dimensions:
        raise ValueError(value)
    return _elements(msgspec.json.decode(value, type=list[msgspec.Raw]), dimensions)


def _elements(raws: list[Any], dimensions: int) -> str:
    shown = []
    for raw in raws:
        value = plain(raw)
        if value is None:
            shown.append("NULL")
        elif isinstance(value, bytes) and value[:1] == b"[":
            shown.append(_array_text(value, dimensions - 1))
        elif isinstance(value, Decimal | bool):
            shown.append(_text(value))
        else:
            text = _text(value).replace("\\", "\\\\").replace('"', '\\"')
            shown.append(f'"{text}"')
    return "{" + ",".join(shown) + "}"


_READERS: dict[str, Callable[[Column, Raws], pa.Array]] = {
    "bool": _bools,
    "float32": _floats,
    "float64": _floats,
    "date": _dates,
    "time": _times,
    "timestamp": _timestamps,
    "timestamptz": _timestamps,
    "uuid": _uuids,
    "binary": _binaries,
    "string": _texts,
}
