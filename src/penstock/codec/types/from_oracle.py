"""Rules by which PostgreSQL, MySQL, MariaDB, SQL Server and lakes hold the types of Oracle.

Its values are read by `codec.oracle.literals`, whose texts have PostgreSQL's form: a number with
all digits, `0044-03-15 00:00:00 BC`. Outside of PostgreSQL a type is held as its counterpart of
PostgreSQL is. A `TIMESTAMP WITH TIME ZONE` is always text with its offset, as SQL Server's
datetimeoffset; an interval is text in ISO 8601. An empty text of Oracle is NULL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.codec.oracle.types import REFUSED, parse_type
from penstock.codec.types import from_sqlserver, to_lake, to_mysql, to_sqlserver
from penstock.codec.types.mapping import Case, Form, Held, Kind
from penstock.codec.types.source_type import Engine, Server, SourceType
from penstock.codec.types.to_postgres import NUL_CASE, plain

FRACTION_MAX = 6
INTERVAL_NOTE = "text in ISO 8601: `P-12Y-3M`, `P5DT4H3M2.5S`"
ROWID_NOTE = "the text: it has no meaning in the target"
_ROWID_LENGTH = 18
_UROWID_LENGTH = 4000
_INTERVAL_LENGTH = 40
_CHARACTER_BYTES = 4
_OTHER_BYTES = 36
_REFUSED = {name.lower(): reason for name, reason in REFUSED.items()}
_TEXTS = frozenset(("char", "varchar2", "nchar", "nvarchar2"))
_LONG_TEXTS = frozenset(("clob", "nclob", "long"))
_BYTES = frozenset(("raw", "long raw", "blob"))
_ROWIDS = {"rowid": _ROWID_LENGTH, "urowid": _UROWID_LENGTH}
_INTERVALS = frozenset(("interval year to month", "interval day to second"))
_ZONED = "timestamptz"
_LOCAL = "timestamp with local time zone"
_MOMENTS = frozenset(("date", "timestamp", _LOCAL))
_INTEGERS = {"int16": "smallint", "int32": "integer", "int64": "bigint"}
_FLOATS = {"binary_float": "real", "binary_double": "double precision"}
_NOT_A_NUMBER = "not a number"


def hold_type(kind: SourceType, target: Server, key_bytes: int | None) -> Held | None:
    """Return how the target holds a type; None if it cannot. key_bytes: its room in a key; None
    outside keys.
    """
    if not kind.is_builtin or kind.base in _REFUSED:
        return None
    if target.engine is Engine.POSTGRESQL:
        return _in_postgres(kind, key_bytes)
    if target.engine.is_lake:
        return _with_note(kind, _in_lake(kind))
    if target.engine is Engine.SQLSERVER:
        found = to_sqlserver.hold_type(_counterpart(kind), target, key_bytes)
        return _with_note(kind, _with_nanoseconds(kind, found, to_sqlserver.NANOSECONDS_CASE))
    return _with_note(kind, _in_mysql(kind, target, key_bytes))


def refusal_of(kind: SourceType) -> str:
    """Return why no target holds a type."""
    reason = _REFUSED.get(kind.base, "it is a type of objects or collections, or an unknown one")
    return f"penstock carries no {kind.text}: {reason}"


def fraction_of(kind: SourceType) -> int:
    """Return the digits after the second that a date and time may have."""
    return kind.arguments[0] if kind.arguments else 0


def key_bytes_of(kind: SourceType) -> int | None:
    """Return the bytes of the longest value in a key; None if there is no limit."""
    if kind.base in _TEXTS:
        return (kind.length or 1) * _CHARACTER_BYTES
    if kind.base in _ROWIDS:
        return _ROWIDS[kind.base] * _CHARACTER_BYTES
    if kind.base == "raw":
        return kind.length
    if kind.base in _INTERVALS:
        return _INTERVAL_LENGTH * _CHARACTER_BYTES
    return None if kind.base in _LONG_TEXTS | _BYTES | _REFUSED.keys() else _OTHER_BYTES


def _counterpart(kind: SourceType) -> SourceType:
    """Return the type of PostgreSQL that holds the same values."""
    base, arguments = _counterpart_name(kind)
    return replace(kind, engine=Engine.POSTGRESQL, base=base, arguments=arguments)


def _counterpart_name(kind: SourceType) -> tuple[str, tuple[int, ...]]:
    if kind.base in ("number", "float"):
        return _number_name(kind)
    if kind.base in _FLOATS:
        return _FLOATS[kind.base], ()
    if kind.base in _MOMENTS:
        name = "timestamptz" if kind.base == _LOCAL else "timestamp"
        return name, (min(fraction_of(kind), FRACTION_MAX),)
    if kind.base == _ZONED:
        return "timestamptz", (min(fraction_of(kind), FRACTION_MAX),)
    if kind.base in _BYTES:
        return "bytea", ()
    if kind.base in _INTERVALS:
        return "varchar", (_INTERVAL_LENGTH,)
    if kind.base in _ROWIDS:
        return "varchar", (_ROWIDS[kind.base],)
    return ("varchar", (kind.length or 1,)) if kind.base in _TEXTS else ("text", ())


def _number_name(kind: SourceType) -> tuple[str, tuple[int, ...]]:
    own = parse_type(kind.text)
    if own.neutral in _INTEGERS:
        return _INTEGERS[own.neutral], ()
    return "numeric", own.decimal or ()


def _is_text(kind: SourceType) -> bool:
    """Return whether values are staged as text."""
    return kind.neutral == "string"


def _has_nanoseconds(kind: SourceType) -> bool:
    return kind.base in _MOMENTS | {_ZONED} and fraction_of(kind) > FRACTION_MAX


def _with_nanoseconds(kind: SourceType, held: Held | None, case: Case) -> Held | None:
    """Return a type with the loss of digits after the microsecond, if values may have some."""
    if held is None:
        return None
    held = _without_infinity(kind, held)
    return replace(held, cases=(case, *held.cases)) if _has_nanoseconds(kind) else held


def _without_infinity(kind: SourceType, held: Held) -> Held:
    """Return a number without the loss of NaN, which a NUMBER does not have.

    Its infinities cannot be computed or written by SQL; a load stops at one.
    """
    if kind.base not in ("number", "float"):
        return held
    cases = tuple(case for case in held.cases if case.loss != _NOT_A_NUMBER)
    return replace(held, cases=cases, text=held.text if cases else None)


def _with_note(kind: SourceType, held: Held | None) -> Held | None:
    note = INTERVAL_NOTE if kind.base in _INTERVALS else ROWID_NOTE if kind.base in _ROWIDS else ""
    return replace(held, note=note) if held is not None and note else held


# -- PostgreSQL ------------------------------------------------------------------------------------


def _in_postgres(kind: SourceType, key_bytes: int | None) -> Held:
    for bases, make in _PG_MAKERS:
        if kind.base in bases:
            return make(kind, key_bytes)
    length = kind.length if kind.base in _TEXTS else _ROWIDS.get(kind.base)
    cases = [NUL_CASE]
    if key_bytes is not None and not (length and length * _CHARACTER_BYTES <= key_bytes):
        cases.append(Case(loss="long keys"))
    target = f"character varying({length})" if length else "text"
    note = ROWID_NOTE if kind.base in _ROWIDS else ""
    return replace(plain(target, Kind.TEXT, note=note), cases=tuple(cases))


def _pg_number(kind: SourceType, _: int | None) -> Held:
    base, arguments = _number_name(kind)
    if base != "numeric":
        return plain(base, Kind.INTEGER, cast=f"::{base}" if _is_text(kind) else "")
    if kind.base == "float" or not arguments or parse_type(kind.text).precision is None:
        return plain("numeric", Kind.NUMBER, cast="::numeric")
    target = f"numeric({arguments[0]},{arguments[1]})"
    return plain(target, Kind.DECIMAL, cast=f"::{target}" if _is_text(kind) else "")


def _pg_float(kind: SourceType, _: int | None) -> Held:
    target = _FLOATS[kind.base]
    return plain(target, Kind.FLOAT, cast=f"::{target}" if _is_text(kind) else "")


def _pg_bytes(kind: SourceType, key_bytes: int | None) -> Held:
    is_short = kind.length is not None and kind.length <= (key_bytes or 0)
    cases = () if key_bytes is None or is_short else (Case(loss="long keys"),)
    return replace(plain("bytea", Kind.BYTES), cases=cases)


def _pg_interval(kind: SourceType, _: int | None) -> Held:
    form = Kind.MONTHS if kind.base == "interval year to month" else Kind.SECONDS
    return plain("interval", form, cast="::interval")


def _pg_moment(kind: SourceType, _: int | None) -> Held:
    digits = min(fraction_of(kind), FRACTION_MAX)
    is_local = kind.base == _LOCAL
    zone = "with time zone" if is_local else "without time zone"
    target = f"timestamp({digits}) {zone}"
    form = Form(kind=Kind.TIMESTAMPTZ if is_local else Kind.TIMESTAMP, fraction=digits)
    if not _has_nanoseconds(kind):
        cast = f"::{target}" if _is_text(kind) else ""
        return Held(target_type=target, source_form=form, target_form=form, cast=cast)
    held = from_sqlserver.hold_type(_of_sqlserver(kind), _PG, None)
    assert held is not None, "SQL Server has the type"
    return replace(held, target_type=target, source_form=form, target_form=form)


def _pg_zoned(kind: SourceType, _: int | None) -> Held:
    held = from_sqlserver.hold_type(_of_sqlserver(kind), _PG, None)
    assert held is not None, "SQL Server has the type"
    return held


_PG = Server(engine=Engine.POSTGRESQL, version=())
_PG_MAKERS: tuple[tuple[frozenset[str], Callable[[SourceType, int | None], Held]], ...] = (
    (frozenset(("number", "float")), _pg_number),
    (frozenset(_FLOATS), _pg_float),
    (_BYTES, _pg_bytes),
    (_INTERVALS, _pg_interval),
    (_MOMENTS, _pg_moment),
    (frozenset((_ZONED,)), _pg_zoned),
)


def _of_sqlserver(kind: SourceType) -> SourceType:
    """Return SQL Server's type with the same texts of dates and times."""
    base = "datetimeoffset" if kind.base in (_ZONED, _LOCAL) else "datetime2"
    digits = min(fraction_of(kind), FRACTION_MAX + 1)
    return replace(kind, engine=Engine.SQLSERVER, base=base, arguments=(digits,))


# -- MySQL, MariaDB and lakes ----------------------------------------------------------------------


def _in_mysql(kind: SourceType, target: Server, key_bytes: int | None) -> Held | None:
    if kind.base == _ZONED:
        return from_sqlserver.hold_type(_of_sqlserver(kind), target, key_bytes)
    found = to_mysql.hold_type(_counterpart(kind), target, key_bytes)
    if not _has_nanoseconds(kind):
        return _without_infinity(kind, found)
    there = from_sqlserver.hold_type(_of_sqlserver(kind), target, key_bytes)
    assert there is not None, "SQL Server has the type"
    return _with_nanoseconds(kind, found, there.cases[0])


def _in_lake(kind: SourceType) -> Held | None:
    if kind.base == _ZONED:
        found = to_lake.hold_type(_of_sqlserver(kind))
        assert found is not None, "SQL Server has the type"
        return replace(found, cases=(*found.cases, Case(loss="dates out of range")))
    found = to_lake.hold_type(_counterpart(kind))
    return _with_nanoseconds(kind, found, Case(loss="nanoseconds"))
