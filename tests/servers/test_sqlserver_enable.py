"""`penstock table add --enable` on a simulated SQL Server: capture of a table that has none.

Not here: the procedure's own refusals (`test_sim_sqlserver_cdc.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.end_to_end import Process
from harness.pipelines.late_table import follow_late, is_following
from harness.pipelines.pipeline import Ran, penstock, write_pipeline
from harness.servers.engines import FIRST, new_place
from harness.servers.sqlserver_place import SQLServerPlace
from plugins.shared import SharedServers
from plugins.sqlserver import SimServer, shared_server

INSTANCES = "SELECT capture_instance FROM cdc.change_tables ORDER BY capture_instance"


class Shop:
    """Source with the captured table `item`, and a pipeline of it."""

    def __init__(self, server: SimServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.place = SQLServerPlace(server)
        self.place.run("create table item (id int primary key, n int)")
        self.database = self.place.url.rpartition("/")[2].partition("?")[0]
        self.path = self.write(self.place.url)

    def write(self, url: str) -> Path:
        """Write a pipeline file with this URL of the source, and no target."""
        return write_pipeline(self.folder, url, None, tables=["dbo.item"])

    def make_table(self, name: str) -> None:
        """Create a table that is not captured."""
        self.server.execute(f"CREATE TABLE dbo.{name} (id int PRIMARY KEY, n int)", self.database)

    def add(self, name: str, *options: str) -> Ran:
        """Run `penstock table add`."""
        return penstock("table", "add", *options, self.path, f"dbo.{name}", "--json")

    def instances(self) -> list[str]:
        """Return the names of all capture instances."""
        return [str(name) for (name,) in self.server.execute(INSTANCES, self.database)]

    def add_user(self, name: str, *grants: str) -> None:
        """Create a login and user with rights, and write its URL into the file."""
        login = f"{name}_{self.database}"
        for text in (
            f"CREATE LOGIN [{login}] WITH PASSWORD = 'Other#1'",
            f"CREATE USER [{login}] FOR LOGIN [{login}]",
            *(one.format(user=f"[{login}]") for one in grants),
        ):
            self.server.execute(text, self.database)
        self.path = self.write(self.server.url(self.database, login, "Other#1"))


@pytest.fixture
def shop(shared_servers: SharedServers, tmp_path: Path) -> Iterator[Shop]:
    """A shop on the shared simulator."""
    made = Shop(shared_server(shared_servers), tmp_path)
    yield made
    made.place.drop()


def error_of(ran: Ran) -> dict[str, Any]:
    """Return the error that a command printed."""
    assert ran.code == 1, (ran.out, ran.err)
    found: dict[str, Any] = json.loads(ran.err.splitlines()[-1])
    return found


def test_a_table_is_enabled(shop: Shop) -> None:
    """Without the flag the command names the procedure; with it the instance exists afterwards."""
    shop.make_table("late")
    refused = shop.add("late")
    assert refused.code == 1
    assert "sp_cdc_enable_table" in refused.out + refused.err
    assert shop.instances() == ["dbo_item"]
    ran = shop.add("late", "--enable")
    assert ran.code == 0, ran.err
    assert shop.instances() == ["dbo_item", "dbo_late"]


def test_an_instance_is_kept(shop: Shop) -> None:
    """A table that is captured already gets no second instance."""
    shop.make_table("late")
    shop.place.capture("late", "of_others")
    ran = shop.add("late", "--enable")
    assert ran.code == 0, ran.err
    assert shop.instances() == ["dbo_item", "of_others"]


def test_a_user_without_rights_gets_the_command(shop: Shop) -> None:
    """The error has the statement that a db_owner has to run."""
    shop.make_table("late")
    shop.add_user(
        "reader",
        "GRANT SELECT ON SCHEMA::[dbo] TO {user}",
        "GRANT SELECT ON SCHEMA::[cdc] TO {user}",
        "GRANT VIEW DATABASE STATE TO {user}",
    )
    error = error_of(shop.add("late", "--enable"))
    assert error["code"] == "HS28"
    assert "the capture of dbo.late" in error["error"]
    assert "@source_schema = N'dbo', @source_name = N'late'" in error["hint"]
    assert shop.instances() == ["dbo_item"]


def test_a_refusal_of_the_server_is_told(shop: Shop) -> None:
    """The server's own reason is in the error, and nothing is requested."""
    shop.make_table("late")
    shop.server.execute(
        "EXEC sim.fail_next @number = 22832, @like = N'sp_cdc_enable_table'", shop.database
    )
    error = error_of(shop.add("late", "--enable"))
    assert error["code"] == "MS11"
    assert "the server refuses to capture dbo.late" in error["error"]
    listed = penstock("table", "ls", shop.path, "--json")
    assert "dbo.late" not in listed.out


