"""Rules by which PostgreSQL holds the types of MySQL and MariaDB."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from penstock.codec.mysql.types import parse_type
from penstock.codec.types.mapping import AS_IS, AS_TEXT, REMOVE, Case, Form, Held, Kind, Write
from penstock.codec.types.source_type import GEOMETRIES, Engine, SourceType

KEY_BYTES_MAX = 2704  # a third of a page, less its overhead
_CHARACTER_BYTES = 4
_INTEGERS = {
    ("tinyint", False): "smallint",
    ("tinyint", True): "smallint",
    ("smallint", False): "smallint",
    ("smallint", True): "integer",
    ("mediumint", False): "integer",
    ("mediumint", True): "integer",
    ("int", False): "integer",
    ("int", True): "bigint",
    ("bigint", False): "bigint",
    ("bigint", True): "numeric(20,0)",
}
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_NUL_PRINTED = re.compile(r"\0|(?<!\\)(?:\\\\)*\\0")  # the catalogue escapes it in labels
_NUL = "instr({}, char(0))"
REMOVE_NUL = "nul characters removed"
BITS_OF_NUMBER = "bits of the number"
EWKB_OF_DIGITS = "EWKB from its hexadecimal digits"


def _no_such_day(text: str, number: Callable[[str], str]) -> str:
    """Return SQL for whether no calendar has a date that MySQL prints. number: text to whole
    number.
    """
    year = number(f"left({text}, 4)")
    leap = f"(mod({year}, 4) = 0 and (mod({year}, 100) <> 0 or mod({year}, 400) = 0))"
    return (
        f"(substr({text}, 6, 2) = '00' or substr({text}, 9, 2) = '00' or substr({text}, 6, 5) in "
        "('02-30', '02-31', '04-31', '06-31', '09-31', '11-31') "
        f"or substr({text}, 6, 5) = '02-29' and not {leap})"
    )


_WAITING_NO_DAY = _no_such_day("{}", lambda text: f"{text}::int")
STORED_NO_DAY = _no_such_day("cast({} as char)", lambda text: f"({text} + 0)")
# PostgreSQL calls MySQL's year 0 1 BC.
_YEAR_ZERO = "case when left({}, 5) = '0000-' then '0001' || substr({}, 5) || ' BC' else {} end"


def hold_type(kind: SourceType, key_bytes: int | None) -> Held | None:
    """Return how the target holds a type; None if it cannot. key_bytes: its room in a key; None
    outside keys.
    """
    base = kind.base
    if base in ("tinyint", "smallint", "mediumint", "int", "bigint"):
        target = _INTEGERS[base, kind.unsigned]
        cast = f"::{target}" if kind.unsigned else ""
        return plain(target, Kind.INTEGER, cast=cast)
    if base in _TEXTS:
        return _text(kind, key_bytes)
    if base in _BYTES:
        return _bytes(kind, key_bytes)
    if base in _MAKERS:
        return _MAKERS[base](kind)
    if base in GEOMETRIES:
        form = Form(kind=Kind.GEOMETRY)
        write = Write(name=EWKB_OF_DIGITS, sql="decode({}, 'hex')")
        note = "EWKB, as PostGIS understands it"
        return Held(target_type="bytea", source_form=form, target_form=form, write=write, note=note)
    return None


def plain(target: str, kind: Kind, *, cast: str = "", note: str = "") -> Held:
    """Return how a type with a counterpart is held. kind: kind of the text that both
    sides print.
    """
    form = Form(kind=kind)
    return Held(target_type=target, source_form=form, target_form=form, cast=cast, note=note)


def _decimal(kind: SourceType) -> Held:
    precision, scale = kind.decimal
    target = f"numeric({precision},{scale})"
    return Held(
        target_type=target,
        source_form=Form(kind=Kind.INTEGER if kind.zerofill else Kind.DECIMAL),
        target_form=Form(kind=Kind.DECIMAL),
        cast=f"::{target}" if kind.neutral == "string" else "",
    )


def _year(kind: SourceType) -> Held:
    year = plain("smallint", Kind.INTEGER)
    return replace(year, source_form=Form(kind=Kind.YEAR)) if kind.is_short_year else year


def _bit(kind: SourceType) -> Held:
    width = kind.length or 1
    number = "{}::numeric"
    signed = (
        f"(case when {number} >= 9223372036854775808 then {number} - 18446744073709551616 "
        f"else {number} end)::bigint::bit({width})"
    )
    form = Form(kind=Kind.BITS, width=width)
    write = Write(name=BITS_OF_NUMBER, sql=signed)
    return Held(target_type=f"bit({width})", source_form=form, target_form=form, write=write)


def _time(kind: SourceType) -> Held:
    form = Form(kind=Kind.TIME)
    return Held(
        target_type=f"interval({kind.fraction})",
        source_form=form,
        target_form=form,
        cast=f"::interval({kind.fraction})",
        note="an interval: MySQL's TIME goes from -838 to 838 hours",
    )


def _printed_as_text(kind: SourceType, pattern: str) -> Held:
    """Return a date or time held as the text that the source prints. pattern: for to_char()."""
    native = f"to_char({{}}, '{pattern}')"
    if kind.base == "timestamp":
        native = f"to_char({{}} at time zone 'UTC', '{pattern}')"
    if kind.fraction and kind.base != "date":
        native = f"left({native}, {20 + kind.fraction})"
    bc = "extract(year from {}) < 0"
    # to_char() leaves the era out, so 1 BC prints as 0001, which MySQL calls 0000.
    native = f"case when {bc} then '0000' || substr({native}, 5) else {native} end"
    return Held(
        target_type="text",
        source_form=Form(kind=Kind.TEXT),
        target_form=Form(kind=Kind.TEXT),
        write=Write(name=AS_TEXT, sql="{}" if kind.neutral == "string" else native),
        note="the text that the source prints",
    )


def _temporal(target: str, kind: SourceType, form: Form, pattern: str, suffix: str = "") -> Held:
    is_text = kind.neutral == "string"
    write = Write(name=AS_IS, sql=f"{_YEAR_ZERO}{suffix}" if is_text else "{}")
    case = Case(
        loss="zero dates",
        waiting=_WAITING_NO_DAY if is_text else "",
        stored=STORED_NO_DAY,
        refusal="a date that no calendar has",
    )
    return Held(
        target_type=target,
        source_form=form,
        target_form=form,
        write=write,
        cast=f"::{target}" if is_text else "",
        cases=(case,),
        text=_printed_as_text(kind, pattern),
    )


def _date(kind: SourceType) -> Held:
    return _temporal("date", kind, Form(kind=Kind.DATE), "YYYY-MM-DD")


_SECONDS = "YYYY-MM-DD HH24:MI:SS"


def _pattern(kind: SourceType) -> str:
    return f"{_SECONDS}.US" if kind.fraction else _SECONDS


def _datetime(kind: SourceType) -> Held:
    target = f"timestamp({kind.fraction}) without time zone"
    form = Form(kind=Kind.TIMESTAMP, fraction=kind.fraction)
    return _temporal(target, kind, form, _pattern(kind))


def _timestamp(kind: SourceType) -> Held:
    target = f"timestamp({kind.fraction}) with time zone"
    form = Form(kind=Kind.TIMESTAMPTZ, fraction=kind.fraction)
    return _temporal(target, kind, form, _pattern(kind), " || '+00'")


NUL_CASE = Case(
    loss="nul characters",
    stored=_NUL,
    instead={REMOVE: ("{}", "replace(convert({} using utf8mb4), char(0 using utf8mb4), '')")},
    prepare={REMOVE: REMOVE_NUL},
)


def _text(kind: SourceType, key_bytes: int | None) -> Held:
    length = kind.length or 1
    sized = kind.base in ("char", "varchar")
    cases = [NUL_CASE]
    if key_bytes is not None and not (sized and length * _CHARACTER_BYTES <= key_bytes):
        cases.append(Case(loss="long keys"))
    form = Form(kind=Kind.TEXT)
    target = f"character varying({length})" if sized and length else "text"
    return Held(target_type=target, source_form=form, target_form=form, cases=tuple(cases))


def _bytes(kind: SourceType, key_bytes: int | None) -> Held:
    held_as = plain("bytea", Kind.BYTES)
    sized = kind.base in ("binary", "varbinary") and (kind.length or 1) <= (key_bytes or 0)
    if key_bytes is None or sized:
        return held_as
    return Held(
        target_type="bytea",
        source_form=held_as.source_form,
        target_form=held_as.target_form,
        cases=(Case(loss="long keys"),),
    )


def _labels(kind: SourceType) -> Held:
    """Return text. Only few enums have a label that PostgreSQL's text cannot hold."""
    note = "the label" if kind.base == "enum" else "the labels, with commas between them"
    labels = plain("text", Kind.TEXT, note=note)
    parsed = parse_type(kind.text)
    if parsed is None or not any(map(_NUL_PRINTED.search, parsed.labels)):
        return labels
    return replace(labels, cases=(NUL_CASE,))


