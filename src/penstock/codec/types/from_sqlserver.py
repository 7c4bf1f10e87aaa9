"""Rules by which PostgreSQL, MySQL and MariaDB hold the types of SQL Server.

Its values are read by `codec.sqlserver.columns`: a `datetimeoffset` is always text with its offset,
a `time(7)` or `datetime2(7)` is text once a value has a seventh digit, a geometry is EWKB in
hexadecimal digits. A seventh digit is rounded half up everywhere, as SQL Server does: PostgreSQL
rounds it to an even digit, and MariaDB cuts it. Follows the reference's section 7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.codec.types import to_mysql
from penstock.codec.types.mapping import (
    AS_TEXT,
    REMOVE,
    ROUND,
    Case,
    Form,
    Held,
    Kind,
    Write,
    fill_template,
)
from penstock.codec.types.mysql_text import bytes_type, text_type
from penstock.codec.types.source_type import Engine, Server, SourceType
from penstock.codec.types.to_postgres import EWKB_OF_DIGITS, REMOVE_NUL, plain

NANOS = "[.][0-9]{7}"
"""Pattern of a fraction with a digit behind the microsecond."""

WITHOUT_NUL = "WITHOUT_NUL"
"""Kind of the texts that are compared if U+0000 is removed from them."""

ROUNDED = "ROUNDED"
"""Kind of the numbers that are compared if they are rounded; the scale follows it."""

FRACTION_MAX = 6
_CHARACTER_BYTES = 4
_MYSQL_NAME_CHARACTERS = 40
NUL_CASE = Case(
    loss="nul characters",
    stored="always",
    instead={REMOVE: ("{}", f"{WITHOUT_NUL} {{}}")},
    prepare={REMOVE: REMOVE_NUL},
)
_SIZED = frozenset(("char", "varchar", "nchar", "nvarchar"))
_LONG = frozenset(("text", "ntext"))
_BYTES = frozenset(("binary", "varbinary", "image", "rowversion"))
NOTES = {
    "sql_variant": "text: its base type, a colon, and its value",
    "hierarchyid": "text: the path",
    "xml": "the document's text",
    "json": "the document's text",
    "geometry": "EWKB, as PostGIS understands it",
    "geography": "EWKB, as PostGIS understands it",
    "rowversion": "the eight bytes",
}
_DECIMALS = {"money": (19, 4), "smallmoney": (10, 4)}
_FRACTIONS = {"datetime": 3, "smalldatetime": 0}
_PLAIN = {
    "bit": ("boolean", "boolean", Kind.BOOLEAN),
    "tinyint": ("smallint", "tinyint unsigned", Kind.INTEGER),
    "smallint": ("smallint", "smallint", Kind.INTEGER),
    "int": ("integer", "int", Kind.INTEGER),
    "bigint": ("bigint", "bigint", Kind.INTEGER),
    "real": ("real", "float", Kind.FLOAT),
    "float": ("double precision", "double", Kind.FLOAT),
    "uniqueidentifier": ("uuid", "", Kind.TEXT),
    "date": ("date", "date", Kind.DATE),
}


def hold_type(kind: SourceType, target: Server, key_bytes: int | None) -> Held | None:
    """Return how the target holds a type; None if it cannot. key_bytes: its room in a key; None
    outside keys.
    """
    if not kind.is_builtin:
        return None
    make = _in_postgres if target.engine is Engine.POSTGRESQL else _in_mysql
    return make(kind, target, key_bytes)


def decimal_of(kind: SourceType) -> tuple[int, int]:
    """Return precision and scale of a decimal or an amount of money."""
    precision, scale = _DECIMALS.get(kind.base) or (*kind.arguments, 0)[:2]
    return precision, scale


def fraction_of(kind: SourceType) -> int:
    """Return the digits after the second that a date and time, or a time, may have."""
    return _FRACTIONS.get(kind.base, kind.arguments[0] if kind.arguments else 7)


def _is_moved(kind: SourceType) -> bool:
    """Return whether values are staged as text."""
    return kind.neutral == "string"


# -- PostgreSQL ------------------------------------------------------------------------------------


def _in_postgres(kind: SourceType, _: Server, key_bytes: int | None) -> Held:
    if kind.base in _PLAIN:
        target, _own, form = _PLAIN[kind.base]
        return plain(target, form)
    if kind.base in _PG_MAKERS:
        return _PG_MAKERS[kind.base](kind)
    note = NOTES.get(kind.base, "")
    if kind.base in _BYTES:
        length = 8 if kind.base == "rowversion" else kind.length
        fits = key_bytes is None or (length is not None and length <= key_bytes)
        cases = () if fits else (Case(loss="long keys"),)
        return replace(plain("bytea", Kind.BYTES, note=note), cases=cases)
    return _pg_text(kind, key_bytes, note)


def _pg_text(kind: SourceType, key_bytes: int | None, note: str) -> Held:
    length = kind.length if kind.base in _SIZED else None
    cases = [NUL_CASE]
    if key_bytes is not None and not (length and length * _CHARACTER_BYTES <= key_bytes):
        cases.append(Case(loss="long keys"))
    target = f"character varying({length})" if length else "text"
    return replace(plain(target, Kind.TEXT, note=note), cases=tuple(cases))


def _pg_decimal(kind: SourceType) -> Held:
    precision, scale = decimal_of(kind)
    return plain(f"numeric({precision},{scale})", Kind.DECIMAL)


def _pg_geometry(_: SourceType) -> Held:
    form = Form(kind=Kind.BYTES)
    write = Write(name=EWKB_OF_DIGITS, sql="decode({}, 'hex')")
    note = NOTES["geometry"]
    return Held(target_type="bytea", source_form=form, target_form=form, write=write, note=note)


_PG_SHOWN = (
    "trim(trailing '.' from trim(trailing '0' from to_char({}, 'YYYY-MM-DD HH24:MI:SS.US')))"
)
_PG_LATE = "case when substr({}, %d, 1) >= '5' then interval '1 microsecond' else interval '0' end"
_PG_ROUNDED = {
    "time": "case when left({}, 15) = '23:59:59.999999' and substr({}, 16, 1) >= '5' "
    f"then time '24:00:00' else left({{}}, 15)::time + {_PG_LATE % 16} end",
    "datetime2": f"left({{}}, 26)::timestamp + {_PG_LATE % 27}",
    "datetimeoffset": "(left({}, 26) || right({}, 6))::timestamp with time zone + " + _PG_LATE % 27,
}


def _pg_temporal(kind: SourceType) -> Held:
    digits = min(fraction_of(kind), FRACTION_MAX)
    names = {"time": ("time", " without time zone", Kind.TIME)}
    names["datetimeoffset"] = ("timestamp", " with time zone", Kind.TIMESTAMPTZ)
    name, zone, form = names.get(kind.base, ("timestamp", " without time zone", Kind.TIMESTAMP))
    target = f"{name}({digits}){zone}"
    shown = "{}" if _is_moved(kind) else _pg_shown(kind)
    text = replace(
        plain("text", Kind.TEXT, note="the text with all digits"),
        write=Write(name=AS_TEXT, sql=shown),
    )
    held = Held(
        target_type=target,
        source_form=Form(kind=form, fraction=digits),
        target_form=Form(kind=form, fraction=digits),
        cast=f"::{target}" if _is_moved(kind) else "",
        note="the moment" if kind.base == "datetimeoffset" else "",
    )
    cases = _temporal_cases(
        kind,
        nanos=f"{{}} ~ '{NANOS}'",
        rounded=f"({_PG_ROUNDED.get(kind.base, '')})::text",
        offset="right({}, 6) <> '+00:00'",
    )
    return replace(held, cases=cases, text=text) if cases else held


def _pg_shown(kind: SourceType) -> str:
    return "{}::text" if kind.base == "time" else _PG_SHOWN


def _temporal_cases(kind: SourceType, *, nanos: str, rounded: str, offset: str) -> tuple[Case, ...]:
    """Return the losses of a time. The last one is checked first, and its choice `utc` needs no
    conversion of its own.
    """
    cases: list[Case] = []
    if fraction_of(kind) > FRACTION_MAX:
        moved = _is_moved(kind)
        cases.append(
            Case(
                loss="nanoseconds",
                waiting=nanos if moved else "",
                refusal="a time with nanoseconds",
                instead={ROUND: (rounded, "")} if moved else {},
            )
        )
    if kind.base == "datetimeoffset":
        cases.append(
            Case(loss="offsets", waiting=offset, refusal="a time with an offset", instead={})
        )
    return tuple(cases)


_PG_MAKERS: dict[str, Callable[[SourceType], Held]] = {
    "decimal": _pg_decimal,
    "money": _pg_decimal,
    "smallmoney": _pg_decimal,
    "geometry": _pg_geometry,
    "geography": _pg_geometry,
    "time": _pg_temporal,
    "datetime": _pg_temporal,
    "smalldatetime": _pg_temporal,
    "datetime2": _pg_temporal,
    "datetimeoffset": _pg_temporal,
}


# -- MySQL and MariaDB -----------------------------------------------------------------------------

_MY_GEOMETRY = "unhex({})"
_MY_LATE = "interval (substr({}, %d, 1) >= '5') microsecond"
_MY_OFFSET = (
    "interval (cast(concat(substr({}, -6, 1), substr({}, -5, 2)) as signed) * 60 + "
    "cast(concat(substr({}, -6, 1), substr({}, -2)) as signed)) minute"
)
_MY_ROUNDED = {
    "time": "addtime(cast(left({}, 15) as time(6)), "
    "if(substr({}, 16, 1) >= '5', '00:00:00.000001', '00:00:00'))",
    "datetime2": f"cast(left({{}}, 26) as datetime(6)) + {_MY_LATE % 27}",
    "datetimeoffset": f"cast(left({{}}, 26) as datetime(6)) + {_MY_LATE % 27} - {_MY_OFFSET}",
}


def _in_mysql(kind: SourceType, target: Server, key_bytes: int | None) -> Held:
    if kind.base == "bit":
        return plain("tinyint(1)", Kind.BOOLEAN)
    if kind.base == "uniqueidentifier":
        return plain("char(36) character set ascii collate ascii_bin", Kind.TEXT)
    if kind.base in ("real", "float"):
        there = replace(kind, engine=Engine.POSTGRESQL, base=_PLAIN[kind.base][0])
        return replace(to_mysql.hold_type(there, target, key_bytes), cases=())
    if kind.base in _PLAIN:
        _pg, own, form = _PLAIN[kind.base]
        return plain(own, form)
    if kind.base == "decimal" or kind.base in _DECIMALS:
        return _my_decimal(kind, target, key_bytes)
    if kind.base in _FRACTIONS or kind.base in _MY_ROUNDED:
        return _my_temporal(kind, target, key_bytes)
    note = NOTES.get(kind.base, "")
    if kind.base in ("geometry", "geography"):
        shape = Form(kind=Kind.BYTES)
        made = Held(target_type="longblob", source_form=shape, target_form=shape, note=note)
        return replace(made, write=Write(name=EWKB_OF_DIGITS, sql=_MY_GEOMETRY))
    if kind.base in _BYTES:
        held_as, losses = bytes_type(8 if kind.base == "rowversion" else kind.length, key_bytes)
        return replace(plain(held_as, Kind.BYTES, note=note), cases=losses)
    held_as, losses = text_type(target, kind.length if kind.base in _SIZED else None, key_bytes)
    return replace(plain(held_as, Kind.TEXT, note=note), cases=losses)


# Arrow prints small decimals with an exponent, `-1.0E-37`, in which MySQL's text has all digits.
_MY_UNSIGNED = "replace(trim(leading '-' from substring_index({}, 'E', 1)), '.', '')"
_MY_DIGITS = (
    "(case when instr({}, 'E-') then concat(if(left({}, 1) = '-', '-0.', '0.'), "
    f"repeat('0', substring_index({{}}, 'E-', -1) - 1), {_MY_UNSIGNED}) else {{}} end)"
)


def _my_decimal(kind: SourceType, target: Server, key_bytes: int | None) -> Held:
    arguments = decimal_of(kind)
    there = replace(
        kind, engine=Engine.POSTGRESQL, base="numeric", arguments=arguments, neutral=kind.neutral
    )
    found = to_mysql.hold_type(there, target, key_bytes)
    scale = min(arguments[1], to_mysql.SCALE_MAX)
    cases = tuple(
        replace(
            case,
            waiting=fill_template(case.waiting, _MY_DIGITS),
            stored="always",
            instead={
                ROUND: (
                    fill_template(case.instead[ROUND][0], _MY_DIGITS),
                    f"{ROUNDED}_{scale} {{}}",
                )
            },
        )
        for case in found.cases
        if case.loss == "digits"
    )
    if not cases or found.text is None:
        return replace(found, cases=(), text=None)
    text = replace(found.text, write=Write(name=AS_TEXT, sql=_MY_DIGITS))
    return replace(found, cases=cases, text=text)


def _my_temporal(kind: SourceType, target: Server, key_bytes: int | None) -> Held:
    digits = min(fraction_of(kind), FRACTION_MAX)
    is_time, is_moment = kind.base == "time", kind.base == "datetimeoffset"
    printed = Kind.TIME if is_time else Kind.TIMESTAMPTZ if is_moment else Kind.TIMESTAMP
    both = Form(kind=printed, fraction=digits)
    write = Write()
    if is_moment:
        local = f"cast(left({{}}, char_length({{}}) - 6) as datetime({digits}))"
        write = Write(name="the moment in UTC", sql=f"{local} - {_MY_OFFSET}")
    name = "time" if is_time else "datetime"
    held = Held(
        target_type=f"{name}({digits})",
        source_form=both,
        target_form=both,
        write=write,
        note="in UTC" if is_moment else "",
    )
    cases = _temporal_cases(
        kind,
        nanos=f"{{}} regexp '{NANOS}'",
        rounded=_MY_ROUNDED.get(kind.base, ""),
        offset="right({}, 6) <> '+00:00'",
    )
    shown = "{}" if _is_moved(kind) else "trim(trailing '.' from trim(trailing '0' from {}))"
    held_as, _ = text_type(target, _MYSQL_NAME_CHARACTERS, key_bytes)
    text = replace(
        plain(held_as, Kind.TEXT, note="the text with all digits"),
        write=Write(name=AS_TEXT, sql=shown),
    )
    return replace(held, cases=cases, text=text) if cases else held
