"""A chunk of a lost executor: its session is ended, so that no other waits for its locks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from harness.pipelines.chunks import chunk_task
from penstock.engines.mysql.connect import Connection, connect, run, value
from penstock.engines.mysql.target.claims import claim
from penstock.host.errors import ConnectionLost, StatementInterrupted
from plugins.mysql import MySQLServer, database_of

TASK = chunk_task()


@contextmanager
def worker(url: str) -> Iterator[Connection]:
    """Open a session of an account that has rights only to its database."""
    options = {"innodb_lock_wait_timeout": "1"}
    with closing(connect(url, application_name="test", options=options)) as connection:
        yield connection


@pytest.fixture
def plain_url(mysql: MySQLServer, mysql_url: str) -> Iterator[str]:
    """URL of an account without any privilege of the server."""
    database = database_of(mysql_url)
    mysql.execute("create table t (id int primary key)", database)
    with mysql.role(f"all on `{database}`.*") as url:
        yield f"{url.rpartition('/')[0]}/{database}"


def test_who_takes_over_ends_the_session_of_before(plain_url: str) -> None:
    """The first session's locks are released, and its rows are removed."""
    with worker(plain_url) as first, worker(plain_url) as second:
        claim(first, TASK)
        run(first, "begin", doing="x")
        run(first, "insert into t values (1)", doing="x")
        claim(second, TASK)  # not repeated: a working session stays
        with pytest.raises(StatementInterrupted):
            run(second, "insert into t values (1)", doing="x")
        claim(second, replace(TASK, repeated=True))
        run(second, "insert into t values (1)", doing="x")
        with pytest.raises(ConnectionLost):
            run(first, "commit", doing="x")
        assert value(second, "select count(*) from t", doing="x") == 1


def test_a_session_does_not_end_itself(plain_url: str) -> None:
    """A session that has moved to another chunk is not ended either."""
    with worker(plain_url) as first, worker(plain_url) as second:
        claim(first, TASK)
        claim(first, replace(TASK, repeated=True))
        claim(first, chunk_task(8))
        claim(second, replace(TASK, repeated=True))
        assert value(first, "select 1", doing="x") == 1
