"""Rules by which PostgreSQL, MySQL, MariaDB and SQL Server hold the types of Ignite.

Its values are Java's, so text may contain the character U+0000, a decimal any number of digits, and
a timestamp nanoseconds. In MySQL and MariaDB a type is held like its counterpart of PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.codec.types import to_mysql
from penstock.codec.types.mapping import ROUND, Case, Form, Held, Kind, Write
from penstock.codec.types.source_type import Engine, Server, SourceType
from penstock.codec.types.to_postgres import NUL_CASE, plain

_CHARACTER_BYTES = 4
NOTE_JSON = "JSON: arrays, collections, maps and objects"
NOTE_OTHER = "the bytes that the node wrote: only its own class reads them"
_COUNTERPARTS = {
    "boolean": ("boolean", "boolean"),
    "tinyint": ("smallint", "smallint"),
    "smallint": ("smallint", "smallint"),
    "int": ("integer", "integer"),
    "bigint": ("bigint", "bigint"),
    "real": ("real", "real"),
    "double": ("double precision", "double precision"),
    "decimal": ("numeric", "numeric"),
    "varchar": ("character varying", "varchar"),
    "uuid": ("uuid", "uuid"),
    "binary": ("bytea", "bytea"),
    "date": ("date", "date"),
    "time": ("time without time zone", "time"),
    "timestamp": ("timestamp with time zone", "timestamptz"),
    "enum": ("text", "text"),
    "object": ("json", "json"),
    "other": ("bytea", "bytea"),
}
"""PostgreSQL's type of each, and that type's name alone."""
NANOS = "[.][0-9]{7}"  # digits behind the microsecond


def hold_type(kind: SourceType, target: Server, key_bytes: int | None) -> Held | None:
    """Return how the target holds a type; None if it cannot. key_bytes: its room in a key; None
    outside keys.
    """
    if kind.base not in _COUNTERPARTS:
        return None
    if target.engine is Engine.POSTGRESQL:
        return _MAKERS.get(kind.base, _same)(kind, key_bytes)
    return _in_mysql(kind, target, key_bytes)


# -- PostgreSQL --------------------------------------------------------------------------------


def _same(kind: SourceType, _: int | None) -> Held:
    target = _COUNTERPARTS[kind.base][0]
    return plain(target, _FORMS[kind.base], cast=f"::{target}" if _is_text(kind) else "")


def _is_text(kind: SourceType) -> bool:
    """Return whether values are staged as text, and are not text in the target."""
    return kind.neutral == "string"


def _decimal(kind: SourceType, _: int | None) -> Held:
    if not kind.arguments:
        return plain("numeric", Kind.NUMBER, cast="::numeric")
    target = f"numeric({','.join(map(str, kind.arguments))})"
    return plain(target, Kind.DECIMAL, cast=f"::{target}" if _is_text(kind) else "")


def _varchar(kind: SourceType, key_bytes: int | None) -> Held:
    length = kind.length
    cases = [NUL_CASE]
    if key_bytes is not None and not (length and length * _CHARACTER_BYTES <= key_bytes):
        cases.append(Case(loss="long keys"))
    target = f"character varying({length})" if length else "text"
    return replace(plain(target, Kind.TEXT), cases=tuple(cases))


def _bytes(kind: SourceType, key_bytes: int | None) -> Held:
    note = NOTE_OTHER if kind.base == "other" else ""
    cases = () if key_bytes is None else (Case(loss="long keys"),)
    return replace(plain("bytea", Kind.BYTES, note=note), cases=cases)


def _json(_: SourceType, __: int | None) -> Held:
    """Return `json`, which keeps the text unchanged, even an escaped U+0000."""
    return plain("json", Kind.TEXT, cast="::json", note=NOTE_JSON)


def _timestamp(kind: SourceType, _: int | None) -> Held:
    target = _COUNTERPARTS["timestamp"][0]
    form = Form(kind=Kind.TIMESTAMPTZ)
    text = replace(
        plain("text", Kind.TEXT, note="the moment in UTC, with all digits"),
        write=Write(sql="{}" if _is_text(kind) else _PRINTED),
    )
    nanos = Case(
        loss="nanoseconds",
        waiting=f"{{}} ~ '{NANOS}'" if _is_text(kind) else "",
        refusal="a time with nanoseconds",
        instead={ROUND: ("{}", "{}")} if _is_text(kind) else {},
    )
    return Held(
        target_type=target,
        source_form=form,
        target_form=form,
        cast=f"::{target}" if _is_text(kind) else "",
        cases=(nanos,),
        note="the moment",
        text=text,
    )


# As `codec.ignite.columns` writes it.
_SHOWN = "trim(trailing '.' from trim(trailing '0' from to_char({}, '{pattern}')))"
_PRINTED = _SHOWN.replace("to_char({}", "to_char({} at time zone 'UTC'").replace(
    "{pattern}", "YYYY-MM-DD HH24:MI:SS.US"
)
_PRINTED = f"{_PRINTED} || case when extract(year from {{}}) < 0 then '+00 BC' else '+00' end"


_FORMS = {
    "boolean": Kind.BOOLEAN,
    "tinyint": Kind.INTEGER,
    "smallint": Kind.INTEGER,
    "int": Kind.INTEGER,
    "bigint": Kind.INTEGER,
    "real": Kind.FLOAT,
    "double": Kind.FLOAT,
    "uuid": Kind.TEXT,
    "date": Kind.DATE,
    "time": Kind.TIME,
}
_MAKERS: dict[str, Callable[[SourceType, int | None], Held]] = {
    "decimal": _decimal,
    "varchar": _varchar,
    "enum": _varchar,
    "binary": _bytes,
    "other": _bytes,
    "object": _json,
    "timestamp": _timestamp,
}


# -- MySQL and MariaDB -------------------------------------------------------------------------


def counterpart(kind: SourceType) -> SourceType | None:
    """Return the type of PostgreSQL that holds the same values; None for an unknown type."""
    if kind.base not in _COUNTERPARTS:
        return None
    return replace(kind, engine=Engine.POSTGRESQL, base=_COUNTERPARTS[kind.base][1])


def note_of(kind: SourceType) -> str:
    """Return what a reader of the plan must know of the type; empty if nothing."""
    return {"object": NOTE_JSON, "other": NOTE_OTHER}.get(kind.base, "")


def _in_mysql(kind: SourceType, target: Server, key_bytes: int | None) -> Held:
    there = counterpart(kind)
    assert there is not None, "hold_type looked for it"
    found = to_mysql.hold_type(there, target, key_bytes)
    if kind.base == "timestamp":
        nanos = Case(
            loss="nanoseconds",
            waiting=f"{{}} regexp '{NANOS}'" if _is_text(kind) else "",
            refusal="a time with nanoseconds",
            instead={ROUND: (found.write.sql, "{}")},
        )
        return replace(found, cases=(nanos, *found.cases))
    return replace(found, note=note_of(kind) or found.note)
