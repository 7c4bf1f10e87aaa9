"""Column types of MySQL and MariaDB: in the binlog, as texts, and as neutral types.

A `WireColumn` is a TABLE_MAP event's description of a column.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from penstock.codec.columns import DECIMAL_PRECISION_MAX
from penstock.codec.mysql.charsets import BINARY_COLLATION, charset_of, widest_bytes


class TypeCode(IntEnum):
    """Column types in TABLE_MAP events, with ENUM and SET separated from STRING."""

    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    OLD_TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    OLD_TIME = 11
    OLD_DATETIME = 12
    YEAR = 13
    VARCHAR = 15
    BIT = 16
    TIMESTAMP = 17
    DATETIME = 18
    TIME = 19
    BLOB_COMPRESSED = 140
    VARCHAR_COMPRESSED = 141
    VECTOR = 242
    JSON = 245
    DECIMAL = 246
    ENUM = 247
    SET = 248
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


INTEGERS = {
    TypeCode.TINY: ("tinyint", 1),
    TypeCode.SHORT: ("smallint", 2),
    TypeCode.INT24: ("mediumint", 3),
    TypeCode.LONG: ("int", 4),
    TypeCode.LONGLONG: ("bigint", 8),
}
# In the order of the bits that TABLE_MAP spends on signedness; YEAR has one too.
NUMERIC = frozenset((*INTEGERS, TypeCode.FLOAT, TypeCode.DOUBLE, TypeCode.DECIMAL, TypeCode.YEAR))
CHARACTER = frozenset(
    (
        TypeCode.STRING,
        TypeCode.VAR_STRING,
        TypeCode.VARCHAR,
        TypeCode.BLOB,
        TypeCode.BLOB_COMPRESSED,
        TypeCode.VARCHAR_COMPRESSED,
    )
)
_BLOBS = {1: "tiny", 2: "", 3: "medium", 4: "long"}
_GEOMETRIES = (
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring",
    "multipolygon", "geometrycollection",
)  # fmt: skip
_TEMPORALS = {
    TypeCode.TIME: "time",
    TypeCode.DATETIME: "datetime",
    TypeCode.TIMESTAMP: "timestamp",
}
OLD_TEMPORALS = {
    TypeCode.OLD_TIME: "time",
    TypeCode.OLD_DATETIME: "datetime",
    TypeCode.OLD_TIMESTAMP: "timestamp",
}
_INTEGER_NEUTRALS = {
    ("tinyint", False): "int16",
    ("tinyint", True): "int16",
    ("smallint", False): "int16",
    ("smallint", True): "int32",
    ("mediumint", False): "int32",
    ("mediumint", True): "int32",
    ("int", False): "int32",
    ("int", True): "uint32",
    ("bigint", False): "int64",
    ("bigint", True): "uint64",
}
_NEUTRALS = {
    "float": "float32",
    "double": "float64",
    "bit": "uint64",
    "year": "int16",
    "date": "date",
    "time": "time",
    "datetime": "timestamp",
    "timestamp": "timestamptz",
    "uuid": "uuid",
    "binary": "binary",
    "varbinary": "binary",
    "tinyblob": "binary",
    "blob": "binary",
    "mediumblob": "binary",
    "longblob": "binary",
}
_SAME = {
    "integer": "int", "dec": "decimal", "numeric": "decimal", "real": "double",
    "double precision": "double", "geomcollection": "geometrycollection", "bool": "tinyint",
    "boolean": "tinyint",
}  # fmt: skip
_TYPE_TEXT = re.compile(r"([a-z][a-z0-9]*(?: precision)?)\s*(?:\((.*)\))?\s*([a-z ]*)", re.DOTALL)
_LABEL = re.compile(r"\s*'((?:[^'\\]|''|\\.)*)'\s*(?:,|\Z)", re.DOTALL)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireColumn:
    """One column as a TABLE_MAP event describes it; None if the event does not say.

    Attributes:
        size: maximum bytes of a VARCHAR or STRING, bytes of the length of a BLOB, GEOMETRY, JSON or
            VECTOR, bytes of an ENUM or SET, bits of a BIT, bytes of a float.
        precision: precision of a DECIMAL; digits of the fraction of a time.
        collation: collation of character columns, ENUM and SET.
        geometry: number of its subtype.
        dimension: dimension of a VECTOR.
    """

    code: TypeCode
    size: int = 0
    precision: int = 0
    scale: int = 0
    nullable: bool = True
    unsigned: bool | None = None
    collation: int | None = None
    name: str | None = None
    labels: tuple[str, ...] | None = None
    geometry: int | None = None
    dimension: int | None = None
    visible: bool | None = None

    @property
    def charset(self) -> str | None:
        """Name of the character set; None if the event does not say or the id is unknown."""
        return None if self.collation is None else charset_of(self.collation)

    @property
    def is_binary(self) -> bool:
        """Return whether a character column holds bytes."""
        return self.collation == BINARY_COLLATION


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeText:
    """A type's parsed text. arguments: numbers in parentheses. labels: labels of an enum or set."""

    base: str
    arguments: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    unsigned: bool = False
    compressed: bool = False


