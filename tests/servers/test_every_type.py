"""A value is the same by every path: streamed, copied, as text, and as the server prints it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa
import pytest

from fix_peek import capturing, frames
from fix_pgoutput import DECODERS
from penstock.codec.pgoutput import Decoder, Stop
from penstock.codec.pgoutput_messages import relation_message
from penstock.host.connect import literal
from penstock.model import Relation
from penstock.source.postgres.catalog import RelationResolver, captured_tables, open_catalog
from penstock.source.postgres.snapshot import copy_sql, plan_chunks

BIG = "1" + "0" * 1000
VALUES: dict[str, list[str]] = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "32767", "0"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "oid": ["0", "4294967295"],
    "xid": ["0", "4294967295"],
    "cid": ["4294967295"],
    "xid8": ["0", "18446744073709551615"],
    "pg_lsn": ["0/0", "FFFFFFFF/FFFFFFFF", "16/B374D848"],
    "real": ["0.1", "-0", "NaN", "Infinity", "-Infinity", "1e-45", "3.4028235e38", "1e15"],
    "double precision": [
        "0.1",
        "-0",
        "NaN",
        "Infinity",
        "-Infinity",
        "5e-324",
        "1.7976931348623157e308",
        "123456789012345678",
        "1e21",
        "1e-5",
        "0.30000000000000004",
    ],
    "numeric": ["0", "1.10", "-0.000", "NaN", "Infinity", "-Infinity", BIG, f"0.{'0' * 900}1"],
    "numeric(38,0)": ["9" * 38, "-" + "9" * 38],
    "numeric(38,37)": ["9." + "9" * 37, "-0.1"],
    "numeric(39,2)": ["9" * 37 + ".99"],
    "numeric(12,2)": ["0", "-1.5", "9999999999.99"],
    "numeric(10,2)": ["1.5", "NaN"],
    "numeric(5,0)": ["99999"],
    "money": ["-12.34", "92233720368547758.07", "1234.5"],
    "text": [
        "",
        "x",
        "tab\there",
        "line\nfeed",
        "back\\slash",
        "\\N",
        "Größe 表 😀",
        "\r",
        "a" * 9000,
    ],
    "varchar(5)": ["", "abc", "ä表"],
    "char(5)": ["", "a", "abcde"],
    "name": ["x" * 63, ""],
    '"char"': ["a", ""],
    "bytea": ["\\x", "\\x00ff5c0a", "abc"],
    "date": [
        "1970-01-01",
        "infinity",
        "-infinity",
        "4713-01-01 BC",
        "5874897-12-31",
        "0001-01-01",
        "12345-06-07",
    ],
    "time": ["00:00", "23:59:59.999999", "24:00:00", "12:34:56.1"],
    "time(0)": ["23:59:59.6"],
    "timetz": ["00:00+15:59", "24:00:00-15:59", "12:00:00.5+05:30"],
    "timestamp": [
        "1970-01-01",
        "infinity",
        "-infinity",
        "4713-01-01 00:00 BC",
        "294276-12-31 23:59:59.999999",
        "294247-01-10 04:00:54.775807",
        "294247-01-10 04:00:54.775808",
        "0044-03-15 10:00 BC",
    ],
    "timestamp(3)": ["2020-02-29 12:00:00.1236"],
    "timestamptz": [
        "1970-01-01 00:00+02",
        "infinity",
        "-infinity",
        "4713-01-01 00:00+00 BC",
        "294276-12-31 23:59:59.999999+00",
        "1900-01-01 00:00:00+00",
    ],
    "interval": [
        "0",
        "1 year -2 mons 3 days -04:05:06.7",
        "-178000000 years",
        "2562047788:00:54.775807",
    ],
    "interval year to month": ["5 years 3 mons"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "FFFFFFFF-ffff-ffff-ffff-ffffffffffff"],
    "json": ['{"b": 1,  "a": [1, null], "b": 2}', '"\\u00e9\\n"'],
    "jsonb": ['{"b": 1,  "a": [1, null], "b": 2}', "1.10", '"tab\\t"', "null"],
    "jsonpath": ['$."a b"[*] ? (@ > 3)'],
    "xml": ["<a b='1'>&lt;</a>", "text", "<?xml version='1.0'?><a/>"],
    "tsvector": ["'a':1A 'b c':2,3B", ""],
    "tsquery": ["'a' & !('b' | 'c':*A)", ""],
    "bit": ["1", "0"],
    "bit(9)": ["010101010"],
    "varbit": ["", "0101010101"],
    "varbit(3)": ["01"],
    "inet": ["1.2.3.4", "1.2.3.4/8", "::1", "::ffff:1.2.3.4/120"],
    "cidr": ["1.2.3.0/24", "1.2.3.4/32", "2001:db8::/32"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:ff:fe:01:02:03"],
    "point": ["(0.1,-0)", "(NaN,Infinity)"],
    "line": ["{1,-2,3.5}"],
    "lseg": ["[(0,0),(1,1)]"],
    "box": ["(0,0),(2,1)"],
    "path": ["[(0,0),(1,1)]", "((0,0),(1,1))"],
    "polygon": ["((0,0),(1,1),(2,0))"],
    "circle": ["<(0,0),1.5>"],
    "tid": ["(4294967295,65535)"],
    "txid_snapshot": ["10:20:10,14,15"],
    "pg_snapshot": ["10:20:10,14,15"],
    "int2vector": ["1 2 -3", ""],
    "oidvector": ["1 4294967295"],
    "regclass": ["pg_class", "-"],
    "regtype": ["integer", "pg_catalog.int4[]"],
    "regproc": ["pg_catalog.now"],
    "regprocedure": ["abs(integer)"],
    "regoper": ["pg_catalog.||/"],
    "regoperator": ["+(integer,integer)"],
    "regrole": ["postgres"],
    "regnamespace": ["pg_catalog"],
    "regcollation": ['"C"'],
    "regconfig": ["simple"],
    "regdictionary": ["simple"],
    "refcursor": ["c"],
    "integer[]": ["{}", "{1,NULL,-3}", "[0:1]={1,2}", "[2:3][1:1]={{1},{2}}", "{{1,2},{3,4}}"],
    "text[]": ['{"",NULL,"NULL","a,b","q\\"q","b\\\\b","{}"," x","tab\t"}'],
    "bytea[]": ['{"\\\\x00ff"}'],
    "box[]": ["{(1,1),(0,0);(2,2),(0,0)}"],
    "timestamptz[]": ['{"2020-01-01 00:00+02",infinity}'],
    "numeric(12,2)[]": ["{1.5,NaN}"],
    "jsonb[]": ['{"{\\"a\\": 1}"}'],
    "int4range": ["[1,6)", "empty", "(,)", "(1,6]", "[1,)"],
    "int8range": ["[1,6)"],
    "numrange": ["[1.10,NaN)", "(,5]"],
    "tsrange": ["[2020-01-01,infinity)"],
    "tstzrange": ["[2020-01-01 00:00+02,)"],
    "daterange": ["[2020-01-01,2020-01-31]"],
    "int4multirange": ["{}", "{[1,2),[5,10)}"],
    "int8multirange": ["{[1,2)}"],
    "nummultirange": ["{[1.0,2.50)}"],
    "tsmultirange": ["{[2020-01-01,2021-01-01)}"],
    "tstzmultirange": ["{[2020-01-01,2021-01-01)}"],
    "datemultirange": ["{[2020-01-01,2021-01-01)}"],
    "int4range[]": ['{"[1,3)",empty}'],
    "kinds.mood": ["sad", "it's ok", 'sehr, "froh"'],
    "kinds.mood[]": ['{sad,"it\'s ok"}'],
    "kinds.price": ["1.50", "NaN"],
    "kinds.net_price": ["2.00"],
    "kinds.stamp": ["infinity", "2020-01-01 00:00:00+00"],
    "kinds.blob": ["\\x00ff"],
    "kinds.names": ['{a,"b c"}'],
    'kinds."Pair"': ['(1,"a b")', "(,)", '(-5,"q""q\\\\")', '(1,"")'],
    'kinds."Pair"[]': ['{"(1,\\"a b\\")",NULL}'],
    "kinds.span": ["[1.50,2.00)"],
    "kinds.spans": ["{[1.50,2.00)}"],
}
SETUP = """
    create schema kinds;
    create type kinds.mood as enum ('sad', 'it''s ok', 'sehr, "froh"');
    create domain kinds.price as numeric(12,2);
    create domain kinds.net_price as kinds.price check (value > 0);
    create domain kinds.stamp as timestamptz;
    create domain kinds.blob as bytea;
    create domain kinds.names as text[];
    create type kinds."Pair" as (a int, "B b" text);
    create type kinds.span as range (subtype = numeric, multirange_type_name = kinds.spans);
