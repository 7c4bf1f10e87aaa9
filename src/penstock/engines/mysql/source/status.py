"""Read where a server's binlog ends, and check that it still has the position to resume from.

Statements changed their names: `show master status` is `show binary log status` in MySQL 8.4 and
`show binlog status` in MariaDB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from penstock.codec.mysql import mysqlwire
from penstock.codec.mysql.binlog_events import EventKind
from penstock.codec.mysql.binlog_position import BINLOG_HEAD_BYTES, BinlogPosition
from penstock.codec.mysql.gtids import GtidSet, MariaGtids
from penstock.engines.mysql.connect import Connection, ServerVersion, literal, rows, run, value
from penstock.engines.mysql.source.client import (
    BinlogConnection,
    DumpOptions,
    Gtids,
    open_binlog,
    probe_server_id,
)
from penstock.engines.mysql.source.dump_errors import (
    BEHIND_HINT,
    RESET_HINT,
    RESNAPSHOT,
    GtidsPurged,
    LogOff,
    LogPurged,
    LogReset,
    PositionUnfit,
    ServerBehind,
    ServerReplaced,
)
from penstock.host.errors import PrivilegeMissing
from penstock.model import LOAD_AGAIN

# Events with which a transaction, or a statement that is one, begins.
_BEGINNINGS = frozenset(
    {
        EventKind.GTID,
        EventKind.ANONYMOUS_GTID,
        EventKind.GTID_TAGGED,
        EventKind.MARIA_GTID,
        EventKind.QUERY,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """A binlog file that the server has."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatus:
    """End of the binlog.

    Attributes:
        gtids: all transactions in it or before it, empty without GTIDs.
        do_databases: filter of the server; its binlog has only changes of these databases.
        ignored_databases: filter of the server; its binlog lacks changes of these databases.
    """

    position: BinlogPosition
    gtids: str = ""
    do_databases: str = ""
    ignored_databases: str = ""

    def parse_gtids(self, server: ServerVersion) -> Gtids | None:
        """Return the same set, parsed; None without GTIDs."""
        return parse_gtids(server, self.gtids)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIdentity:
    """Identity of a server. server_uuid: empty on MariaDB, which has none.

    has_gtids: its transactions have ids that hold on every server they reach.
    """

    version: ServerVersion
    server_id: int
    server_uuid: str
    has_gtids: bool

    @property
    def name(self) -> str:
        """Text that distinguishes this server from others."""
        return self.server_uuid or f"server_id {self.server_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """Facts that are stored with a position, so that resuming can be checked before it is tried.

    gtids: the transactions that we have, as text; empty without GTIDs. server: the identity's name.
    log_identity: of the position's file; empty if it is not known.
    """

    position: BinlogPosition
    server: str
    gtids: str = ""
    log_identity: str = ""


def parse_gtids(server: ServerVersion, text: str) -> Gtids | None:
    """Return GTIDs from the server's text form; None if there are none."""
    plain = "".join(text.split())
    if not plain:
        return None
    return MariaGtids.parse(plain) if server.is_mariadb else GtidSet.parse(plain)


def status_statement(server: ServerVersion) -> str:
    """Return the statement that shows where the binlog ends."""
    if server.mysql(8, 2):
        return "show binary log status"
    if server.mariadb(10, 5, 2):
        return "show binlog status"
    return "show master status"


def status_right(server: ServerVersion) -> str:
    """Return the privilege that the statement needs, as GRANT names it."""
    return "binlog monitor" if server.mariadb(10, 5, 2) else "replication client"


def read_status(connection: Connection) -> LogStatus:
    """Return where the binlog ends now. Raises LogOff, and PrivilegeMissing with the GRANT
    to type.
    """
    server = connection.server
    doing = "asking where the binlog ends"
    try:
        found = rows(connection, status_statement(server), doing=doing)
    except PrivilegeMissing as error:
        grant = f"grant {status_right(server)} on *.* to {account(connection)};"
        raise PrivilegeMissing(
            error.message, hint=f"Run at the server: {grant}", **error.fields
        ) from error
    if not found:
        raise LogOff(
            f"{server} writes no binlog",
            hint="Set log_bin = binlog and server_id in the server's configuration; restart it.",
        )
    row = found[0]
    gtids = str(row.get("executed_gtid_set") or "")
    if server.is_mariadb:
        gtids = str(value(connection, "select @@global.gtid_binlog_pos", doing=doing) or "")
    return LogStatus(
        position=BinlogPosition.at(row["file"], int(row["position"])),
        gtids="".join(gtids.split()),
        do_databases=str(row.get("binlog_do_db") or ""),
        ignored_databases=str(row.get("binlog_ignore_db") or ""),
    )


