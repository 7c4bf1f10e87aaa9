"""The replica's connection: its events, its end, and every refusal that can be produced."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

import pytest

from harness.servers.proxy import Proxy
from penstock.codec.mysql import mysqlwire
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.codec.mysql.gtids import GtidSet, MariaGtids
from penstock.engines.mysql.connect import connect
from penstock.engines.mysql.source import dump_errors
from penstock.engines.mysql.source.client import (
    BinlogConnection,
    DumpOptions,
    Gtids,
    open_binlog,
    replica_uuid_for,
    server_id_for,
)
from penstock.engines.mysql.source.status import check_continues, parse_gtids, read_status
from penstock.host.errors import ConnectionLost, PrivilegeMissing
from penstock.model import PenstockError
from plugins.mysql import MySQLServer, database_of

pytestmark = pytest.mark.each_server

QUERY, ROTATE, FORMAT_DESCRIPTION, HEARTBEAT, ANNOTATE = 2, 4, 15, 27, 160
ROW_EVENTS = {23, 24, 25, 30, 31, 32}
FIRST = BinlogPosition.at("binlog.000001", 4)


def options(name: str = "test", **more: object) -> DumpOptions:
    """Return options of a reader of this name."""
    settings = {"server_id": server_id_for(name), "replica_uuid": replica_uuid_for(name), **more}
    return DumpOptions(**settings)  # type: ignore[arg-type]


def here(server: MySQLServer) -> BinlogPosition:
    """Return the end of the binlog."""
    return BinlogPosition.at(*server.status())


def kinds(stream: BinlogConnection) -> list[int]:
    """Return the types of the events up to the end of a bounded stream."""
    return [mysqlwire.event_head(event).kind for event in stream.events() if event is not None]


def gtids(server: MySQLServer) -> Gtids:
    """Return the transactions that the server has."""
    with connect(server.url(), application_name="test") as connection:
        found = read_status(connection).parse_gtids(connection.server)
    assert found is not None
    return found


def failure(stream: BinlogConnection, within_s: float = 20.0) -> PenstockError:
    """Return the error that a stream ends with."""
    deadline = time.monotonic() + within_s
    try:
        for _ in stream.events(wait_s=0.05):
            assert time.monotonic() < deadline, "the stream goes on"
    except PenstockError as error:
        return error
    raise AssertionError("the stream ended without an error")


# -- events ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["require", "disable"])
def test_rows_come_over_both_kinds_of_wire(
    mysql: MySQLServer, tls_mysql: MySQLServer, mode: str
) -> None:
    """A stream goes from a position to the end of the log: fake rotate, format, then the events."""
    server = tls_mysql
    server.execute("create database if not exists kinds; drop table if exists kinds.t")
    server.execute("create table kinds.t (id int primary key)")
    start = here(server)
    server.execute("insert into kinds.t values (1), (2)")
    url = f"{server.url()}?sslmode={mode}&get_server_public_key=true"
    with open_binlog(url, position=start, options=options(is_bounded=True)) as stream:
        assert stream.is_tls == (mode == "require")
        assert stream.server == server.version
        seen = kinds(stream)
    assert seen[:2] == [ROTATE, mysqlwire.FORMAT_DESCRIPTION]
    assert sum(kind in ROW_EVENTS for kind in seen) == 1


def test_what_was_seen_is_not_sent_again(mysql: MySQLServer, mysql_url: str) -> None:
    """The server sends what follows the GTIDs, whatever file it is in."""
    name = database_of(mysql_url)
    mysql.execute(f"create table `{name}`.t (id int primary key)")
    before = gtids(mysql)
    with open_binlog(mysql.url(), seen=before, options=options(is_bounded=True)) as stream:
        assert not ROW_EVENTS & set(kinds(stream))
    mysql.execute(f"insert into `{name}`.t values (1)")
    mysql.execute("flush binary logs")
    mysql.execute(f"insert into `{name}`.t values (2)")
    with open_binlog(mysql.url(), seen=before, options=options(is_bounded=True)) as stream:
        assert sum(kind in ROW_EVENTS for kind in kinds(stream)) == 2


def test_a_live_stream_follows_the_log_into_the_next_file(
    mysql: MySQLServer, mysql_url: str
) -> None:
    """Heartbeats come while nothing happens, rows as they are committed, rotations in between."""
    name = database_of(mysql_url)
    mysql.execute(f"create table `{name}`.t (id int primary key)")
    seen: Counter[int] = Counter()
    steps = iter([f"insert into `{name}`.t values (1)", "flush binary logs",
                  f"insert into `{name}`.t values (2)"])  # fmt: skip
    start = here(mysql)
    with open_binlog(mysql.url(), position=start, options=options(heartbeat_s=0.1)) as stream:
        for event in stream.events(wait_s=0.5):
            if event is not None:
                seen[mysqlwire.event_head(event).kind] += 1
            if seen[HEARTBEAT] > 2 and (step := next(steps, None)):
                mysql.execute(step)
            if sum(seen[kind] for kind in ROW_EVENTS) == 2:
                break
    assert seen[ROTATE] >= 3, "at the start, the real one, and at the new file"


def test_events_over_16_mb_are_joined(mysql: MySQLServer, mysql_url: str) -> None:
    """Large events come in pieces; one of 16 MB less a byte is followed by an empty piece."""
    name = database_of(mysql_url)
    mysql.execute(f"create table `{name}`.t (id int primary key, b longblob)")
    with mysql.globals(max_allowed_packet=str(128 * 2**20)):
        start = here(mysql)
        mysql.execute(f"insert into `{name}`.t values (1, repeat('x', 40000000))")
        overhead = _row_event(mysql, start) - 40_000_000
        start = here(mysql)
        for size in (0xFFFFFF - overhead - 1 + more for more in (-1, 0, 1)):
            mysql.execute(f"insert into `{name}`.t values ({size}, repeat('x', {size}))")
        with open_binlog(mysql.url(), position=start, options=options(is_bounded=True)) as stream:
            sizes = [
                head.length
                for event in stream.events()
                if event is not None and (head := mysqlwire.event_head(event)).kind in ROW_EVENTS
            ]
    assert sizes == [0xFFFFFF - 2, 0xFFFFFF - 1, 0xFFFFFF]


def _row_event(server: MySQLServer, start: BinlogPosition) -> int:
    """Return the size of the only row event after start."""
    with open_binlog(server.url(), position=start, options=options(is_bounded=True)) as stream:
        heads = [mysqlwire.event_head(event) for event in stream.events() if event is not None]
    (size,) = [head.length for head in heads if head.kind in ROW_EVENTS]
    return size


@pytest.mark.server("mariadb")
def test_statements_text_comes_when_asked_for(mysql: MySQLServer, mysql_url: str) -> None:
    """Only MariaDB has the flag: the same bit means something else in MySQL."""
    start = here(mysql)
    name = database_of(mysql_url)
    mysql.execute(
        f"create table `{name}`.t (id int primary key); insert into `{name}`.t values (1)"
    )
    for annotate in (False, True):
        chosen = options(is_bounded=True, annotate=annotate)
        with open_binlog(mysql.url(), position=start, options=chosen) as stream:
            assert (ANNOTATE in kinds(stream)) == annotate


def test_a_large_backlog_comes_in_large_blocks(mysql: MySQLServer, mysql_url: str) -> None:
    """A read returns much if much is ready: one system call per packet would be 50 times more."""
    name = database_of(mysql_url)
    mysql.execute(f"create table `{name}`.t (id int primary key auto_increment, v varchar(100))")
    start = here(mysql)
    mysql.execute(f"insert into `{name}`.t (v) values " + ",".join(["(repeat('x', 60))"] * 500))
    for _ in range(8):
        mysql.execute(f"insert into `{name}`.t (v) select v from `{name}`.t")
    buffer = memoryview(bytearray(8 * 2**20))
    reads = total = 0
    with open_binlog(mysql.url(), position=start, options=options()) as stream:
        while count := stream.receive_into(buffer, 0.5):
            reads += 1
            total += count
    assert total > 3_000_000
    assert total / reads > 16 * 1024  # ten times as much on an idle machine


# -- refusals ----------------------------------------------------------------------------------


@pytest.fixture
def fresh(tuned_mysql: MySQLServer) -> MySQLServer:
    """A server whose binlog begins again: one file, a table d.t."""
    tuned_mysql.reset_log()
    tuned_mysql.execute("create or replace database d" if tuned_mysql.is_mariadb else
                        "drop database if exists d; create database d")  # fmt: skip
    tuned_mysql.execute("create table d.t (id int primary key)")
    return tuned_mysql


def purge(server: MySQLServer, file: str) -> None:
    """Let the server delete files before this one; MariaDB may need a moment for that."""
    deadline = time.monotonic() + 10
    while server.execute("show binary logs")[0][0] != file:
        assert time.monotonic() < deadline
        server.execute(f"purge binary logs to '{file}'")
        time.sleep(0.05)


def test_a_purged_file_names_the_oldest_left(fresh: MySQLServer) -> None:
    """The events after our position are deleted: the tables have to be loaded again."""
    fresh.execute("flush binary logs; flush binary logs")
    purge(fresh, "binlog.000003")
    with open_binlog(fresh.url(), position=FIRST, options=options()) as stream:
        error = failure(stream)
    assert type(error) is dump_errors.LogPurged
    assert error.fields["oldest"] == "binlog.000003:4"
    assert "binlog.000003:4" in error.message
    assert error.retry == "operator"
    assert "load everything again: penstock reset" in error.hint


def test_a_purged_file_without_the_right_to_list(fresh: MySQLServer) -> None:
    """The error stays; only the oldest position is left out."""
    fresh.execute("flush binary logs")
    purge(fresh, "binlog.000002")
    with (
        fresh.role("replication slave on *.*") as url,
        open_binlog(url, position=FIRST, options=options()) as stream,
    ):
        error = failure(stream)
    assert type(error) is dump_errors.LogPurged
    assert "oldest" not in error.fields


def test_purged_transactions(fresh: MySQLServer) -> None:
    """The server has deleted some GTIDs that we have not seen."""
    fresh.execute("insert into d.t values (1)")
    seen = parse_gtids(fresh.version, str(gtids(fresh)))
    fresh.execute("insert into d.t values (2); flush binary logs; insert into d.t values (3)")
    fresh.execute("flush binary logs")
    purge(fresh, "binlog.000003")
    with open_binlog(fresh.url(), seen=seen, options=options()) as stream:
        error = failure(stream)
    assert type(error) is dump_errors.GtidsPurged
    assert isinstance(error, dump_errors.LogPurged)


def test_a_server_that_lost_transactions(fresh: MySQLServer) -> None:
    """We have seen more than the server has: the stream never continues silently."""
    ahead: Gtids
    if fresh.is_mariadb:
        ahead = MariaGtids.parse("0-1-4000")
    else:
        ahead = GtidSet.parse(f"{fresh.value('select @@server_uuid')}:1-4000")
    with open_binlog(fresh.url(), seen=ahead, options=options()) as stream:
        error = failure(stream)
    assert type(error) is dump_errors.ServerBehind


@pytest.mark.server("mariadb")
def test_a_server_that_diverged(fresh: MySQLServer) -> None:
    """Our last transaction came from another server under the number of one of its own."""
    fresh.execute("insert into d.t values (1); insert into d.t values (2)")
    with open_binlog(fresh.url(), seen=MariaGtids.parse("0-7-3"), options=options()) as stream:
        error = failure(stream)
    assert type(error) is dump_errors.ServerBehind


@pytest.mark.parametrize("offset", [3, 10**6, 150])
def test_an_offset_that_is_no_beginning(fresh: MySQLServer, offset: int) -> None:
    """The offset is before the file's begin, after its end, or in the middle of an event."""
    fresh.execute("insert into d.t values (1)")
    position = BinlogPosition.at("binlog.000001", offset)
    with open_binlog(fresh.url(), position=position, options=options()) as stream:
        error = failure(stream)
    assert type(error) is dump_errors.PositionUnfit, error