def _labels(text: str) -> tuple[str, ...] | None:
    labels = []
    at = 0
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None:
            return None
        labels.append(match[1].replace("''", "'").replace("\\\\", "\\"))
        at = match.end()
    return tuple(labels)


@lru_cache(maxsize=4096)
def parse_type(text: str) -> TypeText | None:
    """Parse a type's text from the servers' catalogues or `source_type`; None if not understood."""
    compressed = re.search(r"/\*M?!\d+\s+COMPRESSED", text, re.IGNORECASE) is not None
    plain = text.strip()
    if not re.match(r"(?:enum|set)\s*\(", plain, re.IGNORECASE):
        plain = _COMMENT.sub("", plain).strip().lower()
    else:
        opening = plain.index("(")
        plain = plain[:opening].lower() + plain[opening:]
    match = _TYPE_TEXT.fullmatch(plain)
    if match is None:
        return None
    base, inside, behind = match[1], match[2], set(match[3].split())
    base = _SAME.get(base, base)
    if base in ("enum", "set"):
        labels = _labels(inside or "")
        return None if labels is None else TypeText(base=base, labels=labels)
    numbers = re.findall(r"\d+", inside) if inside else []
    if inside and "".join(inside.split()) != ",".join(numbers):
        return None
    return TypeText(
        base=base,
        arguments=tuple(map(int, numbers)),
        unsigned="unsigned" in behind or "zerofill" in behind,
        compressed=compressed or "compressed" in behind,
    )


def _decimal_shape(parsed: TypeText) -> tuple[int, int]:
    precision, scale = (*(parsed.arguments or (10,)), 0)[:2]
    return precision, scale


def neutral_type(text: str) -> str:
    """Return the neutral type of a type's text; unknown types are text."""
    parsed = parse_type(text)
    if parsed is None:
        return "string"
    if parsed.base == "decimal":
        precision, scale = _decimal_shape(parsed)
        return f"decimal({precision},{scale})" if precision <= DECIMAL_PRECISION_MAX else "string"
    integer = _INTEGER_NEUTRALS.get((parsed.base, parsed.unsigned))
    return integer or _NEUTRALS.get(parsed.base, "string")


def _quoted_labels(labels: tuple[str, ...]) -> str:
    return ",".join("'" + label.replace("\\", "\\\\").replace("'", "''") + "'" for label in labels)


def _character_type(column: WireColumn) -> str:
    """Return the text type of a character column; a binary type if the collation is unknown."""
    binary = column.collation is None or column.is_binary
    compressed = ""
    if column.code in (TypeCode.BLOB_COMPRESSED, TypeCode.VARCHAR_COMPRESSED):
        compressed = " compressed"
    if column.code in (TypeCode.BLOB, TypeCode.BLOB_COMPRESSED):
        kind = "blob" if binary else "text"
        return _BLOBS.get(column.size, "") + kind + compressed
    size = column.size - bool(compressed)
    characters = size // widest_bytes(column.charset or "binary")
    if column.code is TypeCode.STRING:
        return f"{'binary' if binary else 'char'}({characters})"
    return f"{'varbinary' if binary else 'varchar'}({characters}){compressed}"


