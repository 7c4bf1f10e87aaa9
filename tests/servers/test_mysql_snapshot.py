"""Snapshots at one point: every strategy with writers, every set of rights, released locks."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock.codec.mysql import mysqlwire
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.engines.mysql.connect import connect, rows
from penstock.engines.mysql.source.catalog import captured_tables, open_catalog
from penstock.engines.mysql.source.client import DumpOptions, open_binlog, probe_server_id
from penstock.engines.mysql.source.dump_errors import LogOff
from penstock.engines.mysql.source.snapshot import (
    Snapshots,
    SnapshotsDiffer,
    TransactionsPrepared,
    open_snapshots,
    read_choices,
)
from penstock.engines.mysql.source.strategies import Choice, NoConsistentPoint, Strategy
from penstock.host import faults
from penstock.host.errors import StatementInterrupted
from penstock.host.faults import FaultInjected
from penstock.model import TableDefinition
from plugins.mysql import MySQLServer, database_of

WRITE_ROWS = (23, 30)
WRITERS = 3
OF_MYSQL = (Strategy.BACKUP_LOCK, Strategy.GLOBAL_LOCK, Strategy.TABLE_LOCKS, Strategy.LOCK_FREE)
OF_MARIADB = (
    Strategy.OWN_POSITIONS,
    Strategy.BACKUP_STAGE,
    Strategy.GLOBAL_LOCK,
    Strategy.TABLE_LOCKS,
    Strategy.LOCK_FREE,
)


@pytest.fixture
def tables(mysql: MySQLServer, mysql_url: str) -> list[TableDefinition]:
    """Two tables with one whole number in each row."""
    name = database_of(mysql_url)
    mysql.execute("create table a (id int primary key); create table b (id int primary key)", name)
    with open_catalog(mysql_url) as connection:
        return captured_tables(connection, [f"{name}.*"])


@contextmanager
def writers(server: MySQLServer, database: str, *, pause_s: float = 0.002) -> Iterator[None]:
    """Run sessions that insert one number into both tables, transaction after transaction."""
    stop = threading.Event()

    def write(first: int) -> None:
        with server.connect(database) as connection, connection.cursor() as cursor:
            number = first
            while not stop.is_set():
                cursor.execute("begin")
                cursor.execute(f"insert into a values ({number})")
                cursor.execute(f"insert into b values ({number})")
                cursor.execute("commit")
                number += WRITERS
                time.sleep(pause_s)

    threads = [threading.Thread(target=write, args=(first,)) for first in range(1, WRITERS + 1)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def read_numbers(snapshots: Snapshots) -> list[set[int]]:
    """Return the numbers that each connection sees, equal in both tables."""
    found = []
    for reader in snapshots.connections:
        a, b = ({row["id"] for row in rows(reader, f"select id from {table}", doing="x")}
                for table in ("a", "b"))  # fmt: skip
        assert a == b, "half of a transaction is seen"
        found.append(a)
    return found


def read_logged(server: MySQLServer, snapshots: Snapshots) -> set[int]:
    """Return the numbers that were written after the snapshots' point, from the binlog."""
    options = DumpOptions(server_id=probe_server_id(), is_bounded=True)
    found = set()
    with open_binlog(server.url(), options=options, position=snapshots.status.position) as stream:
        for event in stream.events():
            if event is None or mysqlwire.event_head(event).kind not in WRITE_ROWS:
                continue
            at = mysqlwire.EVENT_HEAD_BYTES + 6 + 2  # table id, flags
            at += 2 if event[4] == 30 else 0  # length of the data that version 2 may add
            # One column, all present, not null; then the checksum.
            body = event[at + 2 : -4]
            found |= {int.from_bytes(body[i + 1 : i + 5], "little") for i in range(0, len(body), 5)}
    return found


@pytest.mark.server("mysql")
@pytest.mark.parametrize("strategy", OF_MYSQL)
def test_every_recipe_of_mysql(
    mysql: MySQLServer, mysql_url: str, tables: list[TableDefinition], strategy: Strategy
) -> None:
    """The snapshots and the log after the point have everything, and nothing twice."""
    check_one_point(mysql, mysql_url, tables, strategy)


@pytest.mark.server("mariadb")
@pytest.mark.parametrize("strategy", OF_MARIADB)
def test_every_recipe_of_mariadb(
    mysql: MySQLServer, mysql_url: str, tables: list[TableDefinition], strategy: Strategy
) -> None:
    """The snapshots and the log after the point have everything, and nothing twice."""
    check_one_point(mysql, mysql_url, tables, strategy)


