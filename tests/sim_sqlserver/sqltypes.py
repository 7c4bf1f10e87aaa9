"""Types of SQL Server, and the PostgreSQL types that hold their values.

A type that PostgreSQL lacks is a domain `sim."<type>"`, named by SQL Server's spelling with its
lengths, so a column's type is known from PostgreSQL's catalogue. Texts are `bpchar`, whose
comparison ignores trailing blanks. Seven digits after the second are texts of fixed form, whose
order is that of time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

DEFAULT_COLLATION = "SQL_Latin1_General_CP1_CI_AS"
MAX = -1
SYSNAME = 128


@dataclass(frozen=True, slots=True)
class SqlType:
    """Type of a column, variable or result.

    Attributes:
        name: Name of the type in lower case.
        length: Characters (texts) or bytes (binary); -1 for max; 0 for types without one.
        precision: Digits of decimal; of float, 53.
        scale: Digits after the point, or of the second.
        collation: Collation of a text; empty for the database's.
    """

    name: str
    length: int = 0
    precision: int = 0
    scale: int = 0
    collation: str = ""

    @property
    def text(self) -> str:
        """Spelling with lengths, such as nvarchar(40)."""
        if self.name in ("decimal", "numeric"):
            return f"{self.name}({self.precision},{self.scale})"
        if self.name in ("datetime2", "datetimeoffset", "time"):
            return f"{self.name}({self.scale})"
        if self.name in TEXTS | BINARIES | {"vector"}:
            return f"{self.name}({'max' if self.length == MAX else self.length})"
        return self.name

    @property
    def is_max(self) -> bool:
        """Return whether change tables leave out unchanged values."""
        return self.length == MAX or self.name in LARGE

    @property
    def is_text(self) -> bool:
        """Return whether it has a collation."""
        return self.name in TEXTS | {"text", "ntext", "sysname"}

    @property
    def bytes_length(self) -> int:
        """`max_length` of sys.columns."""
        if self.length == MAX:
            return -1
        if self.name == "vector":
            return 8 + 4 * self.length
        if self.name in ("nvarchar", "nchar"):
            return self.length * 2
        if self.name in TEXTS | BINARIES:
            return self.length
        if self.name in ("decimal", "numeric"):
            return decimal_bytes(self.precision)
        if self.name in ("time", "datetime2", "datetimeoffset"):
            base = {"time": 3, "datetime2": 6, "datetimeoffset": 8}[self.name]
            return base + (0 if self.scale <= 2 else 1 if self.scale <= 4 else 2)
        return FIXED_LENGTHS[self.name]


TEXTS = frozenset({"varchar", "nvarchar", "char", "nchar"})
BINARIES = frozenset({"varbinary", "binary"})
LARGE = frozenset({"text", "ntext", "image", "xml", "json", "geometry", "geography"})
FIXED_LENGTHS = {
    "bit": 1, "tinyint": 1, "smallint": 2, "int": 4, "bigint": 8, "float": 8, "real": 4,
    "money": 8, "smallmoney": 4, "date": 3, "datetime": 8, "smalldatetime": 4,
    "uniqueidentifier": 16, "rowversion": 8, "xml": -1, "text": 16, "ntext": 16, "image": 16,
    "sql_variant": 8016, "geometry": -1, "geography": -1, "hierarchyid": 892, "sysname": 256,
    "json": -1,
}  # fmt: skip
# Number of the system type in sys.types: system_type_id, user_type_id.
NUMBERS = {
    "image": (34, 34), "text": (35, 35), "uniqueidentifier": (36, 36), "date": (40, 40),
    "time": (41, 41), "datetime2": (42, 42), "datetimeoffset": (43, 43), "tinyint": (48, 48),
    "smallint": (52, 52), "int": (56, 56), "smalldatetime": (58, 58), "real": (59, 59),
    "money": (60, 60), "datetime": (61, 61), "float": (62, 62), "sql_variant": (98, 98),
    "ntext": (99, 99), "bit": (104, 104), "decimal": (106, 106), "numeric": (108, 108),
    "smallmoney": (122, 122), "bigint": (127, 127), "hierarchyid": (240, 128),
    "geometry": (240, 129), "geography": (240, 130), "varbinary": (165, 165),
    "varchar": (167, 167), "binary": (173, 173), "char": (175, 175), "timestamp": (189, 189),
    "nvarchar": (231, 231), "nchar": (239, 239), "xml": (241, 241), "sysname": (231, 256),
    "json": (244, 244), "vector": (255, 255),
}  # fmt: skip
_ALIASES = {
    "integer": "int", "dec": "decimal", "timestamp": "rowversion", "national text": "ntext",
    "character": "char", "character varying": "varchar", "char varying": "varchar",
    "national character varying": "nvarchar", "national char varying": "nvarchar",
    "national character": "nchar", "national char": "nchar", "binary varying": "varbinary",
    "double precision": "float",
}  # fmt: skip
_SPELLING = re.compile(r"\s*([a-z0-9_ ]+?)\s*(?:\(\s*(max|\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*\Z", re.I)


def decimal_bytes(precision: int) -> int:
    """Return the bytes of a decimal with its sign."""
    return 5 if precision <= 9 else 9 if precision <= 19 else 13 if precision <= 28 else 17


@cache
def parse_type(text: str, *, is_cast: bool = False) -> SqlType:
    """Return the type that a spelling names; raises ValueError for others.

    Args:
        text: Spelling, with or without lengths.
        is_cast: Whether it is that of a CAST, where a length left out is 30.
    """
    match = _SPELLING.match(text.replace("[", "").replace("]", "").removeprefix("sys."))
    if match is None:
        raise ValueError(text)
    name, first, second = match.group(1).lower(), match.group(2), match.group(3)
    name = _ALIASES.get(" ".join(name.split()), name)
    if name in TEXTS | BINARIES:
        left_out = 30 if is_cast else 1
        length = MAX if first and first.lower() == "max" else int(first or left_out)
        return SqlType(name, length=length)
    if name in ("decimal", "numeric"):
        return SqlType(name, precision=int(first or 18), scale=int(second or 0))
    if name in ("datetime2", "datetimeoffset", "time"):
        return SqlType(name, scale=7 if first is None else int(first))
    if name == "vector" and first:
        return SqlType(name, length=int(first))
    if name == "float":
        return SqlType("real" if int(first or 53) <= 24 else "float")
    if name not in FIXED_LENGTHS:
        raise ValueError(text)
    return SqlType(name)


_PLAIN = {"smallint": "int2", "int": "int4", "bigint": "int8"}


def postgres_type(sql_type: SqlType) -> str:
    """Return the PostgreSQL type of a column."""
    if sql_type.name in _PLAIN:
        return _PLAIN[sql_type.name]
    if sql_type.name == "decimal":
        return f"numeric({sql_type.precision},{sql_type.scale})"
    if sql_type.name == "uniqueidentifier":
        return "sim.uniqueidentifier"
    return f'sim."{sql_type.text}"'


def base_type(sql_type: SqlType) -> str:
    """Return the PostgreSQL type of values in expressions."""
    if sql_type.name in _PLAIN:
        return _PLAIN[sql_type.name]
    if sql_type.name in ("decimal", "numeric"):
        return f"numeric({sql_type.precision},{sql_type.scale})"
    return domain_of(sql_type)[0] if sql_type.name != "uniqueidentifier" else "sim.uniqueidentifier"


def domain_of(sql_type: SqlType) -> tuple[str, str]:
    """Return base type and condition of the domain for a type."""
    name, length = sql_type.name, sql_type.length
    if name in ("nvarchar", "nchar", "sysname"):
        limit = SYSNAME if name == "sysname" else length
        return "bpchar", "" if limit == MAX else f"sim.utf16_length(value) <= {limit}"
    if name in ("varchar", "char"):
        return "bpchar", "" if length == MAX else f"char_length(value) <= {length}"
    if name in BINARIES:
        return "bytea", "" if length == MAX else f"octet_length(value) <= {length}"
    if name == "vector":
        return "bpchar", ""
    if name == "time":
        return ("bpchar", "") if sql_type.scale == 7 else (f"time({sql_type.scale})", "")
    if name == "datetime2":
        return ("bpchar", "") if sql_type.scale == 7 else (f"timestamp({sql_type.scale})", "")
    if name == "datetimeoffset":
        return "bpchar", ""
    return _DOMAINS[name]


_DOMAINS = {
    "numeric": ("numeric", ""),
    "bit": ("int2", "value in (0, 1)"),
    "tinyint": ("int2", "value between 0 and 255"),
    "float": ("float8", "value not in ('NaN', 'Infinity', '-Infinity')"),
    "real": ("float4", "value not in ('NaN', 'Infinity', '-Infinity')"),
    "money": (
        "numeric(19,4)",
        "value between -922337203685477.5808 and 922337203685477.5807",
    ),
    "smallmoney": ("numeric(10,4)", "value between -214748.3648 and 214748.3647"),
    "date": ("date", "value between '0001-01-01' and '9999-12-31'"),
    "datetime": ("timestamp(3)", "value >= '1753-01-01' and value < '10000-01-01'"),
    "smalldatetime": ("timestamp(0)", "value >= '1900-01-01' and value < '2079-06-07'"),
    "rowversion": ("bytea", ""),
    "xml": ("bpchar", ""),
    "text": ("bpchar", ""),
    "ntext": ("bpchar", ""),
    "image": ("bytea", ""),
    "sql_variant": ("bpchar", ""),
    "geometry": ("bytea", ""),
    "geography": ("bytea", ""),
    "hierarchyid": ("bpchar", ""),
    "json": ("bpchar", ""),
}


def domain_statement(sql_type: SqlType) -> str:
    """Return the statement that creates the domain of a type."""
    base, condition = domain_of(sql_type)
    if sql_type.name == "numeric":
        base = f"numeric({sql_type.precision},{sql_type.scale})"
    collate = ""
    if base == "bpchar":
        collate = ' collate sim."default"' if sql_type.is_text else ' collate "C"'
    check = f" check ({condition})" if condition else ""
    return f'create domain sim."{sql_type.text}" as {base}{collate}{check}'


def binary_domain(name: str, statement: str) -> tuple[str, str]:
    """Return name and statement of the same domain with a binary collation.

    The name is another spelling of the type's, such as `nvarchar(9 )`; one of max has no other.
    """
    other = re.sub(r"(\d)\)\Z", r"\1 )", name)
    if other == name:
        return name, statement
    return other, statement.replace(f'"{name}"', f'"{other}"').replace('sim."default"', '"C"')


def with_collation(sql_type: SqlType, collation: str) -> SqlType:
    """Return the type with a collation."""
    return replace(sql_type, collation=collation)
