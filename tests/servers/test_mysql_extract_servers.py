"""Events of servers while their binlog is followed: restarts, crashes, purges, take-overs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.pipelines.extract import Stop, log_changes, running, until
from harness.pipelines.mysql_extract import engine_of, extractor_of
from penstock.codec.mysql import mysqlwire
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.engines.mysql.source.client import DumpOptions, open_binlog, server_id_for
from penstock.engines.mysql.source.dump_errors import (
    LogPurged,
    LogReset,
    PositionUnfit,
    ServerBehind,
    ServerIdInUse,
    ServerReplaced,
)
from penstock.engines.mysql.source.unsupported import SeenUnknown, StartUnfit
from penstock.extract.extractor import ExtractOptions, Extractor
from plugins.mysql import MySQLServer, follow_primary

QUICK = ExtractOptions(flush_interval_s=0.2)
Maker = Callable[..., MySQLServer]


@pytest.fixture(autouse=True)
def _short_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.extract.extractor.BACKOFF_S", (0.2,))
    monkeypatch.setattr("penstock.extract.extractor.SOURCE_INTERVAL_S", 0.3)


def start_server(own_mysql: Maker, **settings: str) -> tuple[MySQLServer, str]:
    """Start a server of its own with a table; return it and the database's URL."""
    server = own_mysql(settings=settings)
    server.execute("create database shop; use shop; create table t (id int primary key)")
    return server, server.url("shop")


def ids(directory: Path) -> list[int]:
    """Return the keys of all inserted rows."""
    return [c.after["id"] for c in log_changes(directory)]


def insert(server: MySQLServer, *numbers: int) -> None:
    """Insert each number in a transaction of its own."""
    for number in numbers:
        server.execute(f"insert into t values ({number})", "shop")


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_the_server_goes_and_comes_back(own_mysql: Maker, tmp_path: Path, how: str) -> None:
    """The stream is reopened automatically; rotations and FLUSH in between have no effect."""
    server, url = start_server(own_mysql, sync_binlog="1", innodb_flush_log_at_trx_commit="1")
    stop = Stop()
    extractor = extractor_of(url, tmp_path, options=QUICK, stop=stop)
    with running(extractor):
        until(lambda: extractor.progress.state == "streaming")
        insert(server, 1, 2)
        server.execute("flush binary logs; flush binary logs")
        insert(server, 3)
        until(lambda: ids(tmp_path) == [1, 2, 3])
        if how == "crash":
            server.embedded.crash()
        else:
            server.embedded.stop()
        until(lambda: extractor.progress.state == "reconnecting")
        server.embedded.start()
        insert(server, 4)
        server.execute("flush binary logs")
        insert(server, 5)
        until(lambda: ids(tmp_path) == [1, 2, 3, 4, 5], 40)
        stop.asked.set()
    assert extractor.progress.reconnect_count >= 1


def _purge_before(server: MySQLServer, kept: str) -> bool:
    """Purge up to this file; return whether no earlier file is left."""
    server.execute(f"purge binary logs to '{kept}'")
    return str(server.execute("show binary logs")[0][0]) == kept


def test_purged_files_are_a_typed_error(own_mysql: Maker, tmp_path: Path) -> None:
    """The error has the oldest remaining position; the log stays as it is."""
    server, url = start_server(own_mysql)
    extractor_of(url, tmp_path).run()
    insert(server, 1)
    server.execute("flush binary logs")
    insert(server, 2)
    server.execute("flush binary logs")
    kept = server.status()[0]
    until(lambda: _purge_before(server, kept))  # not while the server still knows a former reader
    with pytest.raises(LogPurged) as caught:
        extractor_of(url, tmp_path).run()
    assert caught.value.fields["oldest"]
    assert ids(tmp_path) == []


def test_a_log_that_was_begun_anew_is_a_typed_error(own_mysql: Maker, tmp_path: Path) -> None:
    """The log is found at the start, and under a stream that would be silent forever."""
    server, url = start_server(own_mysql)
    insert(server, *range(20))
    extractor = extractor_of(url, tmp_path, options=QUICK)

    def follow() -> None:
        with running(extractor):
            until(lambda: extractor.progress.state == "streaming")
            insert(server, 100)
            until(lambda: ids(tmp_path) == [100])
            server.reset_log()

    with pytest.raises((LogReset, LogPurged)):
        follow()
    with pytest.raises((LogReset, LogPurged, ServerBehind, PositionUnfit)):
        extractor_of(url, tmp_path).run()
    assert ids(tmp_path) == [100]


def test_a_second_reader_with_our_id_is_reported(own_mysql: Maker, tmp_path: Path) -> None:
    """The server ends the older stream, which reports it by name and does not reconnect."""
    server, url = start_server(own_mysql)
    extractor = extractor_of(url, tmp_path, options=QUICK)

    def intrude() -> None:
        until(lambda: extractor.progress.state == "streaming")
        file, offset = server.status()
        options = DumpOptions(
            server_id=server_id_for(str(tmp_path)),
            replica_uuid=engine_of(url, tmp_path)._replica_uuid,
        )
        with open_binlog(url, position=BinlogPosition.at(file, offset), options=options) as other:
            deadline = time.monotonic() + 5
            for event in other.events():
                if event is None and time.monotonic() > deadline:
                    break

    worker = threading.Thread(target=intrude)
    worker.start()
    with pytest.raises(ServerIdInUse):
        extractor.run()
    worker.join()


