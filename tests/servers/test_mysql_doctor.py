"""Doctor's checks of a MySQL or MariaDB source: each condition is made on a real
server and fixed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import quote

import pymysql
import pytest

from harness.servers.mysql_doctor import look, one
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.engines.mysql.checks import CHECKS, resume_checks, settings
from penstock.engines.mysql.checks.probe import MySQLProbe, ProbeScope
from penstock.engines.mysql.connect import ServerVersion, connect
from penstock.engines.mysql.source.client import DumpOptions, open_binlog
from penstock.engines.mysql.source.status import ResumePoint, read_identity, read_status
from penstock.ports.checks import Severity, Side
from plugins.mysql import MySQLServer

E, W, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
READER = DumpOptions(server_id=4_000_000_001)


@pytest.fixture(scope="module")
def server(tuned_mysql: MySQLServer) -> MySQLServer:
    """A server whose settings these tests change, with the database d."""
    tuned_mysql.execute("create database d")
    return tuned_mysql


@pytest.fixture
def run(server: MySQLServer) -> Callable[[str], None]:
    """Run SQL in d, which is empty at first."""
    server.execute("drop database d; create database d")
    return lambda sql: (server.execute(sql, "d"), None)[1]


@contextmanager
def restart_with(server: MySQLServer, *unset: str, **changed: str) -> Iterator[None]:
    """Run the server with other settings in its configuration file, for a with block."""
    before = dict(server.embedded._settings)
    server.embedded.set(**changed)
    server.embedded.unset(*unset)
    server.embedded.stop()
    server.embedded.start()
    try:
        yield
    finally:
        server.embedded.unset(*server.embedded._settings)
        server.embedded.set(**before)
        server.embedded.stop()
        server.embedded.start()


def test_every_check_of_the_reference_is_registered() -> None:
    """MY001 to MY045 and PK20 are registered, each with a title and a docstring."""
    codes = {f"MY{number:03}" for number in range(1, 46)} | {"PK20"}
    assert {check.code for check in CHECKS} == codes
    for check in CHECKS:
        assert check.function.__doc__
        assert check.title


def test_a_healthy_source_has_no_error(server: MySQLServer, run: Callable[[str], None]) -> None:
    """No finding stops a run if keys, rights and settings are in place; doctor changes nothing."""
    run("create table a (id int primary key, t text)")
    before = server.status()
    with server.globals(sync_binlog="1", innodb_flush_log_at_trx_commit="1"):
        found = look(server, server_id=77)
    assert [f for f in found if f.severity is not INFO] == []
    assert {f.code for f in found} <= {"MY026"}
    assert server.status() == before


def test_modes_without_change_are_asked_less(
    server: MySQLServer, run: Callable[[str], None]
) -> None:
    """The way in which changes are logged is ignored for a pipeline that only copies."""
    with server.globals(binlog_format="'STATEMENT'"):
        assert look(server, "MY002", has_change=False) == []


# -- settings ----------------------------------------------------------------------------------


def test_my001_log_off(server: MySQLServer) -> None:
    """There is nothing to follow; other checks of the log are not made."""
    off = {} if server.is_mariadb else {"skip_log_bin": "ON"}
    with restart_with(server, "log_bin", "log_slave_updates", **off):
        one(look(server, "MY001"), "MY001", E, "log_bin = binlog")
        assert look(server, "MY011", "MY014", "MY015", "MY035") == []
    assert look(server, "MY001") == []


@pytest.mark.parametrize("written", ["STATEMENT", "MIXED"])
def test_my002_format(server: MySQLServer, written: str) -> None:
    """A binlog format other than rows is an error."""
    with server.globals(binlog_format=f"'{written}'"):
        fix = (
            "set global binlog_format = 'ROW'"
            if server.is_mariadb
            else ("set persist binlog_format = 'ROW'")
        )
        one([f for f in look(server, "MY002") if f.severity is E], "MY002", E, written, fix)
    assert look(server, "MY002") == []


@pytest.mark.server("mysql")
def test_my002_sessions_that_keep_their_own(server: MySQLServer) -> None:
    """A session may log statements although the setting says rows."""
    with server.connect() as session, session.cursor() as cursor:
        cursor.execute("set session binlog_format = 'STATEMENT'")
        one(look(server, "MY002"), "MY002", W, "STATEMENT", f"kill {session.thread_id()}")
    with server.role("replication client on *.*") as url:
        one(look(server, "MY002", url=url), "MY002", INFO, "grant select on performance_schema")


@pytest.mark.parametrize(("image", "severity"), [("MINIMAL", E), ("NOBLOB", W)])
def test_my003_image(server: MySQLServer, image: str, severity: Severity) -> None:
    """Incomplete row images are an error."""
    with server.globals(binlog_row_image=f"'{image}'"):
        one(look(server, "MY003"), "MY003", severity, image, "binlog_row_image = 'FULL'")
        one(look(server, "MY003", wants_whole_rows=True), "MY003", E, image)
    assert look(server, "MY003") == []


def test_my004_metadata(server: MySQLServer) -> None:
    """Names of columns have to come from the catalogue then."""
    with server.globals(binlog_row_metadata="'MINIMAL'"):
        one(look(server, "MY004"), "MY004", W, "binlog_row_metadata = 'FULL'")
    assert look(server, "MY004") == []


@pytest.mark.server("mysql")
def test_my005_partial_json(server: MySQLServer) -> None:
    """Partial JSON is accepted with complete old rows, and an error without."""
    with server.globals(binlog_row_value_options="'PARTIAL_JSON'"):
        one(look(server, "MY005"), "MY005", INFO, "binlog_row_value_options = ''")
        with server.globals(binlog_row_image="'NOBLOB'"):
            one(look(server, "MY005"), "MY005", E)
    assert look(server, "MY005") == []


@pytest.mark.server("mysql")
def test_my006_gtid_mode(server: MySQLServer) -> None:
    """The statements lead from the current mode to ON, in order."""
    server.execute("set global gtid_mode = ON_PERMISSIVE")
    try:
        found = one(look(server, "MY006"), "MY006", W, "ON_PERMISSIVE")
        assert found.command.endswith("set persist gtid_mode = ON;")
        server.execute("set global gtid_mode = OFF_PERMISSIVE; set global gtid_mode = OFF")
        found = one(look(server, "MY006"), "MY006", W)
        server.execute(found.command.replace("set persist", "set global"))
        assert look(server, "MY006") == []
    finally:
        for step in ("OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"):
            if server.value("select @@gtid_mode") != "ON":
                server.execute(f"set global gtid_mode = {step}")


@pytest.mark.server("mariadb")
def test_my007_strict_mode(server: MySQLServer) -> None:
    """One number for two transactions would not be refused."""
    with server.globals(gtid_strict_mode="0"):
        one(look(server, "MY007"), "MY007", W, "set global gtid_strict_mode = 1")
    assert look(server, "MY007") == []


def test_my008_retention(server: MySQLServer) -> None:
    """A retention below three days is a warning; 0 means forever."""
    with server.globals(binlog_expire_logs_seconds="7200"):
        one(look(server, "MY008"), "MY008", W, "for 2 hours", "binlog_expire_logs_seconds = 604800")
    for enough in ("0", "604800"):
        with server.globals(binlog_expire_logs_seconds=enough):
            assert look(server, "MY008") == []


def test_my008_on_amazon(server: MySQLServer) -> None:
    """RDS keeps binlogs by its own setting, which is empty at first."""
    server.execute(
        "create table mysql.rds_configuration (name varchar(99), value varchar(99));"
        "insert into mysql.rds_configuration values ('binlog retention hours', null);"
        "create procedure mysql.rds_set_configuration() select 1"
    )
    try:
        one(look(server, "MY008"), "MY008", W, "call mysql.rds_set_configuration")
        server.execute("update mysql.rds_configuration set value = '168'")
        assert look(server, "MY008") == []
        with server.globals(binlog_row_image="'MINIMAL'"):
            one(look(server, "MY003"), "MY003", E, "parameter group")
    finally:
        server.execute("drop table mysql.rds_configuration;"
                       "drop procedure mysql.rds_set_configuration")  # fmt: skip


@pytest.mark.parametrize("name", ["binlog_do_db", "binlog_ignore_db"])
def test_my011_filters(server: MySQLServer, name: str) -> None:
    """A filter of the server leaves changes out."""
    with restart_with(server, **{name: "other"}):
        one(look(server, "MY011"), "MY011", E, f"{name} = other", "remove")
    assert look(server, "MY011") == []


def test_my025_checksum(server: MySQLServer) -> None:
    """A missing checksum is only an information."""
    with server.globals(binlog_checksum="'NONE'"):
        one(look(server, "MY025"), "MY025", INFO, "'CRC32'")
    assert look(server, "MY025") == []


def test_my026_timeouts(server: MySQLServer) -> None:
    """Penstock's sessions set their own timeouts; other readers may not."""
    with server.globals(net_write_timeout="60", wait_timeout="100"):
        one(look(server, "MY026"), "MY026", INFO, "net_write_timeout = 60", "wait_timeout = 100")
    with server.globals(net_write_timeout="3600"):
        assert look(server, "MY026") == []