def test_reset_master_in_a_later_file(fresh: MySQLServer) -> None:
    """The files after ours are deleted: the next one would be another history."""
    fresh.execute("flush binary logs; insert into d.t values (1)")
    with idle_stream(fresh, here(fresh)) as stream:
        fresh.reset_log()
        fresh.execute("insert into d.t values (5)")
        error = failure(stream)
    assert type(error) is dump_errors.LogReset, error


def test_reset_master_in_the_file_that_is_read(fresh: MySQLServer) -> None:
    """The server only sends heartbeats until the new file is longer, so it is asked now and then.

    When the new file is longer the server ends the stream; the next stream shows the cause.
    """
    end = here(fresh)
    with idle_stream(fresh, FIRST) as stream, connect(fresh.url(), application_name="t") as other:
        check_continues(other, end)
        fresh.reset_log()
        with pytest.raises(dump_errors.LogReset, match=r"ends at binlog\.000001"):
            check_continues(other, end)
        for number in range(20):
            fresh.execute(f"insert into d.t values ({number})")
        error = failure(stream)
    assert type(error) in (dump_errors.LogUnreadable, dump_errors.DumpEnded), error
    assert error.retry == "backoff"


@contextmanager
def idle_stream(server: MySQLServer, position: BinlogPosition) -> Iterator[BinlogConnection]:
    """Open a stream that has received everything and waits."""
    chosen = options(heartbeat_s=0.2)
    with open_binlog(server.url(), position=position, options=chosen) as stream:
        events = stream.events(wait_s=0.1)
        while next(events) is not None:
            pass
        yield stream


