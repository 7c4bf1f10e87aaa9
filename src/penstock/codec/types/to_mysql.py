"""Rules by which MySQL and MariaDB hold the types of PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from penstock.codec.types.mapping import AS_TEXT, ROUND, Case, Form, Held, Kind, Write
from penstock.codec.types.mysql_text import CHAR_MAX, WITHIN_FLOAT, by_bytes, bytes_type, text_type
from penstock.codec.types.source_type import STORED_NOT_A_NUMBER, Engine, Server, SourceType

BIT_WIDTH_MAX = 64
DIGITS_MAX = 65
SCALE_MAX = 30
MARIADB_SCALE_MAX = 38
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)\Z")
_NUMBER_WHOLE, _NUMBER_SCALE = DIGITS_MAX - SCALE_MAX, SCALE_MAX
_INTEGERS = {
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "oid": "int unsigned",
    "xid": "int unsigned",
    "cid": "int unsigned",
    "xid8": "bigint unsigned",
}
# Held as what PostgreSQL prints; the most characters that this can be, None for no limit.
PRINTED: dict[str, int | None] = {
    "money": 32,
    "timetz": 32,
    "interval": 128,
    "inet": 43,
    "cidr": 43,
    "macaddr": 17,
    "macaddr8": 23,
    "pg_lsn": 17,
    "tid": 20,
    "regclass": None,
}
_ENUM_LABEL_MAX = 63
_IN_REPLACE_OF_TEXT = 40  # characters that dates, times and numbers print at most


def hold_type(kind: SourceType, server: Server, key_bytes: int | None) -> Held:
    """Return how the target holds a type. key_bytes: its room in a key; None outside keys."""
    if kind.neutral == "binary" and kind.base != "bytea":
        return _raw(key_bytes)
    if kind.is_array or not kind.is_builtin:
        most = _ENUM_LABEL_MAX if kind.is_enum and not kind.is_array else None
        return hold_printed(server, key_bytes, most)
    if kind.base in _INTEGERS:
        return _same(_INTEGERS[kind.base], Kind.INTEGER)
    if kind.base in _MAKERS:
        return _MAKERS[kind.base](kind, server, key_bytes)
    return hold_printed(server, key_bytes, PRINTED.get(kind.base))


def hold_printed(server: Server, key_bytes: int | None, most: int | None) -> Held:
    """Return how the target holds a type without a counterpart: as text of at most `most`
    characters, or of any number.
    """
    target, cases = text_type(server, most, key_bytes)
    form = Form(kind=Kind.PRINTED)
    return Held(
        target_type=target,
        source_form=form,
        target_form=form,
        write=Write(name=AS_TEXT),
        cases=cases,
        note="the text that PostgreSQL prints",
    )


def _same(target: str, kind: Kind, *, note: str = "") -> Held:
    form = Form(kind=kind)
    return Held(target_type=target, source_form=form, target_form=form, note=note)


def _raw(key_bytes: int | None) -> Held:
    """Return bytes for text of a SQL_ASCII database, whose encoding is unknown."""
    target, cases = bytes_type(None, key_bytes)
    form = Form(kind=Kind.RAW_TEXT)
    return Held(
        target_type=target,
        source_form=form,
        target_form=form,
        cases=cases,
        note="bytes: the source's database does not say which encoding it has",
    )


_NOT_A_NUMBER = Case(
    loss="not a number",
    waiting="lower({}) in ('nan', 'inf', '-inf', 'infinity', '-infinity')",
    stored=STORED_NOT_A_NUMBER,
    refusal="not a number",
)


def _float(target: str) -> Callable[[SourceType, Server, int | None], Held]:
    def make(_: SourceType, __: Server, ___: int | None) -> Held:
        form = Form(kind=Kind.FLOAT)
        return Held(
            target_type=target,
            source_form=form,
            target_form=form,
            write=Write(sql=WITHIN_FLOAT if target == "float" else "{}"),
            cases=(_NOT_A_NUMBER,),
        )

    return make


def _numeric(kind: SourceType, server: Server, key_bytes: int | None) -> Held:
    text = _printed_number(kind, hold_printed(server, key_bytes, None))
    precision, scale = (*kind.arguments, 0)[:2] if kind.arguments else (0, 0)
    if scale < 0:
        precision, scale = precision - scale, 0  # numeric(5,-2) keeps whole hundreds
    precision = max(precision, scale)
    scale_max = MARIADB_SCALE_MAX if server.engine is Engine.MARIADB else SCALE_MAX
    if kind.arguments and precision <= DIGITS_MAX and scale <= scale_max:
        form = Form(kind=Kind.DECIMAL)
        target, cases = f"decimal({precision},{scale})", (_NOT_A_NUMBER,)
        return Held(target_type=target, source_form=form, target_form=form, cases=cases, text=text)
    form = Form(kind=Kind.NUMBER)
    target = f"decimal({DIGITS_MAX},{SCALE_MAX})"
    too_long = f"not {{}} regexp '^-?[0-9]{{1,{_NUMBER_WHOLE}}}([.][0-9]{{0,{_NUMBER_SCALE}}}0*)?$'"
    whole_fits = f"{{}} regexp '^-?[0-9]{{1,{_NUMBER_WHOLE}}}([.]|$)'"
    rounded = f"case when {whole_fits} then cast({{}} as {target}) else 'too many digits' end"
    digits = Case(
        loss="digits",
        waiting=too_long,
        stored=f"{{}} <> round({{}}, {_NUMBER_SCALE})",
        refusal="too many digits",
        instead={ROUND: (rounded, f"trim_scale(round({{}}, {_NUMBER_SCALE}))::text")},
    )
    return Held(
        target_type=target,
        source_form=form,
        target_form=form,
        cases=(digits, _NOT_A_NUMBER),
        text=text,
    )


def _printed_number(kind: SourceType, text: Held) -> Held:
    """Return a decimal as PostgreSQL prints it: Arrow writes small ones with an exponent."""
    match = _DECIMAL.match(kind.neutral)
    if match is None or int(match[2]) > SCALE_MAX:
        return text
    sql = f"cast(cast({{}} as {kind.neutral}) as char)"
    return replace(text, write=Write(name=AS_TEXT, sql=sql))


def _boolean(_: SourceType, __: Server, ___: int | None) -> Held:
    return _same("tinyint(1)", Kind.BOOLEAN)


def _hold_sized(kind: SourceType, server: Server, key_bytes: int | None) -> Held:
    most = {"name": 63, '"char"': 4, "text": None}.get(kind.base, kind.length)
    target, cases = text_type(server, most, key_bytes)
    form = Form(kind=Kind.PRINTED if kind.base in ("name", '"char"') else Kind.TEXT)
    return Held(target_type=target, source_form=form, target_form=form, cases=cases)


def _hold_padded(kind: SourceType, server: Server, key_bytes: int | None) -> Held:
    """Return character(n). Blanks at the end have no meaning, and MySQL's CHAR does not
    keep them.
    """
    form = Form(kind=Kind.PADDED)
    target, cases = text_type(server, kind.length, key_bytes)
    if kind.length is not None and kind.length <= CHAR_MAX and not cases:
        target = f"char({kind.length}) {by_bytes(server).sql}"
    write = Write(name="blanks at the end left out", sql="trim(trailing ' ' from {})")
    return Held(target_type=target, source_form=form, target_form=form, write=write, cases=cases)


def _bytea(_: SourceType, __: Server, key_bytes: int | None) -> Held:
    target, cases = bytes_type(None, key_bytes)
    form = Form(kind=Kind.BYTES)
    return Held(target_type=target, source_form=form, target_form=form, cases=cases)


def _printed_temporal(kind: SourceType, text: Held) -> Held:
    """Return a date or time as PostgreSQL prints it, from Arrow's text of it."""
    if kind.neutral == "string":
        return text
    zone = "+00" if kind.base == "timestamptz" else ""
    shorter = "trim(trailing '.' from trim(trailing '0' from {}))"
    if kind.base == "date":
        shorter = "{}"
    year = "lpad(cast(substr({}, 2, 4) as unsigned) + 1, 4, '0')"
    # Arrow says how far a date is out of its own range: too long for the column, so refused.
    sql = (
        "case when left({}, 1) = '<' then repeat('x', 1000) "
        f"when left({{}}, 1) = '-' then concat({year}, substr({shorter}, 6), '{zone} BC') "
        f"when left({{}}, 5) = '0000-' then concat('0001', substr({shorter}, 5), '{zone} BC') "
        f"else concat({shorter}, '{zone}') end"
    )
    return replace(text, write=Write(name=AS_TEXT, sql=sql))


