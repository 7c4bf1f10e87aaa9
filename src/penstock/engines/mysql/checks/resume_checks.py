"""Doctor's checks of a source's state: its log and ours, other readers, privileges, sessions."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.codec.mysql import mysqlwire
from penstock.codec.mysql.binlog_position import BINLOG_HEAD_BYTES, BinlogPosition
from penstock.engines.mysql.checks.probe import SOURCE_CHECKS, MySQLProbe, names
from penstock.engines.mysql.connect import quote
from penstock.engines.mysql.source.catalog import OWN_SCHEMA
from penstock.engines.mysql.source.client import DumpOptions, open_binlog, probe_server_id
from penstock.engines.mysql.source.dump_errors import (
    LogPurged,
    LogReset,
    PositionUnfit,
    ServerBehind,
    ServerReplaced,
)
from penstock.engines.mysql.source.heartbeat import RIGHTS, TABLE
from penstock.engines.mysql.source.snapshot import read_choices
from penstock.engines.mysql.source.status import (
    binlog_files,
    check_resume,
    read_status,
    status_right,
)
from penstock.engines.mysql.source.strategies import NoConsistentPoint, Strategy
from penstock.host.errors import PrivilegeMissing
from penstock.model import PenstockError
from penstock.ports.checks import Finding, Severity, fix_of

LONG_QUERY_S = 60

READERS = """
    select id, user, host
      from information_schema.processlist
     where command like 'Binlog Dump%%'
       and user = %s
     order by id
"""
OWN_HOST = "select host from information_schema.processlist where id = connection_id()"

LONG_STATEMENTS = f"""
    select id, user, command, time as seconds
      from information_schema.processlist
     where command in ('Query', 'Execute')
       and time > {LONG_QUERY_S}
     order by time desc
"""
LONG_TRANSACTIONS = f"""
    select trx_mysql_thread_id as id,
           timestampdiff(second, trx_started, now()) as seconds
      from information_schema.innodb_trx
     where trx_started < now() - interval {LONG_QUERY_S} second
     order by trx_started
"""


@SOURCE_CHECKS.check("MY009", "position still in the binlog", change_only=True)
def position_kept(probe: MySQLProbe) -> Iterator[Finding]:
    """Check that the position at which the change log ends is still in the binlog."""
    error = _resume_error(probe)
    if isinstance(error, LogPurged | ServerBehind | PositionUnfit):
        yield probe.make_finding(
            "MY009",
            Severity.ERROR,
            error.message,
            "the change log cannot continue from its end",
            fix_of(error),
        )


@SOURCE_CHECKS.check("MY010", "same server", change_only=True)
def same_server(probe: MySQLProbe) -> Iterator[Finding]:
    """Check, without GTIDs, that the source is the server that the change log was filled from."""
    error = _resume_error(probe)
    if isinstance(error, ServerReplaced | LogReset):
        yield probe.make_finding(
            "MY010",
            Severity.ERROR,
            error.message,
            "the last position of the change log has another meaning there",
            fix_of(error),
        )


def _resume_error(probe: MySQLProbe) -> PenstockError | None:
    """Return the reason why extraction cannot resume, or None; checked once."""
    point = probe.wanted.resume
    if point is None:
        return None
    if "resume" not in probe.memo:
        try:
            check_resume(probe.connection, probe.url, point)
            probe.memo["resume"] = None
        except (LogPurged, ServerBehind, PositionUnfit, ServerReplaced, LogReset) as error:
            probe.memo["resume"] = error
    found: PenstockError | None = probe.memo["resume"]
    return found


@SOURCE_CHECKS.check("MY012", "binlog of a replica", change_only=True)
def replica_logs(probe: MySQLProbe) -> Iterator[Finding]:
    """Check that a replica logs the changes of its primary, which needs log_slave_updates."""
    if probe.is_on("log_replica_updates", "log_slave_updates"):
        return
    if not (probe.is_on("read_only") or _is_replica(probe)):
        return
    is_new = probe.variable("log_replica_updates") is not None
    name = "log_replica_updates" if is_new else "log_slave_updates"
    yield probe.make_finding(
        "MY012",
        Severity.ERROR,
        f"the source is a replica with {name} off",
        "changes that it gets from its primary are not in its binlog",
        f"{name} = ON in the server's configuration file, then restart it",
    )


def _is_replica(probe: MySQLProbe) -> bool:
    server = probe.server
    new = server.mysql(8, 0, 22) or server.mariadb(10, 5, 1)
    try:
        return bool(probe.rows("show replica status" if new else "show slave status"))
    except PrivilegeMissing:
        return False  # then read_only alone decides


@SOURCE_CHECKS.check("MY013", "server id", change_only=True)
def server_id(probe: MySQLProbe) -> Iterator[Finding]:
    """Check that our server id is unique: each replica and each reader needs its own."""
    ours = probe.wanted.server_id
    if ours and ours == probe.number("server_id"):
        yield probe.make_finding(
            "MY013",
            Severity.ERROR,
            f"the source has the server id {ours}, which is our own",
            "readers with the same id end each other's connections, and changes look as if they "
            "were ours",
            "set another changeExtractor.serverId",
        )
    here = _host_name(str(probe.rows(OWN_HOST)[0]["host"]))
    user = probe.account.split("@")[0].strip("'")
    for reader in probe.rows(READERS, (user,)):
        host = _host_name(str(reader["host"]))
        if host != here:
            yield probe.make_finding(
                "MY013",
                Severity.WARNING,
                f"session {reader['id']} from {host} reads the binlog as {user}, too",
                "if it has our server id, the two end each other's connections again and again",
                f"kill {reader['id']};  -- or give each reader an account of its own",
            )


def _host_name(host: str) -> str:
    """Return a session's host without the port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


