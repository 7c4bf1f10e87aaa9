"""Rules by which MySQL and MariaDB hold each other's types, and their own."""

from __future__ import annotations

import re
from dataclasses import replace

from penstock.codec.types.mapping import AS_TEXT, ROUND, Case, Form, Held, Kind, Write
from penstock.codec.types.mysql_text import WITHIN_FLOAT, by_bytes, known_collation, within_digits
from penstock.codec.types.source_type import GEOMETRIES, Engine, Server, SourceType

_COMMENT = re.compile(r"\s*/\*.*?\*/", re.DOTALL)
_SCALE_MAX = 30
_JSON_COLLATION = "utf8mb4_bin"  # MariaDB's JSON is LONGTEXT with it
_COMPRESSED = "/*M!100301 COMPRESSED*/"
_TIMESTAMP_MAX = "'2038-01-19 03:14:07.999999'"
_CHARACTER = frozenset(
    ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")
)
_FORMS = {
    "tinyint": Kind.INTEGER,
    "smallint": Kind.INTEGER,
    "mediumint": Kind.INTEGER,
    "int": Kind.INTEGER,
    "bigint": Kind.INTEGER,
    "bit": Kind.INTEGER,
    "year": Kind.INTEGER,
    "float": Kind.FLOAT_TEXT,
    "double": Kind.FLOAT_TEXT,
    "decimal": Kind.DECIMAL,
    "date": Kind.DATE,
    "datetime": Kind.TIMESTAMP,
    "timestamp": Kind.TIMESTAMPTZ,
    "time": Kind.TIME,
    "binary": Kind.BYTES,
    "varbinary": Kind.BYTES,
    "tinyblob": Kind.BYTES,
    "blob": Kind.BYTES,
    "mediumblob": Kind.BYTES,
    "longblob": Kind.BYTES,
}
# From EWKB in hexadecimal digits to what the servers store: the SRID first, then WKB without it.
_GEOMETRY = (
    "unhex(if(conv(substr({}, 9, 2), 16, 10) & 32, concat(substr({}, 11, 8), substr({}, 1, 8), "
    "'00', substr({}, 19)), concat('00000000', {})))"
)
_WRITES = {
    "bit": Write(name="the number", sql="cast({} as unsigned)"),
    "float": Write(sql=WITHIN_FLOAT),
    "year": Write(name="four digits", sql="lpad({}, 4, '0')"),  # '0' would be 2000
}


def hold_type(
    kind: SourceType, server: Server, key_bytes: int | None, source: Server
) -> Held | None:
    """Return how the target holds a type; None if it cannot. key_bytes: its room in a key; None
    outside keys.
    """
    if kind.base in ("uuid", "inet4", "inet6"):
        return _mariadb_only(kind, server)
    if kind.base == "json":
        return _json(kind, server, key_bytes)
    if not kind.is_builtin or kind.base == "vector":
        return None
    target = kind.text if kind.engine is server.engine else _COMMENT.sub("", kind.text)
    form = Form(kind=_FORMS.get(kind.base, Kind.TEXT), fraction=kind.fraction)
    if kind.base in GEOMETRIES:
        form = Form(kind=Kind.GEOMETRY)
        if kind.engine is not server.engine:
            target = kind.base  # newer servers of MySQL say geomcollection
        write = Write(name="from EWKB in hexadecimal digits", sql=_GEOMETRY)
        return Held(target_type=target, source_form=form, target_form=form, write=write)
    if kind.zerofill and kind.base == "decimal":
        form = Form(kind=Kind.INTEGER)
    plain = Held(target_type=target, source_form=form, target_form=form, write=_write(kind))
    if kind.is_short_year:
        note = "the whole year, of which year(2) prints two digits"
        form = Form(kind=Kind.YEAR)
        return replace(plain, target_type="year", source_form=form, note=note)
    if kind.base in _CHARACTER:
        return _text(plain, kind, server, key_bytes)
    if kind.base == "decimal":
        return _decimal(plain, kind, server)
    if kind.base == "timestamp" and source.mariadb(11, 5) and not server.mariadb(11, 5):
        late = f"{{}} > {_TIMESTAMP_MAX}"
        refusal = "a date out of range"
        case = Case(loss="dates out of range", waiting=late, stored=late, refusal=refusal)
        text = _as_text(server, 32)
        if kind.neutral != "string":
            length = 20 + kind.fraction if kind.fraction else 19
            text = replace(text, write=Write(name=AS_TEXT, sql=f"left({{}}, {length})"))
        return replace(plain, cases=(case,), text=text)
    return plain


