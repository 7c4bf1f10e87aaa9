"""Every type with its extremes from every source into both formats, by bulk load and by changes.

Each reader's rows are compared with the source's as docs/types.md says, and values of the bulk load
with those of changes, exactly. Values that a lake's type cannot hold stop the load by name, and the
line of the error's hint, copied into the file, lets it go on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psycopg
import pytest

from harness.lake.spark import lake_session
from harness.lake.typed import KINDS, MEMORY, MOVED, Cases, TypedLake, wide_rows
from harness.servers import mysql_types, postgres_types
from penstock.engines.postgres.connect import literal
from penstock.host.retry import Backoff
from penstock.load import chunk as chunks
from penstock.load.session import Session
from penstock.ports.target import ValueRefused
from plugins.mysql import MySQLServer, database_of
from plugins.postgres import Server
from plugins.shared import SharedSpark

pytestmark = pytest.mark.timeout(1200)

DATES, ZERO_DATES, NOT_A_NUMBER = "dates out of range", "zero dates", "not a number"
POSTGRES_LOSSES = {
    **dict.fromkeys(("date", "timestamp", "timestamp(3)", "timestamptz", "kinds.stamp"), DATES),
    **dict.fromkeys(
        ("numeric(38,0)", "numeric(38,37)", "numeric(12,2)", "numeric(10,2)", "kinds.price"),
        NOT_A_NUMBER,
    ),
}
_UNFIT = re.compile(r"\A-?infinity\Z|BC\Z|\ANaN\Z|\A\d{5,}-")
EDGES = {
    "date": ["0001-01-01", "1582-10-10", "9999-12-31"],
    "timestamp": ["0001-01-01", "1582-10-10 01:02:03.000004", "9999-12-31 23:59:59.999999"],
    "timestamptz": ["0001-01-01 00:00+00", "1899-12-31 23:00+01", "9999-12-31 23:59:59.999999+00"],
}
MYSQL_LOSSES = dict.fromkeys(
    ("date", "datetime", "datetime(3)", "datetime(6)", "timestamp", "timestamp(6)"),
    (ZERO_DATES, DATES),
)


@pytest.fixture(scope="module")
def session(
    shared_spark: SharedSpark, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    """Session with the classes of both formats; it reads, and has the JVM."""
    shared_spark.close()
    with lake_session(tmp_path_factory.mktemp("spark")) as running:
        yield running


@pytest.fixture(autouse=True)
def _one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a chunk fail at once."""
    monkeypatch.setattr(chunks, "BACKOFF", Backoff(attempts=1))


MakeLake = Callable[..., TypedLake]


