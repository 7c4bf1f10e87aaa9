"""ENUMs without labels, between MySQL and MariaDB: in bulk and by the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.mysql_bulk import Here, between, load
from harness.pipelines.mysql_extract import sql
from harness.pipelines.mysql_pipe import Pipe
from penstock.ports.target import ValueRefused
from plugins.mysql import MySQLServer, database_of

# By name: the labels, and whether the text of value 0 differs from all of them.
LABELS = {"letters": ("'a','b'", True), "digits": ("'0','1'", True), "blank": ("'','b'", False)}
CHARSETS = ("utf8mb4", "utf16")
COLUMNS = {
    f"{name}_{charset}": f"enum({labels}) character set {charset}"
    for name, (labels, _) in LABELS.items()
    for charset in CHARSETS
}
TOLD = [f"{name}_{charset}" for name, (_, told) in LABELS.items() if told for charset in CHARSETS]
BY_FILE_AND_BY_INSERT = pytest.mark.parametrize(
    "takes_files", [True, pytest.param(False, marks=pytest.mark.long)], ids=["by file", "by insert"]
)
MANY = 40_000  # rows of two values each, so that a chunk has more warnings than packets can count


def bulk(source: str, target: str, folder: Path) -> None:
    """Load the source's database into the target's."""
    folder.mkdir()
    named = f'[target.map]\n{database_of(source)} = "{database_of(target)}"'
    here: Any = Here()
    load(between(source, target, folder, more=named), here)


def loose(server: MySQLServer, url: str, *statements: str) -> None:
    """Run statements in a session that accepts everything."""
    with server.connect(database_of(url)) as connection, connection.cursor() as cursor:
        cursor.execute("set sql_mode = ''")
        for statement in statements:
            cursor.execute(statement)


def read_labels(server: MySQLServer, url: str) -> list[tuple[Any, ...]]:
    """Return texts of all columns, and numbers of those that text distinguishes."""
    texts = [f"hex(convert({name} using utf8mb4))" for name in COLUMNS]
    listed = ", ".join([*texts, *(f"{name} + 0" for name in TOLD)])
    return server.execute(f"select id, {listed} from t order by id", database_of(url))


def numbers(server: MySQLServer, url: str) -> list[tuple[Any, ...]]:
    """Return the numbers of all columns."""
    listed = ", ".join(f"{name} + 0" for name in COLUMNS)
    return server.execute(f"select id, {listed} from t order by id", database_of(url))


@pytest.fixture(params=["the other kind", pytest.param("itself", marks=pytest.mark.long)])
def target(
    mysql: MySQLServer, other_mysql: MySQLServer, request: pytest.FixtureRequest
) -> Iterator[MySQLServer]:
    """Server that is loaded into."""
    server = mysql if request.param == "itself" else other_mysql
    yield server
    server.execute("drop database if exists wirekite")


@BY_FILE_AND_BY_INSERT
def test_the_value_0_arrives_as_it_is(
    mysql: MySQLServer, target: MySQLServer, tmp_path: Path, takes_files: bool
) -> None:
    """Number and text are the source's; bulk load and log agree, even if a label is empty."""
    made = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    make = f"create table t (id int primary key, {made})"
    with ExitStack() as stack:
        stack.enter_context(target.globals(local_infile=str(int(takes_files))))
        source = mysql.make_database("labels")
        stack.callback(mysql.drop_database, source)
        changed, copied = (target.make_database(name) for name in ("changed", "copied"))
        for url in (changed, copied):
            stack.callback(target.drop_database, url)
        many = "create table many (id int primary key, a enum('x'), b enum('0') not null)"
        sql(mysql, source, f"{make};; {many}")
        sql(target, changed, f"{make};; {many}")
        pipe = Pipe(mysql, source, changed, tmp_path)
        pipe.extract()
        each = ["null", "0", "1", "2"]
        loose(
            mysql,
            source,
            *(
                f"insert into t values ({row}, {', '.join([number] * len(COLUMNS))})"
                for row, number in enumerate(each)
            ),
            f"insert into t values (4, {', '.join(each[place % 4] for place in range(6))})",
        )
        pipe.extract()
        pipe.load()
        digits = " union all ".join(f"select {digit} as n" for digit in range(10))
        loose(
            mysql,
            source,
            "insert into many select i, 0, 0 from (select a.n + 10 * b.n + 100 * c.n + 1000 * d.n"
            f" + 10000 * e.n as i from ({digits}) a, ({digits}) b, ({digits}) c, ({digits}) d,"
            f" ({digits}) e) as x where i < {MANY}",
            "analyze table many",
        )
        bulk(source, copied, tmp_path / "bulk")
        assert read_labels(target, changed) == read_labels(mysql, source)
        assert read_labels(target, copied) == read_labels(mysql, source)
        assert numbers(target, copied) == numbers(target, changed)
        zeros = "select count(*) from many where a + 0 = 0 and b + 0 = 0"
        assert target.value(zeros, database_of(copied)) == MANY


@BY_FILE_AND_BY_INSERT
def test_another_warning_is_not_taken_for_one_of_them(
    mysql: MySQLServer, mysql_url: str, tmp_path: Path, takes_files: bool
) -> None:
    """A value beside it that does not fit stops the load with its own warning."""
    loose(
        mysql,
        mysql_url,
        "create table t (id int primary key, e enum('a'), v varchar(5))",
        "insert into t values (1, 0, 'x'), (2, 'a', null)",
    )
    copied = mysql.make_database("copied")
    try:
        sql(
            mysql,
            copied,
            "create table t (id int primary key, e enum('a'), v varchar(5) not null)",
        )
        with (
            mysql.globals(local_infile=str(int(takes_files))),
            pytest.raises(ValueRefused, match=r"error (1048|1263|1566)"),
        ):
            bulk(mysql_url, copied, tmp_path / "bulk")
        assert mysql.value("select count(*) from t", database_of(copied)) == 0
    finally:
        mysql.drop_database(copied)
        mysql.execute("drop database if exists wirekite")
