"""Every kept form of a value, including its extremes, from the log into a real target column."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.changes import Change, batch, relation
from harness.pipelines.loader import Applying, LogMaker
from penstock.host.errors import StatementFailed
from penstock.model import Identity
from penstock.ports.target import ValueRefused

# (type in the target, kept as, values as the log has them, text in the target)
CASES: list[tuple[str, str, list[Any], list[str]]] = [
    ("boolean", "bool", [True, False], ["true", "false"]),
    ("smallint", "int16", [-(2**15), 2**15 - 1], ["-32768", "32767"]),
    ("integer", "int32", [-(2**31), 2**31 - 1], ["-2147483648", "2147483647"]),
    ("bigint", "int64", [-(2**63), 2**63 - 1], [str(-(2**63)), str(2**63 - 1)]),
    ("oid", "uint32", [0, 2**32 - 1], ["0", "4294967295"]),
    ("xid", "uint32", [2**31, 2**32 - 1], ["2147483648", "4294967295"]),
    ("xid8", "uint64", [2**63, 2**64 - 1], [str(2**63), str(2**64 - 1)]),
    ("pg_lsn", "string", ["0/0", "FFFFFFFF/FFFFFFFF"], ["0/0", "FFFFFFFF/FFFFFFFF"]),
    (
        "real",
        "float32",
        [float("nan"), float("inf"), -0.0, 3.4028234663852886e38, 1.401298464324817e-45],
        ["NaN", "Infinity", "-0", "3.4028235e+38", "1e-45"],
    ),
    (
        "double precision",
        "float64",
        [float("nan"), float("-inf"), -0.0, 1.7976931348623157e308, 5e-324, 0.1 + 0.2],
        ["NaN", "-Infinity", "-0", "1.7976931348623157e+308", "5e-324", "0.30000000000000004"],
    ),
    (
        "numeric(12,2)",
        "decimal(12,2)",
        [Decimal("1.10"), Decimal("-9999999999.99"), Decimal("0.00"), Decimal("10000.00")],
        ["1.10", "-9999999999.99", "0.00", "10000.00"],
    ),
    ("numeric(38,0)", "decimal(38,0)", [Decimal(10**38 - 1)], [str(10**38 - 1)]),
    ("numeric(38,38)", "decimal(38,38)", [Decimal("0." + "9" * 38)], ["0." + "9" * 38]),
    ("numeric(12,2)", "string", ["NaN", "1.10"], ["NaN", "1.10"]),
    ("numeric", "string", ["Infinity", "1.500", "-1e-7"], ["Infinity", "1.500", "-0.0000001"]),
    ("numeric(5,-2)", "string", ["12300"], ["12300"]),
    ("date", "date", [-2440588, 2932896, 2145031948 - 2440588], None),  # type: ignore[list-item]
    ("date", "string", ["infinity", "4714-11-24 BC"], ["infinity", "4714-11-24 BC"]),
    ("time without time zone", "time", [0, 86_399_999_999], ["00:00:00", "23:59:59.999999"]),
    ("time without time zone", "string", ["24:00:00"], ["24:00:00"]),
    ("time with time zone", "string", ["24:00:00-15:59:59"], ["24:00:00-15:59:59"]),
    (
        "timestamp without time zone",
        "timestamp",
        [-210_866_803_200_000_000, -1, 9_223_371_331_199_999_999],
        ["4714-11-24 00:00:00 BC", "1969-12-31 23:59:59.999999", "294247-01-01 23:59:59.999999"],
    ),
    (
        "timestamp with time zone",
        "timestamptz",
        [-210_866_803_200_000_000, 0, 9_223_371_331_199_999_999],
        [
            "4714-11-24 00:00:00+00 BC",
            "1970-01-01 00:00:00+00",
            "294247-01-01 23:59:59.999999+00",
        ],
    ),
    (
        "timestamp with time zone",
        "string",
        ["-infinity", "294276-12-31 23:59:59.999999+00"],
        ["-infinity", "294276-12-31 23:59:59.999999+00"],
    ),
    ("timestamp(3) without time zone", "timestamp", [1_001_000], ["1970-01-01 00:00:01.001"]),
    (
        "interval",
        "string",
        ["10 mons 3 days -04:05:06.7", "178000000 years"],
        ["10 mons 3 days -04:05:06.7", "178000000 years"],
    ),
    (
        "uuid",
        "uuid",
        [uuid.UUID(int=0).bytes, uuid.UUID(int=2**128 - 1).bytes],
        [str(uuid.UUID(int=0)), str(uuid.UUID(int=2**128 - 1))],
    ),
    ("bytea", "binary", [b"", bytes(range(256))], ["\\x", "\\x" + bytes(range(256)).hex()]),
    ("text", "string", ["", "\\N", "a\tb\r\n\\", "𝄞ß\x01"], ["", "\\N", "a\tb\r\n\\", "𝄞ß\x01"]),
    ("character varying(3)", "string", ["abc"], ["abc"]),
    ("character(5)", "string", ["ab   "], ["ab"]),
    ('"char"', "string", ["x", ""], ["x", ""]),
    ("name", "string", ["ü" * 31], ["ü" * 31]),
    ("bit(3)", "string", ["101"], ["101"]),
    ("bit varying(5)", "string", ["", "10101"], ["", "10101"]),
    ("money", "string", ["-$92,233,720,368,547,758.08"], ["-$92,233,720,368,547,758.08"]),
    ("json", "string", ['{"b": 1,  "a": null}'], ['{"b": 1,  "a": null}']),
    ("jsonb", "string", ['{"a": [1, "x"]}'], ['{"a": [1, "x"]}']),
    ("xml", "string", ["<a>b</a>", "text only"], ["<a>b</a>", "text only"]),
    ("inet", "string", ["10.0.0.1", "::1/64"], None),  # type: ignore[list-item]
    ("cidr", "string", ["10.0.0.0/8"], ["10.0.0.0/8"]),
    ("macaddr", "string", ["08:00:2b:01:02:03"], ["08:00:2b:01:02:03"]),
    ("point", "string", ["(1.5,-2)"], ["(1.5,-2)"]),
    ("path", "string", ["[(0,0),(1,1)]"], ["[(0,0),(1,1)]"]),
    ("tsvector", "string", ["'a':1A 'b':2"], ["'a':1A 'b':2"]),
    ("tsquery", "string", ["'a' & !'b'"], ["'a' & !'b'"]),
    ("int4range", "string", ["[1,6)", "empty"], ["[1,6)", "empty"]),
    ("int4multirange", "string", ["{[1,2),[5,10)}"], ["{[1,2),[5,10)}"]),
    ("integer[]", "string", ["{1,NULL,3}", "[0:1]={1,2}"], ["{1,NULL,3}", "[0:1]={1,2}"]),
    ("text[]", "string", ['{a,"b c",NULL,"NULL",""}'], ['{a,"b c",NULL,"NULL",""}']),
    ("public.mood", "string", ["so so", "ok"], ["so so", "ok"]),
    ("public.mood[]", "string", ['{"so so",ok}'], ['{"so so",ok}']),
    ("public.small", "decimal(4,1)", [Decimal("12.0")], ["12.0"]),
    ("public.pair", "string", ['(1,"a b")', "(,)"], ['(1,"a b")', "(,)"]),
]

TYPES = """
    create type public.mood as enum ('so so', 'ok');
    create domain public.small as numeric(4,1) check (value < 100);
    create type public.pair as (a int, b text);