def test_a_session_that_is_killed(fresh: MySQLServer) -> None:
    """After a kill by an operator or a shutdown of the server, penstock retries automatically."""
    with idle_stream(fresh, FIRST) as stream:
        for (number,) in fresh.execute(
            "select id from information_schema.processlist where command like 'Binlog Dump%'"
        ):
            fresh.execute(f"kill {number}")
        error = failure(stream)
    assert isinstance(error, dump_errors.DumpEnded | ConnectionLost), error
    assert error.retry == "backoff"


def test_the_same_server_id_twice(mysql: MySQLServer) -> None:
    """The older stream gets an error: both would otherwise end each other forever."""
    start = here(mysql)
    with open_binlog(mysql.url(), position=start, options=options("one")) as older:
        events = older.events(wait_s=0.3)
        while next(events) is not None:
            pass
        with open_binlog(mysql.url(), position=start, options=options("one")) as younger:
            assert next(younger.events()) is not None
            error = failure(older)
    assert type(error) is dump_errors.ServerIdInUse, error
    assert error.retry == "operator"
    with (
        open_binlog(mysql.url(), position=start, options=options("one")) as one,
        open_binlog(mysql.url(), position=start, options=options("two")) as two,
    ):
        for stream in (one, two):
            events = stream.events(wait_s=0.3)
            while next(events) is not None:
                pass


