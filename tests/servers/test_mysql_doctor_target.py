"""Doctor's checks of a MySQL or MariaDB target: each condition is made on a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from harness.pipelines.pipeline import pipeline
from harness.servers.mysql_doctor import examine, one
from penstock.control.doctor import doctor
from penstock.engines.mysql.checks.probe import MySQLProbe, ProbeScope
from penstock.engines.mysql.connect import connect
from penstock.engines.mysql.source.catalog import survey
from penstock.ports.checks import Finding, Severity, Side
from plugins.doctor import AWAY
from plugins.mysql import MySQLServer, database_of

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
                side=Side.SOURCE, url=source.url(), connection=origin, wanted=ProbeScope(),
                tables=seen.tables,
            )  # fmt: skip
            own = stack.enter_context(connect(mysql_url, application_name="t"))
            return examine(
                MySQLProbe(
                    side=Side.TARGET, url=mysql_url, connection=own, wanted=ProbeScope(),
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
    """A key treats values as equal that the source distinguishes; the statement fixes it."""
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
    """Every row that the source can log must fit."""
    with tuned_mysql.globals(max_allowed_packet=str(2**28)):
        with mysql.globals(max_allowed_packet=str(2**24)):
            one(target("MY027", tuned_mysql), "MY027", W, "max_allowed_packet = 1073741824")
        with mysql.globals(max_allowed_packet=str(2**28)):
            assert target("MY027", tuned_mysql) == []


def test_my028_local_infile(mysql: MySQLServer, target: Callable[..., list[Finding]]) -> None:
    """MySQL 8 has it off unless it is switched on."""
    with mysql.globals(local_infile="0"):
        one(target("MY028"), "MY028", W, "local_infile = 1")
    assert target("MY028") == []


def test_my029_durability(mysql: MySQLServer, target: Callable[..., list[Finding]]) -> None:
    """A session cannot be more durable than its server; the tests' servers are less so."""
    one(target("MY029"), "MY029", W, "innodb_flush_log_at_trx_commit = 1")
    with mysql.globals(innodb_flush_log_at_trx_commit="1"):
        assert target("MY029") == []


def test_my033_case(
    mysql: MySQLServer, mysql_url: str, run: Callable[[str], None],
    own_mysql: Callable[..., MySQLServer],
) -> None:  # fmt: skip
    """Two tables become one, and a table has a different name."""
    run("create table item (id int primary key); create table Item (id int primary key)")
    folding = own_mysql(settings={"lower_case_table_names": "1"})
    with (
        connect(mysql_url, application_name="t") as origin,
        connect(folding.url(), application_name="t") as own,
    ):
        seen = survey(origin, [f"{database_of(mysql_url)}.*"])
        source = MySQLProbe(
            side=Side.SOURCE,
            url=mysql_url,
            connection=origin,
            wanted=ProbeScope(),
            tables=seen.tables,
        )
        target = MySQLProbe(
            side=Side.TARGET, url=folding.url(), connection=own, wanted=ProbeScope(),
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
    """The current version is accepted; a trigger would repeat its work."""
    run("create table t (id int primary key); create table other (id int primary key)")
    assert target("MY036") == []
    assert target("MY037") == []
    run("create trigger doubled before insert on t for each row set new.id = new.id * 2")
    found = one(target("MY037"), "MY037", W, "doubled", "inserts")
    run(found.command)
    assert target("MY037") == []


def test_a_pipelines_target_is_examined(
    mysql: MySQLServer, mysql_url: str, source_url: str, tmp_path: Path
) -> None:
    """Doctor examines such a target, whatever the source, with the tables as they are mapped."""
    with mysql.globals(local_infile="0", innodb_flush_log_at_trx_commit="1"):
        for source in (source_url, mysql.url()):
            config = pipeline(tmp_path, source, mysql_url, mode="data")
            report = doctor.examine(config, sides=(Side.TARGET,))
            at_target = [f.code for f in report.findings if f.side is Side.TARGET]
            assert at_target == ["MY028"]
    name = database_of(mysql_url)
    with psycopg.connect(source_url, autocommit=True) as sql:
        sql.execute("create table public.t (id int primary key)")
    mysql.execute(
        "create table t (id int primary key); "
        "create trigger beside after insert on t for each row set @seen = 1",
        name,
    )
    mapped = {"target.map": {"public": name}}
    config = pipeline(tmp_path, source_url, mysql_url, mode="data", sections=mapped)
    found = doctor.examine(config, only=("MY037",))
    assert [(f.code, f.side) for f in found.findings] == [("MY037", Side.TARGET)]


@pytest.mark.server("mariadb")
def test_my038_uuid_columns(
    mysql: MySQLServer, mysql_url: str, source_url: str, tmp_path: Path
) -> None:
    """MariaDB's UUID refuses values of PostgreSQL's uuid; the statement fixes it."""
    name = database_of(mysql_url)
    with psycopg.connect(source_url, autocommit=True) as sql:
        sql.execute("create table public.t (id uuid primary key, other uuid)")
    mysql.execute("create table t (id uuid primary key, other char(36))", name)
    mapped = {"target.map": {"public": name}}
    config = pipeline(tmp_path, source_url, mysql_url, mode="data", sections=mapped)
    found = one(list(doctor.examine(config, only=("MY038",)).findings), "MY038", W, "column id of")
    mysql.execute(found.command, name)
    assert doctor.examine(config, only=("MY038",)).findings == ()
    kind = mysql.execute("show columns from t like 'id'", name)[0]
    assert kind[1:4] == ("char(36)", "NO", "PRI")


def test_a_server_that_is_away_makes_no_check_done(
    mysql_url: str, source_url: str, tmp_path: Path
) -> None:
    """Checks of the server are not done, nor those of both sides; without a source, comparisons."""
    needing = ["MY024", "MY027", "MY033", "MY037", "MY038", "PK20"]
    loading = ["PK15", "PK16", "PK27", "PK17"]
    for url in AWAY:
        config = pipeline(tmp_path, url, mysql_url)
        report = doctor.examine(config, only=[*needing, *loading])
        assert (report.checks_done, report.checks_skipped) == (0, 10), url
        assert [finding.code for finding in report.findings] == ["HS22"]
        assert doctor.examine(config, only=["MY028", "MY029", "MY039"]).checks_done == 3
        for source in (mysql_url, source_url):
            config = pipeline(tmp_path, source, url)
            report = doctor.examine(config, only=loading)
            assert (report.checks_done, report.checks_skipped) == (0, 4), url
    report = doctor.examine(pipeline(tmp_path, source_url, AWAY[1]), only=needing)
    assert (report.checks_done, report.checks_skipped) == (0, 6)


def test_a_target_that_is_away_is_one_finding(source_url: str, tmp_path: Path) -> None:
    """The finding has the code of the connection's error."""
    config = pipeline(tmp_path, source_url, "mysql://root:x@127.0.0.1:1/x", mode="data")
    found = [f for f in doctor.examine(config).findings if f.side is Side.TARGET]
    assert [(f.severity, f.what[:7]) for f in found] == [(E, "target:")]
