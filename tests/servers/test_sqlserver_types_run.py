"""`penstock run` with every type between SQL Server and other engines, compared by verify.

Rows come by the bulk load and as changes. Not here: how values arrive in the log
(`test_sqlserver_types_wire.py`), and the extremes of the table of types
(`test_sqlserver_types.py`, `test_types_across.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.pipelines.pipeline import penstock
from harness.pipelines.types_run import WITHIN_S, Cases, Pair, postgres_cases, tables_of
from harness.servers import mysql_types, postgres_types
from harness.servers.engines import FIRST, new_place
from harness.servers.sqlserver_literals import literal_of, storable_values
from harness.servers.sqlserver_types import TYPES
from plugins.mysql import kinds
from plugins.shared import SharedServers

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1500)]


def sqlserver_cases() -> Cases:
    """Return the types of SQL Server. A rowversion cannot be given."""
    return {
        name: [literal_of(name, value) for value in storable_values(name)[:-1]]
        for name in TYPES
        if name != "rowversion"
    }


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Databases that are dropped afterwards."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("kind", [FIRST, *kinds(), "sqlserver"])
def test_out_of_sqlserver(
    shared_servers: SharedServers, stack: ExitStack, tmp_path: Path, kind: str
) -> None:
    """Every type arrives in a database, by both ways."""
    source = stack.enter_context(new_place(shared_servers, "sqlserver"))
    target = stack.enter_context(new_place(shared_servers, kind))
    pair = Pair(tmp_path, source, target.url, target.namespace, tables_of(sqlserver_cases()))
    pair.check()
    target.run("update every0 set c2 = 7 where id = 1")
    found = penstock("verify", pair.path, "--json", timeout_s=WITHIN_S).result
    assert [one["table"] for one in found["tables"] if not one["equal"]] == ["dbo.every0"]


def test_out_of_sqlserver_into_a_lake(
    shared_servers: SharedServers, stack: ExitStack, tmp_path: Path
) -> None:
    """Every type arrives in tables of Delta Lake, by both ways."""
    source = stack.enter_context(new_place(shared_servers, "sqlserver"))
    url = f"delta+file://{tmp_path / 'lake'}"
    Pair(tmp_path, source, url, "", tables_of(sqlserver_cases())).check()


@pytest.mark.long
def test_from_postgres(shared_servers: SharedServers, stack: ExitStack, tmp_path: Path) -> None:
    """Every type of PostgreSQL arrives in SQL Server, by both ways."""
    source = stack.enter_context(new_place(shared_servers, FIRST))
    target = stack.enter_context(new_place(shared_servers, "sqlserver"))
    source.run(postgres_types.SETUP)
    cases = postgres_cases(int(FIRST.removeprefix("pg")))
    Pair(tmp_path, source, target.url, target.namespace, tables_of(cases)).check()


@pytest.mark.long
@pytest.mark.parametrize("kind", kinds())
def test_from_mysql(
    shared_servers: SharedServers, stack: ExitStack, tmp_path: Path, kind: str
) -> None:
    """Every type of MySQL and MariaDB arrives in SQL Server, by both ways."""
    source = stack.enter_context(new_place(shared_servers, kind))
    target = stack.enter_context(new_place(shared_servers, "sqlserver"))
    cases = mysql_types.values_for(kind == "mariadb")
    Pair(tmp_path, source, target.url, target.namespace, tables_of(cases)).check()
