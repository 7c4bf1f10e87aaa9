"""Conditions of values of a generated column that its type refuses in strict mode.

A server in another mode has stored such rows, with cut or rounded values; a target computes them
again in strict mode and refuses them. The conditions are SQL over the expression, so that the
source can look for such rows without writing anything.
"""

from __future__ import annotations

import re

from penstock.engines.mysql.connect import literal
from penstock.model import ColumnDefinition

_TYPE = re.compile(
    r"(?P<name>[a-z]+)\s*(?:\((?P<inside>.*?)\))?(?P<rest>.*)", re.IGNORECASE | re.DOTALL
)
_LABEL = re.compile(r"'((?:[^']|'')*)'")
_INTEGER_BYTES = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "integer": 4, "bigint": 8}
_TEXT_BYTES = {"tiny": 2**8 - 1, "": 2**16 - 1, "medium": 2**24 - 1, "long": 2**32 - 1}
_FLOAT_MAX = "3.4028234663852886e38"
_TEMPORALS = frozenset({"date", "datetime", "timestamp", "time"})


def strict_refusal(column: ColumnDefinition) -> str:
    """Return the condition of rows whose value the column's type refuses; empty if there is none.

    column: its `default` is the expression.
    """
    value = f"({column.default})"
    conditions = [_of_type(column, value)]
    if column.not_null:
        conditions.append(f"{value} is null")
    return " or ".join(f"({one})" for one in conditions if one)


def convert_sql(column: ColumnDefinition) -> str:
    """Return the expression as the column's type; the server warns of values that do not fit."""
    found = _TYPE.match(column.type_text)
    name = found["name"].lower() if found is not None else ""
    if name not in _TEMPORALS:
        return f"({column.default})"
    inside = f"({found['inside']})" if found is not None and found["inside"] else ""
    as_type = "datetime" if name == "timestamp" else name
    return f"cast(({column.default}) as {as_type}{inside})"


def _of_type(column: ColumnDefinition, value: str) -> str:
    found = _TYPE.match(column.type_text)
    if found is None:
        return ""
    name, inside, rest = found["name"].lower(), found["inside"] or "", found["rest"].lower()
    is_unsigned = "unsigned" in rest or "zerofill" in rest
    if name in _INTEGER_BYTES:
        return _outside(f"round({value})", 8 * _INTEGER_BYTES[name], is_unsigned=is_unsigned)
    if name == "bit":
        return _outside(value, int(inside or 1), is_unsigned=True)
    if name in ("decimal", "numeric", "dec", "fixed"):
        return _beyond_digits(value, inside, is_unsigned=is_unsigned)
    if name in ("float", "double", "real"):
        below = f"{value} < 0" if is_unsigned else ""
        beyond = f"abs({value}) > {_FLOAT_MAX}" if name == "float" else ""
        return " or ".join(one for one in (below, beyond) if one)
    if name == "year":
        return (
            f"{value} <> 0 and {value} not between 1901 and 2155 and {value} not between 1 and 99"
        )
    if name in ("char", "varchar"):
        return f"char_length(trim(trailing ' ' from {value})) > {int(inside or 1)}"
    if name in ("binary", "varbinary"):
        return f"length({value}) > {int(inside or 1)}"
    if name.endswith(("text", "blob")):
        size = _TEXT_BYTES.get(name.removesuffix("text").removesuffix("blob"))
        return f"length({value}) > {size}" if size is not None else ""
    if name == "enum":
        labels = [one.replace("''", "'") for one in _LABEL.findall(inside)]
        listed = ", ".join(literal(one) for one in labels)
        return f"{value} not in ({listed}) and cast({value} as char) not regexp '^[1-9][0-9]*$'"
    return f"not json_valid({value})" if name == "json" else ""


def _outside(value: str, bits: int, *, is_unsigned: bool) -> str:
    low = 0 if is_unsigned else -(2 ** (bits - 1))
    high = 2**bits - 1 if is_unsigned else 2 ** (bits - 1) - 1
    return f"{value} < {low} or {value} > {high}"


def _beyond_digits(value: str, inside: str, *, is_unsigned: bool) -> str:
    precision, _, scale = (inside or "10").partition(",")
    digits, places = int(precision), int(scale or 0)
    limit = f"1{'0' * (digits - places)}"
    below = f" or {value} < 0" if is_unsigned else ""
    return f"abs(round({value}, {places})) >= {limit}{below}"
