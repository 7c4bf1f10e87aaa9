"""Every type with its extremes, replicated between real servers by the table of types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pymysql

from harness.servers import mysql_types
from harness.servers.postgres_types import SETUP, has_xml, values_for
from harness.servers.types_across import (
    MySQLSide,
    Outcome,
    PostgresSide,
    carry,
    find_lost,
    mysql_side,
    postgres_side,
)
from penstock.codec.types import Engine, builtin_types, parse_choices
from penstock.codec.types.source_type import SourceType
from penstock.engines.postgres.connect import literal
from plugins.mysql import MySQLServer

Sides = tuple[PostgresSide | MySQLSide, PostgresSide | MySQLSide]

# The values of harness.servers.postgres_types that MySQL and MariaDB cannot hold; all
# others arrive.
LOST_FROM_POSTGRES = {
    "real": {"NaN", "Infinity", "-Infinity"},
    "double precision": {"NaN", "Infinity", "-Infinity"},
    "numeric": {"NaN", "Infinity", "-Infinity", "1" + "0" * 1000, f"0.{'0' * 900}1"},
    "numeric(10,2)": {"NaN"},
    "kinds.price": {"NaN"},
    "kinds.stamp": {"infinity"},
    "date": {"infinity", "-infinity", "4713-01-01 BC", "5874897-12-31", "12345-06-07"},
    "timestamp": {
        "infinity", "-infinity", "4713-01-01 00:00 BC", "294276-12-31 23:59:59.999999",
        "294247-01-10 04:00:54.775807", "294247-01-10 04:00:54.775808", "0044-03-15 10:00 BC",
    },
    "timestamptz": {
        "infinity", "-infinity", "4713-01-01 00:00+00 BC", "294276-12-31 23:59:59.999999+00",
    },
}  # fmt: skip
POSTGRES_MORE = {
    "date": ["0001-01-01", "9999-12-31", "10101-01-01", "0001-12-31 BC"],
    "timestamp": ["9999-12-31 23:59:59.999999", "0001-01-01"],
    "timestamptz": ["9999-12-31 23:59:59.999999+00", "10101-01-01 00:00+00"],
    "numeric": ["9" * 35 + "." + "9" * 30, "1" + "0" * 35, "1." + "0" * 29 + "1" + "0" * 20],
    "double precision": [
        "5.684341886080802e-14", "9007199254740993", "1.9999999999999998", "8", "1e22", "1e23",
        "2.2250738585072014e-308", "-4.9406564584124654e-324", "0.5", "-3", "1e-310",
    ],
    "bit(64)": ["1" * 64, "1" + "0" * 63],
    "bit(100)": ["1" * 100],
    "numeric(65,30)": ["9" * 35 + "." + "9" * 30],
    "numeric(5,-2)": ["12345"],
    "numeric(3,5)": ["-0.00123"],
    "char(300)": ["x"],
    "varchar(20000)": ["x"],
    "text": ["a\x01b", "trailing  ", "Å"],
    "uuid": ["00112233-4455-6677-8899-aabbccddeeff", "00112233-4455-7677-0899-aabbccddeeff"],
}  # fmt: skip
FAR = ("date", "timestamp", "timestamptz")
MORE_LOST = {
    "date": {"10101-01-01", "0001-12-31 BC"},
    "timestamptz": {"10101-01-01 00:00+00"},
    "numeric": {"1" + "0" * 35},
}


def postgres_values(side: PostgresSide) -> dict[str, list[str]]:
    """Return the values by type of PostgreSQL, including those above."""
    version = side.server.version[0]
    cases = values_for(version, set(), with_xml=has_xml(side.connection))
    old = {"numeric(5,-2)", "numeric(3,5)"} if version < 15 else set()
    for name, more in POSTGRES_MORE.items():
        if name not in old:
            cases[name] = [*cases.get(name, []), *more]
    return cases


def fill(source: PostgresSide | MySQLSide, cases: Mapping[str, Sequence[str]]) -> list[str]:
    """Create and fill one table of each type, named t0, t1 ...; return the types in that order."""
    for place, (name, values) in enumerate(cases.items()):
        source.make(f"t{place}", name)
        for number, value in enumerate(values):
            is_postgres = isinstance(source, PostgresSide)
            error = source.put(
                f"t{place}", number, f"{literal(value)}::{name}" if is_postgres else value
            )
            assert error == "", (name, value)
        assert source.put(f"t{place}", len(values), "null") == ""
    return list(cases)


def outcomes(
    sides: Sides, cases: Mapping[str, Sequence[str]], choices: Mapping[str, str], mark: str
) -> Iterator[tuple[str, Outcome, set[str]]]:
    """Yield each type's outcome with exact and with widened columns, and the losses.

    The sources' tables are filled. mark: for the names of the target's.
    """
    source, target = sides
    chosen = parse_choices(choices, source.server.engine)
    assert cases
    for place, (name, values) in enumerate(cases.items()):
        for as_text in (False, True):
            into = f"{mark}{place}{'t' if as_text else 'n'}"
            outcome = carry(source, target, f"t{place}", into, chosen, as_text=as_text)
            assert len(outcome.source) == len(values) + 1, "every value, and a NULL"
            gone = {values[n] for n in find_lost(outcome) if n < len(values)}
            yield name, outcome, gone


def unequal(name: str, outcome: Outcome) -> list[Any]:
    """Return the written values that differ between the two sides."""
    return [
        (name, text, outcome.target[number])
        for number, text in outcome.source.items()
        if number not in outcome.errors and outcome.target[number] != text
    ]


def check_null_and_error(
    sides: Sides, cases: Mapping[str, Sequence[str]], expected: Mapping[str, set[str]]
) -> None:
    """Check that values that fit are equal, and others NULL or refused, as chosen."""
    engine = sides[0].server.engine
    names = ("zero dates", "dates out of range", "not a number")
    nulls = dict.fromkeys(names, "null") | {"*": "error"}
    for choices, mark in ((nulls, "null"), ({"*": "error"}, "error")):
        for name, outcome, gone in outcomes(sides, cases, choices, mark):
            assert unequal(name, outcome) == [], (mark, engine)
            assert gone == expected.get(name, set()), (mark, name, outcome.errors)
            assert outcome.mapping.exact or outcome.mapping.losses
            assert not gone or not outcome.mapping.exact, name


def check_text(sides: Sides, cases: Mapping[str, Sequence[str]]) -> None:
    """Check that values kept as text by choice are unchanged; floating numbers cannot be text."""
    names = ("zero dates", "dates out of range", "not a number", "digits")
    choices = dict.fromkeys(names, "text") | {"*": "error"}
    floats = ("real", "double precision")
    if sides[0].server.engine is Engine.POSTGRESQL:
        choices |= {f"{name} not a number": "null" for name in floats}
    for name, outcome, gone in outcomes(sides, cases, choices, "text"):
        odd = {"NaN", "Infinity", "-Infinity"} if name in floats else set()
        # Arrow itself has no text for years beyond 32767.
        odd |= {value for value in cases[name] if value[:2] in ("29", "58") and name in FAR}
        assert unequal(name, outcome) == []
        assert gone <= odd, (name, outcome.errors)


def test_postgres_to_mysql(source_url: str, mysql_url: str) -> None:
    """Every type of PostgreSQL in MySQL and MariaDB is equal, or lost as the table says."""
    with postgres_side(source_url) as source, mysql_side(mysql_url) as target:
        source.connection.execute(SETUP)
        cases = postgres_values(source)
        fill(source, cases)
        expected = {
            name: LOST_FROM_POSTGRES.get(name, set()) | MORE_LOST.get(name, set()) for name in cases
        }
        if target.server.engine is Engine.MYSQL:
            expected["numeric(38,37)"] = {cases["numeric(38,37)"][0]}  # MySQL has a scale of 30
        check_null_and_error((source, target), cases, expected)
        check_text((source, target), cases)
        rounded = {"digits": "round", "*": "error"}
        fits = ["1.10", f"0.{'0' * 900}1", "0.1234567890123456789012345678901"]
        source.make("r", "numeric")
        for number, value in enumerate(fits):
            source.put("r", number, value)
        outcome = carry(
            source, target, "r", "r", parse_choices(rounded, Engine.POSTGRESQL), as_text=False
        )
        assert outcome.errors == {}
        assert unequal("numeric", outcome) == []


def mysql_values(side: MySQLSide) -> dict[str, list[str]]:
    """Return the values by type of this server."""
    return mysql_types.values_for(side.server.engine is Engine.MARIADB)


def test_mysql_to_postgres(mysql_url: str, target_url: str) -> None:
    """Every type of MySQL and MariaDB in PostgreSQL is equal, or lost as the table says."""
    with mysql_side(mysql_url) as source, postgres_side(target_url) as target:
        cases = mysql_values(source)
        expected: dict[str, set[str]] = {}
        for extra in (mysql_types.ZERO_DATES, mysql_types.NUL_TEXTS):
            for name, values in extra.items():
                cases[name] = [*cases[name], *values]
                expected[name] = set(values)
        if source.server.engine is Engine.MARIADB:
            cases["json"] = [*cases["json"], *mysql_types.LOOSE_JSON["json"]]
            expected["json"] = set(mysql_types.LOOSE_JSON["json"])
        fill(source, cases)
        without_nul = {n: v for n, v in expected.items() if n not in mysql_types.NUL_TEXTS}
        for name, outcome, gone in outcomes((source, target), cases, {"*": "error"}, "error"):
            assert (unequal(name, outcome), gone) == ([], expected.get(name, set())), name
        nulls = {"*": "error", "zero dates": "null", "nul characters": "remove"}
        for name, outcome, gone in outcomes((source, target), cases, nulls, "null"):
            assert (unequal(name, outcome), gone) == ([], without_nul.get(name, set())), name
        texts = {"zero dates": "text", "nul characters": "remove", "loose json": "text"}
        for name, outcome, gone in outcomes((source, target), cases, texts, "text"):
            assert (unequal(name, outcome), gone) == ([], set()), (name, outcome.errors)


def test_mysql_and_mariadb(mysql: MySQLServer, other_mysql: MySQLServer, mysql_url: str) -> None:
    """Every type is equal in the other server, and in a second database of the same server."""
    with mysql_side(mysql_url) as source:
        cases = mysql_values(source)
        for extra in (mysql_types.ZERO_DATES, mysql_types.NUL_TEXTS):
            for name, values in extra.items():
                cases[name] = [*cases[name], *values]
        fill(source, cases)
        same_url, other_url = mysql.make_database("same"), other_mysql.make_database()
        try:
            for url, lost_there in ((other_url, {"decimal(65,38)"}), (same_url, set())):
                with mysql_side(url) as target:
                    sides: Sides = (source, target)
                    for name, outcome, gone in outcomes(sides, cases, {"*": "error"}, "error"):
                        assert unequal(name, outcome) == []
                        assert bool(gone) == (name in lost_there), (name, outcome.errors)
                    check_text(sides, cases)
        finally:
            mysql.drop_database(same_url)
            other_mysql.drop_database(other_url)


def test_every_type_of_the_server_has_a_row(mysql: MySQLServer, mysql_url: str) -> None:
    """Any keyword that the server accepts as a type is in the table, and among the cases."""
    database = mysql_url.rpartition("/")[2]
    engine = Engine(mysql.kind)
    words = {
        str(row[0]).lower() for row in mysql.execute("select word from information_schema.keywords")
    }
    words |= {
        "geomcollection",
        "json",
        "uuid",
        "inet4",
        "inet6",
        "vector(2)",
        *builtin_types(engine),
    }
    found: set[str] = set()
    with mysql.connect(database) as connection, connection.cursor() as cursor:
        for word in sorted(words):
            for text in (word, f"{word}(1)", f"{word}('a')"):
                try:
                    cursor.execute(f"create table w (v {text})")
                except pymysql.Error:  # most words are not types
                    continue
                cursor.execute(
                    "select data_type from information_schema.columns where table_name = 'w'"
                )
                found |= {str(row[0]) for row in cursor.fetchall()}
                cursor.execute("drop table w")
    bases = {SourceType.mysql(name, "string", engine).base for name in found}
    assert len(bases) > 30
    assert bases - builtin_types(engine) == set()
    tried = {
        SourceType.mysql(name, "string", engine).base
        for name in mysql_types.values_for(mysql.is_mariadb)
    }
    assert bases - tried - {"vector"} == set()


def test_every_type_of_postgres_has_a_row(source_url: str) -> None:
    """Every type of the catalogue is in the table, except those that no column can have."""
    with postgres_side(source_url) as side:
        rows = side.connection.execute(
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
    bases = {SourceType.postgres(row[0], "string").base for row in rows}
    assert len(bases) > 60
    assert bases - builtin_types(Engine.POSTGRESQL) == set()