def test_my029_durability(server: MySQLServer) -> None:
    """The temporary servers of these tests are not durable."""
    found = look(server, "MY029")
    assert [(f.code, f.severity) for f in found] == [("MY029", W)] * 2
    assert {f.command.split()[2] for f in found} == {
        "sync_binlog",
        "innodb_flush_log_at_trx_commit",
    }
    with server.globals(sync_binlog="1", innodb_flush_log_at_trx_commit="1"):
        assert look(server, "MY029") == []


def test_my035_log_size(server: MySQLServer) -> None:
    """A log larger than the policy allows is a warning."""
    one(look(server, "MY035", log_size_bytes_max=10), "MY035", W, "GiB of binlog")
    assert look(server, "MY035") == []


@pytest.mark.parametrize(
    ("text", "severity"),
    [("5.6.51", E), ("10.4.30-MariaDB", E), ("10.0.1", W), ("12.1.2-MariaDB", W),
     ("5.7.44", None), ("9.7.4", None), ("10.5.1-MariaDB", None), ("11.8.2-MariaDB", None)],
)  # fmt: skip
def test_my036_versions(server: MySQLServer, text: str, severity: Severity | None) -> None:
    """Older versions are refused, newer ones reported as unknown; the current one is neither."""
    assert look(server, "MY036") == []
    with connect(server.url(), application_name="t") as connection:

        class Probe(MySQLProbe):
            server = ServerVersion.parse(text)

        probe = Probe(side=Side.SOURCE, url="", connection=connection, wanted=ProbeScope())
        found = [finding.severity for finding in settings.version(probe)]
    assert found == ([severity] if severity else [])


