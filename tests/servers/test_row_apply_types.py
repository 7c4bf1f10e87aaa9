"""Every type in a changefeed's JSON, written into every type that a target may have for it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest

from penstock.model import PenstockError
from plugins.row_apply import Rows, delete, upsert

UUID = "3d5a1c1e-7c1b-4f0e-9a55-0d7c2f6b1a01"
# type of the column, JSON as a changefeed writes it, the value's text in the target
POSTGRES: Sequence[tuple[str, str, str]] = (
    ("smallint", "-32768", "-32768"),
    ("bigint", "9223372036854775807", "9223372036854775807"),
    ("bigint", "4E+2", "400"),
    ("numeric(12,2)", "19.90", "19.90"),
    ("numeric(12,2)", "1.5E+3", "1500.00"),
    ("numeric", "-0.00000000000000000000000000000123450", "-0.00000000000000000000000000000123450"),
    ("double precision", "0.1", "0.1"),
    ("double precision", '"NaN"', "NaN"),
    ("double precision", "1E-300", "1e-300"),
    ("real", "1.5", "1.5"),
    ("boolean", "true", "true"),
    ("boolean", "false", "false"),
    ("text", '"a\\"b\\u00fc\\n"', 'a"bü\n'),
    ("text", "4E+2", "400"),
    ("text", '"4E+2"', "4E+2"),
    ("text", '{"a": 1}', '{"a": 1}'),
    ("varchar(3)", '"abc"', "abc"),
    ("char(3)", '"ab"', "ab"),
    ("bytea", '"\\\\x89504e"', "\\x89504e"),
    ("bytea", '"\\\\x"', "\\x"),
    ("date", '"2024-03-15"', "2024-03-15"),
    ("time", '"10:00:00.000001"', "10:00:00.000001"),
    ("timetz", '"10:00:00+02:00"', "10:00:00+02"),
    ("timestamp", '"2024-03-01T10:00:00.123456"', "2024-03-01 10:00:00.123456"),
    ("timestamptz", '"2024-03-01T10:00:00.5Z"', "2024-03-01 10:00:00.5+00"),
    ("interval", '"1 year 2 mons 3 days 04:05:06.789"', "1 year 2 mons 3 days 04:05:06.789"),
    ("uuid", f'"{UUID}"', UUID),
    ("inet", '"192.168.0.1/24"', "192.168.0.1/24"),
    ("oid", '"4294967295"', "4294967295"),
    ("bit(4)", '"1011"', "1011"),
    ("varbit", '"1"', "1"),
    ("int8[]", "[1,null,3]", "{1,NULL,3}"),
    ("int8[]", "[]", "{}"),
    ("text[]", '["a,b",null,"\\"","null"]', '{"a,b",NULL,"\\"","null"}'),
    ("bytea[]", '["\\\\x00"]', '{"\\\\x00"}'),
    ("jsonb", '{"b":[1,{"x":null}],"a":4E+2}', '{"a": 400, "b": [1, {"x": null}]}'),
    ("jsonb", '"text"', '"text"'),
    ("jsonb", "false", "false"),
    ("json", '{"b" : 1.50}', '{"b" : 1.50}'),
    ('"Mood"', '"on-hold"', "on-hold"),
    ("positive", "5", "5"),
    ("pair", '{"f1":1,"f2":"x y"}', '(1,"x y")'),
)
# type, JSON, an expression of the column v, its result
MYSQL: Sequence[tuple[str, str, str, str]] = (
    ("tinyint(1)", "true", "v", "1"),
    ("tinyint(1)", "false", "v", "0"),
    ("bigint", "-9223372036854775808", "v", "-9223372036854775808"),
    ("bigint unsigned", "18446744073709551615", "v", "18446744073709551615"),
    ("int", "4E+2", "v", "400"),
    ("int", "7.00", "v", "7"),
    (
        "decimal(40,5)",
        "12345678901234567890123456789012345.50",
        "v",
        "12345678901234567890123456789012345.50000",
    ),
    ("decimal(12,2)", "1.5E+3", "v", "1500.00"),
    ("double", "0.1", "v", "0.1"),
    ("year", "2024", "v", "2024"),
    ("varchar(20)", '"a\\"b\\u00fc\\n"', "v", 'a"bü\n'),
    ("varchar(20)", "4E+2", "v", "400"),
    ("varchar(20)", '"4E+2"', "v", "4E+2"),
    ("text", '"\\ud83d\\ude00%s"', "v", "😀%s"),
    ("text", '[1,"a",null]', "v", '[1,"a",null]'),
    ("char(36)", f'"{UUID}"', "v", UUID),
    ("binary(16)", f'"{UUID}"', "lower(hex(v))", UUID.replace("-", "")),
    ("binary(4)", '"\\\\x89504e47"', "hex(v)", "89504E47"),
    ("varbinary(9)", '"\\\\x"', "hex(v)", ""),
    ("blob", '"\\\\x00ff"', "hex(v)", "00FF"),
    ("bit(5)", '"1011"', "bin(v+0)", "1011"),
    ("bit(64)", f'"{"1" * 64}"', "hex(v)", "F" * 16),
    ("bit(1)", "true", "bin(v+0)", "1"),
    ("date", '"2024-03-15"', "v", "2024-03-15"),
    ("time(6)", '"10:00:00.000001"', "v", "10:00:00.000001"),
    ("datetime(6)", '"2024-03-01T10:00:00.123456"', "v", "2024-03-01 10:00:00.123456"),
    ("datetime(6)", '"2024-03-01T10:00:00.5Z"', "v", "2024-03-01 10:00:00.500000"),
    ("timestamp(6) null", '"2024-03-01T10:00:00+02:00"', "v", "2024-03-01 08:00:00.000000"),
    ("enum('open','on-hold')", '"on-hold"', "v", "on-hold"),
    ("set('a','b')", '"a,b"', "v", "a,b"),
    ("json", '{"b":[1,{"x":null}]}', "json_extract(v, '$.b[1]')", '{"x": null}'),
    ("json", '"text"', "json_unquote(v)", "text"),
    ("json", '["a"]', "json_extract(v, '$[0]')", '"a"'),
    (
        "point",
        '{"type":"Point","coordinates":[1,2]}',
        "json_extract(st_asgeojson(v), '$.coordinates[0]') + 0",
        "1",
    ),
)
# type of the column, JSON that it cannot hold
REFUSED_BY_ALL = (
    ("integer", '"x"'),
    ("integer", "1.5"),
    ("integer", "99999999999"),
    ("varchar(3)", '"abcd"'),
    ("date", '"2024-13-45"'),
    ("decimal(4,2)", "12345"),
)
POSTGRES_REFUSED = (
    ("bytea", '"\\\\xzz"'),
    ("bit(4)", '"101"'),
    ("bit(4)", '"2222"'),
    ("char(2)", '"abc"'),
    ('"Mood"', '"angry"'),
    ("positive", "-5"),
    ("text", '"\\u0000"'),
)
MYSQL_REFUSED = (
    ("blob", '"text"'),
    ("blob", '"\\\\xzz"'),
    ("blob", "5"),
    ("bit(4)", '"10101"'),
    ("bit(4)", '"2"'),
    ("tinyint unsigned", "-1"),
    ("enum('a')", '"b"'),
    ("int", '{"a":1}'),
)


def test_every_value_arrives(target: Rows) -> None:
    """One row has the values, another has NULL for each column; twice, as for updates."""
    if target.is_postgres:
        target.run(
            "create type \"Mood\" as enum ('open', 'on-hold')",
            "create domain positive as int check (value > 0)",
            "create type pair as (f1 int, f2 text)",
        )
        cases = [(kind, text, "v::text", shown) for kind, text, shown in POSTGRES]
    else:
        cases = list(MYSQL)
    columns = ", ".join(f"c{n} {kind}" for n, (kind, *_) in enumerate(cases))
    target.run(f"create table t (id int primary key, {columns})")
    values = ", ".join(f'"c{n}":{text}' for n, (_, text, *_) in enumerate(cases))
    nulls = ", ".join(f'"c{n}":null' for n in range(len(cases)))
    for _ in range(2):
        target.upsert(upsert(f'{{"id":1,{values}}}'), upsert(f'{{"id":2,{nulls}}}'))
    whole = re.compile(r"\bv\b")
    shown = ", ".join(
        sql if target.is_postgres else f"cast({sql} as char)"
        for sql in (whole.sub(f"c{n}", case[2]) for n, case in enumerate(cases))
    )
    (row,) = target.rows(f"select {shown} from t where id = 1")
    assert dict(enumerate(row)) == {n: text for n, (*_, text) in enumerate(cases)}
    (row,) = target.rows("select * from t where id = 2")
    assert set(row[1:]) == {None}


def test_values_that_a_column_cannot_hold_are_refused(target: Rows) -> None:
    """No value is rounded to an integer, cut short or guessed, in keys neither."""
    if target.is_postgres:
        target.run(
            "create type \"Mood\" as enum ('open', 'on-hold')",
            "create domain positive as int check (value > 0)",
        )
    cases = (*REFUSED_BY_ALL, *(POSTGRES_REFUSED if target.is_postgres else MYSQL_REFUSED))
    for n, (kind, text) in enumerate(cases):
        target.run(f"create table t{n} (id int primary key, v {kind})")
        with pytest.raises(PenstockError) as caught:
            target.upsert(upsert(f'{{"id":1,"v":{text}}}'), table=f"t{n}")
        assert caught.value.code in ("ST61", "HS29"), kind
        assert target.rows(f"select * from t{n}") == [], kind


KEYS = (
    ("bigint", "-5"),
    ("decimal(10,2)", "1.50"),
    ("varchar(9)", '"ü\\"%s"'),
    ("date", '"2024-03-15"'),
    ("timestamp(6)", '"2024-03-01T10:00:00.123456"'),
    ("double precision", "0.1"),
)
POSTGRES_KEYS = (
    ("timestamptz(3)", '"2024-03-01T10:00:00.123456Z"'),
    ("uuid", f'"{UUID}"'),
    ("bytea", '"\\\\x00ff"'),
    ("boolean", "true"),
    ("inet", '"10.0.0.1"'),
    ("bit(3)", '"101"'),
    ("interval", '"1 mon"'),
)
MYSQL_KEYS = (
    ("datetime", '"2024-03-01T10:00:00.6"'),
    ("varbinary(16)", '"\\\\x00ff"'),
    ("bit(3)", '"101"'),
    ("tinyint(1)", "true"),
    ("enum('a','b')", '"b"'),
    ("char(36) character set latin1", f'"{UUID}"'),
    ("varchar(9) collate utf8mb4_bin", '"A"'),
)


def test_rows_are_found_by_keys_of_every_type(target: Rows) -> None:
    """Rows are found for a second write, for a comparison and for a delete."""
    for n, (kind, text) in enumerate(
        (*KEYS, *(POSTGRES_KEYS if target.is_postgres else MYSQL_KEYS))
    ):
        name = f"t{n}"
        target.run(f"create table {name} (id {kind} primary key, v int)")
        key = json.loads(text, parse_float=str)
        for v in (1, 2):
            target.upsert(upsert(f'{{"id":{text},"v":{v}}}', key=[key]), table=name)
        assert target.rows(f"select v from {name}") == [(2,)], kind
        one = delete(key)
        exact = type(one)(time=one.time, key=f"[{text}]", after=None)
        assert target.delete(exact, table=name) == 1, kind