def _out_of_range(low: str, high: str) -> Case:
    """Return the case of dates outside the years 1 to 9999. low, high: SQL of the source."""
    return Case(
        loss="dates out of range",
        waiting="substr({}, 5, 1) <> '-' or left({}, 4) = '0000' or right({}, 3) = ' BC'",
        stored=f"({{}} < {low} or {{}} >= {high})",
        refusal="a date out of range",
    )


def _date(kind: SourceType, server: Server, key_bytes: int | None) -> Held:
    form = Form(kind=Kind.DATE)
    return Held(
        target_type="date",
        source_form=form,
        target_form=form,
        cases=(_out_of_range("date '0001-01-01'", "date '10000-01-01'"),),
        text=_printed_temporal(kind, hold_printed(server, key_bytes, _IN_REPLACE_OF_TEXT)),
    )


def _timestamp(kind: SourceType, server: Server, key_bytes: int | None) -> Held:
    zoned = kind.base == "timestamptz"
    form = Form(kind=Kind.TIMESTAMPTZ if zoned else Kind.TIMESTAMP, fraction=kind.fraction)
    bounds = [f"timestamp '{year}-01-01 00:00:00'" for year in ("0001", "10000")]
    if zoned:
        bounds = [
            f"timestamp with time zone '{year}-01-01 00:00:00+00'" for year in ("0001", "10000")
        ]
    # What is kept as text bears its offset, which is always that of UTC.
    write = Write(
        sql="trim(trailing '+00' from {})" if zoned and kind.neutral == "string" else "{}"
    )
    return Held(
        target_type=f"datetime({kind.fraction})",
        source_form=form,
        target_form=form,
        write=write,
        cases=(_out_of_range(*bounds),),
        note="in UTC" if zoned else "",
        text=_printed_temporal(kind, hold_printed(server, key_bytes, _IN_REPLACE_OF_TEXT)),
    )