# -- positions ---------------------------------------------------------------------------------


@pytest.fixture
def resume(server: MySQLServer, run: Callable[[str], None]) -> ResumePoint:
    """A position that is valid now, from which a reader could resume; the log begins again before
    it.
    """
    server.reset_log()
    run("create table a (id int primary key)")
    with connect(server.url(), application_name="t") as connection:
        status = read_status(connection)
        name = read_identity(connection).name
    return ResumePoint(position=status.position, server=name, gtids=status.gtids)


def test_my009_position(server: MySQLServer, resume: ResumePoint) -> None:
    """A purged or future position is an error with the remaining positions."""
    assert look(server, "MY009", "MY010", resume=resume) == []
    by_file = replace(resume, gtids="")
    beyond = replace(by_file, position=BinlogPosition.at("binlog.000009", 4))
    one(look(server, "MY009", "MY010", resume=beyond), "MY009", E, "ends at binlog.000001")
    server.execute("insert into d.a values (1); flush binary logs")
    while server.execute("show binary logs")[0][0] == "binlog.000001":
        server.execute("purge binary logs to 'binlog.000002'")
    one(look(server, "MY009", "MY010", resume=by_file), "MY009", E, "binlog.000002:4")
    one(
        look(server, "MY009", "MY010", resume=resume),
        "MY009",
        E,
        "load everything again: penstock reset",
    )


def test_my010_server(server: MySQLServer, resume: ResumePoint) -> None:
    """A different server is recognized by its own identification."""
    other = replace(resume, server="another server")
    one(look(server, "MY009", "MY010", resume=replace(other, gtids="")), "MY010", E)
    assert look(server, "MY009", "MY010", resume=other) == []
    rewritten = replace(resume, gtids="", log_identity="00000000")
    one(look(server, "MY009", "MY010", resume=rewritten), "MY010", E, "another file")


def test_my012_replica(server: MySQLServer) -> None:
    """Changes that a replica receives must be in its log; read_only or a primary's address show
    one.
    """
    name = "log_replica_updates" if server.version.mysql(8, 0, 26) else "log_slave_updates"
    with restart_with(server, **{name: "OFF"}):
        assert look(server, "MY012") == [], "it is a primary"
        with server.globals(read_only="1"):
            one(look(server, "MY012"), "MY012", E, f"{name} = ON")
        new = server.version.mysql(8, 4)
        server.execute(
            "change replication source to source_host = '127.0.0.1', source_user = 'x'"
            if new
            else "change master to master_host = '127.0.0.1', master_user = 'x'"
        )
        try:
            one(look(server, "MY012"), "MY012", E)
        finally:
            server.execute("reset replica all" if new else "reset slave all")
    with server.globals(read_only="1"):
        assert look(server, "MY012") == []


