"""Types of values in the catalogue: their names, conversions, reading and printing.

A value lives in SQLite as an integer (numbers, booleans, oids, LSNs), as text, as a float, or, for
arrays and rows, as JSON text of such values. Pure.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from penstock.codec.exact_text import timestamp_text
from penstock.codec.postgres import pgtext
from penstock.codec.postgres.lsn import Lsn
from penstock.codec.postgres.names import quote_ident
from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.postgres.pgwire_values import print_array, read_array
from penstock.model.position import PositionInvalid
from penstock.model.whole_number import parse_whole
from penstock.serve.catalog.facts import Facts, PgType

BOOL, BYTEA, CHAR, NAME, INT8, INT2, INT2VECTOR, INT4 = 16, 17, 18, 19, 20, 21, 22, 23
REGPROC, TEXT, OID, XID, OIDVECTOR, JSON_TYPE = 24, 25, 26, 28, 30, 114
PG_NODE_TREE, FLOAT4, FLOAT8, UNKNOWN = 194, 700, 701, 705
BPCHAR, VARCHAR, DATE, TIMESTAMP, TIMESTAMPTZ, INTERVAL = 1042, 1043, 1082, 1114, 1184, 1186
NUMERIC, REGCLASS, REGTYPE, RECORD, PG_LSN, XID8 = 1700, 2205, 2206, 2249, 3220, 5069
ANYARRAY, ANYELEMENT, ANY, ACLITEM, REGNAMESPACE, REGROLE = 2277, 2283, 2276, 1033, 4089, 4096
TEXT_ARRAY, NAME_ARRAY, OID_ARRAY, INT2_ARRAY, INT4_ARRAY = 1009, 1003, 1028, 1005, 1007
REGPROCEDURE, REGOPER, REGOPERATOR, REGCONFIG, REGDICTIONARY, REGCOLLATION = (
    *(2202, 2203, 2204, 3734, 3769),
    4191,
)

REG_TYPES = frozenset(
    (
        REGPROC,
        REGCLASS,
        REGTYPE,
        REGNAMESPACE,
        REGROLE,
        REGPROCEDURE,
        REGOPER,
        REGOPERATOR,
        REGCONFIG,
        REGDICTIONARY,
        REGCOLLATION,
    )
)
INTEGERS = (INT2, INT4, INT8)
NUMBERS = (*INTEGERS, NUMERIC, FLOAT4, FLOAT8)
OIDS = frozenset((OID, *REG_TYPES))
TEXTS = frozenset((TEXT, NAME, VARCHAR, BPCHAR, CHAR))
UUID = 2950
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[ T]([0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
_TIME_OF = {
    DATE: pgtext.read_date,
    TIMESTAMP: pgtext.read_timestamp,
    TIMESTAMPTZ: pgtext.read_timestamptz,
}
_TIME_WORDS = ("now", "today", "tomorrow", "yesterday", "epoch", "infinity", "-infinity")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UUID = re.compile(r"(\{?)([0-9a-fA-F]{4}(?:-?[0-9a-fA-F]{4}){7})(\}?)")
VECTORS = {INT2VECTOR: INT2, OIDVECTOR: OID}
TIMES = (DATE, TIMESTAMP, TIMESTAMPTZ)
RANGES = {
    INT2: (-(2**15), 2**15 - 1),
    INT4: (-(2**31), 2**31 - 1),
    INT8: (-(2**63), 2**63 - 1),
    OID: (0, 2**32 - 1),
    XID: (0, 2**32 - 1),
    XID8: (0, 2**63 - 1),
}
_TRUE = ("t", "true", "y", "yes", "on", "1")
_FALSE = ("f", "false", "n", "no", "off", "0")
_ALIASES = {
    "boolean": "bool",
    "smallint": "int2",
    "integer": "int4",
    "int": "int4",
    "bigint": "int8",
    "real": "float4",
    "double precision": "float8",
    "decimal": "numeric",
    "character varying": "varchar",
    "character": "bpchar",
    "char": "bpchar",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
    "time without time zone": "time",
    "time with time zone": "timetz",
    "bit varying": "varbit",
}
_PRINTED = {name: long for long, name in _ALIASES.items() if long not in ("decimal", "int", "char")}
_PRINTED |= {name: name for name in ("bit", "interval", "numeric")}


def json_of(value: Any) -> str:
    """Return an array or a row as SQLite keeps it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class Types:
    """Types of one server: its own and those of its tables' rows."""

    def __init__(self, facts: Facts) -> None:
        """Set the facts of the claimed version.

        Attributes:
            where: returns the names of all schemas, and those of the search path, for printing
                names.
        """
        self._facts = facts
        self._of_tables: dict[int, PgType] = {}
        self.system_schema = facts.namespaces["pg_catalog"]
        self.where: Callable[[], tuple[dict[int, str], list[str]]] = lambda: ({}, [])

    def set_row_types(self, types: dict[int, PgType]) -> None:
        """Set the row types of our tables and their arrays."""
        self._of_tables = types

    def get(self, oid: int) -> PgType | None:
        """Return a type by its oid."""
        return self._facts.types.get(oid) or self._of_tables.get(oid)

    def of(self, oid: int) -> PgType:
        """Return a type that must exist."""
        found = self.get(oid)
        if found is None:
            raise Refused("XX000", f"cache lookup failed for type {oid}")
        return found

    def find_oid(self, name: str, schema: str | None = None) -> int:
        """Return the oid of a type's SQL name; `x[]` for arrays. Raises Refused: 42704."""
        if name.endswith("[]"):
            return self.array_of(self.find_oid(name[:-2], schema))
        schemas = ("pg_catalog",) if schema is None else (schema,)
        if schema is None:
            name = _ALIASES.get(name, name)
        for candidate in schemas:
            oid = self._facts.type_names.get((self._facts.namespaces.get(candidate, 0), name))
            if oid is not None:
                return oid
        full = name if schema is None else f"{schema}.{name}"
        raise Refused("42704", f'type "{full}" does not exist')

    def array_of(self, oid: int) -> int:
        """Return the array type with such elements."""
        found = self.of(oid).array
        if not found:
            raise Refused("42704", f"could not find array type for data type {self.name(oid)}")
        return found

    def element_of(self, oid: int) -> int:
        """Return the type of an array's elements, 0 if it is not an array."""
        kind = self.get(oid)
        if kind is None or (kind.category != "A" and oid not in VECTORS):
            return 0
        return kind.element

    def base_of(self, oid: int, typmod: int = -1) -> tuple[int, int]:
        """Return the type below domains, and its modifier."""
        kind = self.get(oid)
        while kind is not None and kind.kind == "d":
            oid, typmod = kind.base, kind.typmod
            kind = self.get(oid)
        return oid, typmod

    def name(self, oid: int, typmod: int | None = None) -> str:
        """Return the text of format_type; `???` if it is unknown."""
        kind = self.get(oid)
        if kind is None:
            return "-" if oid == 0 else "???"
        if kind.category == "A" and kind.element and kind.size == -1:
            return f"{self.name(kind.element, typmod)}[]"
        if oid == BPCHAR and typmod is not None and typmod < 0:
            return "bpchar"
        if oid == CHAR:
            return '"char"'
        if kind.schema_oid != self.system_schema:
            return self._qualify(kind)
        return _with_modifier(_PRINTED.get(kind.name) or quote_ident(kind.name), oid, typmod)

    def _qualify(self, kind: PgType) -> str:
        schemas, path = self.where()
        schema = schemas.get(kind.schema_oid, "???")
        return (
            quote_ident(kind.name)
            if schema in path
            else f"{quote_ident(schema)}.{quote_ident(kind.name)}"
        )

    # -- conversions --------------------------------------------------------------------------

    def fits(self, given: int, wanted: int) -> int | None:
        """Return how well a value of one type fits another: 0 equal, more is worse, None: not."""
        given, wanted = self.base_of(given)[0], self.base_of(wanted)[0]
        if given == wanted:
            return 0
        if given == UNKNOWN:
            return 1 if wanted in TEXTS else 2
        if wanted == ANY:
            return 1
        if wanted == ANYELEMENT:
            return 2
        if wanted == ANYARRAY:
            return 1 if self.element_of(given) else None
        return self._fits_plain(given, wanted)

    def _fits_plain(self, given: int, wanted: int) -> int | None:
        if given in NUMBERS and wanted in NUMBERS:
            distance = NUMBERS.index(wanted) - NUMBERS.index(given)
            return distance if distance > 0 else None
        if (given in INTEGERS or given in OIDS) and wanted in OIDS:
            return 2
        if given in OIDS and wanted in (INT8, INT4):
            return 3 if given != OID or wanted == INT8 else None
        if given in (*TEXTS, PG_NODE_TREE) and wanted == TEXT:
            return 1
        if given in (TEXT, VARCHAR) and wanted in (VARCHAR, BPCHAR, NAME, REGCLASS):
            return 2
        if given == NAME and wanted in (VARCHAR, BPCHAR):
            return 3
        if given in TIMES and wanted in TIMES:
            distance = TIMES.index(wanted) - TIMES.index(given)
            return distance if distance > 0 else None
        inner, outer = self.element_of(given), self.element_of(wanted)
        if inner and outer and given in VECTORS and inner == outer:
            return 1
        return None

    def common(self, oids: list[int], what: str) -> int:
        """Return the common type in CASE, UNION, arrays. Raises Refused: 42804."""
        found = UNKNOWN
        for oid in (self.base_of(oid)[0] for oid in oids):
            if oid in (UNKNOWN, found):
                continue
            if found == UNKNOWN:
                found = oid
            elif self.of(oid).category != self.of(found).category:
                raise Refused(
                    "42804",
                    f"{what} types {self.name(found)} and {self.name(oid)} cannot be matched",
                )
            elif (
                not self.of(found).preferred
                and self.fits(found, oid) is not None
                and self.fits(oid, found) is None
            ):
                found = oid
        return TEXT if found == UNKNOWN else found


