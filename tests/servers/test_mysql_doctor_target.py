"""Doctor's checks of a MySQL or MariaDB target, each made bad on a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from fix_mysql import MySQLServer, database_of
from fix_mysql_doctor import one
from penstock.control.doctor_mysql import MySQLProbe, Wanted, examine
from penstock.control.findings import Finding, Severity, Side
from penstock.host.mysql.connect import connect
from penstock.source.mysql.catalog import survey

E, W = Severity.ERROR, Severity.WARNING


@pytest.fixture
def target(mysql: MySQLServer, mysql_url: str) -> Iterator[Callable[..., list[Finding]]]:
    """Examine a target; the source is another server of its kind, or the same one."""
    with ExitStack() as stack:

        def look(code: str, source: MySQLServer = mysql, source_url: str = "") -> list[Finding]:
            origin = stack.enter_context(connect(source_url or source.url(), application_name="t"))
            pattern = f"{database_of(source_url) if source_url else database_of(mysql_url)}.*"
            seen = survey(origin, [pattern])
            probe = MySQLProbe(
                side=Side.SOURCE, url=source.url(), connection=origin, wanted=Wanted(),
                tables=seen.tables,
            )  # fmt: skip
            own = stack.enter_context(connect(mysql_url, application_name="t"))
            return examine(
                MySQLProbe(
                    side=Side.TARGET, url=mysql_url, connection=own, wanted=Wanted(),
                    tables=seen.tables, source=probe,
                ),
                only=[code],
            )  # fmt: skip

        yield look


@pytest.fixture
def run(mysql: MySQLServer, mysql_url: str) -> Callable[[str], None]:
    """Run SQL in the fresh database."""
    return lambda sql: (mysql.execute(sql, database_of(mysql_url)), None)[1]


def test_my024_collations(
    mysql: MySQLServer, mysql_url: str, tuned_mysql: MySQLServer, run: Callable[[str], None],
    target: Callable[..., list[Finding]],
) -> None:  # fmt: skip
    """A key that finds equal what the source tells apart; the statement mends it."""
    name = database_of(mysql_url)
    tuned_mysql.execute(f"create database `{name}`")
    source_url = tuned_mysql.url(name)
    tuned_mysql.execute("create table t (k varchar(20) collate utf8mb4_bin primary key)", name)
    run("create table t (k varchar(20) collate utf8mb4_unicode_ci primary key)")
    found = one(target("MY024", tuned_mysql, source_url), "MY024", E, "utf8mb4_unicode_ci")
    mysql.execute(found.command)
    assert target("MY024", tuned_mysql, source_url) == []
    for server, database in ((tuned_mysql, name), (mysql, name)):
        server.execute("alter table t modify k varchar(20) collate utf8mb4_unicode_ci", database)
    assert target("MY024", tuned_mysql, source_url) == [], "both find the same equal"


def test_my027_packet(
    mysql: MySQLServer, tuned_mysql: MySQLServer, target: Callable[..., list[Finding]]
) -> None:
    """What the source can log must fit."""
    with tuned_mysql.globals(max_allowed_packet=str(2**28)):
        with mysql.globals(max_allowed_packet=str(2**24)):
            one(target("MY027", tuned_mysql), "MY027", W, "max_allowed_packet = 1073741824")
        with mysql.globals(max_allowed_packet=str(2**28)):
            assert target("MY027", tuned_mysql) == []


def test_my028_local_infile(mysql: MySQLServer, target: Callable[..., list[Finding]]) -> None:
    """Off in MySQL 8 unless it is switched on."""
    with mysql.globals(local_infile="0"):
        one(target("MY028"), "MY028", E, "local_infile = 1")
    assert target("MY028") == []


def test_my033_case(
    mysql: MySQLServer, mysql_url: str, run: Callable[[str], None],
    own_mysql: Callable[..., MySQLServer],
) -> None:  # fmt: skip
    """Two tables that become one, and a table that is called otherwise."""
    run("create table item (id int primary key); create table Item (id int primary key)")
    folding = own_mysql(settings={"lower_case_table_names": "1"})
    with (
        connect(mysql_url, application_name="t") as origin,
        connect(folding.url(), application_name="t") as own,
    ):
        seen = survey(origin, [f"{database_of(mysql_url)}.*"])
        source = MySQLProbe(
            side=Side.SOURCE, url=mysql_url, connection=origin, wanted=Wanted(), tables=seen.tables
        )
        target = MySQLProbe(
            side=Side.TARGET, url=folding.url(), connection=own, wanted=Wanted(),
            tables=seen.tables, source=source,
        )  # fmt: skip
        found = examine(target, only=["MY033"])
        assert [(f.code, f.severity) for f in found] == [("MY033", E), ("MY033", W)]
        assert "are one table" in found[0].what
        assert "Item" in found[1].what
        plain = replace(target, tables=tuple(t for t in seen.tables if t.name.name == "item"))
        assert examine(plain, only=["MY033"]) == []


def test_my036_and_my037(
    mysql_url: str, run: Callable[[str], None], target: Callable[..., list[Finding]]
) -> None:
    """The version at hand is fine; a trigger would do its work twice."""
    run("create table t (id int primary key); create table other (id int primary key)")
    assert target("MY036") == []
    assert target("MY037") == []
    run("create trigger doubled before insert on t for each row set new.id = new.id * 2")
    found = one(target("MY037"), "MY037", W, "doubled", "inserts")
    run(found.command)
    assert target("MY037") == []