def _json(kind: SourceType) -> Held:
    """Return `json`. MariaDB's JSON is text, which it checks less strictly than others."""
    note = "the document's text, unchanged"
    json = plain("json", Kind.TEXT, cast="::json", note=note)
    if kind.engine is not Engine.MARIADB:
        return json
    text = Held(
        target_type="text",
        source_form=json.source_form,
        target_form=json.target_form,
        write=Write(name=AS_TEXT),
        note="the text that the source prints",
    )
    return replace(json, cases=(Case(loss="loose json"),), text=text)


def _address(width: int) -> Held:
    form = Form(kind=Kind.ADDRESS, width=width)
    return Held(target_type="inet", source_form=form, target_form=form, cast="::inet")


_MAKERS: dict[str, Callable[[SourceType], Held]] = {
    "float": lambda _: plain("real", Kind.FLOAT),
    "double": lambda _: plain("double precision", Kind.FLOAT),
    "decimal": _decimal,
    "bit": _bit,
    "year": _year,
    "date": _date,
    "time": _time,
    "datetime": _datetime,
    "timestamp": _timestamp,
    "enum": _labels,
    "set": _labels,
    "json": _json,
    "uuid": lambda _: plain("uuid", Kind.TEXT),
    "inet4": lambda _: _address(4),
    "inet6": lambda _: _address(16),
}