@pytest.fixture(params=KINDS)
def make_lake(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> MakeLake:
    """Return a function that makes a lake: of the source's URL, its schema, and choices."""

    def make(source_url: str, schema: str, choices: Mapping[str, str]) -> TypedLake:
        return TypedLake(
            request.param,
            source_url,
            schema,
            tmp_path,
            session=None if request.param == MEMORY else request.getfixturevalue("session"),
            monkeypatch=monkeypatch,
            choices=choices,
        )

    return make


Run = Callable[[str], object]


def carry(lake: TypedLake, run: Run, tables: Mapping[str, Callable[[int], None]]) -> None:
    """Bring the tables into a lake, and the same values once more as changes.

    tables: by name the function that inserts the rows, with a number that is added to their ids.
    """
    for fill in tables.values():
        fill(0)
    lake.extract()
    lake.load_rows()
    for name, fill in tables.items():
        fill(MOVED)
        run(f"update {name} set id = id + 500 where mod(id, 2) = 1 and id < 500")
    lake.extract()
    lake.apply()


def check(lake: TypedLake, tables: Mapping[str, object]) -> None:
    """Fail unless each reader has the source's rows, and the same ones by both ways."""
    names = [name.rpartition(".")[2] for name in tables]
    for reader, result in lake.compare(names).items():
        assert not result.not_compared
        wrong = [table for table in result.tables if not table.equal]
        assert not wrong, (reader, wrong)
        assert len(result.tables) == len(names)
    for name in names:
        every = {reader: rows.to_pydict() for reader, rows in lake.read(name).items()}
        for reader, columns in every.items():
            first = next(iter(every.values()))
            half = len(columns["id"]) // 2
            for column, values in columns.items():
                shown = [repr(value) for value in values]
                assert shown == [repr(value) for value in first[column]], (reader, column)
                if column != "id":
                    order = sorted(range(half), key=lambda at, ids=columns["id"]: ids[at] % 500)
                    copied = [shown[at] for at in order]
                    assert copied == shown[half:], (reader, name, column)


def in_range(cases: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the values that a lake's types hold, with those at the edges."""
    return {
        name: [one for one in values if name not in POSTGRES_LOSSES or not _UNFIT.search(one)]
        + EDGES.get(name, [])
        or ["1"]
        for name, values in cases.items()
    }


def fill_postgres(url: str, table: str, cases: Cases) -> Callable[[int], None]:
    """Create a table with a column of each type; return the function that inserts its rows."""
    names = [f"c{at}" for at in range(len(cases))]
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(names, cases, strict=True))

    def run(*statements: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("set timezone = 'UTC'")
            for statement in statements:
                connection.execute(statement.encode())

    def fill(more: int) -> None:
        inserts = []
        for number, row in enumerate(wide_rows(cases), start=1):
            values = ", ".join(
                "null" if value is None else f"{literal(value)}::{kind}"
                for value, kind in zip(row, cases, strict=True)
            )
            inserts.append(f"insert into {table} values ({number + more}, {values})")
        run(*inserts)

    run(f"create table {table} (id int primary key, {columns})")
    return fill


def test_postgres(make_lake: MakeLake, source_url: str, postgres: Server) -> None:
    """Values within a lake's ranges keep their types; others become text or NULL, as chosen."""
    with psycopg.connect(source_url, autocommit=True) as connection:
        connection.execute(postgres_types.SETUP)  # type: ignore[arg-type]
        has_xml = postgres_types.has_xml(connection)
    cases = postgres_types.values_for(postgres.version, set(), with_xml=has_xml)
    lossy = {name: cases[name] + EDGES.get(name, []) for name in POSTGRES_LOSSES if name in cases}
    choices = {
        f"public.as_{word}.c{at} {POSTGRES_LOSSES[name]}": word
        for at, name in enumerate(lossy)
        for word in ("text", "null")
    }
    lake = make_lake(source_url, "public", choices)
    tables = {
        "public.typed": fill_postgres(source_url, "public.typed", in_range(cases)),
        "public.as_text": fill_postgres(source_url, "public.as_text", lossy),
        "public.as_null": fill_postgres(source_url, "public.as_null", lossy),
    }

    def run(statement: str) -> None:
        with psycopg.connect(source_url, autocommit=True) as connection:
            connection.execute(statement.encode())

    carry(lake, run, tables)
    check(lake, tables)
    nulls = next(iter(lake.read("as_null").values())).to_pydict()
    texts = next(iter(lake.read("as_text").values())).to_pydict()
    for at, name in enumerate(lossy):
        found = dict(zip(texts["id"], texts[f"c{at}"], strict=True))
        kept = dict(zip(nulls["id"], nulls[f"c{at}"], strict=True))
        for number, text in found.items():
            is_unfit = text is not None and bool(_UNFIT.search(text))
            assert (kept[number] is None) == (text is None or is_unfit), (name, text)


def fill_mysql(
    server: MySQLServer, database: str, table: str, cases: Cases
) -> Callable[[int], None]:
    """Create a table with a column of each type; return the function that inserts its rows."""
    columns = ", ".join(f"c{at} {kind} null" for at, kind in enumerate(cases))
    server.execute(f"create table {table} (id int primary key, {columns})", database)

    def fill(more: int) -> None:
        for number, row in enumerate(wide_rows(cases), start=1):
            values = ", ".join(value or "null" for value in row)
            server.execute(
                f"set session sql_mode = '';insert into {table} values ({number + more}, {values})",
                database,
            )

    return fill


def test_mysql(make_lake: MakeLake, mysql: MySQLServer, mysql_kind: str, mysql_url: str) -> None:
    """Zero dates and the year 0 become text or NULL, as chosen; other values keep their types."""
    database = database_of(mysql_url)
    every = {name: list(v) for name, v in mysql_types.values_for(mysql_kind == "mariadb").items()}
    for name, values in mysql_types.NUL_TEXTS.items():
        every[name] = [*every[name], *values]
    typed = {
        name: [one for one in values if name not in MYSQL_LOSSES or not one.startswith("'0000")]
        for name, values in every.items()
    }
    lossy = {name: [*every[name], *mysql_types.ZERO_DATES.get(name, [])] for name in MYSQL_LOSSES}
    choices = {
        f"{database}.as_{word}.c{at} {loss}": word
        for at, losses in enumerate(MYSQL_LOSSES.values())
        for loss in losses
        for word in ("text", "null")
    }
    lake = make_lake(mysql_url, database, choices)
    tables = {
        name: fill_mysql(mysql, database, name, cases)
        for name, cases in (("typed", typed), ("as_text", lossy), ("as_null", lossy))
    }
    carry(lake, lambda statement: mysql.execute(statement, database), tables)
    check(lake, tables)
    nulls = next(iter(lake.read("as_null").values())).to_pydict()
    texts = next(iter(lake.read("as_text").values())).to_pydict()
    zero = [text for text in texts["c0"] if text is not None and "-00" in text]
    assert zero, texts["c0"]
    assert nulls["c0"].count(None) > texts["c0"].count(None)


@pytest.mark.parametrize("is_change", [False, True])
def test_the_line_of_the_hint_mends_a_stop(
    make_lake: MakeLake, source_url: str, is_change: bool
) -> None:
    """A value that does not fit stops by table and column; the hint's line is what is needed."""

    def run(statement: str) -> None:
        with psycopg.connect(source_url, autocommit=True) as connection:
            connection.execute(statement.encode())

    run("create table t (id int primary key, d date)")
    run("insert into t values (1, '2024-02-29')")
    lake = make_lake(source_url, "public", {})
    if is_change:
        lake.extract()
        lake.load_rows()
    run("insert into t values (2, 'infinity')")
    if is_change:
        lake.extract()
    work = lake.apply if is_change else lake.load_rows
    with pytest.raises(ValueRefused, match=r"column d of public\.t") as caught:
        work()
    hint = caught.value.hint
    line = re.search(r'("[^"]+") = ("[^"]+")', hint)
    assert line, hint
    lake.choices[line[1].strip('"')] = line[2].strip('"')
    lake.write_files()
    work()
    for reader, rows in lake.read("t").items():
        assert rows.num_rows == 2, reader
