"""Rules by which Delta and Iceberg tables hold the types of the sources.

A lake has fewer types than a database: what has no counterpart is kept as the exact text that the
source prints. No column loses a value by default. A value that a column cannot hold (infinity, a
year outside 1 to 9999, MySQL's zero dates, NaN in a decimal) stops the load by name unless
`[target.types]` has a choice for it.

A type of a lake is named as in the log (`date`, `timestamptz`, `decimal(12,2)`), because both
formats have the same ones under different names. Not here: the conversion of values
(`lake_values.py`), field ids and physical names (the engines).
"""

from __future__ import annotations

from collections.abc import Mapping as AbstractMapping
from dataclasses import dataclass, field, replace

from penstock.codec.columns import DECIMAL_PRECISION_MAX
from penstock.codec.types.from_sqlserver import decimal_of, fraction_of
from penstock.codec.types.mapping import (
    AS_TEXT,
    ERROR,
    Case,
    Form,
    Held,
    Kind,
    Mapping,
    Write,
)
from penstock.codec.types.source_type import (
    GEOMETRIES,
    STORED_NOT_A_NUMBER,
    STORED_OUT_OF_RANGE,
    STORED_YEAR_ZERO,
    Engine,
    SourceType,
)
from penstock.codec.types.to_postgres import STORED_NO_DAY

UNSIGNED_64 = "decimal(20,0)"
"""Type for unsigned integers of 64 bits, which no lake has."""

_BIT_WIDTH_SIGNED = 63
_MICROSECONDS = 6
_PG = {
    "boolean": "bool",
    "smallint": "int32",
    "integer": "int32",
    "bigint": "int64",
    "oid": "int64",
    "xid": "int64",
    "cid": "int64",
    "xid8": UNSIGNED_64,
    "real": "float32",
    "double precision": "float64",
    "bytea": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
}
_MYSQL = {
    "float": "float32",
    "double": "float64",
    "year": "int32",
    "date": "date",
    "datetime": "timestamp",
    "timestamp": "timestamptz",
    "binary": "binary",
    "varbinary": "binary",
    "tinyblob": "binary",
    "blob": "binary",
    "mediumblob": "binary",
    "longblob": "binary",
}
_MYSQL_INTEGERS = {
    ("tinyint", False): "int32",
    ("tinyint", True): "int32",
    ("smallint", False): "int32",
    ("smallint", True): "int32",
    ("mediumint", False): "int32",
    ("mediumint", True): "int32",
    ("int", False): "int32",
    ("int", True): "int64",
    ("bigint", False): "int64",
    ("bigint", True): UNSIGNED_64,
}
_IGNITE = {
    "boolean": "bool",
    "tinyint": "int32",
    "smallint": "int32",
    "int": "int32",
    "bigint": "int64",
    "real": "float32",
    "double": "float64",
    "binary": "binary",
    "other": "binary",
    "date": "date",
    "timestamp": "timestamptz",
}
_SQLSERVER = {
    "bit": "bool",
    "tinyint": "int32",
    "smallint": "int32",
    "int": "int32",
    "bigint": "int64",
    "real": "float32",
    "float": "float64",
    "binary": "binary",
    "varbinary": "binary",
    "image": "binary",
    "rowversion": "binary",
    "date": "date",
    "datetime": "timestamp",
    "smalldatetime": "timestamp",
    "datetime2": "timestamp",
    "datetimeoffset": "timestamptz",
}
_NEUTRAL = {
    "int16": "int32",
    "uint32": "int64",
    "uint64": UNSIGNED_64,
    "time": "string",
    "uuid": "string",
}
_NOTES = {
    "numeric": "text: values have more digits, or different scales",
    "decimal": "text: values have more digits, or different scales",
    "time": "text: a lake has no type for times that Spark reads",
    "timetz": "text: a lake has no type for times that Spark reads",
    "interval": "text: a lake has no such type",
    "uuid": "text of 36 characters",
    "json": "the document's text, unchanged",
    "jsonb": "the document's text",
    "uniqueidentifier": "text of 36 characters",
    "sql_variant": "text: its base type, a colon, and its value",
    "hierarchyid": "text: the path",
    "xml": "the document's text",
}
_FEATURES = {(Engine.DELTA, "timestamp"): "timestampNtz"}


def feature_of(type_name: str, engine: Engine) -> str:
    """Return the feature that a table needs for a type; empty if it needs none.

    Readers that do not know the feature cannot read the table.
    """
    return _FEATURES.get((engine, type_name), "")