"""
EXTENSION_VALUES = {
    "hstore": ['"a"=>"1", "b c"=>NULL', ""],
    "citext": ["MiXed", ""],
}
SINCE = {
    17: {"interval": ["infinity", "-infinity"]},
}
# What the server computes for a value, to be compared with what Arrow holds of it.
COMPUTED = {
    "date": "v - date '1970-01-01'",
    "time": "(extract(epoch from v) * 1000000)::bigint",
    "timestamp": "(extract(epoch from v) * 1000000)::bigint",
    "timestamptz": "(extract(epoch from v) * 1000000)::bigint",
}


def _cases(version: int, extensions: set[str], has_xml: bool) -> dict[str, list[str]]:
    cases = {name: list(values) for name, values in VALUES.items() if has_xml or name != "xml"}
    for since, more in SINCE.items():
        for name, values in more.items() if version >= since else ():
            cases[name] += values
    for name in extensions & EXTENSION_VALUES.keys():
        cases[f"kinds.{name}"] = EXTENSION_VALUES[name]
        cases[f"kinds.{name}[]"] = ["{NULL}"]
    return cases


def _decode(
    make: type[Decoder], resolver: RelationResolver, relation: Relation, block: bytes, *, copy: bool
) -> tuple[Relation, pa.Array]:
    """All values under the version that holds them, after columns were widened where needed."""
    while True:
        decoder = make()
        decoder.bind(relation.source_id, relation)
        if copy:
            decoder.begin(1, 1, 1)
            at = decoder.feed_copy(block, 0, len(block), relation.source_id)
        else:
            at = decoder.feed(block, 0, len(block), 2**31 - 1)
        if decoder.stop is not Stop.WIDEN:
            assert (decoder.stop, at) == (Stop.MORE, len(block))
            (rows,) = decoder.take()
            return relation, rows.batch["after"].field("v")
        relation = resolver.widen(relation, decoder.widen[1])


def _bits(values: pa.Array) -> list[Any]:
    """Values as they lie in memory: NaN equals NaN and -0 differs from 0."""
    width = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}.get(values.type)
    if values.type in (pa.date32(), pa.time64("us")) or pa.types.is_timestamp(values.type):
        width = pa.int32() if values.type == pa.date32() else pa.int64()
    if width is not None:
        values = pa.Array.from_buffers(width, len(values), values.buffers(), values.null_count)
    result: list[Any] = values.to_pylist()
    return result


def _expected(neutral: str, printed: list[str | None], computed: list[Any]) -> list[Any]:
    """What `_bits` must be for what the server prints."""
    if neutral in COMPUTED:
        return computed

    def one(text: str) -> Any:
        if neutral == "bool":
            return text == "t"
        if neutral == "float32":
            return struct.unpack("<i", struct.pack("<f", float(text)))[0]
        if neutral == "float64":
            return struct.unpack("<q", struct.pack("<d", float(text)))[0]
        if neutral.startswith("decimal("):
            return Decimal(text)
        if neutral == "uuid":
            return UUID(text).bytes
        if neutral == "binary":
            return bytes.fromhex(text.removeprefix("\\x"))
        return text if neutral == "string" else int(text)

    return [None if text is None else one(text) for text in printed]


@dataclass
class Case:
    """A table with one column of a type, and the messages of its rows."""

    name: str
    type_name: str
    values: list[str]
    messages: list[bytes] = field(default_factory=list)

    def fill(self, connection: psycopg.Connection) -> None:
        connection.execute(f"create table public.{self.name} (v {self.type_name})")
        for value in [*self.values, None]:
            shown = "null" if value is None else literal(value)  # read by the type's own input
            connection.execute(
                f"insert into public.{self.name} values ({shown}::{self.type_name})".encode()
            )

    def printed(self, connection: psycopg.Connection, expression: str) -> list[Any]:
        rows = connection.execute(f"select {expression} from public.{self.name} order by ctid")
        return [row[0] for row in rows.fetchall()]


def _has_xml(connection: psycopg.Connection) -> bool:
    """Whether the server was built with libxml: without it no xml value can be made at all."""
    try:
        connection.execute("select '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        return False
    return True


def _collect(messages: list[bytes], cases: dict[int, Case]) -> None:
    begin = b""
    for message in messages:
        source_id = int.from_bytes(message[1:5])
        if message[:1] == b"B":
            begin = message
        elif message[:1] in (b"R", b"I"):
            kept = cases[source_id].messages
            kept += [begin, message] if message[:1] == b"I" and len(kept) == 1 else [message]


@pytest.mark.parametrize("kind", sorted(DECODERS))
def test_streamed_and_copied_values_are_equal(source_url: str, postgres: Any, kind: str) -> None:
    """For every type: the same value by both paths, and the one that the server prints."""
    with open_catalog(source_url) as catalog:
        catalog.execute(SETUP)
        available = {row[0] for row in catalog.execute("select name from pg_available_extensions")}
        extensions = available & EXTENSION_VALUES.keys()
        for extension in extensions:
            catalog.execute(f"create extension {extension} schema kinds")
        cases = [
            Case(f"t{number}", type_name, values)
            for number, (type_name, values) in enumerate(
                _cases(postgres.version, extensions, _has_xml(catalog)).items()
            )
        ]
        with capturing(source_url) as capture:
            with catalog.transaction():
                for case in cases:
                    case.fill(catalog)
            tables = {t.name.name: t for t in captured_tables(catalog, ["public.*"])}
            by_id = {tables[case.name].source_id: case for case in cases}
            _collect(capture.messages(), by_id)
        resolver = RelationResolver(catalog, tables.values())
        wrong = [what for case in cases for what in _check(catalog, resolver, case, DECODERS[kind])]
    assert wrong == []


def _check(
    catalog: psycopg.Connection, resolver: RelationResolver, case: Case, make: type[Decoder]
) -> list[Any]:
    relation = resolver.resolve(relation_message(case.messages[0][1:]))
    assert relation is not None
    definition = resolver.definition(relation.source_id)
    assert definition is not None
    (chunk,) = plan_chunks(catalog, definition)
    with catalog.cursor().copy(copy_sql(chunk, ["v"])) as copy:
        lines = b"".join(bytes(piece) for piece in copy)
    block = frames(case.messages[1:])
    # format() calls the type's output function, as sending does; some casts to text differ.
    printed = case.printed(catalog, "case when v is distinct from null then format('%s', v) end")
    assert len(printed) == len(case.values) + 1
    native, streamed = _decode(make, resolver, relation, block, copy=False)
    same, copied = _decode(make, resolver, native, lines, copy=True)
    wrong: list[Any] = []
    if same != native or _bits(streamed) != _bits(copied):
        wrong.append((case.type_name, "stream and copy", streamed, copied))
    neutral = native.columns[0].neutral
    computed = case.printed(catalog, COMPUTED[neutral]) if neutral in COMPUTED else []
    if _bits(streamed) != _expected(neutral, printed, computed):
        wrong.append((case.type_name, "server's value", streamed, printed))
    # As text, whatever the neutral type: exactly what the server prints.
    text = relation.with_text_column(0)
    for source, is_copy in ((block, False), (lines, True)):
        _, plain = _decode(make, resolver, text, source, copy=is_copy)
        if plain.to_pylist() != printed:
            wrong.append((case.type_name, f"text, copied {is_copy}", plain, printed))
    return wrong


def test_no_builtin_type_is_forgotten(source_url: str) -> None:
    """Every base type, range and multirange that a table can have is among the cases."""
    with open_catalog(source_url) as catalog:
        rows = catalog.execute(
            """
            select format_type(oid, null)
              from pg_type
             where typtype in ('b', 'r', 'm')
               and typcategory <> 'A'
               and typnamespace = 'pg_catalog'::regnamespace
               and typcategory <> 'Z'
               and typname not in ('aclitem', 'gtsvector')
            """
        ).fetchall()
        named = catalog.execute(
            "select format_type(t::regtype, null) from unnest(%s::text[]) as t",
            ([name for name in VALUES if "kinds." not in name],),
        ).fetchall()
    assert {row[0] for row in rows} - {row[0] for row in named} == set()