def _with_modifier(name: str, oid: int, typmod: int | None) -> str:
    if typmod is None or typmod < 0:
        return name
    if oid == NUMERIC:
        packed = typmod - 4
        scale = ((packed & 0x7FF) ^ 1024) - 1024
        return f"numeric({packed >> 16 & 0xFFFF},{scale})"
    if oid in (BPCHAR, VARCHAR):
        return f"{name}({typmod - 4})"
    if name.startswith(("timestamp", "time ")):
        first, _, rest = name.partition(" ")
        return f"{first}({typmod}) {rest}"
    if name in ("bit", "bit varying"):
        return f"{name}({typmod})"
    return name


# -- reading ----------------------------------------------------------------------------------


def _invalid(kind: str, text: str) -> Refused:
    return Refused("22P02", f'invalid input syntax for type {kind}: "{text}"')


def read_value(types: Types, oid: int, text: str, reg: Callable[[int, str], int]) -> Any:
    """Return the value of a text of a type; `reg` finds the oid for a reg* type's name.

    Raises Refused: 22P02, 22003, 0A000 for types whose values the catalogue does not read.
    """
    oid = types.base_of(oid)[0]
    if oid in TEXTS or oid in (UNKNOWN, PG_NODE_TREE, JSON_TYPE, RECORD):
        return text[:63] if oid == NAME else text[:1] if oid == CHAR else text
    if oid in RANGES:
        return _read_integer(types, oid, text)
    if oid in REG_TYPES:
        number = parse_whole(text, 2**32 - 1)
        return reg(oid, text) if number is None else number
    if oid == BOOL:
        return read_boolean(text)
    if oid == PG_LSN:
        try:
            return Lsn.parse(text).ordinal
        except PositionInvalid:
            raise _invalid("pg_lsn", text) from None
    if oid in (FLOAT4, FLOAT8, NUMERIC):
        return _read_number(types.name(oid), text)
    if oid in VECTORS:
        return json_of([read_value(types, VECTORS[oid], word, reg) for word in text.split()])
    element = types.element_of(oid)
    if element:
        cells = read_array(text)
        return json_of([c if c is None else read_value(types, element, c, reg) for c in cells])
    if oid in TIMES:
        return _read_time(types, oid, text)
    if oid == UUID:
        return _read_uuid(text)
    raise Refused("0A000", f"values of type {types.name(oid)} are not read here")


