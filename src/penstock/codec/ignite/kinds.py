"""Types of columns by their names in Ignite's SQL, and which type holds another's values.

A cache has no types. They are derived from what its objects declare, what its table declares, and
from its values. Not here: the types of targets (`codec/types/from_ignite.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from functools import reduce
from typing import Any

from penstock.codec.columns import DECIMAL_PRECISION_MAX
from penstock.codec.ignite.values import (
    UUID,
    BinaryObject,
    Class,
    Date,
    Enum,
    JavaList,
    JavaMap,
    Opaque,
    SqlDate,
    Time,
    Timestamp,
)

INTEGERS = ("tinyint", "smallint", "int", "bigint")
NEUTRAL = {
    "boolean": "bool",
    "tinyint": "int16",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "real": "float32",
    "double": "float64",
    "decimal": "string",
    "varchar": "string",
    "uuid": "uuid",
    "binary": "binary",
    "date": "date",
    "time": "time",
    "timestamp": "timestamptz",
    "enum": "string",
    "object": "string",
    "other": "binary",
}
"""How the log keeps a type's values; a decimal with digits is kept as such."""
OF_VALUES: dict[type, str] = {
    bool: "boolean",
    int: "bigint",
    float: "double",
    str: "varchar",
    bytes: "binary",
    UUID: "uuid",
    Decimal: "decimal",
    SqlDate: "date",
    Date: "timestamp",
    Timestamp: "timestamp",
    Time: "time",
    Enum: "enum",
    Class: "varchar",
    Opaque: "other",
    list: "object",
    JavaList: "object",
    JavaMap: "object",
    BinaryObject: "object",
}
OF_FIELDS = {
    "byte": "tinyint", "short": "smallint", "int": "int", "long": "bigint", "float": "real",
    "double": "double", "char": "varchar", "boolean": "boolean", "String": "varchar",
    "UUID": "uuid", "Date": "timestamp", "byte[]": "binary", "decimal": "decimal",
    "Timestamp": "timestamp", "Time": "time", "Enum": "enum", "Class": "varchar",
}  # fmt: skip
"""By what binary_meta says of a field; what is not here and named there is an `object`."""
OF_CLASSES = {
    "java.lang.Byte": "tinyint", "java.lang.Short": "smallint", "java.lang.Integer": "int",
    "java.lang.Long": "bigint", "java.lang.Float": "real", "java.lang.Double": "double",
    "java.lang.Character": "varchar", "java.lang.Boolean": "boolean",
    "java.lang.String": "varchar", "java.util.UUID": "uuid", "java.math.BigDecimal": "decimal",
    "java.sql.Date": "date", "java.sql.Time": "time", "java.sql.Timestamp": "timestamp",
    "java.util.Date": "timestamp", "[B": "binary",
}  # fmt: skip
"""By the class that a table declares for a column."""
LENGTH_MAX = 10_485_760  # of a text with a length, in PostgreSQL
OF_CODES = {
    1: "tinyint", 2: "smallint", 3: "int", 4: "bigint", 5: "real", 6: "double", 8: "boolean",
    9: "varchar", 10: "uuid", 11: "timestamp", 12: "binary", 30: "decimal", 33: "timestamp",
    36: "time",
}  # fmt: skip
"""By the first byte of a marshalled value; others can be of several types."""
_CODES = {1: "tinyint", 2: "smallint", 3: "int", 4: "bigint", 5: "real"}
_SIZED = re.compile(r"(\w+)\((\d+)(?:,(\d+))?\)\Z")


def neutral_of(kind: str) -> str:
    """Return the neutral type of a type. Raises KeyError for an unknown one."""
    base, precision, scale = parts_of(kind)
    if base == "decimal" and 0 < precision <= DECIMAL_PRECISION_MAX and scale <= precision:
        return f"decimal({precision},{scale})"
    return NEUTRAL[base]


def parts_of(kind: str) -> tuple[str, int, int]:
    """Return a type's name and its two numbers, 0 if it has none."""
    match = _SIZED.match(kind)
    if match is None:
        return kind, 0, 0
    return match[1], int(match[2]), int(match[3] or 0)


def find_declared(java_class: str, precision: int = -1, scale: int = -1) -> str | None:
    """Return the declared type of a table's column; None if only the values show it.

    `precision` and `scale` are -1 if they are not declared.
    """
    kind = OF_CLASSES.get(java_class)
    if kind == "decimal" and 0 < precision <= DECIMAL_PRECISION_MAX and -1 < scale <= precision:
        return f"decimal({precision},{scale})"
    if kind == "varchar" and 0 < precision <= LENGTH_MAX and java_class == "java.lang.String":
        return f"varchar({precision})"
    return kind


def of_field(shown: str | None) -> str | None:
    """Return the type of a field from binary_meta; None if only the values show it."""
    if shown in (None, "Object"):  # a SQL DATE is such a field, too
        return None
    return OF_FIELDS.get(shown, "object")


def of_scalar(value: Any, marshalled: bytes) -> str:
    """Return the type of a single value. marshalled: its bytes, which show the width of
    a number.
    """
    kind = OF_VALUES[type(value)]
    if kind in ("bigint", "double"):
        return _CODES.get(marshalled[0], kind)
    return kind


def holder(kinds: Iterable[str]) -> str:
    """Return the smallest type that holds the values of all of these."""
    return reduce(_holder, kinds)


def _holder(first: str, second: str) -> str:
    if first == second:
        return first
    one, other = parts_of(first)[0], parts_of(second)[0]
    both = {one, other}
    if one == other:
        return one
    if both <= set(INTEGERS):
        return max(both, key=INTEGERS.index)
    if both <= {*INTEGERS, "decimal"}:
        return "decimal"
    if both <= {"tinyint", "smallint", "int", "real", "double"}:
        return "double"
    if both == {"date", "timestamp"}:
        return "timestamp"
    return "object" if both & {"object", "other"} else "varchar"


def holds(wide: str, narrow: str) -> bool:
    """Return whether a type holds every value of another one."""
    if wide == narrow:
        return True
    (first, *size), (second, *inner) = parts_of(wide), parts_of(narrow)
    if first == second:
        if not size[0] or not inner[0]:
            return not size[0]
        return size[1] >= inner[1] and size[0] - size[1] >= inner[0] - inner[1]
    return not size[0] and _holder(first, second) == first