def _write(kind: SourceType) -> Write:
    if kind.base in ("float", "double") and len(kind.arguments) == 2:
        return Write(sql=within_digits(kind.base, *kind.arguments))
    return _WRITES.get(kind.base, Write())


def _as_text(server: Server, characters: int | None) -> Held:
    text = f"varchar({characters})" if characters else "longtext"
    form = Form(kind=Kind.TEXT)
    return Held(
        target_type=f"{text} {by_bytes(server).sql}",
        source_form=form,
        target_form=form,
        write=Write(name=AS_TEXT),
        note="the text that the source prints",
    )


def _mariadb_only(kind: SourceType, server: Server) -> Held:
    since = {"uuid": (10, 7), "inet4": (10, 10), "inet6": (10, 5)}[kind.base]
    form = Form(kind=Kind.TEXT)
    if server.mariadb(*since):
        return Held(target_type=kind.base, source_form=form, target_form=form)
    length = {"uuid": 36, "inet4": 15, "inet6": 45}[kind.base]
    return Held(
        target_type=f"varchar({length}) character set ascii collate ascii_bin",
        source_form=form,
        target_form=form,
        write=Write(name=AS_TEXT),
        note=f"the text: {server.engine.label} has no {kind.base}",
    )


def _json(kind: SourceType, server: Server, key_bytes: int | None) -> Held:
    """Return how JSON is held. MySQL's JSON normalises documents; MariaDB's is checked text.

    In MariaDB a check constraint makes any LONGTEXT a JSON column, which may compare differently
    from JSON.
    """
    form = Form(kind=Kind.TEXT)
    if kind.engine is server.engine:
        if kind.is_compressed or kind.collation not in ("", _JSON_COLLATION):
            text = "longtext" + (f" {_COMPRESSED}" if kind.is_compressed else "")
            plain = Held(target_type=text, source_form=form, target_form=form)
            return _text(plain, kind, server, key_bytes)
        return Held(target_type="json", source_form=form, target_form=form)
    note = (
        "the document's text, unchanged (MySQL's JSON would change it)"
        if server.engine is Engine.MYSQL
        else "the document's text (MariaDB's JSON is text, too, but does not nest as deep)"
    )
    return replace(_as_text(server, None), note=note)


def _text(plain: Held, kind: SourceType, server: Server, key_bytes: int | None) -> Held:
    if not kind.collation or not kind.charset:
        return plain
    if kind.charset == "binary":
        return replace(plain, target_type=f"{plain.target_type} character set binary")
    collation = known_collation(kind.collation, server)
    if collation is not None:
        charset = collation.split("_")[0]
        return replace(
            plain, target_type=f"{plain.target_type} character set {charset} collate {collation}"
        )
    collated = by_bytes(server)
    cases = (Case(loss="blanks in keys"),) if collated.pads and key_bytes is not None else ()
    return replace(
        plain,
        target_type=f"{plain.target_type} {collated.sql}",
        cases=cases,
        note=f"compared by bytes: the target has no collation {kind.collation}",
    )


def _decimal(plain: Held, kind: SourceType, server: Server) -> Held:
    precision, scale = kind.decimal
    if scale <= _SCALE_MAX or server.engine is Engine.MARIADB:
        return plain
    target = f"decimal({precision},{_SCALE_MAX})"
    form = Form(kind=Kind.NUMBER)
    rounded = f"cast({{}} as {target})"
    digits = Case(
        loss="digits",
        waiting=f"not {{}} regexp '^-?[0-9]+([.][0-9]{{0,{_SCALE_MAX}}}0*)?$'",
        stored=f"{{}} <> round({{}}, {_SCALE_MAX})",
        refusal="too many digits",
        instead={
            ROUND: (rounded, form.sql(kind.engine).replace("{}", f"round({{}}, {_SCALE_MAX})"))
        },
    )
    return Held(
        target_type=target,
        source_form=form,
        target_form=form,
        cases=(digits,),
        text=_as_text(server, 70),
    )