def check_one_point(
    mysql: MySQLServer, mysql_url: str, tables: list[TableDefinition], strategy: Strategy
) -> None:
    """Take snapshots while others write; without a lock snapshots and log may overlap."""
    name = database_of(mysql_url)
    told: list[Choice] = []
    with (
        writers(mysql, name, pause_s=0.02),
        open_snapshots(
            mysql_url, tables, count=4, among=[Choice(strategy=strategy)], on_choice=told.append
        ) as taken,
    ):
        time.sleep(0.3)
        views = read_numbers(taken)
        time.sleep(0.2)
        assert read_numbers(taken) == views, "the snapshots move"
    final = {row[0] for row in mysql.execute("select id from a", name)}
    behind = read_logged(mysql, taken)
    assert [choice.strategy for choice in told] == [strategy]
    assert taken.settled >= taken.status.position
    for view in views:
        assert view | behind == final
        if strategy is not Strategy.LOCK_FREE:
            assert view == views[0]
            assert not view & behind
            assert taken.settled == taken.status.position
    assert taken.lock_held_s < 5
    if strategy in (Strategy.GLOBAL_LOCK, Strategy.BACKUP_STAGE, Strategy.TABLE_LOCKS):
        assert taken.lock_held_s > 0


def test_again_and_again_under_load(own_mysql: Callable[..., MySQLServer]) -> None:
    """A transaction is in the log well before it is visible if each commit waits for the disk.

    No lock keeps changes away here: a position read a moment too early or too late would show.
    """
    server = own_mysql(durable=True)
    server.execute("create database d; create table d.a (id int primary key)")
    server.execute("create table d.b (id int primary key)")
    with open_catalog(server.url()) as connection:
        tables = captured_tables(connection, ["d.*"])
    best = Strategy.OWN_POSITIONS if server.is_mariadb else Strategy.BACKUP_LOCK
    kept = []
    with writers(server, "d", pause_s=0.004):
        for strategy in [best, Strategy.LOCK_FREE] * 15:
            try:
                with open_snapshots(
                    server.url("d"), tables, count=2, among=[Choice(strategy=strategy)]
                ) as taken:
                    kept.append((taken, read_numbers(taken)))
            except SnapshotsDiffer:
                continue
    assert sum(taken.choice.strategy is best for taken, _ in kept) > 5
    final = {row[0] for row in server.execute("select id from d.a")}
    for taken, views in kept:
        behind = read_logged(server, taken)
        for view in views:
            assert view | behind == final
            assert taken.choice.strategy is Strategy.LOCK_FREE or not view & behind


# -- strategies ------------------------------------------------------------------------------------


def list_strategies(url: str, tables: list[TableDefinition]) -> list[Choice]:
    """Return the strategies for the account in a URL."""
    with connect(url, application_name="t") as connection:
        return read_choices(connection, tables)


def test_the_superuser_takes_the_gentlest(
    mysql: MySQLServer, mysql_url: str, tables: list[TableDefinition]
) -> None:
    """All strategies are available, the least intrusive one first."""
    found = list_strategies(mysql_url, tables)
    assert [choice.strategy for choice in found] == list(
        OF_MARIADB if mysql.is_mariadb else OF_MYSQL
    )
    assert found[0].lacking == ()
    assert "not better" not in str(found[0])


@pytest.mark.server("mysql")
def test_rights_decide_on_mysql(
    mysql: MySQLServer, mysql_url: str, tables: list[TableDefinition]
) -> None:
    """A missing right excludes its strategy, and the choice names that strategy."""
    name = database_of(mysql_url)
    client, reads = "replication client on *.*", f"select on `{name}`.*"
    locks = f"lock tables on `{name}`.*"
    cases = [
        ([client, reads, "backup_admin on *.*"], Strategy.BACKUP_LOCK, ""),
        ([client, reads, "reload on *.*"], Strategy.GLOBAL_LOCK, "BACKUP_ADMIN is missing"),
        ([client, reads, locks], Strategy.TABLE_LOCKS, "RELOAD is missing"),
        ([client, reads], Strategy.LOCK_FREE, f"LOCK TABLES is missing on {name}.a, {name}.b"),
    ]
    for grants, strategy, lacking in cases:
        with mysql.role(*grants) as url:
            first = list_strategies(url, tables)[0]
            assert first.strategy is strategy
            assert lacking in str(first)
            with open_snapshots(url + name, tables, count=2) as taken:
                assert taken.choice == first
                assert read_numbers(taken) == [set(), set()]
    with mysql.role(reads) as url, pytest.raises(NoConsistentPoint) as caught:
        list_strategies(url, tables)
    assert "REPLICATION CLIENT" in caught.value.message
    right = "flush_tables" if mysql.version.mysql(8, 0, 23) else "reload"
    assert f"grant {right} on" in caught.value.hint


