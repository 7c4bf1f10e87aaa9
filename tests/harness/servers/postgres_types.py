"""Every type that a column can have, with its edges as text."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

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
    "numeric": [
        *("0", "1.10", "0.010", "-0.000", "NaN", "Infinity", "-Infinity"),
        BIG,
        f"0.{'0' * 900}1",
    ],
    "numeric(38,0)": ["9" * 38, "-" + "9" * 38],
    "numeric(38,37)": ["9." + "9" * 37, "-0.1", "-0.01"],
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


def values_for(version: int, extensions: set[str], *, with_xml: bool) -> dict[str, list[str]]:
    """Return the values by type that a server of this version, so equipped, can hold."""
    cases = {name: list(values) for name, values in VALUES.items() if with_xml or name != "xml"}
    for since, more in SINCE.items():
        for name, values in more.items() if version >= since else ():
            cases[name] += values
    for name in extensions & EXTENSION_VALUES.keys():
        cases[f"kinds.{name}"] = EXTENSION_VALUES[name]
        cases[f"kinds.{name}[]"] = ["{NULL}"]
    return cases


def has_xml(connection: psycopg.Connection) -> bool:
    """Return whether the server was built with libxml: without it no xml value can be created."""
    try:
        connection.execute("select '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        return False
    return True


def rows_of(values: dict[str, list[str]]) -> Iterator[list[str | None]]:
    """Yield each value at least once, in rows of all types; None if a type has no more."""
    for at in range(max(map(len, values.values()))):
        yield [found[at] if at < len(found) else None for found in values.values()]