"""


def has_xml(target: Applying) -> bool:
    """Return whether the server has libxml; some builds cannot hold any xml value."""
    try:
        target.rows("select '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        return False
    return True


@pytest.fixture
def target(target_url: str, tmp_path: Path) -> Iterator[Applying]:
    """A target that applies the log in tmp_path."""
    one = Applying(target_url, tmp_path / "log")
    yield one
    one.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogMaker]:
    """An empty change log."""
    maker = LogMaker(tmp_path / "log")
    yield maker
    maker.writer.close()


@pytest.mark.parametrize("identity", [Identity.DEFAULT, Identity.FULL])
def test_values_arrive_exactly(target: Applying, log: LogMaker, identity: Identity) -> None:
    """Values are inserted and updated by key, and (FULL) matched as whole rows without a key."""
    key = (0,) if identity is Identity.DEFAULT else ()
    execute = target.target.connection.execute
    execute(TYPES)
    cases = [case for case in CASES if case[0] != "xml" or has_xml(target)]
    for number, (kind, neutral, values, _) in enumerate(cases):
        unique = "primary key" if key else ""
        execute(f"create table public.t{number} (id int {unique}, v {kind})")
        shape = relation(
            ("id", "integer", "int32"),
            ("v", kind, neutral),
            key=key,
            identity=identity,
            name=f"t{number}",
        )
        some = [None, *values]
        log.transaction(*[(shape, Change(op="I", gsn=0, after=(i, v))) for i, v in enumerate(some)])
    log.close_segment()
    target.batch()
    for number, (kind, neutral, values, texts) in enumerate(cases):
        rows = target.rows(f"select v::text from public.t{number} order by id")
        assert rows[0] == (None,)
        if texts is None:
            assert len(rows) == len(values) + 1
        else:
            assert [text for (text,) in rows[1:]] == texts, (kind, neutral)
    for number, (kind, neutral, values, _) in enumerate(cases):
        shape = relation(
            ("id", "integer", "int32"),
            ("v", kind, neutral),
            key=key,
            identity=identity,
            name=f"t{number}",
        )
        log.transaction(
            *[(shape, Change(op="D", gsn=0, before=(i, v))) for i, v in enumerate([None, *values])]
        )
    log.close_segment()
    target.batch()
    for number, (kind, *_) in enumerate(cases):
        assert target.rows(f"select count(*) from public.t{number}") == [(0,)], kind


# Type, a name that the target lacks, and the statement that creates it there.
NAMES = [
    ("regclass", 'public."No Such"', 'create table public."No Such" ()'),
    ("regclass[]", "{pg_class,public.absent}", "create table public.absent ()"),
    ("regproc", "public.absent", "create function public.absent() returns int return 1"),
    (
        "regprocedure",
        "public.absent(text)",
        "create function public.absent(text) returns int language sql as 'select 1'",
    ),
    (
        "regoper",
        "public.<=>",
        "create operator public.<=> (procedure = pg_catalog.int4eq, leftarg = int, rightarg = int)",
    ),
    (
        "regoperator",
        "public.<=>(integer,integer)",
        "create operator public.<=> (procedure = pg_catalog.int4eq, leftarg = int, rightarg = int)",
    ),
    ("regtype", "public.absent", "create type public.absent as enum ('a')"),
    ("regnamespace", "absent", "create schema absent"),
    ("regrole", "absent_role", "create role absent_role"),
    ("regcollation", "public.absent", "create collation public.absent (locale = 'C')"),
    (
        "regconfig",
        "public.absent",
        "create text search configuration public.absent (copy = pg_catalog.simple)",
    ),
    (
        "regdictionary",
        "public.absent",
        "create text search dictionary public.absent (template = pg_catalog.simple)",
    ),
]


@pytest.mark.parametrize(("kind", "name", "made"), NAMES, ids=[name[0] for name in NAMES])
def test_values_that_name_what_the_target_lacks(
    target: Applying, log: LogMaker, kind: str, name: str, made: str
) -> None:
    """The error has the statement that shows the names, not the name; the load continues once it
    exists.
    """
    execute = target.target.connection.execute
    execute(f"create table public.t (id int primary key, v {kind})")
    shape = relation(("id", "integer", "int32"), ("v", kind, "string"))
    log.transaction((shape, Change(op="I", gsn=0, after=(1, name))))
    log.close_segment()
    with pytest.raises(ValueRefused) as caught:
        target.batch()
    assert "bsent" not in caught.value.message
    assert "Such" not in caught.value.message
    assert 'select distinct "v" from "wirekite"."t_wkm"' in caught.value.hint
    assert 'alter table "public"."t" alter column "v" type text' in caught.value.hint
    assert target.rows("select 1 from public.t") == []
    shown = target.rows('select distinct "v" from "wirekite"."t_wkm"')
    assert shown == [(name,)]
    try:
        execute(made)
        target.batch()
        assert target.rows("select v::text from public.t") == [(name,)]
    finally:
        execute("drop role if exists absent_role")


def test_a_table_that_is_gone_is_no_refused_value(target: Applying, log: LogMaker) -> None:
    """The server reports a missing table and a missing name in a row alike."""
    execute = target.target.connection.execute
    execute("create table public.t (id int primary key, v regclass)")
    shape = relation(("id", "integer", "int32"), ("v", "regclass", "string"))
    log.transaction((shape, Change(op="I", gsn=0, after=(1, "pg_class"))))
    log.close_segment()
    target.batch()
    execute("drop table public.t")
    log.transaction((shape, Change(op="I", gsn=0, after=(2, "pg_class"))))
    log.close_segment()
    with pytest.raises(StatementFailed) as caught:
        target.batch()
    assert caught.value.fields["sqlstate"] == "42P01"


def test_batch_of_changes_is_as_the_decoder_makes_it() -> None:
    """The test's own batches have the schema of the log."""
    shape = relation(("id", "integer", "int32"))
    assert batch(shape, []).num_rows == 0