@SOURCE_CHECKS.check("MY014", "REPLICATION SLAVE privilege", change_only=True)
def right_to_dump(probe: MySQLProbe) -> Iterator[Finding]:
    """Try a dump, for one event, under a server id that no other server has."""
    if not probe.is_on("log_bin"):
        return
    oldest = BinlogPosition.at(_any_file(probe), BINLOG_HEAD_BYTES)
    options = DumpOptions(server_id=probe_server_id(), is_bounded=True)
    try:
        with open_binlog(probe.url, position=oldest, options=options) as stream:
            for event in stream.events():
                if event is not None and mysqlwire.event_head(event).kind == (
                    mysqlwire.FORMAT_DESCRIPTION
                ):
                    return
    except LogPurged:
        return  # the name was a guess; the privilege is there
    except PrivilegeMissing:
        yield probe.make_finding(
            "MY014",
            Severity.ERROR,
            f"{probe.account} may not read the source's binlog",
            "changes cannot be followed",
            f"grant replication slave on *.* to {probe.account};",
        )


def _any_file(probe: MySQLProbe) -> str:
    """Return a binlog file that exists, or a guess if the account may not list them."""
    try:
        return binlog_files(probe.connection)[0].name
    except PrivilegeMissing:
        base = (probe.variable("log_bin_basename") or "binlog").rpartition("/")[2]
        return f"{base}.000001"


@SOURCE_CHECKS.check("MY015", "privilege to read the binlog position", change_only=True)
def right_to_status(probe: MySQLProbe) -> Iterator[Finding]:
    """Check that the account may ask for the log's end, as the handover and the lag do."""
    if not probe.is_on("log_bin"):
        return
    try:
        read_status(probe.connection)
    except PrivilegeMissing as error:
        yield probe.make_finding(
            "MY015",
            Severity.ERROR,
            f"{probe.account} may not ask where the source's binlog ends: {error.message}",
            "the handover and the lag need it",
            f"grant {status_right(probe.server)} on *.* to {probe.account};",
        )


@SOURCE_CHECKS.check("MY043", "heartbeats", change_only=True)
def heartbeats(probe: MySQLProbe) -> Iterator[Finding]:
    """Check the rights on our own table, which is created once and into which heartbeatSeconds
    writes.
    """
    if not probe.wanted.has_heartbeats:
        return
    lacking = sorted(right for right in RIGHTS if probe.rights.lacking_on([TABLE], right))
    if lacking:
        yield probe.make_finding(
            "MY043",
            Severity.WARNING,
            f"{probe.account} lacks privileges on {TABLE} in the source: "
            f"{', '.join(lacking).lower()}",
            "without heartbeats, an idle path is not measured; changes are captured nevertheless",
            f"grant {', '.join(sorted(RIGHTS)).lower()} on {quote(OWN_SCHEMA)}.* to "
            f"{probe.account};",
        )


@SOURCE_CHECKS.check("MY016", "SELECT privilege on captured tables")
def right_to_read(probe: MySQLProbe) -> Iterator[Finding]:
    """Select from each captured table, without rows."""
    for table in probe.tables:
        try:
            probe.rows(f"select * from {quote(*table.name)} limit 0")
        except PrivilegeMissing as error:
            yield probe.make_finding(
                "MY016",
                Severity.ERROR,
                f"{probe.account} may not read {table.name}: {error.message}",
                "its rows cannot be loaded",
                f"grant select on {quote(*table.name)} to {probe.account};",
            )


