"""Rules by which Oracle holds the types of PostgreSQL, MySQL, MariaDB and Ignite.

A type without a counterpart is held as the text that its server prints, like a time of day, which
Oracle does not have. Not here: types of SQL Server and of Oracle itself (`among_oracle`), and the
types of text, bytes and dates (`oracle_held`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.codec.types import among_oracle, oracle_held
from penstock.codec.types.from_ignite import counterpart, note_of
from penstock.codec.types.mapping import AS_TEXT, ERROR, ROUND, Held, Kind, Write
from penstock.codec.types.oracle_held import (
    BLOB,
    BYTES_OF_DIGITS,
    COLUMNS_MAX,
    DIGITS_CASE,
    DIGITS_MAX,
    EMPTY,
    EMPTY_CASE,
    NOT_A_NUMBER_CASE,
    NUMBER_SQL,
    PRINTED_EMPTY_CASE,
    YEAR_ZERO_CASE,
    ZERO_DATES_CASE,
    as_source_prints,
    check_case,
    is_moved,
    number,
    out_of_range_case,
    plain,
    run_of_bytes,
    uuid,
    with_text,
)
from penstock.codec.types.source_type import GEOMETRIES, Engine, Server, SourceType
from penstock.codec.types.to_mysql import PRINTED
from penstock.codec.types.to_sqlserver import AS_MYSQL_PRINTS, NANOSECONDS
from penstock.model import TableDefinition

MERGE_COLUMNS = 2  # of a merge table beside those of its table: count and stamp
KEYED_MERGE_COLUMNS = 1  # more if the table has a key, and one for each of its columns
_TIME_LENGTH = 17  # of -838:59:59.999999
_NANOSECONDS_CASE = check_case("nanoseconds", NANOSECONDS, ERROR, ROUND)


def hold_type(kind: SourceType, server: Server, key_bytes: int | None) -> Held | None:
    """Return how Oracle holds a type; None if it cannot. key_bytes: its room in a key; None outside
    keys.
    """
    del server  # every release that penstock supports has these types
    if kind.engine is Engine.POSTGRESQL:
        return _hold_postgres(kind, key_bytes)
    if kind.engine is Engine.IGNITE:
        return _hold_ignite(kind, key_bytes)
    if kind.engine is Engine.ORACLE:
        return among_oracle.hold_own(kind)
    if kind.engine is Engine.SQLSERVER:
        return among_oracle.hold_sqlserver(kind, key_bytes)
    return _hold_mysql(kind, key_bytes)


def find_too_many_columns(definition: TableDefinition) -> str:
    """Return why a table has more columns than Oracle allows; empty if it has not.

    Its rows pass a merge table, which has columns of penstock beside them.
    """
    count = sum(not column.generated for column in definition.columns)
    key = definition.row_key
    own = MERGE_COLUMNS + (KEYED_MERGE_COLUMNS + len(key) if key else 0)
    if count + own <= COLUMNS_MAX:
        return ""
    return (
        f"a table of Oracle has at most {COLUMNS_MAX:,} columns; this one has {count:,}, and "
        f"its merge table needs {own} more"
    )


# -- PostgreSQL ------------------------------------------------------------------------------------

_PG_NAME = "PostgreSQL"
_PG_INTEGERS = {
    "boolean": (1, Kind.BOOLEAN),
    "smallint": (5, Kind.INTEGER),
    "integer": (10, Kind.INTEGER),
    "bigint": (19, Kind.INTEGER),
    "oid": (10, Kind.INTEGER),
    "xid": (10, Kind.INTEGER),
    "cid": (10, Kind.INTEGER),
    "xid8": (20, Kind.INTEGER),
}
_PG_FLOATS = {"real": "BINARY_FLOAT", "double precision": "BINARY_DOUBLE"}
_PG_TEXTS = {"name": 63, '"char"': 4}
_PG_EMPTY = frozenset(
    ("text", "varchar", "name", '"char"', "xml", "varbit", "tsvector", "tsquery", "int2vector",
     "oidvector")
)  # fmt: skip
_PG_ENUM_LABEL_MAX = 63
_PG_TIME_LENGTH = 15
_NEVER_EMPTY = f"{EMPTY}={ERROR}"


def _hold_postgres(kind: SourceType, key_bytes: int | None) -> Held:
    if kind.neutral == "binary" and kind.base != "bytea":
        note = "bytes: the source's database does not say which encoding it has"
        empty = PRINTED_EMPTY_CASE
        held = run_of_bytes(None, key_bytes, empty=empty, note=note)
        raw = plain(held.target_type, Kind.RAW_TEXT, note=note)
        return replace(raw, cases=held.cases)
    if kind.is_array or not kind.is_builtin:
        return _pg_printed(kind, key_bytes)
    if kind.base in _PG_INTEGERS:
        digits, form = _PG_INTEGERS[kind.base]
        return plain(f"NUMBER({digits})", form)
    if kind.base in _PG_FLOATS:
        return plain(_PG_FLOATS[kind.base], Kind.FLOAT, sql=_float_sql(kind))
    if kind.base == "uuid":
        return uuid()
    if kind.base == "numeric":
        return _pg_numeric(kind, key_bytes)
    if kind.base == "bytea":
        return run_of_bytes(None, key_bytes, empty=EMPTY_CASE)
    if kind.base in ("text", "varchar", "char", *_PG_TEXTS):
        return _pg_text(kind, key_bytes)
    if kind.base in ("date", "time", "timestamp", "timestamptz"):
        return _pg_temporal(kind, key_bytes)
    return _pg_printed(kind, key_bytes)


def _float_sql(kind: SourceType) -> str:
    """Return the conversion of a float that is staged as text."""
    if not is_moved(kind):
        return "{}"
    return "TO_BINARY_FLOAT({})" if kind.base == "real" else "TO_BINARY_DOUBLE({})"


def _pg_printed(kind: SourceType, key_bytes: int | None) -> Held:
    """Return how what PostgreSQL prints is held. A text that should never be empty is checked."""
    if kind.is_array or not kind.is_builtin:
        most = _PG_ENUM_LABEL_MAX if kind.is_enum and not kind.is_array else None
    elif kind.base in ("bit", "varbit"):
        most = kind.length or (1 if kind.base == "bit" else None)
    else:
        most = PRINTED.get(kind.base)
    note = "the text that PostgreSQL prints"
    if kind.base in ("json", "jsonb") and not kind.is_array:
        note = "the document's text, unchanged"
    may_be_empty = not kind.is_array and (kind.base in _PG_EMPTY or not kind.is_builtin)
    empty = PRINTED_EMPTY_CASE if may_be_empty else None
    write = Write(name=AS_TEXT, prepare="" if may_be_empty else _NEVER_EMPTY)
    return oracle_held.text(most, key_bytes, Kind.PRINTED, empty=empty, note=note, write=write)


def _pg_text(kind: SourceType, key_bytes: int | None) -> Held:
    most = _PG_TEXTS.get(kind.base, kind.length if kind.base != "text" else None)
    form = {"char": Kind.PADDED, "text": Kind.TEXT, "varchar": Kind.TEXT}.get(
        kind.base, Kind.PRINTED
    )
    empty = None if kind.base == "char" else EMPTY_CASE
    if form is Kind.PRINTED:
        empty = PRINTED_EMPTY_CASE
    return oracle_held.text(most, key_bytes, form, empty=empty, write=Write())


def _pg_numeric(kind: SourceType, key_bytes: int | None) -> Held:
    precision, scale = (*kind.arguments, 0)[:2] if kind.arguments else (0, 0)
    if scale < 0:
        precision, scale = precision - scale, 0  # numeric(5,-2) keeps whole hundreds
    precision = max(precision, scale)
    if kind.arguments and precision <= DIGITS_MAX:
        held = replace(number(precision, scale, kind), cases=(NOT_A_NUMBER_CASE,))
    else:
        note = "numbers with up to 38 digits"
        held = plain("NUMBER", Kind.NUMBER, sql=NUMBER_SQL, note=note)
        held = replace(held, cases=(DIGITS_CASE, NOT_A_NUMBER_CASE))
    del key_bytes
    return with_text(held, Kind.PRINTED, as_source_prints(), name=_PG_NAME)


def _pg_temporal(kind: SourceType, key_bytes: int | None) -> Held:
    zone = "+00" if kind.base == "timestamptz" else ""
    if kind.base == "time":
        write = Write(name=AS_TEXT, prepare=as_source_prints(), needs_text=True)
        note = "text: Oracle has no time of day"
        return oracle_held.text(_PG_TIME_LENGTH, key_bytes, Kind.PRINTED, note=note, write=write)
    if kind.base == "date":
        held = oracle_held.day(kind)
    else:
        form = Kind.TIMESTAMPTZ if kind.base == "timestamptz" else Kind.TIMESTAMP
        held = oracle_held.moment(form, min(kind.fraction, 6), from_text=is_moved(kind))
        held = replace(held, note="in UTC" * (form is Kind.TIMESTAMPTZ))
    held = replace(held, cases=(out_of_range_case(kind.base),))
    return with_text(held, Kind.PRINTED, as_source_prints(zone), name=_PG_NAME)


# -- MySQL and MariaDB -----------------------------------------------------------------------------

_MYSQL_INTEGERS = {
    "tinyint": (3, 3),
    "smallint": (5, 5),
    "mediumint": (7, 8),
    "int": (10, 10),
    "bigint": (19, 20),
}
"""Digits of each integer, and of the unsigned one."""
_MYSQL_FLOATS = {"float": "BINARY_FLOAT", "double": "BINARY_DOUBLE"}
_MYSQL_TEXT_LENGTHS = {"tinytext": 255, "uuid": 36, "inet4": 15, "inet6": 45}
_MYSQL_NEVER_EMPTY = frozenset(("uuid", "inet4", "inet6", "json"))
_MYSQL_BYTES = {"tinyblob": 255}
_BIT_DIGITS = 20


def _hold_mysql(kind: SourceType, key_bytes: int | None) -> Held | None:
    if kind.base in _MYSQL_INTEGERS:
        return plain(f"NUMBER({_MYSQL_INTEGERS[kind.base][kind.unsigned]})", Kind.INTEGER)
    if kind.base in _MYSQL_FLOATS:
        return plain(_MYSQL_FLOATS[kind.base], Kind.FLOAT)
    if kind.base in _MYSQL_MAKERS:
        return _MYSQL_MAKERS[kind.base](kind, key_bytes)
    if kind.base in GEOMETRIES:
        note = "EWKB, as PostGIS understands it"
        held = plain(BLOB, Kind.GEOMETRY, note=note)
        return replace(held, write=Write(name="bytes of EWKB", prepare=BYTES_OF_DIGITS))
    if not kind.is_builtin or kind.base == "vector":
        return None
    is_bytes = kind.base.endswith(("blob", "binary"))
    if kind.neutral == "binary" and not is_bytes:
        note = "bytes: penstock does not know the character set"
        held = run_of_bytes(None, key_bytes, empty=EMPTY_CASE, note=note)
        return replace(plain(held.target_type, Kind.RAW_TEXT, note=note), cases=held.cases)
    if is_bytes:
        sized = kind.length or 1 if kind.base.endswith("binary") else _MYSQL_BYTES.get(kind.base)
        empty = None if kind.base == "binary" else EMPTY_CASE  # it is filled up with zeros
        return run_of_bytes(sized, key_bytes, empty=empty)
    return _mysql_text(kind, key_bytes)


def _mysql_text(kind: SourceType, key_bytes: int | None) -> Held:
    length = _MYSQL_TEXT_LENGTHS.get(kind.base)
    if kind.base in ("char", "varchar"):
        length = kind.length or 1
    note = "the document's text, unchanged" if kind.base == "json" else ""
    is_never = kind.base in _MYSQL_NEVER_EMPTY
    empty = None if is_never else EMPTY_CASE
    write = Write(prepare=_NEVER_EMPTY) if is_never else Write()
    return oracle_held.text(length, key_bytes, Kind.TEXT, empty=empty, note=note, write=write)


def _mysql_decimal(kind: SourceType, key_bytes: int | None) -> Held:
    precision, scale = kind.decimal
    if precision > DIGITS_MAX:
        note = "text: it has more digits than a NUMBER of Oracle"
        return oracle_held.text(precision + 3, key_bytes, Kind.TEXT, note=note)
    held = number(precision, scale, kind)
    return (
        replace(held, source_form=replace(held.source_form, kind=Kind.INTEGER))
        if (kind.zerofill)
        else held
    )


def _mysql_bit(kind: SourceType, _: int | None) -> Held:
    del kind
    return plain(f"NUMBER({_BIT_DIGITS})", Kind.INTEGER, note="the number of the bits")


def _mysql_year(kind: SourceType, _: int | None) -> Held:
    year = plain("NUMBER(4)", Kind.INTEGER)
    if not kind.is_short_year:
        return year
    return replace(year, source_form=replace(year.source_form, kind=Kind.YEAR))


def _mysql_time(kind: SourceType, key_bytes: int | None) -> Held:
    write = Write(name=AS_TEXT, prepare=f"{AS_MYSQL_PRINTS}={kind.fraction}", needs_text=True)
    note = "text: Oracle has no time of day"
    return oracle_held.text(_TIME_LENGTH, key_bytes, Kind.TEXT, note=note, write=write)


def _mysql_date(kind: SourceType, _: int | None) -> Held:
    fraction = 0 if kind.base == "date" else kind.fraction
    if kind.base == "date":
        held = oracle_held.day(kind)
    else:
        form = Kind.TIMESTAMPTZ if kind.base == "timestamp" else Kind.TIMESTAMP
        held = oracle_held.moment(form, fraction, from_text=is_moved(kind))
        if is_moved(kind) and form is Kind.TIMESTAMPTZ:  # MySQL prints no zone; it is UTC
            sql = oracle_held.UTC_SQL.replace("{}", oracle_held.TIMESTAMP_SQL)
            held = replace(held, write=replace(held.write, sql=sql))
        held = replace(held, note="in UTC" * (form is Kind.TIMESTAMPTZ))
    held = replace(held, cases=(ZERO_DATES_CASE, YEAR_ZERO_CASE))
    return with_text(held, Kind.TEXT, f"{AS_MYSQL_PRINTS}={fraction}", name=kind.engine.label)


def _mysql_labels(_: SourceType, key_bytes: int | None) -> Held:
    note = "the label, or labels with commas between them"
    return oracle_held.text(None, key_bytes, Kind.TEXT, empty=EMPTY_CASE, note=note)


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
    there = counterpart(kind)
    if there is None:
        return None
    found = _hold_postgres(there, key_bytes)
    if kind.base == "timestamp":
        return replace(found, cases=(_NANOSECONDS_CASE, *found.cases))
    return replace(found, note=note_of(kind) or found.note)
