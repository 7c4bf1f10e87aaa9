"""`penstock flexcdc`: the commands over consumer.ini and over a pipeline file, as processes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.pipelines.flexcdc import Command, Flex, is_postgres, until
from harness.pipelines.pipeline import write_pipeline
from plugins.mysql import MySQLServer, database_of


@pytest.fixture
def flex(mysql: MySQLServer, mysql_url: str, tmp_path: Path) -> Iterator[Flex]:
    """FlexCDC with the settings of consumer.ini."""
    database = f"flex_{database_of(mysql_url)}"
    yield Flex(mysql_url, mysql.url(), tmp_path, database=database)
    mysql.drop_database(mysql.url(database))


@pytest.fixture
def ini(flex: Flex, mysql: MySQLServer, tmp_path: Path) -> Iterator[Command]:
    """Commands over a consumer.ini for it."""
    path = tmp_path / "consumer.ini"
    account = f'user = root\nhost = 127.0.0.1\nport = {mysql.port}\npassword = ""\n'
    if mysql.embedded.password:
        account = account.replace('""', f'"{mysql.embedded.password}"')
    path.write_text(
        f"; FlexCDC\n[flexcdc]\ndatabase = {flex.settings.database}\nsleep_increment = .1\n"
        f"[source]\n{account}\n[dest]\n{account}"
    )
    command = Command(path)
    yield command
    command.close()


@pytest.mark.promise
@pytest.mark.each_server
def test_setup_add_run_stop(flex: Flex, ini: Command) -> None:
    """Changes are captured from setup on; tables are added at run time; it is killed,
    then stopped.
    """
    flex.source_sql(
        "create table t (id int primary key, v varchar(20))",
        "create table later (id int primary key)",
        "insert into t values (1, 'before')",
    )
    assert "setup complete" in ini("setup")
    said = ini("setup", code=1)
    assert "Table already exists:mvlogs. Setup aborted! (use --force to ignore this error)" in said
    name = database_of(flex.source)
    assert "success" in ini("add-table", "--schema", name, "--table", "t")
    flex.source_sql("insert into t values (2, 'after')")
    ini.start()
    until(lambda: len(flex.images("t")) == 1, ini)
    assert "success" in ini("add-table", "--schema", name, "--table", "later")
    captured = flex.directory / "consumer.pipeline" / "state" / "captured.json"
    until(captured.exists, ini)
    flex.source_sql("insert into later values (1)", "update t set v = 'changed'")
    until(lambda: len(flex.images("later")) == 1 and len(flex.images("t")) == 5, ini)
    ini.process.kill()
    ini.process.wait()
    flex.source_sql("delete from t where id = 1")
    lock = flex.directory / "consumer.pipeline" / "state" / "FLEXCDC.LOCK"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        ini.start()
        until(lambda: len(flex.images("t")) == 6, ini)
        until(lambda: lock.exists() and lock.read_text().strip() == str(ini.process.pid), ini)
        assert ini.stop(number) == 0, ini.out.read_text()
    assert [row[0] for row in flex.images("t")] == [1, -1, 1, -1, 1, -1]
    assert "success" in ini("drop-table", "--schema", name, "--table", "later")
    assert "error FX56" in ini("drop-table", "--schema", name, "--table", "later", code=1)
    assert "nothing is old enough" in ini("cleanup")


@pytest.mark.each_server
def test_the_example_plugin_prints(flex: Flex, ini: Command) -> None:
    """Transactions come in order, with the numbers of the state tables; changelogs stay empty."""
    ini.file.write_text(
        ini.file.read_text().replace(
            "[source]", "plugin = penstock.consume.plugins:Example\n[source]", 1
        )
    )
    flex.source_sql(
        "create table t3 (c1 int primary key, c2 char(1))", "insert into t3 values (5, 'a')"
    )
    name = database_of(flex.source)
    ini("setup")
    ini("add-table", "--schema", name, "--table", "t3")
    flex.source_sql("update t3 set c1 = 4")
    ini.start()
    until(lambda: b"COMMIT" in ini.out.read_bytes(), ini)
    assert ini.stop() == 0
    said = ini.out.read_text()
    assert (
        "START TRANSACTION: trx_id: 2, Prev GSN: 1\n"
        f"TRX_ID: 2, Schema:{name}, Table: t3, DML: UPDATE (OLD), AT: 2\n"
        "Array\n(\n    [c1] => 5\n    [c2] => 'a'\n)\n"
        f"TRX_ID: 2, Schema:{name}, Table: t3, DML: UPDATE (NEW), AT: 3\n"
        "Array\n(\n    [c1] => 4\n    [c2] => 'a'\n)\n"
        "COMMIT: trx_id: 2, Last GSN: 3\n"
    ) in said
    assert said.startswith("PLUGIN STARTUP\n")
    assert "PLUGIN SHUTDOWN\n" in said
    assert flex.images("t3") == []
    assert flex.state_rows("mview_uow", "uow_id")[-1]["gsn_hwm"] == 3


@pytest.mark.each_server
def test_bad_input_is_named(ini: Command, flex: Flex, tmp_path: Path) -> None:
    """Each error is typed and has the next command; the exit code is 1."""
    assert "Could not read ini file" in Command(tmp_path / "none.ini")("setup", code=1)
    assert "penstock flexcdc --ini" in ini("add-table", "--schema", "a", "--table", "b", code=1)
    text = ini.file.read_text()
    for bad, said in (
        (text.replace("[flexcdc]", "[flex]"), "Could not find [flexcdc] section"),
        (text.replace("database =", "databse ="), "Did you mean database?"),
        (text.replace("sleep_increment = .1", "bulk_insert = maybe"), "true or false"),
        (text + "\n[json_file]\npath = x\n", "unknown section [json_file]"),
    ):
        ini.file.write_text(bad)
        assert said in ini("run", code=1)
    ini.file.write_text(text)
    ini("setup")
    assert "TABLE NOT EXISTS OR ACCESS DENIED" in ini(
        "add-table", "--schema", "a", "--table", "b", code=1
    )


SLOT = {"replicationSlot": "flex_slot", "publication": "flex_publication"}


def set_up_pipeline(
    source: str, dest: str, folder: Path, **settings: object
) -> tuple[Flex, Command]:
    """Set up FlexCDC over a pipeline file without [target], with table t (id, v) captured."""
    sections: dict[str, dict[str, object]] = {"flexcdc": {"dest": dest, **settings}}
    flex = Flex(source, dest, folder, **settings)
    flex.source_sql("create table t (id int primary key, v varchar(20))")
    if is_postgres(source):
        flex.source_sql("alter table t replica identity full")
        sections["changeExtractor"] = dict(SLOT)
    file = write_pipeline(
        folder, source, None, directory=".", tables=[f"{flex.namespace}.*"], sections=sections
    )
    command = Command(file)
    assert "setup complete" in command("setup")
    flex.add("t")
    return flex, command


@pytest.mark.promise
@pytest.mark.each_server
def test_a_pipeline_file_with_flexcdc(source_url: str, target_url: str, tmp_path: Path) -> None:
    """A pipeline of PostgreSQL with [flexcdc] needs no [target]."""
    flex, command = set_up_pipeline(source_url, target_url, tmp_path, mark_updates=True)
    said = command("add-table", "--schema", "x", "--table", "t", code=1)
    assert "error FX54" in said
    assert "penstock table add" in said
    check_from_setup_on(flex, command)
    assert [row[0] for row in flex.images("t")][:6] == [1, 1, 1, 1, -2, 2]


@pytest.mark.each_server
def test_a_pipeline_file_of_mysql(mysql: MySQLServer, mysql_url: str, tmp_path: Path) -> None:
    """A pipeline of MySQL with [flexcdc] needs no [target]."""
    url = mysql.make_database("flex")
    try:
        check_from_setup_on(
            *set_up_pipeline(mysql_url, mysql.url(), tmp_path, database=database_of(url))
        )
    finally:
        mysql.drop_database(url)


def check_from_setup_on(flex: Flex, command: Command) -> None:
    """Check that commits between `setup` and `run`, and during its start, are in the changelog."""
    flex.source_sql("insert into t values (1, 'a')", "insert into t values (2, 'a'), (3, 'a')")
    try:
        command.start()
        for number in range(4, 40):  # about until it has started
            flex.source_sql(f"insert into t values ({number}, 'a')")
            if number == 4:
                flex.source_sql("update t set v = 'b' where id = 1")
            time.sleep(0.1)
        until(lambda: len(flex.images("t")) >= 39 + 2, command)
        assert len(flex.images("t")) == 39 + 2
        flex.check("t")
        assert command.stop() == 0, command.out.read_text()
    finally:
        command.close()
