"""verify and its repair while a MySQL or MariaDB source is written and its pipeline runs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.loading import Running
from harness.pipelines.pipeline import write_pipeline
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.running import LOAD_LOCK
from penstock.control.verify.verify import verify
from penstock.host.files import REAL_FILES, DirectoryLock
from penstock.load.loader_state import HOLD_FILE
from penstock.log.layout import load_state
from penstock.ports.config import Config
from plugins.mysql import MySQLServer, database_of

TABLES = (
    "create table t (id int primary key, v varchar(40))",
    "create table bag (v int)",
    "create table other (v int)",
)


class Pair:
    """A MySQL source, a target of PostgreSQL or of the same server, and a pipeline of changes."""

    def __init__(self, server: MySQLServer, url: str, target: str, folder: Path) -> None:
        self.server = server
        self.database = database_of(url)
        self.is_postgres = target.startswith("postgres")
        self.place = self.database if self.is_postgres else database_of(target)
        self.target_url = target
        self.file = write_pipeline(
            folder,
            url,
            target,
            mode="change",
            tables=[f"{self.database}.*", f"!{self.database}.other"],
            sections={
                "target.map": {self.database: self.place},
                "target.types": {"*": "error"},
                "changeExtractor": {"flushIntervalSeconds": 0.2, "exitWhenIdle": False},
            },
        )
        self.config: Config = load_config(self.file)
        if self.is_postgres:
            self.target(f'create schema "{self.place}"')
        for table in TABLES:
            server.execute(table, self.database)
            self.target(table)

    def source(self, statement: str) -> Any:
        """Run a statement at the source."""
        return self.server.execute(statement, self.database)

    def target(self, statement: str) -> Any:
        """Run a statement in the target."""
        if not self.is_postgres:
            return self.server.execute(statement, self.place)
        with psycopg.connect(self.target_url, autocommit=True) as connection:
            connection.execute(f'set search_path = "{self.place}"')
            done = connection.execute(statement)
            return done.fetchall() if done.description else None

    @contextmanager
    def extracting(self) -> Iterator[None]:
        """Run `penstock extract` in a separate process, once it has begun its log."""
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "extract", str(self.file)],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            deadline = time.monotonic() + 60
            while load_state(self.config.layout.log) is None:
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)

    @contextmanager
    def loading(self) -> Iterator[Running]:
        """Run a loader in this process, without Spark."""
        REAL_FILES.make_directory(self.config.layout.state)
        with DirectoryLock(self.config.layout.state, LOAD_LOCK):
            loader = Running(
                self.target_url, self.config.directory, namespaces={self.database: self.place}
            )
            try:
                yield loader
            finally:
                loader.end(stop=True)
        # As its process would, if it had one.
        (self.config.layout.state / LOAD_LOCK).write_text("")

    @contextmanager
    def run_writer(self) -> Iterator[None]:
        """Run a session that inserts, updates and deletes for the time of the block."""
        ended = threading.Event()

        def write() -> None:
            with self.server.connect(self.database) as connection:
                cursor = connection.cursor()
                number = 1000
                while not ended.is_set():
                    number += 1
                    cursor.execute("insert into t values (%s, 'new')", (number,))
                    cursor.execute("update t set v = %s where id = %s", (number, number - 3))
                    cursor.execute("delete from t where id = %s and id > 1000", (number - 50,))
                    cursor.execute("insert into bag values (%s)", (number % 5,))
                    cursor.execute("insert into other values (%s)", (number,))
                    time.sleep(0.03)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@pytest.fixture(params=["postgresql", "mysql"])
def pair(
    request: pytest.FixtureRequest,
    mysql: MySQLServer,
    mysql_url: str,
    target_url: str,
    tmp_path: Path,
) -> Iterator[Pair]:
    """The pair; penstock's data in the target are dropped before and afterwards."""
    mysql.execute("drop database if exists wirekite")
    landing = mysql.make_database("landing")
    target = target_url if request.param == "postgresql" else landing
    yield Pair(mysql, mysql_url, target, tmp_path)
    mysql.drop_database(landing)
    mysql.execute("drop database if exists wirekite")


def wait_for_rows(pair: Pair) -> None:
    """Wait until rows of the writer are in the target."""
    deadline = time.monotonic() + 60
    while not pair.target("select count(*) from t where id > 1000")[0][0]:
        assert time.monotonic() < deadline, "nothing arrives"
        time.sleep(0.1)


def test_a_source_that_is_written_is_compared_at_one_place_of_its_binlog(pair: Pair) -> None:
    """The loader stops exactly at that position; differences are found and repaired there."""
    with ExitStack() as stack:
        stack.enter_context(pair.extracting())
        pair.source("insert into t values (1, 'one'), (2, 'two'), (3, 'three')")
        stack.enter_context(pair.loading())
        with pair.run_writer():
            wait_for_rows(pair)
            for _ in range(3):
                result = verify(pair.config, timeout_s=90)
                assert result.equal, result
                assert result.hold_seconds > 0
                assert result.at.count(":") == 1
            assert not (pair.config.layout.state / HOLD_FILE).exists()
            pair.target("update t set v = 'eins' where id = 1")
            pair.target("delete from t where id = 2")
            pair.target("insert into t values (-5, 'surplus')")
            found = verify(pair.config, timeout_s=90)
            by_name = {table.table.name: table for table in found.tables}
            assert {(one.kind, one.key) for one in by_name["t"].named} == {
                ("different", "(1)"), ("missing", "(2)"), ("surplus", "(-5)")
            }  # fmt: skip
            assert by_name["bag"].equal
            repairing = verify(pair.config, timeout_s=90, repair=True)
            assert [(one.deleted, one.written) for one in repairing.repaired] == [(2, 2)]
            assert verify(pair.config, timeout_s=90).equal
        again = verify(pair.config, timeout_s=90)
        assert again.equal
        assert again.tables[1].source_rows > 3
