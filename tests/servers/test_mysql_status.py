"""The end of the binlog, and whether a server still has the changes after a stored position."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.codec.mysql.gtids import GtidSet
from penstock.engines.mysql.connect import Connection, ServerVersion, connect
from penstock.engines.mysql.source import dump_errors
from penstock.engines.mysql.source import status as st
from penstock.host.errors import PrivilegeMissing
from plugins.mysql import MySQLServer


@pytest.fixture
def fresh(tuned_mysql: MySQLServer) -> MySQLServer:
    """A server whose binlog begins again: one file, a table d.t with a row."""
    tuned_mysql.reset_log()
    tuned_mysql.execute("drop database if exists d; create database d")
    tuned_mysql.execute("create table d.t (id int primary key); insert into d.t values (0)")
    return tuned_mysql


@pytest.fixture
def connection(fresh: MySQLServer) -> Iterator[Connection]:
    """A connection of the superuser to it."""
    with connect(fresh.url(), application_name="test") as opened:
        yield opened


def resume_point(server: MySQLServer, connection: Connection) -> st.ResumePoint:
    """Return the stored position of a reader that has read up to the end of the log."""
    status = st.read_status(connection)
    return st.ResumePoint(
        position=status.position,
        server=st.read_identity(connection).name,
        gtids=status.gtids,
        log_identity=st.read_log_identity(server.url(), status.position.file),
    )


def check(server: MySQLServer, connection: Connection, point: st.ResumePoint) -> None:
    """Raise an error unless the server would let us resume there."""
    st.check_resume(connection, server.url(), point)


def by_file(point: st.ResumePoint) -> st.ResumePoint:
    """Return the same point on a server without GTIDs."""
    return replace(point, gtids="")


@pytest.mark.parametrize(
    ("version", "statement"),
    [
        ("5.7.44", "show master status"),
        ("8.0.15", "show master status"),
        ("8.1.0", "show master status"),
        ("8.2.0", "show binary log status"),
        ("8.4.3", "show binary log status"),
        ("9.7.4", "show binary log status"),
        ("10.4.1-MariaDB", "show master status"),
        ("10.5.2-MariaDB", "show binlog status"),
        ("11.4.5-MariaDB", "show binlog status"),
    ],
)
def test_the_statement_follows_the_version(version: str, statement: str) -> None:
    """Each statement is the only form, or the newer one, that its server knows."""
    assert st.status_statement(ServerVersion.parse(version)) == statement


def test_status_and_files(fresh: MySQLServer, connection: Connection) -> None:
    """Position, GTIDs and files are those of the server."""
    status = st.read_status(connection)
    assert (status.position.file, status.position.offset) == fresh.status()
    assert (status.do_databases, status.ignored_databases) == ("", "")
    files = st.binlog_files(connection)
    assert [file.name for file in files] == ["binlog.000001"]
    assert files[0].size_bytes == status.position.offset
    if fresh.is_mariadb:
        assert status.gtids.startswith("0-1-")
    else:
        assert status.gtids.startswith(fresh.value("select @@server_uuid") + ":1-")
    assert str(status.parse_gtids(connection.server)) == status.gtids


def test_capture_is_the_handovers_step(fresh: MySQLServer, connection: Connection) -> None:
    """SHOW MASTER STATUS and FLUSH BINARY LOGS give the end of the file before the new one."""
    status = st.capture(connection)
    assert status.position.file == "binlog.000001"
    assert [file.name for file in st.binlog_files(connection)] == [
        "binlog.000001",
        "binlog.000002",
    ]
    assert st.read_status(connection).position > status.position


def test_without_the_right_the_grant_is_named(fresh: MySQLServer) -> None:
    """The GRANT has the account as the server knows it."""
    with fresh.role() as url, connect(url, application_name="t") as poor:
        with pytest.raises(PrivilegeMissing) as caught:
            st.read_status(poor)
        assert f"on *.* to {st.account(poor)};" in caught.value.hint
        assert st.account(poor).endswith("@'127.0.0.1'")
        fresh.execute(f"grant {st.status_right(poor.server)} on *.* to {st.account(poor)}")
    right = st.status_right(fresh.version) + " on *.*"
    with fresh.role(right) as url, connect(url, application_name="t") as enough:
        assert st.read_status(enough).position.file == "binlog.000001"


def test_identity(fresh: MySQLServer, connection: Connection) -> None:
    """MySQL has a uuid, MariaDB only a number."""
    identity = st.read_identity(connection)
    assert identity.version == fresh.version
    assert identity.server_id == 1
    assert identity.has_gtids
    expected = "" if fresh.is_mariadb else fresh.value("select @@server_uuid")
    assert identity.server_uuid == expected
    assert identity.name == (expected or "server_id 1")


def test_a_file_keeps_its_identity_until_it_is_written_anew(
    own_mysql: Callable[..., MySQLServer],
) -> None:
    """The identity stays while the file is written, after a restart and closed; RESET MASTER
    changes it.
    """
    server = own_mysql()
    first = st.read_log_identity(server.url(), "binlog.000001")
    server.execute("create database d")
    assert st.read_log_identity(server.url(), "binlog.000001") == first
    server.embedded.stop()
    server.embedded.start()
    assert st.read_log_identity(server.url(), "binlog.000001") == first
    assert st.read_log_identity(server.url(), "binlog.000002") != first
    time.sleep(1.1)  # it contains the second of its creation
    server.reset_log()
    assert st.read_log_identity(server.url(), "binlog.000001") != first
    with pytest.raises(dump_errors.LogPurged):
        st.read_log_identity(server.url(), "binlog.000009")


# -- resuming ------------------------------------------------------------------------------------


def test_going_on_where_we_were(fresh: MySQLServer, connection: Connection) -> None:
    """A reader resumes with GTIDs and without, at once and after more writes and rotations."""
    point = resume_point(fresh, connection)
    for _ in range(2):
        check(fresh, connection, point)
        check(fresh, connection, by_file(point))
        fresh.execute("insert into d.t values (1); flush binary logs; delete from d.t")


def test_a_purged_file(fresh: MySQLServer, connection: Connection) -> None:
    """The error has the oldest remaining position."""
    point = resume_point(fresh, connection)
    fresh.execute("insert into d.t values (1); flush binary logs")
    purge(fresh, "binlog.000002")
    with pytest.raises(dump_errors.LogPurged) as caught:
        check(fresh, connection, by_file(point))
    assert caught.value.fields["oldest"] == "binlog.000002:4"
    with pytest.raises(dump_errors.GtidsPurged):
        check(fresh, connection, point)


def purge(server: MySQLServer, file: str) -> None:
    """Let the server delete files before this one; MariaDB may need a moment for that."""
    while server.execute("show binary logs")[0][0] != file:
        server.execute(f"purge binary logs to '{file}'")


def test_what_was_purged_may_have_been_seen(fresh: MySQLServer, connection: Connection) -> None:
    """A file may be deleted if by GTID it had nothing new for us."""
    fresh.execute("flush binary logs")
    point = resume_point(fresh, connection)
    purge(fresh, "binlog.000002")
    check(fresh, connection, point)


def test_reset_master(fresh: MySQLServer, connection: Connection) -> None:
    """The new files are not the ones that we read, whatever they look like."""
    point = resume_point(fresh, connection)
    later = replace(point, position=BinlogPosition.at("binlog.000007", 4))
    time.sleep(1.1)
    fresh.reset_log()
    for unfit in (by_file(point), by_file(later)):
        with pytest.raises((dump_errors.PositionUnfit, dump_errors.ServerBehind)):
            check(fresh, connection, unfit)
    with pytest.raises(dump_errors.ServerBehind):
        check(fresh, connection, point)
    for number in range(30):
        fresh.execute(f"insert into d.t values ({number + 1})")
    with pytest.raises(dump_errors.LogReset, match="another file than the one we read"):
        check(fresh, connection, by_file(point))


def test_a_file_that_lost_its_end(fresh: MySQLServer, connection: Connection) -> None:
    """A crash without sync_binlog = 1 may lose events that were sent."""
    point = by_file(resume_point(fresh, connection))
    beyond = BinlogPosition.at(point.position.file, point.position.offset + 1)
    with pytest.raises(dump_errors.PositionUnfit, match="lies outside its file"):
        check(fresh, connection, replace(point, position=beyond))


def test_another_server(fresh: MySQLServer, connection: Connection) -> None:
    """A position means nothing on another server without GTIDs; with them it is ignored."""
    point = replace(resume_point(fresh, connection), server="another server")
    with pytest.raises(dump_errors.ServerReplaced):
        check(fresh, connection, by_file(point))
    check(fresh, connection, point)


def test_a_server_that_lacks_transactions(fresh: MySQLServer, connection: Connection) -> None:
    """The server lacks its own transactions, or those of a former primary: MySQL checks only its
    own.
    """
    point = resume_point(fresh, connection)
    if fresh.is_mariadb:
        strange = ["0-1-999", "0-1-2,7-1-1"]
    else:
        own = GtidSet.parse(point.gtids)
        own.add((fresh.value("select @@server_uuid"), ""), 999, 999)
        strange = [str(own), f"{point.gtids},ffffffff-0000-0000-0000-000000000001:1-3"]
    for gtids in strange:
        with pytest.raises(dump_errors.ServerBehind):
            check(fresh, connection, replace(point, gtids=gtids))


@pytest.mark.server("mariadb")
def test_a_domain_that_we_have_not_begun(fresh: MySQLServer, connection: Connection) -> None:
    """Purged transactions of another domain are missing for us, too."""
    point = resume_point(fresh, connection)
    fresh.execute("set gtid_domain_id = 5; insert into d.t values (1); flush binary logs")
    check(fresh, connection, point)
    fresh.execute("flush binary logs")
    purge(fresh, "binlog.000003")
    with pytest.raises(dump_errors.GtidsPurged):
        check(fresh, connection, point)