def read_clock(connection: Connection) -> int:
    """Return the server's clock: microseconds since 1970 UTC."""
    found = value(connection, "select unix_timestamp(sysdate(6))", doing="asking for the time")
    return int(found * 1_000_000)


def account(connection: Connection) -> str:
    """Return the account that we have, quoted as GRANT requires."""
    text = str(value(connection, "select current_user()", doing="asking who we are"))
    user, _, host = text.rpartition("@")
    return f"{literal(user)}@{literal(host)}"


def binlog_files(connection: Connection) -> list[LogFile]:
    """Return the binlog files that the server has, oldest first."""
    found = rows(connection, "show binary logs", doing="listing the server's binlogs")
    return [LogFile(name=row["log_name"], size_bytes=int(row["file_size"])) for row in found]


def flush_logs(connection: Connection) -> None:
    """Let the server begin a new binlog file. Needs the privilege RELOAD."""
    run(connection, "flush binary logs", doing="beginning a new binlog file")


def capture(connection: Connection) -> LogStatus:
    """Return where the binlog ends, and begin a new file after that: a handover step."""
    status = read_status(connection)
    flush_logs(connection)
    return status


def read_identity(connection: Connection) -> ServerIdentity:
    """Return the server's identity."""
    server, doing = connection.server, "asking the server who it is"
    if server.is_mariadb:
        server_id = value(connection, "select @@global.server_id", doing=doing)
        return ServerIdentity(
            version=server, server_id=int(server_id), server_uuid="", has_gtids=True
        )
    row = rows(
        connection,
        "select @@global.server_id as id, @@global.server_uuid as uuid, @@global.gtid_mode as mode",
        doing=doing,
    )[0]
    return ServerIdentity(
        version=server,
        server_id=int(row["id"]),
        server_uuid=str(row["uuid"]),
        has_gtids=row["mode"] == "ON",
    )


def read_log_identity(url: str, file: str) -> str:
    """Return the identity of a binlog file, which distinguishes it from others of the same name.

    See `mysqlwire.log_identity`. Reads the file's first two events, as a replica with its own id.
    Raises the errors of a dump.
    """
    with _look(url, BinlogPosition.at(file, BINLOG_HEAD_BYTES)) as stream:
        events = (event for event in stream.events() if event is not None)
        stored = (event for event in events if not mysqlwire.event_head(event).is_artificial)
        first = list(islice(stored, 2))
    if not first:
        raise LogPurged(f"{file} holds no event", hint=RESNAPSHOT)
    return mysqlwire.log_identity(first)


def read_file_time(url: str, file: str) -> int:
    """Return when a binlog file was begun, microseconds since 1970 UTC. Raises the errors of a
    dump.
    """
    with _look(url, BinlogPosition.at(file, BINLOG_HEAD_BYTES)) as stream:
        for event in stream.events():
            if event is not None and not (head := mysqlwire.event_head(event)).is_artificial:
                return head.time_s * 1_000_000
    raise LogPurged(f"{file} holds no event", hint=RESNAPSHOT)


def read_first_commit(url: str, position: BinlogPosition) -> int | None:
    """Return when the first transaction after a position began to be logged; None if there is none.

    Microseconds since 1970 UTC, whole seconds. position: between two transactions. Raises the
    errors of a dump: LogPurged if the position is gone.
    """
    with _look(url, position) as stream:
        for event in stream.events():
            if event is not None and (head := mysqlwire.event_head(event)).kind in _BEGINNINGS:
                return head.time_s * 1_000_000
    return None


def _look(url: str, position: BinlogPosition) -> BinlogConnection:
    """Open the binlog from here to its end, under an id that no replica has."""
    options = DumpOptions(server_id=probe_server_id(), is_bounded=True)
    return open_binlog(url, position=position, options=options)


# -- can we continue? -----------------------------------------------------------------------


