"""`penstock run` with MySQL or MariaDB at both ends, as a user watches and controls it by SQL."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.pipeline import write_pipeline
from harness.servers.published import CE_QUERY, CL_QUERY, LAG_QUERY, PROGRESS_COLUMNS
from penstock.control.pipeline.config import load_config
from penstock.ports.handover import read_handover
from plugins.mysql import MySQLServer

pytestmark = [pytest.mark.spark, pytest.mark.slow]
Maker = Callable[..., MySQLServer]
LEAST = ("select on *.*", "replication slave on *.*")
COLUMNS = (
    "select column_name, is_nullable from information_schema.columns where table_schema ="
    " 'wirekite' and table_name = '{}' order by ordinal_position"
)


class Shop:
    """A server with a source and a target database, and customers."""

    def __init__(self, server: MySQLServer) -> None:
        self.server = server
        server.execute(
            "create database shop; create database copy; use shop;"
            "create table item (id int primary key, n int not null, t varchar(40));"
            "create table note (id int auto_increment primary key, t varchar(40), unique key (t))"
        )
        rows = ", ".join(f"({number}, 0, '{'x' * 30}')" for number in range(3000))
        server.execute(f"insert into item values {rows}", "shop")
        self.ended = threading.Event()
        self.resting = threading.Event()
        self.threads = [threading.Thread(target=self._buy, args=(first,)) for first in range(3)]

    def _buy(self, first: int) -> None:
        with self.server.connect("shop") as connection, connection.cursor() as cursor:
            number = 10_000 + first
            while not self.ended.is_set():
                number += 3
                cursor.execute("begin")
                cursor.execute(f"insert into item values ({number}, 1, 'new')")
                cursor.execute(f"update item set n = n + 1 where id = {number % 3000}")
                cursor.execute(f"insert into note (t) values ('of {number}')")
                if number % 4 == 0:
                    cursor.execute(f"delete from item where id = {number - 30}")
                cursor.execute("commit")
                time.sleep(0.5 if self.resting.is_set() else 0.01)

    def __enter__(self) -> Shop:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join()

    def sums(self, database: str) -> list[tuple[Any, ...]]:
        """Return all rows of both tables, as numbers that differ if rows do."""
        return self.server.execute(
            "select count(*), sum(id), sum(n), sum(crc32(concat_ws(':', id, n, t))) from item"
            " union all select count(*), sum(id), 0, sum(crc32(concat_ws(':', id, t))) from note",
            database,
        )

    def read_applied(self) -> int:
        """Return the applied GSN; 0 before there is one."""
        there = self.server.execute(
            "select 1 from information_schema.tables where table_schema = 'wirekite'"
            " and table_name = 'wirekite_log'"
        )
        found = (
            self.server.execute("select applied_gsn from wirekite.wirekite_log") if there else []
        )
        return int(found[0][0]) if found else 0


@pytest.fixture
def shop(own_mysql: Maker) -> Iterator[Shop]:
    """Shop on a server whose commits wait for the disk: they are logged well before they are
    visible.
    """
    made = Shop(own_mysql(durable=True))
    with made:
        yield made


def write_file(folder: Path, source: str, target: str, **extractor: Any) -> Path:
    """Write the pipeline's file, with a database of another name at the target."""
    return write_pipeline(
        folder,
        source,
        target,
        tables=["shop.*"],
        sections={
            "target.map": {"shop": "copy"},
            "changeExtractor": {**LIVELY, **extractor},
            "changeLoader": {"maxFilesPerBatch": 5},
            "spark": {"master": "local[2]"},
            "target.types": {"*": "error"},
        },
    )


@pytest.mark.promise
def test_run_pause_stop_and_the_published_queries(shop: Shop, tmp_path: Path) -> None:
    """The account may not lock: penstock says beforehand what it does instead.

    Customers write all the time; at the end both databases are equal.
    """
    server = shop.server
    monitor = "binlog monitor" if server.is_mariadb else "replication client"
    with server.role(*LEAST, f"{monitor} on *.*") as account:
        path = write_file(tmp_path, f"{account.rstrip('/')}/shop", server.url("copy"))
        with Process(path) as run:
            run.until(lambda: shop.read_applied() > 0, "changes are applied")
            handed_over(shop, path, run)
            watched_by_sql(server, run)
            steered_by_sql(shop, run)
            server.execute("update wirekite.wirekite_action set action = 'STOP'")
            assert run.wait_for_end() == 0, run.err
        server.execute("update wirekite.wirekite_action set action = 'RUN'")
        shop.__exit__()
        write_file(tmp_path, f"{account.rstrip('/')}/shop", server.url("copy"), exitWhenIdle=True)
        with Process(path) as last:
            assert last.wait_for_end() == 0, last.err
    assert shop.sums("copy") == shop.sums("shop")
    assert (tmp_path / "shop" / "log" / "CHANGE.DONE").exists()