def _time(kind: SourceType, _: Server, __: int | None) -> Held:
    return _same(f"time({kind.fraction})", Kind.TIME)


def _uuid(_: SourceType, __: Server, ___: int | None) -> Held:
    """Return the text type, even for MariaDB: its UUID type refuses some values that PostgreSQL
    holds.
    """
    return _same("char(36) character set ascii collate ascii_bin", Kind.TEXT)


def _bit(kind: SourceType, server: Server, key_bytes: int | None) -> Held:
    width = kind.length or 1
    if width > BIT_WIDTH_MAX:
        return hold_printed(server, key_bytes, width)
    form = Form(kind=Kind.BITS, width=width)
    write = Write(name="the number of the bits", sql="cast(conv({}, 2, 10) as unsigned)")
    return Held(target_type=f"bit({width})", source_form=form, target_form=form, write=write)


def _json(_: SourceType, server: Server, key_bytes: int | None) -> Held:
    engine = server.engine
    own = "MySQL's JSON would change" if engine is Engine.MYSQL else "MariaDB's JSON would check"
    as_printed = hold_printed(server, key_bytes, None)
    note = f"the document's text, unchanged ({own} it)"
    return Held(
        target_type=as_printed.target_type,
        source_form=as_printed.source_form,
        target_form=as_printed.target_form,
        cases=as_printed.cases,
        note=note,
    )


_MAKERS: dict[str, Callable[[SourceType, Server, int | None], Held]] = {
    "boolean": _boolean,
    "real": _float("float"),
    "double precision": _float("double"),
    "numeric": _numeric,
    "text": _hold_sized,
    "varchar": _hold_sized,
    "name": _hold_sized,
    '"char"': _hold_sized,
    "char": _hold_padded,
    "bytea": _bytea,
    "date": _date,
    "time": _time,
    "timestamp": _timestamp,
    "timestamptz": _timestamp,
    "uuid": _uuid,
    "bit": _bit,
    "varbit": lambda kind, server, key_bytes: hold_printed(server, key_bytes, kind.length),
    "json": _json,
    "jsonb": _json,
}