def check_resume(connection: Connection, url: str, point: ResumePoint) -> ServerIdentity:
    """Check that the server has everything after the point; return its identity.

    With GTIDs it may be another server than before. Without, it must be the same and its file the
    same file. Checked before each dump, because the server itself checks less: it accepts a
    position in a file that was written again after RESET MASTER, and transactions of servers it
    does not know. Raises GtidsPurged, ServerBehind, ServerReplaced, LogPurged, PositionUnfit or
    LogReset.
    """
    identity = read_identity(connection)
    seen = parse_gtids(identity.version, point.gtids) if identity.has_gtids else None
    if isinstance(seen, GtidSet):
        _check_gtid_set(connection, seen)
    elif seen is not None:
        _check_domains(connection, seen)
    if seen is not None and not _is_same_server(identity, point):
        return identity
    if not _is_same_server(identity, point):
        raise ServerReplaced(
            f"the change log was filled from {point.server}, the server at this address is "
            f"{identity.name}",
            hint="Name the right server in source.url (with GTIDs a pipeline can change servers), "
            f"or, from this one, {LOAD_AGAIN}",
        )
    check_file(binlog_files(connection), point.position)
    if point.log_identity:
        actual = read_log_identity(url, point.position.file)
        if actual != point.log_identity:
            raise LogReset(
                f"{point.position.file} is another file than the one we read",
                hint=RESET_HINT,
            )
    return identity


def check_continues(connection: Connection, position: BinlogPosition) -> None:
    """Check that an idle stream will not stay idle for ever.

    After RESET MASTER in the file that is being read, a server continues to send heartbeats and
    nothing else until its new file is longer than the old one was. Raises LogReset.
    """
    end = read_status(connection).position
    if end < position:
        raise LogReset(
            f"we have read up to {position}, the server's binlog ends at {end}",
            hint=RESET_HINT,
        )


def _is_same_server(identity: ServerIdentity, point: ResumePoint) -> bool:
    return identity.name == point.server


def _check_gtid_set(connection: Connection, seen: GtidSet) -> None:
    row = rows(
        connection,
        "select @@global.gtid_purged as purged, @@global.gtid_executed as executed",
        doing="asking which transactions the server has",
    )[0]
    purged = GtidSet.parse("".join(row["purged"].split()))
    executed = GtidSet.parse("".join(row["executed"].split()))
    if not executed.includes(seen):
        raise ServerBehind(
            f"the server lacks transactions that we have: we have {seen}, it has {executed}",
            hint=BEHIND_HINT,
        )
    if not seen.includes(purged):
        raise GtidsPurged(
            f"the server has deleted transactions that we have not seen: it deleted {purged}, "
            f"we have {seen}",
            hint=RESNAPSHOT,
            oldest=str(purged),
        )


def _check_domains(connection: Connection, seen: MariaGtids) -> None:
    """Check that in each domain we are neither before the oldest file nor after the newest."""
    doing = "asking which transactions the server has"
    now = MariaGtids.parse(value(connection, "select @@global.gtid_binlog_pos", doing=doing) or "")
    for domain, (_, number) in seen.last.items():
        if domain not in now.last or now.last[domain][1] < number:
            raise ServerBehind(
                f"the server lacks transactions that we have: we have {seen}, it has {now}",
                hint=BEHIND_HINT,
            )
    oldest = binlog_files(connection)[0].name
    text = value(
        connection, "select binlog_gtid_pos(%s, 4)", (oldest,), doing=f"{doing} before {oldest}"
    )
    before = MariaGtids.parse(text or "")
    for domain, (_, number) in before.last.items():
        if domain not in seen.last or seen.last[domain][1] < number:
            raise GtidsPurged(
                "the server has deleted transactions that we have not seen: its oldest binlog "
                f"begins after {before}, we have {seen}",
                hint=RESNAPSHOT,
                oldest=str(before),
            )


def check_file(files: Sequence[LogFile], position: BinlogPosition) -> None:
    """Check that the position's file exists and reaches to its offset.

    Raises LogPurged, ServerBehind or PositionUnfit.
    """
    found = next((file for file in files if file.name == position.file), None)
    if found is None and files:
        oldest = BinlogPosition.at(files[0].name, BINLOG_HEAD_BYTES)
        newest = BinlogPosition.at(files[-1].name, files[-1].size_bytes)
        if position.base == oldest.base and position > newest:
            raise ServerBehind(
                f"we have read up to {position}, the server's binlog ends at {newest}",
                hint=RESET_HINT,
            )
        raise LogPurged(
            f"the server has deleted {position.file}; the oldest position left is {oldest}",
            hint=RESNAPSHOT,
            oldest=str(oldest),
        )
    if found is None or not BINLOG_HEAD_BYTES <= position.offset <= found.size_bytes:
        size = found.size_bytes if found is not None else 0
        raise PositionUnfit(
            f"{position} lies outside its file, which has {size} bytes",
            hint="The server lost the end of its binlog in a crash (sync_binlog is not 1), or it "
            f"was created again: {LOAD_AGAIN}",
        )