def handed_over(shop: Shop, path: Path, run: Process) -> None:
    """Check that four steps came in order; the message says how the point was taken."""
    run.until(
        lambda: [e for e in run.events if e.startswith("bulk load done")], "the bulk load is done"
    )
    state = read_handover(load_config(path))
    assert state is not None
    assert [step.number for step in state.steps] == [1, 2, 3, 4]
    how = "each snapshot's own position" if shop.server.is_mariadb else "without a lock"
    assert how in state.steps[0].text
    [told] = [event for event in run.events if event.startswith("position ")]
    assert state.position in told
    assert how in told


def watched_by_sql(server: MySQLServer, run: Process) -> None:
    """Check the queries and columns of Wirekite's guide, in a session of any time zone."""

    def has_finished() -> bool:
        return all(
            any(row[3] is not None for row in server.execute(query))
            for query in (CE_QUERY, CL_QUERY)
        )

    run.until(has_finished, "a file is extracted and loaded")
    with server.connect() as connection, connection.cursor() as cursor:
        for zone in ("+00:00", "-08:00"):
            cursor.execute(f"set time_zone = '{zone}'")
            cursor.execute(CE_QUERY)
            for source, mark, started, _ in cursor.fetchall():
                assert started is not None
                assert mark.split(":")[0] >= source
            cursor.execute(CL_QUERY)
            found = cursor.fetchall()
            assert all(row[0].endswith(".ckt") for row in found)
            assert all(row[1].isdecimal() for row in found if row[3] is not None)
            cursor.execute(LAG_QUERY)
            assert [column[0] for column in cursor.description] == ["lag_seconds"]
            assert 0 <= cursor.fetchone()[0] < 60
    assert server.execute(COLUMNS.format("wirekite_progress")) == list(PROGRESS_COLUMNS)
    assert server.execute(COLUMNS.format("wirekite_action")) == [("action", "NO")]


def steered_by_sql(shop: Shop, run: Process) -> None:
    """Check that PAUSE holds both halves, and that RUN lets them continue."""
    server = shop.server
    server.execute("update wirekite.wirekite_action set action = 'PAUSE'")
    still_since: list[float] = [time.monotonic()]
    last = [shop.read_applied()]

    def stands_still() -> bool:
        now = shop.read_applied()
        if now != last[0]:
            last[0], still_since[0] = now, time.monotonic()
        return time.monotonic() - still_since[0] > 6

    run.until(stands_still, "nothing is applied any more", 60)
    server.execute("update wirekite.wirekite_action set action = 'RUN'")
    run.until(lambda: shop.read_applied() > last[0], "changes are applied again", 60)


@pytest.mark.promise
def test_into_postgresql_steered_by_sql(shop: Shop, target_url: str, tmp_path: Path) -> None:
    """The same words work in a target of another engine; SIGTERM ends the run in order, too."""
    path = write_file(tmp_path, shop.server.url("shop"), target_url)
    with psycopg.connect(target_url, autocommit=True) as target, Process(path) as run:

        def read_applied() -> int:
            there = target.execute("select to_regclass('wirekite.wirekite_log')").fetchone()
            if there is None or there[0] is None:
                return 0
            row = target.execute("select applied_gsn from wirekite.wirekite_log").fetchone()
            return int(row[0]) if row else 0

        run.until(lambda: read_applied() > 0, "changes are applied")
        for query in (CE_QUERY, CL_QUERY):
            run.until(
                lambda: any(r[3] for r in target.execute(query.encode()).fetchall()),  # noqa: B023
                "a file is finished",
            )
        columns = target.execute(COLUMNS.format("wirekite_progress").encode()).fetchall()
        assert columns == list(PROGRESS_COLUMNS)
        run.stop(signal.SIGTERM)