def test_without_the_right_to_replicate(mysql: MySQLServer) -> None:
    """The error for an account without the right to replicate names the GRANT."""
    with mysql.role() as url, pytest.raises(PrivilegeMissing) as caught:
        open_binlog(url, position=FIRST, options=options())
    assert "grant replication slave" in caught.value.hint


def test_a_server_without_a_binlog(own_mysql: Callable[..., MySQLServer]) -> None:
    """The server says so when asked, and doctor says what to set."""
    server = own_mysql()
    server.embedded.unset("log_bin", "log_slave_updates")
    server.embedded.set(**{"skip_log_bin": "ON"} if not server.is_mariadb else {})
    server.embedded.stop()
    server.embedded.start()
    assert server.value("select @@log_bin") == 0
    with open_binlog(server.url(), position=FIRST, options=options()) as stream:
        error = failure(stream)
    assert type(error) is dump_errors.LogOff, error
    with connect(server.url(), application_name="t") as other, pytest.raises(dump_errors.LogOff):
        read_status(other)


@pytest.mark.server("mysql")
def test_gtids_where_there_are_none(own_mysql: Callable[..., MySQLServer]) -> None:
    """A set of GTIDs names nothing on a server that assigns none."""
    server = own_mysql(settings={"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"})
    with open_binlog(server.url(), seen=GtidSet(), options=options()) as stream:
        error = failure(stream)
    assert type(error) is dump_errors.LogOff, error
    with connect(server.url(), application_name="t") as connection:
        assert read_status(connection).gtids == ""