_INTEGERS = ("int32", "int64", UNSIGNED_64)
_FORMS = {
    "bool": Kind.BOOLEAN,
    "float32": Kind.FLOAT,
    "float64": Kind.FLOAT,
    "date": Kind.DATE,
    "timestamp": Kind.TIMESTAMP,
    "timestamptz": Kind.TIMESTAMPTZ,
    "binary": Kind.BYTES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeMapping:
    """Mapping of one column to a lake, for the conversion of its values.

    Attributes:
        type: type in the lake, named as in the log; empty if it is refused.
        chosen: loss to choice; `error` where the user has none.
        fraction: digits after the second in texts of times; None: as many as a value has.
        zone: text behind a timestamptz that is kept as text.
        refused: reason why no mapping is possible.
    """

    type: str
    chosen: AbstractMapping[str, str] = field(default_factory=dict)
    fraction: int | None = None
    zone: str = ""
    refused: str = ""


def read_mapping(mapping: Mapping, kind: SourceType) -> LakeMapping:
    """Return the part of a mapping to a lake that values need."""
    is_zoned = kind.base == "timestamptz" or (
        kind.base == "timestamp" and kind.engine is Engine.IGNITE
    )
    return LakeMapping(
        type=mapping.target_type,
        chosen=mapping.chosen,
        fraction=(0 if kind.base == "date" else kind.fraction) if kind.engine.is_mysql else None,
        zone="+00" if is_zoned else "",
        refused=mapping.refused,
    )


def choose_defaults(mapping: Mapping) -> Mapping:
    """Return a mapping in which each loss has a choice: without the user's, the load stops."""
    defaults = {loss.name: ERROR for loss in mapping.missing}
    return replace(mapping, chosen={**defaults, **mapping.chosen}) if defaults else mapping


def type_of_neutral(neutral: str) -> str:
    """Return the type for values of a neutral type, for a source without types of its own."""
    return _NEUTRAL.get(neutral, neutral)


def hold_type(kind: SourceType) -> Held | None:
    """Return how a lake holds a type. Types without a counterpart are text. None if it cannot."""
    if kind.engine is Engine.POSTGRESQL:
        return _hold_postgres(kind)
    if kind.engine is Engine.IGNITE:
        return _hold_ignite(kind)
    if kind.engine is Engine.SQLSERVER:
        return _hold_sqlserver(kind)
    return _hold_mysql(kind)


def _plain(kind: SourceType, name: str, form: Kind | None = None, *, note: str = "") -> Held:
    """Return a type with the form by which its values are compared; see `_FORMS`."""
    if form is None:
        form = Kind.INTEGER if name in _INTEGERS else _FORMS.get(name, Kind.DECIMAL)
    if name == "string":
        note = note or (_NOTES.get(kind.base, "") if kind.is_builtin else "")
    elif name == UNSIGNED_64:
        note = note or "a lake has no unsigned integers"
    elif name == "timestamptz":
        note = "in UTC"
    both = Form(kind=form, fraction=kind.fraction if form in _WITH_FRACTION else 0)
    write = Write(name=AS_TEXT) if name == "string" and form is not Kind.TEXT else Write()
    return Held(target_type=name, source_form=both, target_form=both, write=write, note=note)


_WITH_FRACTION = (Kind.TIMESTAMP, Kind.TIMESTAMPTZ)


def _with_cases(held: Held, kind: SourceType, *cases: Case) -> Held:
    """Return a type that does not hold all values, and its text, which does."""
    is_text = kind.engine.is_mysql or kind.engine is Engine.SQLSERVER
    form = Kind.TEXT if is_text else Kind.PRINTED
    text = _plain(kind, "string", form, note="the text that the source prints")
    return replace(held, cases=cases, text=text)


# -- PostgreSQL ------------------------------------------------------------------------------------

_NOT_A_NUMBER = Case(loss="not a number", stored=STORED_NOT_A_NUMBER)
_OUT_OF_RANGE = {
    name: Case(loss="dates out of range", stored=stored)
    for name, stored in STORED_OUT_OF_RANGE.items()
}
_TEXTS = ("text", "varchar")


def _hold_postgres(kind: SourceType) -> Held:
    if kind.neutral == "binary" and kind.base != "bytea":
        note = "bytes: the source's database does not say which encoding it has"
        return _plain(kind, "binary", Kind.RAW_TEXT, note=note)
    if kind.is_array or not kind.is_builtin:
        return _plain(kind, "string", Kind.PRINTED, note="the text that PostgreSQL prints")
    if kind.base == "numeric":
        return _numeric(kind)
    name = _PG.get(kind.base, "string")
    if name in _OUT_OF_RANGE:
        return _with_cases(_plain(kind, name), kind, _OUT_OF_RANGE[name])
    if name != "string":
        return _plain(kind, name)
    if kind.base == "char":
        return _plain(kind, name, Kind.PADDED)
    return _plain(kind, name, Kind.TEXT if kind.base in _TEXTS else Kind.PRINTED)


def _numeric(kind: SourceType) -> Held:
    text = _plain(kind, "string", Kind.PRINTED)
    if not kind.arguments:
        return text
    precision, scale = (*kind.arguments, 0)[:2]
    if scale < 0:
        precision, scale = precision - scale, 0  # numeric(5,-2) keeps whole hundreds
    precision = max(precision, scale)
    if precision > DECIMAL_PRECISION_MAX:
        return text
    return _with_cases(_plain(kind, f"decimal({precision},{scale})"), kind, _NOT_A_NUMBER)


# -- MySQL and MariaDB -----------------------------------------------------------------------------

_ZERO_DATES = Case(loss="zero dates", stored=STORED_NO_DAY)
_YEAR_ZERO = Case(loss="dates out of range", stored=STORED_YEAR_ZERO)


def _hold_mysql(kind: SourceType) -> Held:
    if (kind.base, kind.unsigned) in _MYSQL_INTEGERS:
        return _plain(kind, _MYSQL_INTEGERS[kind.base, kind.unsigned])
    if kind.base == "decimal":
        return _decimal(kind)
    if kind.base == "bit":
        is_signed = (kind.length or 1) <= _BIT_WIDTH_SIGNED
        return _plain(kind, "int64" if is_signed else UNSIGNED_64, note="the number of the bits")
    if kind.base == "year":
        year = _plain(kind, "int32")
        form = Form(kind=Kind.YEAR if kind.is_short_year else Kind.INTEGER)
        return replace(year, source_form=form)
    if kind.base in GEOMETRIES:
        return _plain(kind, "string", Kind.GEOMETRY, note="EWKB in hexadecimal digits")
    name = _MYSQL.get(kind.base, "string")
    if name in _OUT_OF_RANGE:
        return _with_cases(_plain(kind, name), kind, _ZERO_DATES, _YEAR_ZERO)
    if name == "string" and kind.neutral == "binary":
        note = "bytes: penstock does not know the character set"
        return _plain(kind, "binary", Kind.RAW_TEXT, note=note)
    return _plain(kind, name, Kind.TEXT if name == "string" else None)


def _decimal(kind: SourceType) -> Held:
    precision, scale = kind.decimal
    if precision > DECIMAL_PRECISION_MAX:
        return _plain(kind, "string", Kind.TEXT)
    held = _plain(kind, f"decimal({precision},{scale})", Kind.DECIMAL)
    return replace(held, source_form=Form(kind=Kind.INTEGER)) if kind.zerofill else held


# -- Ignite ----------------------------------------------------------------------------------------


def _hold_ignite(kind: SourceType) -> Held:
    if kind.base == "decimal":
        return _numeric(kind)
    name = _IGNITE.get(kind.base, "string")
    case = Case(loss="dates out of range")
    if name == "timestamptz":
        return _with_cases(_plain(kind, name), kind, Case(loss="nanoseconds"), case)
    if name == "date":
        return _with_cases(_plain(kind, name), kind, case)
    return _plain(kind, name, Kind.TEXT if name == "string" else None)


# -- SQL Server ------------------------------------------------------------------------------------


def _hold_sqlserver(kind: SourceType) -> Held | None:
    if not kind.is_builtin:
        return None
    if kind.base in ("decimal", "money", "smallmoney"):
        precision, scale = decimal_of(kind)
        return _plain(kind, f"decimal({precision},{scale})")
    if kind.base in ("geometry", "geography"):
        return _plain(kind, "string", Kind.TEXT, note="EWKB in hexadecimal digits")
    name = _SQLSERVER.get(kind.base, "string")
    if name not in ("timestamp", "timestamptz"):
        return _plain(kind, name, Kind.TEXT if name == "string" else None)
    cases = []
    if fraction_of(kind) > _MICROSECONDS:
        cases.append(Case(loss="nanoseconds"))
    if kind.base == "datetimeoffset":
        cases.append(Case(loss="offsets"))
    held = _plain(kind, name)
    return _with_cases(held, kind, *cases) if cases else held