def here(server: MySQLServer) -> BinlogPosition:
    """Return the end of the binlog."""
    return BinlogPosition.at(*server.status())


def test_my013_server_id(server: MySQLServer) -> None:
    """The server's own id is refused, and that of another reader with the same login."""
    one(look(server, "MY013", server_id=1), "MY013", E, "serverId")
    assert look(server, "MY013", server_id=77) == []
    socket = quote(str(server.embedded.directory.parent / "server.sock"))
    elsewhere = server.url() + f"?unix_socket={socket}"
    with open_binlog(elsewhere, position=here(server), options=READER) as stream:
        assert next(stream.events()) is not None
        one(look(server, "MY013", server_id=77), "MY013", W, "localhost", "kill")
    with open_binlog(server.url(), position=here(server), options=READER) as stream:
        assert next(stream.events()) is not None
        assert look(server, "MY013", server_id=77) == [], "it may be our own"


def test_my014_to_my016_rights(server: MySQLServer, run: Callable[[str], None]) -> None:
    """Each right is tried, and the printed GRANT gives it."""
    run("create table a (id int primary key, x int)")
    codes = ("MY014", "MY015", "MY016")
    with server.role("select (id) on d.a") as url:
        found = look(server, *codes, url=url)
        assert [(f.code, f.severity) for f in found] == [(code, E) for code in codes]
        for finding in found:
            server.execute(finding.command)
        assert look(server, *codes, url=url) == []


def test_my017_my018_rights_to_lock(server: MySQLServer, run: Callable[[str], None]) -> None:
    """Doctor says how the bulk load will lock, and which right would allow a better way."""
    run("create table a (id int primary key)")
    codes = ("MY017", "MY018")
    assert look(server, *codes) == []
    grants = ("replication client on *.*", "select on d.*")
    with server.role(*grants) as url:
        found = look(server, *codes, url=url)
        if server.is_mariadb:
            # Each snapshot knows its position; only schema changes need the missing right.
            server.execute(one(found, "MY017", W, "BINLOG ADMIN").command)
            assert look(server, *codes, url=url) == []
            return
        assert [(f.code, f.severity) for f in found] == [("MY017", W), ("MY018", W)]
        assert "without a lock" in found[0].what
        server.execute(found[0].command)
        one(look(server, *codes, url=url), "MY018", W, "grant backup_admin")
        server.execute(found[1].command)
        assert look(server, *codes, url=url) == []
        assert look(server, *codes, url=url, has_data=False) == []
    with server.role("select on d.*") as url:
        found = look(server, "MY017", url=url)
        one(found, "MY017", E, "REPLICATION CLIENT", "grant ")