def _read_time(types: Types, oid: int, text: str) -> str:
    """Return a date or a time as the server prints it, in UTC.

    Only the forms of ISO 8601 and the printed forms of the server are read.
    """
    match = _TIME.fullmatch(text.strip())
    if match is not None:
        day, clock, zone = match[1], match[2] or "00:00", match[3]
        offset = zone if zone and oid == TIMESTAMPTZ else "+00:00"
        with suppress(ValueError):
            moment = datetime.fromisoformat(f"{day}T{clock}{offset}")
            if oid == DATE:
                return day
            microseconds = (moment - _EPOCH) // timedelta(microseconds=1)
            return timestamp_text(microseconds, "+00" if oid == TIMESTAMPTZ else "")
    with suppress(ValueError):
        _TIME_OF[oid](text.encode())
        return text
    if not any(map(str.isdigit, text)) and text.strip().lower() not in _TIME_WORDS:
        raise Refused("22007", f'invalid input syntax for type {types.name(oid)}: "{text}"')
    raise Refused(
        "0A000",
        f'{types.name(oid)} "{text[:40]}" is not read here',
        hint="Write it as the server prints it: 2024-02-29, 2024-02-29 12:00:00+00.",
    )


def _read_uuid(text: str) -> str:
    """Return a uuid as the server prints it; hyphens may stand between any two groups of four."""
    match = _UUID.fullmatch(text)
    if match is None or bool(match[1]) != bool(match[3]):
        raise _invalid("uuid", text)
    digits = match[2].replace("-", "").lower()
    return "-".join(digits[at:end] for at, end in pairwise((0, 8, 12, 16, 20, 32)))


