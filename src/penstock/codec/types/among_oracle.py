"""Rules by which Oracle holds the types of SQL Server and its own.

Both print moments with all their digits and with their offset, which a TIMESTAMP of Oracle has,
too, so that nothing is rounded or moved to UTC. A text of SQL Server is compared by penstock, which
prints it (`codec.sqlserver.row_images`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.codec.oracle.types import REFUSED
from penstock.codec.oracle.types import parse_type as parse_own_type
from penstock.codec.types import from_sqlserver, oracle_held
from penstock.codec.types.mapping import AS_TEXT, Held, Kind, Write
from penstock.codec.types.oracle_held import (
    BLOB,
    BYTES_OF_DIGITS,
    CLOB,
    DAY_SQL,
    INTERVAL_TEXTS,
    NUMBER_SQL,
    OWN_EMPTY_CASE,
    TIMESTAMP_SQL,
    UTC_SQL,
    ZONED_SQL,
    as_source_prints,
    is_moved,
    number,
    plain,
    run_of_bytes,
    uuid,
)
from penstock.codec.types.source_type import SourceType

_REFUSED = {name.lower() for name in REFUSED}
FRACTION_MAX = 6  # of values that are not staged as text

# -- SQL Server ------------------------------------------------------------------------------------

_INTEGERS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
_TIME_LENGTH = 16
_ROW_VERSION_BYTES = 8
_TEXTS = frozenset(("char", "varchar", "nchar", "nvarchar"))
_NEVER_EMPTY = frozenset(("sql_variant", "json"))


def hold_sqlserver(kind: SourceType, key_bytes: int | None) -> Held | None:
    """Return how Oracle holds a type of SQL Server; None if it cannot."""
    if not kind.is_builtin:
        return None
    if kind.base in _SQLSERVER_MAKERS:
        return _SQLSERVER_MAKERS[kind.base](kind, key_bytes)
    if kind.base in _INTEGERS:
        return plain(f"NUMBER({_INTEGERS[kind.base]})", Kind.INTEGER)
    if kind.base in ("binary", "varbinary", "image"):
        empty = None if kind.base == "binary" else OWN_EMPTY_CASE
        return run_of_bytes(kind.length, key_bytes, empty=empty)
    length = kind.length if kind.base in _TEXTS else None
    empty = None if kind.base in _NEVER_EMPTY else OWN_EMPTY_CASE
    note = from_sqlserver.NOTES.get(kind.base, "")
    return oracle_held.text(length, key_bytes, Kind.TEXT, empty=empty, note=note, write=Write())


def _bit(_: SourceType, __: int | None) -> Held:
    return plain("NUMBER(1)", Kind.BOOLEAN)


def _decimal(kind: SourceType, _: int | None) -> Held:
    return number(*from_sqlserver.decimal_of(kind), kind)


def _float(kind: SourceType, _: int | None) -> Held:
    return plain("BINARY_FLOAT" if kind.base == "real" else "BINARY_DOUBLE", Kind.FLOAT)


def _guid(_: SourceType, __: int | None) -> Held:
    return uuid()


def _day(kind: SourceType, _: int | None) -> Held:
    return oracle_held.day(kind)


def _time(kind: SourceType, key_bytes: int | None) -> Held:
    prepare = "" if is_moved(kind) else as_source_prints()
    write = Write(name=AS_TEXT, prepare=prepare, needs_text=True)
    note = "text: Oracle has no time of day"
    return oracle_held.text(_TIME_LENGTH, key_bytes, Kind.TEXT, note=note, write=write)


def _moment(kind: SourceType, _: int | None) -> Held:
    """Return a date and time; one with an offset or with a seventh digit is compared as text."""
    digits = from_sqlserver.fraction_of(kind)
    form = Kind.TIMESTAMPTZ if kind.base == "datetimeoffset" else Kind.TIMESTAMP
    held = oracle_held.moment(form, digits, from_text=is_moved(kind))
    if form is Kind.TIMESTAMP and digits <= FRACTION_MAX:
        return held
    return _compared_as_text(held)


def _compared_as_text(held: Held) -> Held:
    form = replace(held.source_form, kind=Kind.TEXT)
    return replace(held, source_form=form, target_form=form)


def _geometry(_: SourceType, __: int | None) -> Held:
    held = plain(BLOB, Kind.BYTES, note=from_sqlserver.NOTES["geometry"])
    return replace(held, write=Write(name="bytes of EWKB", prepare=BYTES_OF_DIGITS))


def _row_version(_: SourceType, key_bytes: int | None) -> Held:
    note = from_sqlserver.NOTES["rowversion"]
    return run_of_bytes(_ROW_VERSION_BYTES, key_bytes, empty=None, note=note)


_SQLSERVER_MAKERS: dict[str, Callable[[SourceType, int | None], Held]] = {
    "bit": _bit,
    "decimal": _decimal,
    "money": _decimal,
    "smallmoney": _decimal,
    "real": _float,
    "float": _float,
    "uniqueidentifier": _guid,
    "date": _day,
    "time": _time,
    "datetime": _moment,
    "smalldatetime": _moment,
    "datetime2": _moment,
    "datetimeoffset": _moment,
    "geometry": _geometry,
    "geography": _geometry,
    "rowversion": _row_version,
}

# -- Oracle ----------------------------------------------------------------------------------------

_OWN_NOTES = {
    "rowid": "the text: it has no meaning in the target",
    "urowid": "the text: it has no meaning in the target",
    "long": "a CLOB: a table has one LONG, which nothing but a query can read",
    "long raw": "a BLOB: a table has one LONG RAW, which nothing but a query can read",
}
_ROWID_LENGTH = 18
_UROWID_LENGTH = 1000
_OWN_LENGTHS_MAX = {"char": 2000, "varchar2": 4000, "nchar": 1000, "nvarchar2": 2000}
"""Greatest lengths that servers allow without extended types."""


def hold_own(kind: SourceType) -> Held | None:
    """Return the same type, in which values arrive without loss; None for a refused one.

    A length in bytes becomes one in characters, because the target's database may need more bytes
    for a character than the source's.
    """
    if not kind.is_builtin or kind.base in _REFUSED:
        return None
    for bases, make in _OWN_MAKERS:
        if kind.base in bases:
            return make(kind)
    return plain(kind.text, Kind.BYTES)  # RAW


def _own_number(kind: SourceType) -> Held:
    own = parse_own_type(kind.text)
    sql = NUMBER_SQL if is_moved(kind) else "{}"
    if own.decimal is None or own.precision is None:
        return plain(kind.text, Kind.NUMBER, sql=sql)
    form = Kind.INTEGER if own.scale is not None and own.scale <= 0 else Kind.DECIMAL
    return plain(kind.text, form, sql=sql)


def _own_float(kind: SourceType) -> Held:
    sql = "{}"
    if is_moved(kind):
        sql = "TO_BINARY_FLOAT({})" if kind.base == "binary_float" else "TO_BINARY_DOUBLE({})"
    return plain(kind.text, Kind.FLOAT, sql=sql)


def _own_text(kind: SourceType) -> Held:
    name, length = kind.base.upper(), kind.length or 1
    if length > _OWN_LENGTHS_MAX[kind.base]:
        note = "a CLOB: the target's VARCHAR2 has 4,000 bytes unless it is extended"
        return plain("NCLOB" if name.startswith("N") else CLOB, Kind.TEXT, note=note)
    unit = "" if name.startswith("N") else " CHAR"
    return plain(f"{name}({length}{unit})", Kind.TEXT)


def _own_long_text(kind: SourceType) -> Held:
    target = "NCLOB" if kind.base == "nclob" else CLOB
    held = plain(target, Kind.TEXT, note=_OWN_NOTES.get(kind.base, ""))
    return held if kind.base == "long" else replace(held, cases=(OWN_EMPTY_CASE,))


def _own_long_bytes(kind: SourceType) -> Held:
    held = plain(BLOB, Kind.BYTES, note=_OWN_NOTES.get(kind.base, ""))
    return held if kind.base == "long raw" else replace(held, cases=(OWN_EMPTY_CASE,))


def _own_row_id(kind: SourceType) -> Held:
    length = _ROWID_LENGTH if kind.base == "rowid" else _UROWID_LENGTH
    return plain(f"VARCHAR2({length} CHAR)", Kind.TEXT, note=_OWN_NOTES[kind.base])


def _own_interval(kind: SourceType) -> Held:
    is_months = kind.base == "interval year to month"
    sql = "TO_YMINTERVAL({})" if is_months else "TO_DSINTERVAL({})"
    held = plain(kind.text, Kind.TEXT)
    return replace(held, write=Write(sql=sql, prepare=INTERVAL_TEXTS))


def _own_moment(kind: SourceType) -> Held:
    """Return a date and time. One that may have years before 1 is staged as text if it has one."""
    if kind.base == "date":
        sql = DAY_SQL.replace("{}", TIMESTAMP_SQL) if is_moved(kind) else DAY_SQL
        held = plain(kind.text, Kind.TIMESTAMP, sql=sql)
    elif kind.base == "timestamp":
        held = plain(kind.text, Kind.TIMESTAMP, sql=TIMESTAMP_SQL if is_moved(kind) else "{}")
    else:
        is_local = kind.base == "timestamp with local time zone"
        sql = ZONED_SQL if is_moved(kind) else UTC_SQL
        held = plain(kind.text, Kind.TIMESTAMPTZ if is_local else Kind.TEXT, sql=sql)
    if is_moved(kind) or kind.length not in (None, *range(FRACTION_MAX + 1)):
        held = _compared_as_text(held)
    if not is_moved(kind):
        return held
    return replace(held, write=replace(held.write, prepare=oracle_held.MOMENT_TEXTS))


_OWN_MAKERS: tuple[tuple[frozenset[str], Callable[[SourceType], Held]], ...] = (
    (frozenset(("number", "float")), _own_number),
    (frozenset(("binary_float", "binary_double")), _own_float),
    (frozenset(("char", "varchar2", "nchar", "nvarchar2")), _own_text),
    (frozenset(("clob", "nclob", "long")), _own_long_text),
    (frozenset(("blob", "long raw")), _own_long_bytes),
    (frozenset(("rowid", "urowid")), _own_row_id),
    (frozenset(("interval year to month", "interval day to second")), _own_interval),
    (
        frozenset(("date", "timestamp", "timestamptz", "timestamp with local time zone")),
        _own_moment,
    ),
)