def test_a_table_that_cannot_be_captured_is_refused(shop: Shop) -> None:
    """The server is not asked to capture a table of which it records no changes."""
    shop.make_table("memory")
    shop.server.execute(
        "EXEC sim.set_table N'dbo.memory', N'is_memory_optimized', 1", shop.database
    )
    assert error_of(shop.add("memory", "--enable"))["code"] == "MS40"
    assert shop.instances() == ["dbo_item"]


def test_a_database_without_capture_is_refused(shop: Shop) -> None:
    """The error names the procedure for the database, which needs an administrator."""
    shop.make_table("late")
    shop.server.execute("EXEC sys.sp_cdc_disable_db", shop.database)
    error = error_of(shop.add("late", "--enable"))
    assert error["code"] == "MS03"
    assert "sp_cdc_enable_db" in error["hint"]


def test_a_table_that_does_not_exist_is_refused(shop: Shop) -> None:
    """A misspelt name is an error before the server is asked to capture it."""
    assert error_of(shop.add("nothing", "--enable"))["code"] == "MS40"


def test_other_sources_refuse_the_flag(shared_servers: SharedServers, tmp_path: Path) -> None:
    """PostgreSQL records the changes of every table of the publication."""
    with new_place(shared_servers, FIRST) as place:
        place.run(*(f"create table {name} (id int primary key)" for name in ("item", "late")))
        path = write_pipeline(tmp_path, place.url, None, tables=["public.item"])
        error = error_of(penstock("table", "add", "--enable", path, "public.late", "--json"))
        assert (error["code"], error["hint"]) == ("CT62", "Run the command without --enable.")
        assert penstock("table", "add", path, "public.late", "--json").code == 0


@pytest.mark.slow
def test_a_table_added_while_the_extractor_runs_is_in_the_log(shop: Shop) -> None:
    """The log has its changes beside those of the others, without a restart."""
    with Process(shop.path) as run:
        run.until(lambda: "item" in insert_and_read_log(shop, "item"), "the log has begun")
        shop.make_table("late")
        ran = shop.add("late", "--enable")
        assert ran.code == 0, ran.err
        run.until(lambda: is_following(shop.path, "dbo.late"), "it is followed")
        run.until(lambda: "late" in insert_and_read_log(shop, "late"), "the log has its changes")
        run.stop()


def insert_and_read_log(shop: Shop, table: str) -> set[str]:
    """Insert a row into a table; return the names of the tables that have inserts in the log."""
    text = f"insert into dbo.{table} select coalesce(max(id), 0) + 1, 0 from dbo.{table}"
    shop.server.execute(text, shop.database)
    ran = penstock("log", "cat", shop.path)
    lines = [line.split("\t") for line in ran.out.splitlines()]
    return {line[3] for line in lines if len(line) > 3 and line[1] == "I"}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_enabled_table_is_copied_and_followed(
    shared_servers: SharedServers, tmp_path: Path
) -> None:
    """Rows from before, between and after the command are in the target; nothing is restarted."""
    server = shared_server(shared_servers)
    with new_place(shared_servers, "sqlserver") as source, new_place(shared_servers, FIRST) as to:
        database = source.url.rpartition("/")[2].partition("?")[0]
        late = "CREATE TABLE dbo.late (id int PRIMARY KEY, n int)"
        follow_late(tmp_path, source, to, lambda: server.execute(late, database))