def test_my030_long_statements(
    server: MySQLServer, run: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock would wait for long statements, and for open transactions."""
    for name in ("LONG_STATEMENTS", "LONG_TRANSACTIONS"):
        text = getattr(resume_checks, name).replace("60", "1")
        monkeypatch.setattr(resume_checks, name, text)
    run("create table a (id int primary key)")
    assert look(server, "MY030") == []
    with server.connect("d") as open_one, server.connect("d") as busy:
        open_one.cursor().execute("begin")
        open_one.cursor().execute("insert into a values (1)")
        sleeping = threading.Thread(target=lambda: busy.cursor().execute("select sleep(4)"))
        sleeping.start()
        time.sleep(2.5)
        found = look(server, "MY030")
        assert {f.command.split(";")[0] for f in found} == {
            f"kill {open_one.thread_id()}",
            f"kill {busy.thread_id()}",
        }
        assert {f.severity for f in found} == {W}
        assert look(server, "MY030", has_data=False) == []
        open_one.rollback()
        sleeping.join()


def test_my034_prepared_transactions(server: MySQLServer, run: Callable[[str], None]) -> None:
    """Prepared transactions may have been forgotten."""
    run("create table a (id int primary key)")
    assert look(server, "MY034") == []
    server.execute("xa start 'lost'; insert into a values (1); xa end 'lost'; xa prepare 'lost'",
                   "d")  # fmt: skip
    try:
        one(look(server, "MY034"), "MY034", W, "lost", "xa rollback")
        if not server.is_mariadb:
            with server.role() as url:
                one(look(server, "MY034", url=url), "MY034", INFO, "grant xa_recover_admin")
    finally:
        deadline = time.monotonic() + 10
        while server.execute("xa recover"):
            assert time.monotonic() < deadline
            try:
                server.execute("xa rollback 'lost'")
            except pymysql.Error:  # the preparing session is still ending
                time.sleep(0.1)


# -- tables ------------------------------------------------------------------------------------


def test_my019_keys(server: MySQLServer, run: Callable[[str], None]) -> None:
    """A table without key is reported with the statement that adds one."""
    run("create table a (x int); create table b (id int primary key);"
        "create table c (x int not null unique)")  # fmt: skip
    found = one(look(server, "MY019"), "MY019", W, "d.a")
    server.execute(found.command)
    assert look(server, "MY019") == []


def test_my020_engines(server: MySQLServer, run: Callable[[str], None]) -> None:
    """Engines without snapshots are reported with the statement that changes them."""
    run("create table a (id int primary key) engine = myisam")
    found = one(look(server, "MY020"), "MY020", W, "MyISAM")
    server.execute(found.command)
    assert look(server, "MY020") == []


@pytest.mark.parametrize("rule", ["on delete cascade", "on update cascade", "on delete set null"])
def test_my021_cascades(server: MySQLServer, run: Callable[[str], None], rule: str) -> None:
    """Cascades of InnoDB are not logged; the statement removes the rule."""
    run("create table p (id int primary key)")
    run("create table t (id int primary key, p int, constraint fk foreign key (p)"
        f" references p (id) {rule})")  # fmt: skip
    if server.version.mysql(9, 6):
        assert look(server, "MY021") == [], "the server logs them"
        return
    found = one(look(server, "MY021"), "MY021", E, "fk", rule.split(" ", 2)[2])
    drop, add = found.command.rstrip(";").split(", add ", 1)
    server.execute(drop)
    server.execute(f"{drop.split(' drop ')[0]} add {add}")
    assert look(server, "MY021") == []


@pytest.mark.server("mariadb")
def test_my022_old_times(server: MySQLServer, run: Callable[[str], None]) -> None:
    """The setting is reported, and tables that were created under it."""
    with server.globals(mysql56_temporal_format="0"):
        run("create table a (id int primary key, t time(3), d datetime)")
        found = look(server, "MY022")
        assert [(f.code, f.severity) for f in found] == [("MY022", W)] * 2
        assert "set global mysql56_temporal_format = 1" in found[0].command
        assert "t" in found[1].what
    finding = one(look(server, "MY022"), "MY022", W)
    server.execute(finding.command)
    assert look(server, "MY022") == []


def test_my023_zero_dates(server: MySQLServer, run: Callable[[str], None]) -> None:
    """This check reads the tables, so it runs only on request."""
    run("create table a (id int primary key, d date, t datetime(3), u timestamp null)")
    server.execute("set sql_mode = 'ALLOW_INVALID_DATES'; insert into a values"
                   " (1, '0000-00-00', '2024-01-01', null), (2, '2024-01-01', '2024-00-01', null)",
                   "d")  # fmt: skip
    assert look(server, "MY023") == []
    found = look(server, "MY023", search_zero_dates=True)
    assert [(f.code, f.severity) for f in found] == [("MY023", W)] * 2
    assert {"in d whose" in found[0].what, "in t whose" in found[1].what} == {True}
    for finding in found:
        server.execute(f"set sql_mode = ''; {finding.command}")
    assert look(server, "MY023", search_zero_dates=True) == []


@pytest.mark.server("mariadb")
def test_my031_versioned_and_sequences(server: MySQLServer, run: Callable[[str], None]) -> None:
    """Versioned tables have old rows among new ones; sequences have numbers, not rows."""
    run("create table a (id int primary key) with system versioning; create sequence s")
    found = look(server, "MY031")
    assert [(f.code, f.severity) for f in found] == [("MY031", W), ("MY031", INFO)]
    assert '"!d.a"' in found[0].command
    assert "d.s: it is a sequence" in found[1].what
    assert look(server, "MY031", patterns=("d.*", "!d.*")) == []


@pytest.mark.server("mariadb")
def test_my032_hidden_types(server: MySQLServer, run: Callable[[str], None]) -> None:
    """The definition has to contain the types."""
    run("create table a (id int primary key, u uuid, i inet6, j json, c varchar(50) compressed)")
    one(look(server, "MY032"), "MY032", INFO, "u, i, j")
    run("create table b (id int primary key); drop table a")
    assert look(server, "MY032") == []
