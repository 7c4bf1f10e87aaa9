"""Rules by which SQL Server holds the types of PostgreSQL, MySQL, MariaDB, Ignite, and its own.

Text is nvarchar in a collation that compares code units. Even there `=` ignores blanks at the end
of a text, and zeros at the end of bytes, so such keys have the loss `blanks in keys`. Values that a
type cannot hold are found in our own process (`prepare.py`), because neither the driver nor a
staging table can hold them either. Follows the reference's section 7, and F4.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from penstock.codec.types.mapping import (
    AS_TEXT,
    ERROR,
    NULL,
    ROUND,
    ZERO,
    Case,
    Form,
    Held,
    Kind,
    Write,
)
from penstock.codec.types.source_type import (
    GEOMETRIES,
    STORED_NOT_A_NUMBER,
    STORED_OUT_OF_RANGE,
    STORED_YEAR_ZERO,
    Engine,
    Server,
    SourceType,
)
from penstock.codec.types.to_mysql import PRINTED
from penstock.codec.types.to_postgres import STORED_NO_DAY
from penstock.model import TableDefinition

DIGITS_MAX = 38
KEY_BYTES_MAX = 900  # of a clustered index, all columns together
COLUMNS_MAX = 1024
MERGE_COLUMNS = 2  # of a merge table beside those of its table: count and stamp
KEYED_MERGE_COLUMNS = 1  # more if the table has a key, and one for each of its columns
NVARCHAR_MAX = 4000  # pairs of bytes of UTF-16
VARBINARY_MAX = 8000
UNIT_BYTES = 2
UNITS_OF_CHARACTER = 2  # a character above U+FFFF is a pair
COLLATION = "COLLATE Latin1_General_100_BIN2"
TEXT_MAX = f"nvarchar(max) {COLLATION}"
UNSIGNED_64 = "decimal(20,0)"

# Names of checks and changes in `prepare.py`; each is followed by `=` and the choice.
NOT_A_NUMBER = "not a number"
SUBNORMAL = "subnormal"
SUBNORMAL_REAL = "subnormal real"
DATES = "dates"
NANOSECONDS = "nanoseconds"
ZERO_DATES = "zero dates"
AS_SOURCE_PRINTS = "as the source prints, with the zone"
AS_MYSQL_PRINTS = "as MySQL prints, with a fraction of"

_BIT_WIDTH_SIGNED = 63
_NOTE_EWKB = "EWKB, as `geometry::STGeomFromWKB` reads it without the SRID"


def hold_type(kind: SourceType, server: Server, key_bytes: int | None) -> Held | None:
    """Return how SQL Server holds a type; None if it cannot. key_bytes: its room in a key; None
    outside keys.
    """
    if kind.engine is Engine.POSTGRESQL:
        return _hold_postgres(kind, key_bytes)
    if kind.engine is Engine.IGNITE:
        return _hold_ignite(kind, key_bytes)
    if kind.engine is Engine.SQLSERVER:
        return _hold_own(kind)
    return _hold_mysql(kind, key_bytes, server)


def find_too_many_columns(definition: TableDefinition) -> str:
    """Return why a table has more columns than SQL Server allows; empty if it has not.

    Its rows pass a merge table, which has columns of penstock beside them.
    """
    count = sum(not column.generated for column in definition.columns)
    key = definition.row_key
    own = MERGE_COLUMNS + (KEYED_MERGE_COLUMNS + len(key) if key else 0)
    if count + own <= COLUMNS_MAX:
        return ""
    return (
        f"a table of SQL Server has at most {COLUMNS_MAX:,} columns; this one has {count:,}, and "
        f"its merge table needs {own} more"
    )


def _case(loss: str, check: str, *choices: str, stored: str = "") -> Case:
    """Return a case that our process finds.

    check: of `prepare.py`, followed by the choice. stored: condition over the source's column.
    """
    return Case(
        loss=loss, stored=stored, prepare={choice: f"{check}={choice}" for choice in choices}
    )


def _out_of_range(stored: str) -> Case:
    return _case("dates out of range", DATES, ERROR, NULL, stored=stored)


_NOT_A_NUMBER = _case("not a number", NOT_A_NUMBER, ERROR, NULL, stored=STORED_NOT_A_NUMBER)
_PG_OUT_OF_RANGE = {**STORED_OUT_OF_RANGE, "time": "{} = time '24:00:00'"}
_ZERO_DATES = _case("zero dates", ZERO_DATES, ERROR, NULL, stored=STORED_NO_DAY)
NANOSECONDS_CASE = _case("nanoseconds", NANOSECONDS, ERROR, ROUND)


def _plain(target: str, kind: Kind, *, note: str = "", sql: str = "{}") -> Held:
    form = Form(kind=kind)
    return Held(
        target_type=target,
        source_form=form,
        target_form=form,
        write=Write(sql=sql),
        note=note,
    )


def text_type(units: int | None, key_bytes: int | None) -> tuple[str, tuple[Case, ...]]:
    """Return the type for text, and its losses.

    units: most pairs of bytes in UTF-16; None for any number. key_bytes: its room in a key; None
    outside keys.
    """
    cases: list[Case] = []
    if key_bytes is not None:
        cases.append(Case(loss="blanks in keys"))
        room = key_bytes // UNIT_BYTES
        if units is None or units > room:
            units = room
            cases.append(Case(loss="long keys"))  # the server refuses them
    if units is None or units > NVARCHAR_MAX:
        return TEXT_MAX, tuple(cases)
    return f"nvarchar({max(units, 1)}) {COLLATION}", tuple(cases)


def bytes_type(maximum: int | None, key_bytes: int | None) -> tuple[str, tuple[Case, ...]]:
    """Return the type for at most this many bytes, and its losses; arguments as for text_type."""
    if key_bytes is None:
        is_sized = maximum is not None and maximum <= VARBINARY_MAX
        return f"varbinary({maximum})" if is_sized else "varbinary(max)", ()
    blanks = Case(loss="blanks in keys")
    if maximum is not None and maximum <= key_bytes:
        return f"varbinary({maximum})", (blanks,)
    return f"varbinary({key_bytes})", (blanks, Case(loss="long keys"))


def _text(
    units: int | None,
    key_bytes: int | None,
    form: Kind,
    *,
    note: str = "",
    write: Write | None = None,
) -> Held:
    target, cases = text_type(units, key_bytes)
    return replace(_plain(target, form, note=note), cases=cases, write=write or Write(name=AS_TEXT))


def _bytes(maximum: int | None, key_bytes: int | None, *, note: str = "") -> Held:
    target, cases = bytes_type(maximum, key_bytes)
    return replace(_plain(target, Kind.BYTES, note=note), cases=cases)


def _float(target: str, *cases: Case) -> Held:
    check = SUBNORMAL_REAL if target == "real" else SUBNORMAL
    least = "1.1754943508222875e-38" if target == "real" else "2.2250738585072014e-308"
    subnormal = replace(
        _case("subnormal numbers", check, ERROR, ZERO, stored=f"{{}} <> 0 and abs({{}}) < {least}"),
        instead={ZERO: ("{}", "'0'")},
    )
    return replace(_plain(target, Kind.FLOAT), cases=(*cases, subnormal))


def _with_text(held: Held, form: Kind, prepare: str, *, name: str) -> Held:
    """Return a type that does not hold all values, and its text, which does. prepare: for values
    that are not text.
    """
    note = f"the text that {name} prints"
    write = Write(name=AS_TEXT, prepare=prepare, needs_text=True)
    return replace(held, text=_text(None, None, form, note=note, write=write))


def _is_moved(kind: SourceType) -> bool:
    """Return whether values are staged as text, because one of them did not fit its type."""
    return kind.neutral == "string"


def _cast(target: str, kind: SourceType) -> str:
    return f"CAST({{}} AS {target})" if _is_moved(kind) else "{}"


# -- PostgreSQL ------------------------------------------------------------------------------------

_PG_NAME = "PostgreSQL"
_PG_PLAIN = {
    "boolean": ("bit", Kind.BOOLEAN),
    "smallint": ("smallint", Kind.INTEGER),
    "integer": ("int", Kind.INTEGER),
    "bigint": ("bigint", Kind.INTEGER),
    "oid": ("bigint", Kind.INTEGER),
    "xid": ("bigint", Kind.INTEGER),
    "cid": ("bigint", Kind.INTEGER),
    "xid8": (UNSIGNED_64, Kind.INTEGER),
    "uuid": ("uniqueidentifier", Kind.TEXT),
}
_PG_ENUM_LABEL_MAX = 63
_PG_TEXTS = {"name": 63, '"char"': 4}


def _hold_postgres(kind: SourceType, key_bytes: int | None) -> Held:
    if kind.neutral == "binary" and kind.base != "bytea":
        note = "bytes: the source's database does not say which encoding it has"
        target, cases = bytes_type(None, key_bytes)
        return replace(_plain(target, Kind.RAW_TEXT, note=note), cases=cases)
    if kind.is_array or not kind.is_builtin:
        most = _PG_ENUM_LABEL_MAX if kind.is_enum and not kind.is_array else None
        return _hold_printed(most, key_bytes)
    if kind.base in _PG_PLAIN:
        return _plain(*_PG_PLAIN[kind.base])
    if kind.base in ("real", "double precision"):
        held = _float("real" if kind.base == "real" else "float", _NOT_A_NUMBER)
        return _with_text(held, Kind.PRINTED, f"{AS_SOURCE_PRINTS}=", name=_PG_NAME)
    if kind.base == "numeric":
        return _numeric(kind, key_bytes)
    if kind.base == "bytea":
        return _bytes(None, key_bytes)
    if kind.base in ("text", "varchar", "char", *_PG_TEXTS):
        return _pg_text(kind, key_bytes)
    if kind.base in ("date", "time", "timestamp", "timestamptz"):
        return _pg_temporal(kind)
    if kind.base in ("json", "jsonb"):
        return _hold_printed(None, key_bytes, note="the document's text, unchanged")
    if kind.base in ("bit", "varbit"):
        return _hold_printed(kind.length or (1 if kind.base == "bit" else None), key_bytes)
    return _hold_printed(PRINTED.get(kind.base), key_bytes)


def _hold_printed(most: int | None, key_bytes: int | None, *, note: str = "") -> Held:
    units = most * UNITS_OF_CHARACTER if most else None
    return _text(units, key_bytes, Kind.PRINTED, note=note or "the text that PostgreSQL prints")


def _pg_text(kind: SourceType, key_bytes: int | None) -> Held:
    most = _PG_TEXTS.get(kind.base, kind.length if kind.base != "text" else None)
    form = {"char": Kind.PADDED, "text": Kind.TEXT, "varchar": Kind.TEXT}.get(
        kind.base, Kind.PRINTED
    )
    units = most * UNITS_OF_CHARACTER if most else None
    return _text(units, key_bytes, form, write=Write())


def _numeric(kind: SourceType, key_bytes: int | None) -> Held:
    note = "text: values have more digits, or different scales"
    text = _text(None, key_bytes, Kind.PRINTED, note=note)
    if not kind.arguments:
        return text
    precision, scale = (*kind.arguments, 0)[:2]
    if scale < 0:
        precision, scale = precision - scale, 0  # numeric(5,-2) keeps whole hundreds
    precision = max(precision, scale)
    if precision > DIGITS_MAX:
        return text
    target = f"decimal({precision},{scale})"
    held = replace(
        _plain(target, Kind.DECIMAL, sql=_cast(target, kind)),
        cases=(_NOT_A_NUMBER,),
    )
    return _with_text(held, Kind.PRINTED, f"{AS_SOURCE_PRINTS}=", name=_PG_NAME)


_PG_TEMPORALS = {
    "date": ("date", Kind.DATE),
    "time": ("time", Kind.TIME),
    "timestamp": ("datetime2", Kind.TIMESTAMP),
    "timestamptz": ("datetimeoffset", Kind.TIMESTAMPTZ),
}


def _pg_temporal(kind: SourceType) -> Held:
    name, form = _PG_TEMPORALS[kind.base]
    target = name if kind.base == "date" else f"{name}({min(kind.fraction, 6)})"
    held = replace(
        _plain(target, form, sql=_cast(target, kind), note="in UTC" * (form is Kind.TIMESTAMPTZ)),
        cases=(_out_of_range(_PG_OUT_OF_RANGE[kind.base]),),
    )
    both = Form(kind=form, fraction=kind.fraction)
    held = replace(held, source_form=both, target_form=both)
    zone = "+00" if kind.base == "timestamptz" else ""
    return _with_text(held, Kind.PRINTED, f"{AS_SOURCE_PRINTS}={zone}", name=_PG_NAME)


# -- MySQL and MariaDB -----------------------------------------------------------------------------

_MYSQL_INTEGERS = {
    ("tinyint", False): "smallint",
    ("tinyint", True): "tinyint",
    ("smallint", False): "smallint",
    ("smallint", True): "int",
    ("mediumint", False): "int",
    ("mediumint", True): "int",
    ("int", False): "int",
    ("int", True): "bigint",
    ("bigint", False): "bigint",
    ("bigint", True): UNSIGNED_64,
}
_MYSQL_TEXT_LENGTHS = {"tinytext": 255, "uuid": 36, "inet4": 15, "inet6": 45}
_MYSQL_BYTES = {"tinyblob": 255}
_MYSQL_TIME_LENGTH = 17  # of -838:59:59.999999


def _hold_mysql(kind: SourceType, key_bytes: int | None, _: Server) -> Held | None:
    if (kind.base, kind.unsigned) in _MYSQL_INTEGERS:
        return _plain(_MYSQL_INTEGERS[kind.base, kind.unsigned], Kind.INTEGER)
    if kind.base in ("float", "double"):
        return _float("real" if kind.base == "float" else "float")
    if kind.base in _MYSQL_MAKERS:
        return _MYSQL_MAKERS[kind.base](kind, key_bytes)
    if kind.base in GEOMETRIES:
        target = "varbinary(max)"
        return _plain(target, Kind.GEOMETRY, sql=f"CONVERT({target}, {{}}, 2)", note=_NOTE_EWKB)
    if not kind.is_builtin or kind.base == "vector":
        return None
    if kind.neutral == "binary" and not _is_bytes(kind.base):
        note = "bytes: penstock does not know the character set"
        target, cases = bytes_type(None, key_bytes)
        return replace(_plain(target, Kind.RAW_TEXT, note=note), cases=cases)
    if _is_bytes(kind.base):
        sized = kind.length or 1 if kind.base.endswith("binary") else _MYSQL_BYTES.get(kind.base)
        return _bytes(sized, key_bytes)
    length = _MYSQL_TEXT_LENGTHS.get(kind.base)
    if kind.base in ("char", "varchar"):
        length = kind.length or 1
    note = "the document's text, unchanged" if kind.base == "json" else ""
    units = length * UNITS_OF_CHARACTER if length is not None else None
    return _text(units, key_bytes, Kind.TEXT, note=note, write=Write())


def _is_bytes(base: str) -> bool:
    return base.endswith(("blob", "binary"))


def _mysql_decimal(kind: SourceType, key_bytes: int | None) -> Held:
    precision, scale = kind.decimal
    if precision > DIGITS_MAX:
        note = "text: it has more digits than a decimal of SQL Server"
        return _text(precision + 3, key_bytes, Kind.TEXT, note=note)
    held = _plain(f"decimal({precision},{scale})", Kind.DECIMAL)
    return replace(held, source_form=Form(kind=Kind.INTEGER)) if kind.zerofill else held


def _mysql_bit(kind: SourceType, _: int | None) -> Held:
    is_signed = (kind.length or 1) <= _BIT_WIDTH_SIGNED
    note = "the number of the bits"
    return _plain("bigint" if is_signed else UNSIGNED_64, Kind.INTEGER, note=note)


def _mysql_year(kind: SourceType, _: int | None) -> Held:
    year = _plain("smallint", Kind.INTEGER)
    return replace(year, source_form=Form(kind=Kind.YEAR)) if kind.is_short_year else year


def _mysql_time(kind: SourceType, key_bytes: int | None) -> Held:
    note = "text: MySQL's TIME goes from -838 to 838 hours"
    prepare = f"{AS_MYSQL_PRINTS}={kind.fraction}"
    write = Write(name=AS_TEXT, prepare=prepare, needs_text=True)
    return _text(_MYSQL_TIME_LENGTH, key_bytes, Kind.TEXT, note=note, write=write)


def _mysql_date(kind: SourceType, _: int | None) -> Held:
    names = {"date": ("date", Kind.DATE), "datetime": ("datetime2", Kind.TIMESTAMP)}
    name, form = names.get(kind.base, ("datetimeoffset", Kind.TIMESTAMPTZ))
    target = name if kind.base == "date" else f"{name}({kind.fraction})"
    both = Form(kind=form, fraction=kind.fraction)
    held = replace(
        _plain(target, form, sql=_cast(target, kind), note="in UTC" * (form is Kind.TIMESTAMPTZ)),
        source_form=both,
        target_form=both,
        cases=(_ZERO_DATES, _out_of_range(STORED_YEAR_ZERO)),
    )
    fraction = 0 if kind.base == "date" else kind.fraction
    return _with_text(held, Kind.TEXT, f"{AS_MYSQL_PRINTS}={fraction}", name=kind.engine.label)


def _mysql_labels(_: SourceType, key_bytes: int | None) -> Held:
    return _text(None, key_bytes, Kind.TEXT, note="the label, or labels with commas between them")


_MYSQL_MAKERS: dict[str, Callable[[SourceType, int | None], Held]] = {
    "decimal": _mysql_decimal,
    "bit": _mysql_bit,
    "year": _mysql_year,
    "time": _mysql_time,
    "date": _mysql_date,
    "datetime": _mysql_date,
    "timestamp": _mysql_date,
    "enum": _mysql_labels,
    "set": _mysql_labels,
}


# -- Ignite ----------------------------------------------------------------------------------------


def _hold_ignite(kind: SourceType, key_bytes: int | None) -> Held | None:
    from penstock.codec.types.from_ignite import counterpart, note_of

    there = counterpart(kind)
    if there is None:
        return None
    found = _hold_postgres(there, key_bytes)
    if kind.base == "timestamp":
        return replace(found, cases=(NANOSECONDS_CASE, *found.cases))
    return replace(found, note=note_of(kind) or found.note)


# -- SQL Server ------------------------------------------------------------------------------------

_OWN_FORMS = {
    "bit": Kind.BOOLEAN,
    "tinyint": Kind.INTEGER,
    "smallint": Kind.INTEGER,
    "int": Kind.INTEGER,
    "bigint": Kind.INTEGER,
    "decimal": Kind.DECIMAL,
    "money": Kind.DECIMAL,
    "smallmoney": Kind.DECIMAL,
    "float": Kind.FLOAT,
    "real": Kind.FLOAT,
    "date": Kind.DATE,
    "binary": Kind.BYTES,
    "varbinary": Kind.BYTES,
    "image": Kind.BYTES,
    "rowversion": Kind.BYTES,
}
_TEXTS = frozenset(("char", "varchar", "nchar", "nvarchar", "text", "ntext"))
_SRID = (
    "CONVERT(int, CONVERT(binary(4), SUBSTRING({0}, 17, 2) + SUBSTRING({0}, 15, 2) + "
    "SUBSTRING({0}, 13, 2) + SUBSTRING({0}, 11, 2), 2))"
)
_GEOMETRY = (
    "CASE WHEN SUBSTRING({{0}}, 9, 1) IN ('2', '3') THEN {kind}::STGeomFromWKB(CONVERT("
    "varbinary(max), STUFF(STUFF({{0}}, 11, 8, ''), 9, 1, '0'), 2), "
    f"{_SRID.replace('{0}', '{{0}}')}) "
    "ELSE {kind}::STGeomFromWKB(CONVERT(varbinary(max), {{0}}, 2), 0) END"
)


def _hold_own(kind: SourceType) -> Held | None:
    """Return the same type: values are read and written without loss."""
    if not kind.is_builtin:
        return None
    form = _OWN_FORMS.get(kind.base, Kind.TEXT)
    if kind.base in _TEXTS:
        return _plain(_with_collation(kind), form)
    if kind.base == "rowversion":
        note = "the value that the source had: a rowversion cannot be written"
        return _plain("binary(8)", form, note=note)
    if kind.base in ("time", "datetime2", "datetimeoffset"):
        return _plain(kind.text, form, sql=f"CAST({{}} AS {kind.text})")
    if kind.base == "hierarchyid":
        return _plain(kind.text, form, sql="hierarchyid::Parse({})")
    if kind.base in ("geometry", "geography"):
        return _plain(kind.text, form, sql=_GEOMETRY.format(kind=kind.base).replace("{0}", "{}"))
    if kind.base == "sql_variant":
        return _text(None, None, form, note="text: its base type, a colon, and its value")
    return _plain(kind.text, form)


def _with_collation(kind: SourceType) -> str:
    name = re.fullmatch(r"\w+", kind.collation or "")
    return f"{kind.text} COLLATE {name[0]}" if name else kind.text