@SOURCE_CHECKS.check("MY017", "privileges for a consistent point")
def right_to_lock(probe: MySQLProbe) -> Iterator[Finding]:
    """Report how the tables will be read at one point, and which privileges would allow a better
    way.
    """
    if not probe.wanted.has_data or not probe.tables:
        return
    try:
        best = read_choices(probe.connection, probe.tables, follows=probe.wanted.has_change)[0]
    except NoConsistentPoint as error:
        yield probe.make_finding(
            "MY017",
            Severity.ERROR,
            error.message,
            "the bulk load has no point in the binlog to begin at",
            error.hint.removeprefix("Run at the server: ").replace("'USER'@'HOST'", probe.account),
        )
        return
    if best.strategy is Strategy.LOCK_FREE or (
        best.strategy is Strategy.TABLE_LOCKS and not probe.server.is_mariadb
    ):
        right = "flush_tables" if probe.server.mysql(8, 0, 23) else "reload"
        yield probe.make_finding(
            "MY017",
            Severity.WARNING,
            f"the tables will be read at one point by {best}",
            "one lock over all tables is the safest",
            f"grant {right} on *.* to {probe.account};",
        )
    if probe.server.is_mariadb and not probe.rights.has("binlog admin", "super"):
        yield probe.make_finding(
            "MY017",
            Severity.WARNING,
            f"{probe.account} does not have the privilege BINLOG ADMIN",
            "an ALTER of a table waits until the bulk load has read all tables; with it, until "
            "the chunk under way is read",
            f"grant binlog admin on *.* to {probe.account};",
        )


@SOURCE_CHECKS.check("MY018", "BACKUP_ADMIN privilege")
def right_to_backup(probe: MySQLProbe) -> Iterator[Finding]:
    """Check for the right with which MySQL 8 takes snapshots at one point without blocking
    writes.
    """
    if not probe.wanted.has_data or not probe.server.mysql(8) or not probe.tables:
        return
    if probe.variable("gtid_mode") == "ON" and not probe.rights.has("backup_admin"):
        yield probe.make_finding(
            "MY018",
            Severity.WARNING,
            f"{probe.account} does not have the privilege BACKUP_ADMIN",
            "writes wait for a lock when the bulk load begins; with it only schema changes would",
            f"grant backup_admin on *.* to {probe.account};",
        )


@SOURCE_CHECKS.check("MY030", "long-running statements")
def long_statements(probe: MySQLProbe) -> Iterator[Finding]:
    """Report long-running statements: a lock waits for them, and other sessions wait for
    the lock.
    """
    if not probe.wanted.has_data:
        return
    found = {row["id"]: int(row["seconds"]) for row in probe.rows(LONG_STATEMENTS)}
    if probe.rights.has("process"):
        found |= {row["id"]: int(row["seconds"]) for row in probe.rows(LONG_TRANSACTIONS)}
    found.pop(probe.connection.thread_id(), None)
    for session, seconds in found.items():
        yield probe.make_finding(
            "MY030",
            Severity.WARNING,
            f"session {session} has been in a statement or transaction for {seconds} s",
            "the lock at the start of the bulk load would wait for it, and writes for the lock",
            f"kill {session};  -- or wait until it ends",
        )


@SOURCE_CHECKS.check("MY034", "prepared transactions", change_only=True)
def prepared_transactions(probe: MySQLProbe) -> Iterator[Finding]:
    """Report XA transactions that wait for their coordinator: they hold locks, and they hold the
    resume position back.
    """
    if probe.server.mysql(8) and not probe.rights.has("xa_recover_admin"):
        yield probe.make_finding(
            "MY034",
            Severity.INFO,
            f"{probe.account} may not see prepared XA transactions",
            "a forgotten one keeps locks, and the resume position stays before it",
            f"grant xa_recover_admin on *.* to {probe.account};",
        )
        return
    found = probe.rows("xa recover")
    if found:
        texts = [str(row["data"]) for row in found]
        yield probe.make_finding(
            "MY034",
            Severity.WARNING,
            f"{len(found)} XA transactions are prepared and not ended: {names(texts)}",
            "their rows arrive when they are committed, even if that is days later; until then the "
            "resume "
            "position stays before them",
            "xa recover convert xid;  -- then xa commit or xa rollback each that is forgotten",
        )