@pytest.mark.server("mariadb")
def test_rights_decide_on_mariadb(
    mysql: MySQLServer, mysql_url: str, tables: list[TableDefinition]
) -> None:
    """The right to read suffices: each snapshot knows its own position."""
    name = database_of(mysql_url)
    with mysql.role(f"select on `{name}`.*") as url:
        assert [choice.strategy for choice in list_strategies(url, tables)] == [
            Strategy.OWN_POSITIONS,
            Strategy.LOCK_FREE,
        ]
        before = BinlogPosition.at(*mysql.status())
        with open_snapshots(url + name, tables, count=3) as taken:
            assert taken.choice.strategy is Strategy.OWN_POSITIONS
            point = taken.status.position
            # Events from the end of an earlier test's session may still arrive.
            assert before <= point <= BinlogPosition.at(*mysql.status())
            # Null if an earlier test's event is longer than max_allowed_packet: empty, then.
            at_point = f"select binlog_gtid_pos('{point.file}', {point.offset})"
            assert taken.status.gtids == (mysql.value(at_point) or "")


def test_tables_that_cannot_be_caught_up_or_read_at_one_point(
    mysql: MySQLServer, mysql_url: str
) -> None:
    """Tables without a key have no way without locks; an engine without snapshots is named."""
    name = database_of(mysql_url)
    mysql.execute("create table k (id int); create table m (id int primary key) engine = myisam",
                  name)  # fmt: skip
    with open_catalog(mysql_url) as connection:
        tables = captured_tables(connection, [f"{name}.*"])
    found = list_strategies(mysql_url, tables)
    assert Strategy.LOCK_FREE not in [choice.strategy for choice in found]
    assert f"{name}.m cannot be read at one point" in str(found[0])


@pytest.mark.server("mysql")
def test_without_gtids_it_is_not_known_what_is_visible(
    own_mysql: Callable[..., MySQLServer],
) -> None:
    """A transaction is in the log before others see its rows: only a lock is safe then."""
    server = own_mysql(settings={"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"})
    server.execute("create database d; create table d.a (id int primary key)")
    with open_catalog(server.url()) as connection:
        tables = captured_tables(connection, ["d.*"])
    assert [choice.strategy for choice in list_strategies(server.url(), tables)] == [
        Strategy.GLOBAL_LOCK,
        Strategy.TABLE_LOCKS,
    ]
    rights = ("replication client on *.*", "select on d.*")
    with server.role(*rights) as url, pytest.raises(NoConsistentPoint, match="gtid_mode = ON"):
        list_strategies(url, tables)
    with open_snapshots(server.url("d"), tables, count=2) as taken:
        assert taken.status.gtids == ""


def test_a_prepared_transaction_is_in_no_snapshot_and_not_behind_it(
    mysql: MySQLServer, mysql_url: str, tables: list[TableDefinition]
) -> None:
    """The rows are in the log before the point: there is no point while one is prepared."""
    name = database_of(mysql_url)
    statements = "xa start 'x'; insert into a values (1); xa end 'x'; xa prepare 'x'"
    with mysql.connect(name) as session, session.cursor() as cursor:
        for statement in statements.split("; "):
            cursor.execute(statement)
        with pytest.raises(TransactionsPrepared, match="1 XA transactions are prepared"):
            open_snapshots(mysql_url, tables, count=1).__enter__()
        cursor.execute("xa commit 'x'")
    with open_snapshots(mysql_url, tables, count=2) as taken:
        assert [row["id"] for row in rows(taken.connections[1], "select id from a", doing="x")] == [
            1
        ]


def test_coordinators_that_come_and_go(
    mysql: MySQLServer, mysql_url: str, tables: list[TableDefinition]
) -> None:
    """There is a point between two of their transactions; nothing of any is lost."""
    name = database_of(mysql_url)
    stop = threading.Event()

    def coordinate() -> None:
        number = 0
        with mysql.connect(name) as session, session.cursor() as cursor:
            while not stop.is_set():
                number += 1
                cursor.execute(f"xa start 'n{number}'")
                cursor.execute(f"insert into a values ({number})")
                cursor.execute(f"insert into b values ({number})")
                cursor.execute(f"xa end 'n{number}'")
                cursor.execute(f"xa prepare 'n{number}'")
                time.sleep(0.01)
                cursor.execute(f"xa commit 'n{number}'")
                time.sleep(0.03)

    thread = threading.Thread(target=coordinate)
    thread.start()
    kept = []
    try:
        for _ in range(12):
            try:
                with open_snapshots(mysql_url, tables, count=2) as taken:
                    kept.append((taken, read_numbers(taken)))
            except TransactionsPrepared:
                continue
    finally:
        stop.set()
        thread.join()
    assert kept
    final = {row[0] for row in mysql.execute("select id from a", name)}
    for taken, views in kept:
        behind = read_logged(mysql, taken)
        assert all(view | behind == final for view in views)


