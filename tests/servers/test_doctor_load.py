"""Doctor's checks of what the load would refuse: each condition is made on real
servers and fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.pipelines.pipeline import pipeline
from penstock.control.status.show import show_status
from penstock.control.status.status import Status, read_status
from penstock.ports.checks import Severity
from penstock.ports.config import Config
from penstock.ports.progress import SHOWN_MAX, Unfinished, open_progress
from plugins.doctor import as_role, find_by_code, one
from plugins.mysql import MySQLServer, database_of
from plugins.postgres import Server

E, W = Severity.ERROR, Severity.WARNING


def test_pk15_rows_that_are_there(
    config: Config, run: Callable[[str], None], run_in_target: Callable[[str], None]
) -> None:
    """All tables are reported at once, each with its TRUNCATE, which then suffices."""
    both = "create table a (id int primary key); create table b (id int primary key)"
    run(both)
    run_in_target(both)
    assert find_by_code(config, "PK15") == []
    run_in_target("insert into a values (1); insert into b values (1)")
    findings = find_by_code(config, "PK15")
    assert ["public.a" in findings[0].what, "public.b" in findings[1].what] == [True, True]
    for finding in findings:
        assert finding.severity is E
        run_in_target(finding.command.partition("run: ")[2].partition(";")[0])
    assert find_by_code(config, "PK15") == []
    run_in_target("create table heir () inherits (a); insert into heir values (1)")
    run_in_target("insert into a values (2)")
    fix = one(config, "PK15", E, "public.a").command.partition("run: ")[2].partition(";")[0]
    run_in_target(fix)
    assert find_by_code(config, "PK15") == []
    run_in_target("delete from heir where 1 / (select count(*) from heir) = 1")  # still exists


def test_pk16_target_of_another_pipeline(
    config: Config, run: Callable[[str], None], run_in_target: Callable[[str], None]
) -> None:
    """A target that is bound to another change log is refused before a row moves."""
    run("create table a (id int primary key)")
    with closing(open_progress(config.target.url, application_name="test")) as progress:
        progress.ensure_tables()
    assert find_by_code(config, "PK16") == []
    run_in_target("insert into wirekite.wirekite_log (log_id) values ('of-another')")
    finding = one(config, "PK16", E, "of-another")
    run_in_target(finding.command.partition("  --")[0])
    assert find_by_code(config, "PK16") == []


def test_pk18_tables_of_another_owner(
    config: Config,
    run: Callable[[str], None],
    run_in_target: Callable[[str], None],
    postgres: Server,
    role: str,
) -> None:
    """An ALTER of the source could not be followed: this is a warning unless ALTERs
    are not wanted.
    """
    run("create table a (id int primary key)")
    run_in_target("create table a (id int primary key)")
    least = as_role(config, postgres, role, "target")
    finding = one(least, "PK18", W, "public.a belongs to")
    run_in_target(finding.command)
    assert find_by_code(least, "PK18") == []


# -- other engines -----------------------------------------------------------------------------


@pytest.fixture
def from_mysql(tmp_path: Path, mysql_url: str, target_url: str) -> Config:
    """A pipeline from MySQL or MariaDB into PostgreSQL."""
    name = database_of(mysql_url)
    return pipeline(
        tmp_path, mysql_url, target_url, tables=[f"{name}.*"], sections={"target.map": {name: "my"}}
    )


def test_a_mysql_source_and_a_target_of_postgres(
    from_mysql: Config,
    mysql: MySQLServer,
    run_in_target: Callable[[str], None],
    postgres: Server,
    role: str,
) -> None:
    """The target is checked for these tables, too: its schema, its rows, possible losses."""
    mysql.execute(
        "create table a (id int primary key, z set('a','b') not null)",
        database_of(from_mysql.source.url),
    )
    plan = find_by_code(from_mysql, "PK17")
    config = from_mysql
    if plan:
        assert "below [target.types]" in plan[0].command
        name, value = plan[0].command.split('"')[1:4:2]
        config = replace(from_mysql, target=replace(from_mysql.target, types={name: value}))
    assert find_by_code(config, "PK17") == []
    least = as_role(config, postgres, role, "target")
    one(least, "PK09", E, "schema my")
    run_in_target("create schema my; create table my.a (id int primary key, z int)")
    one(config, "PK12", E, "my.a")
    run_in_target("insert into my.a values (1, 1)")
    one(config, "PK15", E, "my.a")


@pytest.fixture
def to_mysql(
    tmp_path: Path, source_url: str, mysql: MySQLServer, mysql_url: str
) -> Iterator[Config]:
    """A pipeline from PostgreSQL into MySQL or MariaDB, with an account that has no rights yet."""
    name = database_of(mysql_url)
    mysql.execute("create user least@'%' identified by 'Secret-1'")
    url = mysql.url(name, "least", "Secret-1")
    yield pipeline(
        tmp_path, source_url, url, tables=["public.*"], sections={"target.map": {"public": name}}
    )
    mysql.execute("drop user least@'%'")


def test_a_target_of_mysql(
    to_mysql: Config, run: Callable[[str], None], mysql: MySQLServer, mysql_url: str
) -> None:
    """Missing rights are named with their GRANT, as are existing rows and another pipeline's
    progress.
    """
    run("create table a (id int primary key)")
    name = database_of(mysql_url)
    mysql.execute(f"grant select on `{name}`.* to least@'%'")
    lacking = find_by_code(to_mysql, "MY039")
    assert [f.severity for f in lacking] == [E, E]
    for finding in lacking:
        mysql.execute(finding.command)
    assert find_by_code(to_mysql, "MY039") == find_by_code(to_mysql, "PK15") == []
    mysql.execute("create table a (id int primary key)", name)
    mysql.execute("insert into a values (1)", name)
    finding = one(to_mysql, "PK15", E, f"{name}.a")
    mysql.execute(finding.command.partition("run: ")[2].partition(";")[0])
    assert find_by_code(to_mysql, "PK15") == []
    with closing(open_progress(to_mysql.target.url, application_name="test")) as progress:
        progress.ensure_tables()
    assert find_by_code(to_mysql, "PK16") == []
    mysql.execute("insert into wirekite.wirekite_log (log_id) values ('of-another')")
    try:
        one(to_mysql, "PK16", E, "of-another", "drop database wirekite")
    finally:
        mysql.execute("drop database wirekite")


def test_tables_of_mysql_that_no_change_can_be_applied_to(
    tmp_path: Path,
    source_url: str,
    run: Callable[[str], None],
    mysql: MySQLServer,
    mysql_url: str,
) -> None:
    """Doctor reports missing tables in mode change, no transactions, triggers: all that load
    refuses.
    """
    name = database_of(mysql_url)
    options: dict[str, Any] = {"tables": ["public.*"], "sections": {"target.map": {"public": name}}}
    config = pipeline(tmp_path, source_url, mysql_url, **options)
    (tmp_path / "change").mkdir()
    following = pipeline(tmp_path / "change", source_url, mysql_url, mode="change", **options)
    run("create table a (id int primary key, n int)")
    assert find_by_code(config, "PK20") == []
    one(following, "PK20", E, f"no table {name}.a")
    mysql.execute("create table a (id int primary key, n int) engine = MyISAM", name)
    for each in (config, following):
        fix = one(each, "PK20", E, f"{name}.a", "MyISAM", "alter table")
    mysql.execute(fix.command.removeprefix("Run: "))
    assert find_by_code(config, "PK20") == find_by_code(following, "PK20") == []
    mysql.execute("create trigger busy before insert on a for each row set new.n = 1", name)
    fix = one(config, "PK20", E, "triggers", "busy", "drop trigger")
    mysql.execute("drop trigger busy", name)
    assert find_by_code(config, "PK20") == []
    mysql.execute("alter table a drop column n", name)
    one(config, "PK20", E, "n is missing")


def test_pk27_a_batch_that_was_cut_short(
    config: Config, run: Callable[[str], None], run_in_target: Callable[[str], None]
) -> None:
    """Tables that are ahead of the others are named until a loader has finished the batch."""
    run("create table a (id int primary key)")
    with closing(open_progress(config.target.url, application_name="test")) as progress:
        progress.ensure_tables()
        assert find_by_code(config, "PK27") == []
        progress.ensure_ahead()  # type: ignore[attr-defined]
    run_in_target("insert into wirekite.wirekite_log (log_id) values ('ours')")
    assert find_by_code(config, "PK27") == []
    run_in_target("insert into wirekite.wirekite_ahead values ('ours', 'public', 'a', 7)")
    finding = one(config, "PK27", W, "public.a")
    assert finding.command.startswith("penstock load ")
    run_in_target("update wirekite.wirekite_ahead set log_id = 'of another'")
    assert find_by_code(config, "PK27") == []


def print_status(status: Status) -> str:
    """Return the output of `penstock status`."""
    out = Console(file=StringIO(), width=200)
    show_status(status, out)
    return str(out.file.getvalue())  # type: ignore[attr-defined]


def test_status_names_what_is_left_of_a_batch(
    config: Config, run_in_target: Callable[[str], None]
) -> None:
    """A line says which tables are ahead, or which transactions are prepared, unless a loader is
    finishing the batch.
    """
    with closing(open_progress(config.target.url, application_name="test")) as progress:
        progress.ensure_tables()
        progress.ensure_ahead()  # type: ignore[attr-defined]
    run_in_target("insert into wirekite.wirekite_log (log_id) values ('ours')")
    assert "applied in part" not in print_status(read_status(config))
    for number in range(SHOWN_MAX + 2):
        values = f"'ours', 'public', 't{number}', 7"
        run_in_target(f"insert into wirekite.wirekite_ahead values ({values})")
    status = read_status(config)
    names = ", ".join(f"public.t{number}" for number in range(SHOWN_MAX))
    line = f"only these tables have its changes: {names} and 2 more; start the loader"
    assert f"a batch is applied in part: {line}" in " ".join(print_status(status).split())
    loading = (replace(one, pid=1 if one.name == "load" else None) for one in status.processes)
    assert "applied in part" not in print_status(replace(status, processes=tuple(loading)))
    prepared = replace(status.target, unfinished=Unfinished(prepared=("penstock ours 1",)))
    line = "prepared transactions keep locks: 'penstock ours 1'; start the loader"
    assert f"a batch is applied in part: {line}" in print_status(replace(status, target=prepared))