def type_text(column: WireColumn) -> str:
    """Return a column's type as the server would print it, as far as the event says."""
    code = column.code
    unsigned = " unsigned" if column.unsigned else ""
    fraction = f"({column.precision})" if column.precision else ""
    if code in INTEGERS:
        return INTEGERS[code][0] + unsigned
    if code in CHARACTER:
        return _character_type(column)
    if code in _TEMPORALS:
        return _TEMPORALS[code] + fraction
    if code in OLD_TEMPORALS:
        return OLD_TEMPORALS[code]
    if code is TypeCode.GEOMETRY:
        return _GEOMETRIES[column.geometry or 0]
    if code in (TypeCode.ENUM, TypeCode.SET):
        return f"{code.name.lower()}({_quoted_labels(column.labels or ())})"
    return {
        TypeCode.FLOAT: f"float{unsigned}",
        TypeCode.DOUBLE: f"double{unsigned}",
        TypeCode.DECIMAL: f"decimal({column.precision},{column.scale}){unsigned}",
        TypeCode.BIT: f"bit({column.size})",
        TypeCode.YEAR: "year",
        TypeCode.DATE: "date",
        TypeCode.JSON: "json",
        TypeCode.VECTOR: f"vector({column.dimension or 0})",
    }[code]


def needs_schema(column: WireColumn, is_mariadb: bool) -> bool:
    """Return whether the event does not determine a column's type, even with full metadata.

    MariaDB writes UUID and INET6 as BINARY(16), INET4 as BINARY(4), and its older times with a
    fraction without the number of digits.
    """
    if not is_mariadb:
        return False
    if column.code is TypeCode.STRING:
        return column.is_binary and column.size in (4, 16)
    return column.code in OLD_TEMPORALS


def agrees(column: WireColumn, text: str, charset: str) -> bool:
    """Return whether a column of this type and character set is written like this.

    Facts that the event lacks are ignored. `charset` is "" if unknown.
    """
    parsed = parse_type(text)
    if parsed is None:
        return False
    if column.code in INTEGERS:
        return parsed.base == INTEGERS[column.code][0] and column.unsigned in (
            None,
            parsed.unsigned,
        )
    if column.code in CHARACTER:
        return _characters_agree(column, parsed, charset)
    if column.code in (TypeCode.ENUM, TypeCode.SET):
        return _labels_agree(column, parsed)
    digits = parsed.arguments[0] if parsed.arguments else 0
    if column.code in _TEMPORALS:
        return parsed.base == _TEMPORALS[column.code] and digits == column.precision
    if column.code in OLD_TEMPORALS:
        return parsed.base == OLD_TEMPORALS[column.code]
    if column.code is TypeCode.GEOMETRY:
        known = column.geometry is None or _GEOMETRIES[column.geometry] == parsed.base
        return parsed.base in _GEOMETRIES and known
    if column.code is TypeCode.DECIMAL:
        shape = (column.precision, column.scale)
        return parsed.base == "decimal" and _decimal_shape(parsed) == shape
    if column.code is TypeCode.BIT:
        return parsed.base == "bit" and (digits or 1) == column.size
    if column.code is TypeCode.FLOAT:
        return parsed.base == "float"
    return parsed.base == type_text(column).split("(")[0].split()[0]


def _characters_agree(column: WireColumn, parsed: TypeText, charset: str) -> bool:
    special = {"uuid": 16, "inet6": 16, "inet4": 4}
    if parsed.base in special:
        binary = column.collation is None or column.is_binary
        return column.code is TypeCode.STRING and column.size == special[parsed.base] and binary
    compressed = column.code in (TypeCode.BLOB_COMPRESSED, TypeCode.VARCHAR_COMPRESSED)
    if compressed != parsed.compressed:
        return False
    is_text = parsed.base in ("char", "varchar", "json") or parsed.base.endswith("text")
    if column.collation is not None and column.is_binary == is_text:
        return False
    if column.code in (TypeCode.BLOB, TypeCode.BLOB_COMPRESSED):
        prefix = _BLOBS.get(column.size)
        names = {f"{prefix}blob", f"{prefix}text"} | ({"json"} if column.size == 4 else set())
        return parsed.base in names
    bases = {TypeCode.STRING: ("char", "binary")}.get(column.code, ("varchar", "varbinary"))
    charset = charset if is_text else "binary"
    length = parsed.arguments[0] if parsed.arguments else 1
    size = column.size - compressed
    return parsed.base in bases and (not charset or size == length * widest_bytes(charset))


def _labels_agree(column: WireColumn, parsed: TypeText) -> bool:
    if parsed.base != column.code.name.lower():
        return False
    if column.labels is not None:
        return column.labels == parsed.labels
    count = len(parsed.labels)
    if column.code is TypeCode.ENUM:
        return column.size == (1 if count < 256 else 2)
    size = (count + 7) // 8
    return column.size == (size if size <= 4 else 8)