def test_a_log_begins_at_the_given_place(own_mysql: Maker, tmp_path: Path) -> None:
    """A log begins at the begin of a transaction; a position inside one is refused at once."""
    server, url = start_server(own_mysql)
    insert(server, 1)
    file, offset = server.status()
    insert(server, 2, 3)
    extractor_of(url, tmp_path / "told", at=BinlogPosition.at(file, offset)).run()
    assert ids(tmp_path / "told") == [2, 3]
    inside = offset + (79 if not server.is_mariadb else 42)
    for wrong in (offset + 7, inside):
        with pytest.raises(StartUnfit):
            extractor_of(url, tmp_path / "wrong", at=BinlogPosition.at(file, wrong))
    with pytest.raises(LogPurged):
        extractor_of(url, tmp_path / "wrong", at=BinlogPosition.at("binlog.000000", 4))
    assert mysqlwire.EVENT_HEAD_BYTES == 19


def test_a_log_begins_at_every_given_place_between_transactions(
    own_mysql: Maker, tmp_path: Path
) -> None:
    """The position may follow FLUSH, precede a file's first transaction, follow DDL
    or precede it.
    """
    server, url = start_server(own_mysql)
    server.execute("flush binary logs")
    places = []
    for statement in ("insert into t values (1)", "create table u (id int)", "drop table u"):
        places.append(server.status())
        server.execute(statement, "shop")
    places.append(server.status())
    server.execute("insert into t values (2); insert into t values (3)", "shop")
    found = []
    for number, (file, offset) in enumerate(places):
        folder = tmp_path / str(number)
        extractor_of(url, folder, at=BinlogPosition.at(file, offset)).run()
        found.append(ids(folder))
    assert found == [[1, 2, 3], [2, 3], [2, 3], [2, 3]]


# -- another server ------------------------------------------------------------------------------


def test_another_server_takes_over_by_gtid(own_mysql: Maker, tmp_path: Path) -> None:
    """The new server's files and offsets differ: nothing is lost or repeated, and the
    order holds.
    """
    old, url = start_server(own_mysql, log_slave_updates="ON")
    new = own_mysql(settings={"server_id": "2", "log_slave_updates": "ON"})
    follow_primary(new, old)
    extractor_of(url, tmp_path).run()
    insert(old, 1, 2)
    extractor_of(url, tmp_path).run()
    insert(old, 3)
    until(lambda: new.execute("select count(*) from shop.t")[0][0] == 3)
    new.execute(f"stop {new.replica_word}; flush binary logs")
    insert(new, 4)
    for _ in range(2):
        outcome = extractor_of(new.url("shop"), tmp_path).run()
    assert ids(tmp_path) == [1, 2, 3, 4]
    file, offset = new.status()
    position = outcome.end.position
    engine = engine_of(new.url("shop"), tmp_path)
    Extractor(engine, tmp_path, options=ExtractOptions(exit_when_idle=True, idle_wait_s=0.2)).run()
    assert engine.text(position) == f"{file}:{offset}"
    # The old one lacks the transactions that we have from the new one.
    with pytest.raises(ServerBehind):
        extractor_of(url, tmp_path).run()


def test_another_server_is_refused_where_it_is_not_known_what_we_have(
    own_mysql: Maker, tmp_path: Path
) -> None:
    """A state older than the log's end is not sufficient."""
    old, url = start_server(own_mysql, log_slave_updates="ON")
    new = own_mysql(settings={"server_id": "2", "log_slave_updates": "ON"})
    follow_primary(new, old)
    extractor_of(url, tmp_path).run()
    state = (tmp_path / "state" / "binlog.json").read_bytes()
    insert(old, 1, 2)
    extractor_of(url, tmp_path).run()
    until(lambda: new.execute("select count(*) from shop.t")[0][0] == 2)
    (tmp_path / "state" / "binlog.json").write_bytes(state)
    (tmp_path / "run" / "binlog_exact.json").unlink()
    with pytest.raises(SeenUnknown):
        extractor_of(new.url("shop"), tmp_path).run()
    insert(old, 3)
    extractor_of(url, tmp_path).run()
    assert ids(tmp_path) == [1, 2, 3]


@pytest.mark.server("mysql")
def test_without_gtids_another_server_is_refused(own_mysql: Maker, tmp_path: Path) -> None:
    """Positions mean nothing on another server; on the same server all continues."""
    old, url = start_server(own_mysql, gtid_mode="OFF", enforce_gtid_consistency="OFF")
    new, other = start_server(
        own_mysql, gtid_mode="OFF", enforce_gtid_consistency="OFF", server_id="2"
    )
    extractor_of(url, tmp_path).run()
    insert(old, 1)
    extractor_of(url, tmp_path).run()
    insert(new, 1)
    with pytest.raises(ServerReplaced):
        extractor_of(other, tmp_path).run()
    insert(old, 2)
    extractor_of(url, tmp_path).run()
    assert ids(tmp_path) == [1, 2]
