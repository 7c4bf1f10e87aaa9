r"""Convert columns of the log to JSON values as a CockroachDB changefeed writes them. Pure.

Numbers are bare, with their scale; text, dates, times and what has no JSON type are strings; bytes
are `\x` and hexadecimal digits; arrays are arrays; JSON is itself. Not here: the inverse
(`engines/feeds/values.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from penstock.codec.columns import bits
from penstock.codec.exact_text import exact_texts
from penstock.model import Column

JSON_TYPES = ("json", "jsonb")
_NUMBERS = ("int16", "int32", "int64", "uint32", "uint64", "float32", "float64")
_NUMERIC = re.compile(
    r"(numeric|decimal|(small|big|tiny|medium)?int(eger|[248])?"
    r"|real|double( precision)?|float[48]?)\b",
    re.IGNORECASE,
)
_FINITE = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?\Z")
_BIT = re.compile(r"bit\((\d+)\)\Z", re.IGNORECASE)
_BOUNDS = re.compile(r"(\[[-+]?\d+:[-+]?\d+\])+=")
_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^{},"]+)')
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def json_values(values: Any, column: Column) -> list[Any]:
    """Return one value per row that `msgspec.json` encodes; None for NULL."""
    neutral, base = column.neutral, column.base_type or column.source_type
    if neutral == "bool":
        found: list[Any] = values.to_pylist()
        return found
    if neutral == "binary":
        return [None if one is None else "\\x" + one.hex() for one in values.to_pylist()]
    bit = _BIT.match(base)
    if bit is not None and neutral != "string":
        width = int(bit[1])
        return [None if one is None else f"{int(one):0{width}b}" for one in values.to_pylist()]
    texts = exact_texts(values, neutral)
    if neutral in _NUMBERS or neutral.startswith("decimal"):
        return [None if one is None else _number(one) for one in texts]
    if neutral in ("timestamp", "timestamptz"):
        return [None if one is None else _moment(one) for one in texts]
    if neutral != "string":
        return list(texts)
    return _texts(texts, base)


def json_images(
    images: Any, columns: Sequence[Column], absent: Any | None
) -> list[dict[str, Any] | None]:
    """Return each row's image as values by column; None if there is none.

    Args:
        images: a struct array with these columns.
        columns: of the images.
        absent: bits of the columns that were not sent, by row; they are left out.
    """
    names = [column.name for column in columns]
    fields = [
        json_values(values, column)
        for values, column in zip(images.flatten(), columns, strict=True)
    ]
    rows = zip(*fields, strict=True) if fields else iter([()] * len(images))
    found: list[dict[str, Any] | None] = [dict(zip(names, row, strict=True)) for row in rows]
    if images.null_count:
        for at in np.flatnonzero(~np.asarray(images.is_valid())).tolist():
            found[at] = None
    if absent is not None and absent.null_count < len(absent):
        for row, mask in zip(found, absent.to_pylist(), strict=True):
            if row is not None and mask is not None:
                for place in bits(mask):
                    row.pop(names[place], None)
    return found


def _texts(texts: list[str | None], base: str) -> list[Any]:
    """Return the values of a column without a neutral type, or of text."""
    if base in JSON_TYPES:
        return [None if one is None else msgspec.Raw(one.encode()) for one in texts]
    if base.endswith("[]"):
        is_number = _NUMERIC.match(base) is not None
        is_bool = base.startswith("bool")
        return [
            None if one is None else _array(one, is_number=is_number, is_bool=is_bool)
            for one in texts
        ]
    if _NUMERIC.match(base):
        return [None if one is None else _number(one) for one in texts]
    return list(texts)


def _moment(text: str) -> str:
    """Return a timestamp, with Z if it has the zone UTC."""
    return text.replace(" ", "T", 1).replace("+00", "Z")


def _number(text: str) -> Any:
    """Return bare digits; NaN and Infinity, which JSON's numbers lack, as strings."""
    return msgspec.Raw(text.encode()) if _FINITE.match(text) else text


def _array(text: str, *, is_number: bool, is_bool: bool) -> Any:
    """Return the lists of an array's text, `{1,NULL,"a b"}`; other text unchanged."""
    bounds = _BOUNDS.match(text)
    at = bounds.end() if bounds else 0
    root: list[Any] = []
    open_lists = [root]
    while at < len(text):
        if text[at] == "{":
            new: list[Any] = []
            open_lists[-1].append(new)
            open_lists.append(new)
        elif text[at] == "}" and len(open_lists) > 1:
            open_lists.pop()
        elif text[at] != ",":
            element = _ELEMENT.match(text, at)
            if element is None:
                return text
            open_lists[-1].append(_element(element, is_number=is_number, is_bool=is_bool))
            at = element.end()
            continue
        at += 1
    is_whole = len(open_lists) == 1 and len(root) == 1 and isinstance(root[0], list)
    return root[0] if is_whole else text


def _element(found: re.Match[str], *, is_number: bool, is_bool: bool) -> Any:
    quoted, plain = found[1], found[2]
    if quoted is not None:
        return _ESCAPE.sub(r"\1", quoted)
    if plain == "NULL":
        return None
    if is_bool:
        return plain == "t"
    return _number(plain) if is_number else plain