@pytest.mark.server("mysql")
def test_prepared_transactions_that_cannot_be_seen_are_spoken_of(
    mysql: MySQLServer, mysql_url: str, tables: list[TableDefinition]
) -> None:
    """The message before the load says that the right to see them is missing."""
    grants = (
        "replication client on *.*",
        "reload on *.*",
        f"select on `{database_of(mysql_url)}`.*",
    )
    with mysql.role(*grants) as url:
        assert "XA_RECOVER_ADMIN" in str(list_strategies(url, tables)[0])
    with mysql.role(*grants, "xa_recover_admin on *.*") as url:
        assert "XA_RECOVER_ADMIN" not in str(list_strategies(url, tables)[0])


@pytest.mark.server("mariadb")
def test_a_server_without_a_binlog_has_no_point(own_mysql: Callable[..., MySQLServer]) -> None:
    """Snapshots of such a server have no position."""
    server = own_mysql()
    server.execute("create database d; create table d.a (id int primary key)")
    server.embedded.unset("log_bin", "log_slave_updates")
    server.embedded.stop()
    server.embedded.start()
    with open_catalog(server.url()) as connection:
        tables = captured_tables(connection, ["d.*"])
    with pytest.raises(LogOff), open_snapshots(server.url(), tables, count=1):
        pass


# -- failures ------------------------------------------------------------------------------------


def test_a_lock_that_is_not_to_be_had_gives_way_to_the_next_recipe(
    mysql: MySQLServer,
    mysql_url: str,
    tables: list[TableDefinition],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long statement keeps the lock from us; other sessions are not kept waiting for it."""
    monkeypatch.setattr("penstock.engines.mysql.source.snapshot.LOCK_TIMEOUT_S", 1)
    name = database_of(mysql_url)
    told: list[Choice] = []
    among = [Choice(strategy=Strategy.TABLE_LOCKS), Choice(strategy=Strategy.LOCK_FREE)]
    with mysql.connect(name) as holder, holder.cursor() as cursor:
        cursor.execute("begin")
        cursor.execute("insert into a values (1)")
        with open_snapshots(
            mysql_url, tables, count=2, among=among, on_choice=told.append
        ) as taken:
            assert taken.choice.strategy is Strategy.LOCK_FREE
            assert read_numbers(taken) == [set(), set()]
        cursor.execute("rollback")
    assert [choice.strategy for choice in told] == [Strategy.TABLE_LOCKS, Strategy.LOCK_FREE]


@pytest.mark.parametrize("strategy", [Strategy.GLOBAL_LOCK, Strategy.TABLE_LOCKS])
def test_locks_are_let_go_when_we_fail(
    mysql: MySQLServer, mysql_url: str, tables: list[TableDefinition], strategy: Strategy
) -> None:
    """An error while they are held releases them."""
    with (
        faults.arming("snapshot.locked:1:error"),
        pytest.raises(FaultInjected),
        open_snapshots(mysql_url, tables, count=2, among=[Choice(strategy=strategy)]),
    ):
        pass
    mysql.execute("set lock_wait_timeout = 2; insert into a values (1)", database_of(mysql_url))


KILLED = """
import sys
from penstock.engines.mysql.source.catalog import captured_tables, open_catalog
from penstock.engines.mysql.source.strategies import Choice, Strategy
from penstock.engines.mysql.source.dump_errors import LogOff
from penstock.engines.mysql.source.snapshot import open_snapshots
url, pattern = sys.argv[1:]
with open_catalog(url) as connection:
    tables = captured_tables(connection, [pattern])
with open_snapshots(url, tables, count=2, among=[Choice(strategy=Strategy.GLOBAL_LOCK)]):
    pass
"""


def test_locks_are_let_go_when_we_are_killed(
    mysql: MySQLServer, mysql_url: str, tables: list[TableDefinition]
) -> None:
    """The server ends the sessions of a killed process."""
    name = database_of(mysql_url)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, mysql_url, f"{name}.*"],
        env={"PENSTOCK_FAULT": "snapshot.taken:1:kill", "PYTHONPATH": ":".join(sys.path)},
        check=False,
        timeout=60,
    )
    assert killed.returncode == -9
    mysql.execute("set lock_wait_timeout = 5; insert into a values (1)", name)


def test_a_table_altered_behind_the_snapshot_is_an_error(
    mysql: MySQLServer, mysql_url: str, tables: list[TableDefinition]
) -> None:
    """The server refuses to read it; the same attempt may succeed at a later point."""
    name = database_of(mysql_url)
    with open_snapshots(mysql_url, tables, count=1) as taken:
        mysql.execute("alter table a add column x int, algorithm = copy", name)
        with pytest.raises(StatementInterrupted) as caught:
            rows(taken.connections[0], "select id from a", doing="reading a")
    assert caught.value.fields["errno"] == 1412