def _read_integer(types: Types, oid: int, text: str) -> int:
    try:
        number = int(text.strip())
    except ValueError:
        raise _invalid(types.name(oid), text) from None
    low, high = RANGES[oid]
    if oid == OID and low - 2**31 <= number < 0:
        return number + 2**32
    if not low <= number <= high:
        raise Refused("22003", f'value "{text}" is out of range for type {types.name(oid)}')
    return number


def _read_number(name: str, text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        raise _invalid(name, text) from None
    if math.isinf(number) and "inf" not in text.lower():
        raise Refused("0A000", f"a number of so many digits is not read here: {text[:40]}")
    return number


def read_boolean(text: str) -> int:
    """Return 1 or 0 for a boolean's text. Raises Refused: 22P02."""
    word = text.strip().lower()
    for number, words in ((1, _TRUE), (0, _FALSE)):
        if word and any(w.startswith(word) for w in words) and word not in ("o",):
            return number
    raise _invalid("boolean", text)


# -- printing ---------------------------------------------------------------------------------


def print_float(value: float) -> str:
    """Return the shortest exact text of a double."""
    if value != value or value in (float("inf"), float("-inf")):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    text = repr(value)
    return text[:-2] if text.endswith(".0") else text


def print_value(types: Types, oid: int, value: Any, reg: Callable[[int, int], str]) -> str | None:
    """Return a value as the server prints it; `reg` finds the name for a reg* type's oid."""
    if value is None:
        return None
    oid = types.base_of(oid)[0]
    if oid == BOOL:
        return "t" if value else "f"
    if oid == PG_LSN:
        return f"{value >> 32:X}/{value & 0xFFFFFFFF:X}"
    if oid in REG_TYPES:
        return reg(oid, value)
    if oid in RANGES:
        low, high = RANGES[oid]
        if not low <= value <= high:
            raise Refused("22003", f"{types.name(oid)} out of range")
        return str(value)
    if isinstance(value, float):
        return print_float(value)
    if oid in VECTORS:
        return " ".join(str(part) for part in json.loads(value))
    element = types.element_of(oid)
    if element:
        cells = (print_value(types, element, part, reg) for part in json.loads(value))
        return print_array(cells)
    return str(value)


def print_record(
    types: Types, oids: Sequence[int], row: str, reg: Callable[[int, int], str]
) -> str:
    """Return a row of fields of these types as the server prints a record."""
    cells = zip(oids, json.loads(row), strict=True)
    return "(" + ",".join(_field(print_value(types, oid, cell, reg)) for oid, cell in cells) + ")"


def _field(text: str | None) -> str:
    if text is None:
        return ""
    if text and not set(text) & set('(),"\\ \t\n\r\v\f'):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '""') + '"'