# -- failures ----------------------------------------------------------------------------------


def test_a_server_that_falls_silent(mysql: MySQLServer) -> None:
    """The connection counts as cut after three missing heartbeats, though no side reports it."""
    chosen = options(heartbeat_s=0.2)
    with Proxy(mysql.port) as proxy:
        url = proxy.url(mysql.url())
        with open_binlog(url, position=here(mysql), options=chosen) as stream:
            events = stream.events(wait_s=0.05)
            deadline = time.monotonic() + 2
            while time.monotonic() < deadline:
                next(events)  # heartbeats keep it alive
            stalling = threading.Thread(target=proxy.stall, args=(1.5,))
            stalling.start()
            error = failure(stream, within_s=5)
            stalling.join()
    assert type(error) is dump_errors.StreamSilent
    assert error.retry == "backoff"


def test_a_cut_connection_and_a_crashed_server_are_lost(
    own_mysql: Callable[..., MySQLServer],
) -> None:
    """Both errors allow an automatic retry."""
    server = own_mysql()
    with Proxy(server.port) as proxy:
        url = proxy.url(server.url())
        with open_binlog(url, position=FIRST, options=options()) as stream:
            assert next(stream.events()) is not None
            proxy.cut()
            assert type(failure(stream)) is ConnectionLost
    with open_binlog(server.url(), position=FIRST, options=options()) as stream:
        assert next(stream.events()) is not None
        server.embedded.crash()
        error = failure(stream)
    assert type(error) is ConnectionLost
    assert error.retry == "backoff"


def test_a_dump_begins_at_one_place() -> None:
    """A dump needs a position or a set of GTIDs, but not both; ids and heartbeats are checked."""
    with pytest.raises(ValueError, match="a dump begins"):
        open_binlog("mysql://u@h", options=options())
    with pytest.raises(ValueError, match="not a server id"):
        DumpOptions(server_id=0)
    with pytest.raises(ValueError, match="not a heartbeat"):
        DumpOptions(server_id=1, heartbeat_s=0)
    assert server_id_for("a") == server_id_for("a") != server_id_for("b")
    assert replica_uuid_for("a") == replica_uuid_for("a") != replica_uuid_for("b")
    assert quote(replica_uuid_for("a")) == replica_uuid_for("a")


def test_statements_are_read_as_events_one_by_one_are(mysql: MySQLServer, mysql_url: str) -> None:
    """Rows and the BEGIN of transactions are skipped, in whatever pieces they come."""
    name = database_of(mysql_url)
    start = here(mysql)
    with mysql.globals(max_allowed_packet=str(128 * 2**20)):
        mysql.execute(f"create table `{name}`.t (id int primary key, b longblob)")
        for number in range(300):
            mysql.execute(f"insert into `{name}`.t values ({number}, 'x')")
        mysql.execute(f"insert into `{name}`.t values (1000, repeat('x', 40000000))")
        mysql.execute("flush binary logs")
        mysql.execute(f"alter table `{name}`.t add c int")
        mysql.execute(f"insert into `{name}`.t values (1001, 'x', 1)")
        chosen = options(is_bounded=True)
        with open_binlog(mysql.url(), position=start, options=chosen) as stream:
            every = [event for event in stream.events() if event is not None]
        with open_binlog(mysql.url(), position=start, options=chosen) as stream:
            told = list(stream.statements())
    kept = (QUERY, ROTATE, FORMAT_DESCRIPTION)
    expected = [event for event in every if mysqlwire.event_head(event).kind in kept]
    assert told == [event for event in expected if b"\0BEGIN" not in event[-10:]]
    assert len(told) < len(every) / 3
