"""Hanging workers' sessions at a SQL Server target, which hold penstock's own tables.

Not here: rows that a late worker leaves, and two loaders (`test_sqlserver_target.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from harness.pipelines.merge import relation
from penstock.engines.sqlserver.connect import Connection, connect
from penstock.engines.sqlserver.target.claims import LOCK_WAIT_S, drop_held
from penstock.engines.sqlserver.target.layout import MergeLayout
from penstock.engines.sqlserver.target.merge_tables import MergeTables
from penstock.engines.sqlserver.target.progress import SQLServerProgress, open_session
from penstock.engines.sqlserver.target.target_engine import SQLServerTargetEngine
from penstock.host.errors import ConnectionLost, StatementInterrupted
from plugins.sqlserver import SimServer, as_test

LAYOUT = MergeLayout(relation(("id", "integer", "int32"), schema="dbo"))
TABLE = "t_wkm"


@pytest.fixture
def url(sqlserver_url: str) -> str:
    """URL of a database with a merge table."""
    with open_session(sqlserver_url) as connection:
        SQLServerProgress(connection).ensure_tables()
        MergeTables(connection).make_empty({TABLE: LAYOUT})
    return sqlserver_url


@contextmanager
def holding(url: str, table: str = TABLE) -> Iterator[Connection]:
    """Hold a table of penstock's in a transaction, as a bulk copy does that hangs."""
    with connect(url) as session:
        session.begin()
        session.execute(f"SELECT TOP (0) 1 AS one FROM wirekite.{table} WITH (TABLOCKX, HOLDLOCK)")
        yield session


def is_alive(session: Connection) -> bool:
    """Return whether the session exists, with its transaction."""
    try:
        return session.execute("SELECT @@TRANCOUNT AS count_") == [(1,)]
    except ConnectionLost:
        return False


def test_the_next_batch_ends_a_worker_that_hangs(url: str) -> None:
    """The merge table is empty, and the worker has lost its transaction."""
    with holding(url) as lost, open_session(url, lock_timeout_s=1) as connection:
        lost.run(f"INSERT INTO wirekite.{TABLE} (id) VALUES (1)")
        MergeTables(connection).make_empty({TABLE: LAYOUT})
        assert not is_alive(lost)
        assert connection.execute(f"SELECT COUNT(*) FROM wirekite.{TABLE}") == [(0,)]


def test_sessions_of_others_are_left_alone(url: str) -> None:
    """Another login may be an operator who looks at the table, and so may be a waiting session."""
    with holding(as_test(url)) as other, open_session(url, lock_timeout_s=1) as connection:
        with pytest.raises(StatementInterrupted):
            MergeTables(connection).make_empty({TABLE: LAYOUT})
        assert is_alive(other)


def test_a_user_who_may_not_end_sessions_gets_the_statements(
    url: str, sqlserver: SimServer
) -> None:
    """The hint has the session's number, and the rights with which penstock does it."""
    database = url.rpartition("/")[2].partition("?")[0]
    sqlserver.execute("EXEC sim.fail_next @number = 6102, @like = N'KILL'", database)
    with holding(url) as lost, open_session(url, lock_timeout_s=1) as connection:
        ((number,),) = lost.execute("SELECT CONVERT(int, @@SPID) AS number")
        with pytest.raises(StatementInterrupted) as caught:
            MergeTables(connection).make_empty({TABLE: LAYOUT})
        assert f"KILL {number};" in caught.value.hint
        assert "GRANT ALTER ANY CONNECTION" in caught.value.hint
        assert is_alive(lost)


def test_heaps_of_a_worker_that_hangs_are_dropped(url: str) -> None:
    """The end of a table's load does not wait for it."""
    with connect(url) as session:
        session.run("CREATE TABLE wirekite.bulk_1 (id int NULL)")
    with holding(url, "bulk_1") as lost, open_session(url, lock_timeout_s=1) as session:
        drop_held(session, "bulk_1")
        assert not is_alive(lost)
        assert session.execute("SELECT OBJECT_ID(N'wirekite.bulk_1', N'U')") == [(None,)]


def test_the_stager_does_not_wait_long(url: str) -> None:
    """The wait is the time until holders are ended."""
    stager = SQLServerTargetEngine().open_staging(url)
    try:
        found = stager._connection.execute("SELECT @@LOCK_TIMEOUT AS ms")
        assert found == [(LOCK_WAIT_S * 1000,)]
    finally:
        stager.close()
