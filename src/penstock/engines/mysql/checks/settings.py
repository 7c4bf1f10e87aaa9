"""Doctor's checks of a MySQL or MariaDB source's settings: content of its binlog, and retention."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.engines.mysql.checks.probe import SOURCE_CHECKS, TARGET_CHECKS, MySQLProbe
from penstock.engines.mysql.connect import value
from penstock.engines.mysql.source.status import binlog_files, read_status
from penstock.host.errors import PrivilegeMissing
from penstock.ports.checks import Finding, Severity

RETENTION_S_MIN = 3 * 86_400
RETENTION_S_ADVISED = 7 * 86_400
TIMEOUT_S_MIN = 300
RESTART = "in the server's configuration file, then restart it"

OTHER_FORMATS = """
    select t.processlist_id as id, t.processlist_user as user, v.variable_value as format
      from performance_schema.variables_by_thread as v
      join performance_schema.threads as t on t.thread_id = v.thread_id
     where v.variable_name = 'binlog_format'
       and v.variable_value <> 'ROW'
     order by t.processlist_id
"""


@SOURCE_CHECKS.check("MY001", "binlog", change_only=True)
def log_on(probe: MySQLProbe) -> Iterator[Finding]:
    """Check that there is a binlog: without one penstock cannot follow changes."""
    if not probe.is_on("log_bin"):
        command = "log_bin = binlog and server_id = 1 " + RESTART
        if probe.is_rds:
            command = "set the backup retention of the instance to a day or more"
        yield probe.make_finding(
            "MY001",
            Severity.ERROR,
            f"the source ({probe.server}) writes no binlog",
            "changes cannot be followed",
            command,
        )


@SOURCE_CHECKS.check("MY002", "binlog_format", change_only=True)
def row_format(probe: MySQLProbe) -> Iterator[Finding]:
    """Check that changes are logged as rows."""
    written = probe.variable("binlog_format") or "ROW"  # a later MySQL will have no other format
    if written.upper() != "ROW":
        yield probe.make_finding(
            "MY002",
            Severity.ERROR,
            f"binlog_format of the source is {written}, it must be ROW",
            "statements in the log do not say which rows they changed",
            probe.setting("binlog_format", "'ROW'") + "  -- then let applications reconnect",
        )
    if probe.server.is_mariadb:
        return
    try:
        others = probe.rows(OTHER_FORMATS)
    except PrivilegeMissing:
        yield probe.make_finding(
            "MY002",
            Severity.INFO,
            f"{probe.account} may not see other sessions' binlog_format",
            "a session that was opened before the setting changed keeps its own",
            f"grant select on performance_schema.* to {probe.account};",
        )
        return
    for session in others:
        yield probe.make_finding(
            "MY002",
            Severity.WARNING,
            f"session {session['id']} of {session['user']} logs in the format {session['format']}",
            "its changes are logged as statements, where penstock stops",
            f"kill {session['id']};  -- it reconnects with the server's setting",
        )


@SOURCE_CHECKS.check("MY003", "binlog_row_image", change_only=True)
def row_image(probe: MySQLProbe) -> Iterator[Finding]:
    """Check that rows are logged whole."""
    image = (probe.variable("binlog_row_image") or "FULL").upper()
    if image == "MINIMAL":
        yield probe.make_finding(
            "MY003",
            Severity.ERROR,
            "binlog_row_image of the source is MINIMAL",
            "an insert leaves out columns that have a default, and with them their values",
            probe.setting("binlog_row_image", "'FULL'"),
        )
    elif image == "NOBLOB":
        is_wanted = probe.wanted.wants_whole_rows
        yield probe.make_finding(
            "MY003",
            Severity.ERROR if is_wanted else Severity.WARNING,
            "binlog_row_image of the source is NOBLOB",
            "texts and blobs that an update leaves alone are not logged: tables keep what they "
            "have, other consumers see them as ABSENT"
            + (", and fullBeforeImages asks for whole rows" if is_wanted else ""),
            probe.setting("binlog_row_image", "'FULL'"),
        )


@SOURCE_CHECKS.check("MY004", "binlog_row_metadata", change_only=True)
def row_metadata(probe: MySQLProbe) -> Iterator[Finding]:
    """Check for full metadata, with which the binlog itself has the names of columns."""
    metadata = probe.variable("binlog_row_metadata")
    if metadata is None or metadata.upper() != "FULL":
        has = "has no binlog_row_metadata" if metadata is None else f"has it at {metadata}"
        yield probe.make_finding(
            "MY004",
            Severity.WARNING,
            f"the source {has}",
            "column names are taken from the tables' definitions, which follow the DDL in the log; "
            "a mismatch stops the pipeline",
            probe.setting("binlog_row_metadata", "'FULL'") if metadata is not None else "",
        )


@SOURCE_CHECKS.check("MY005", "partial JSON", change_only=True)
def partial_json(probe: MySQLProbe) -> Iterator[Finding]:
    """Check for partial JSON updates, which can be applied only to the previous document."""
    if "PARTIAL_JSON" not in (probe.variable("binlog_row_value_options") or ""):
        return
    is_full = (probe.variable("binlog_row_image") or "FULL").upper() == "FULL"
    yield probe.make_finding(
        "MY005",
        Severity.INFO if is_full else Severity.ERROR,
        "the source logs parts of JSON documents (binlog_row_value_options = PARTIAL_JSON)",
        "they are combined with the row's old values, which are logged"
        if is_full
        else "the document before the change is not in the log, with this binlog_row_image",
        probe.setting("binlog_row_value_options", "''"),
    )


@SOURCE_CHECKS.check("MY006", "gtid_mode", change_only=True)
def gtid_mode(probe: MySQLProbe) -> Iterator[Finding]:
    """Check for GTIDs, with which a pipeline survives a change of servers."""
    mode = (probe.variable("gtid_mode") or "").upper()
    if probe.server.is_mariadb or mode == "ON":
        return
    steps = ["OFF", "OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"]
    left = steps[steps.index(mode) + 1 :] if mode in steps else steps[1:]
    statements = [probe.setting("enforce_gtid_consistency", "ON")]
    statements += [probe.setting("gtid_mode", step) for step in left]
    yield probe.make_finding(
        "MY006",
        Severity.WARNING,
        f"gtid_mode of the source is {mode or 'not known to it'}, not ON",
        "after a failover the tables have to be loaded again: a position in a file means nothing "
        "on another server",
        " ".join(statements),
    )


@SOURCE_CHECKS.check("MY007", "gtid_strict_mode", change_only=True)
def gtid_strict_mode(probe: MySQLProbe) -> Iterator[Finding]:
    """Check for strict mode: only with it MariaDB guarantees ascending sequence numbers in a
    domain.
    """
    if probe.server.is_mariadb and not probe.is_on("gtid_strict_mode"):
        yield probe.make_finding(
            "MY007",
            Severity.WARNING,
            "gtid_strict_mode of the source is off",
            "two servers may give the same number to different transactions; after a failover some "
            "would be missing or applied twice",
            probe.setting("gtid_strict_mode", "1"),
        )


def retention_s(probe: MySQLProbe) -> int | None:
    """Return how long the server keeps its binlog, in seconds; 0 means for ever, None not
    guaranteed.
    """
    if probe.is_rds:
        hours = value(
            probe.connection,
            "select value from mysql.rds_configuration where name = 'binlog retention hours'",
            doing="asking how long binlogs are kept",
        )
        return int(hours) * 3600 if hours is not None else None
    if probe.variable("binlog_expire_logs_auto_purge") == "OFF":
        return 0
    days = float(probe.variable("expire_logs_days") or 0)
    return probe.number("binlog_expire_logs_seconds") or int(days * 86_400)


@SOURCE_CHECKS.check("MY008", "binlog retention", change_only=True)
def retention(probe: MySQLProbe) -> Iterator[Finding]:
    """Check the retention: a pipeline that is stopped for longer has to load its tables again."""
    seconds = retention_s(probe)
    if seconds is not None and (seconds == 0 or seconds >= RETENTION_S_MIN):
        return
    kept = f"for {seconds / 3600:g} hours" if seconds else "for no guaranteed time"
    command = probe.setting("binlog_expire_logs_seconds", str(RETENTION_S_ADVISED))
    if probe.is_rds:
        command = "call mysql.rds_set_configuration('binlog retention hours', 168);"
    elif probe.variable("binlog_expire_logs_seconds") is None:
        command = probe.setting("expire_logs_days", str(RETENTION_S_ADVISED // 86_400))
    yield probe.make_finding(
        "MY008",
        Severity.WARNING,
        f"the source keeps its binlog {kept}",
        "when the pipeline is stopped for longer, its tables have to be loaded again",
        command,
    )


@SOURCE_CHECKS.check("MY011", "binlog filters", change_only=True)
def filters(probe: MySQLProbe) -> Iterator[Finding]:
    """Report filters, which silently leave changes out of the binlog."""
    if not probe.is_on("log_bin"):
        return
    try:
        status = read_status(probe.connection)
    except PrivilegeMissing:
        return  # MY015 reports it
    for name, databases in (
        ("binlog_do_db", status.do_databases),
        ("binlog_ignore_db", status.ignored_databases),
    ):
        if databases:
            yield probe.make_finding(
                "MY011",
                Severity.ERROR,
                f"the source has {name} = {databases}",
                "changes are missing from its binlog",
                f"remove {name} {RESTART.replace('in the', 'from the')}",
            )


@SOURCE_CHECKS.check("MY025", "binlog_checksum", change_only=True)
def checksum(probe: MySQLProbe) -> Iterator[Finding]:
    """Check that events have checksums, which reveal damage."""
    if (probe.variable("binlog_checksum") or "NONE").upper() == "NONE":
        yield probe.make_finding(
            "MY025",
            Severity.INFO,
            "binlog_checksum of the source is NONE",
            "a damaged event may be decoded to wrong values",
            probe.setting("binlog_checksum", "'CRC32'") + "  -- begins a new binlog file",
        )


@SOURCE_CHECKS.check("MY026", "timeouts", change_only=True)
def timeouts(probe: MySQLProbe) -> Iterator[Finding]:
    """Check the timeouts after which a server drops slow readers; our own sessions ask for longer
    ones.
    """
    short = [
        f"{name} = {seconds}"
        for name in ("net_write_timeout", "wait_timeout")
        if (seconds := probe.number(name)) is not None and seconds < TIMEOUT_S_MIN
    ]
    if short:
        yield probe.make_finding(
            "MY026",
            Severity.INFO,
            f"the source has {' and '.join(short)} (seconds)",
            "penstock's sessions ask for an hour; other readers of the binlog may be dropped",
            probe.setting("net_write_timeout", "3600"),
        )


@SOURCE_CHECKS.check("MY029", "durability", change_only=True)
def durability(probe: MySQLProbe) -> Iterator[Finding]:
    """Check that a crash cannot undo changes that were sent."""
    for name in ("sync_binlog", "innodb_flush_log_at_trx_commit"):
        text = probe.variable(name)
        if text is not None and text != "1":
            yield probe.make_finding(
                "MY029",
                Severity.WARNING,
                f"{name} of the source is {text}, not 1",
                "a crash may undo transactions that penstock has already read: the target "
                "would have rows that the source lacks",
                probe.setting(name, "1"),
            )


@SOURCE_CHECKS.check("MY035", "binlog size", change_only=True)
def log_size(probe: MySQLProbe) -> Iterator[Finding]:
    """Check the size of the binlog: the server's disk holds all of it until retention ends."""
    if not probe.is_on("log_bin"):
        return
    try:
        size_bytes = sum(file.size_bytes for file in binlog_files(probe.connection))
    except PrivilegeMissing:
        return  # MY015 reports it
    if size_bytes > probe.wanted.log_size_bytes_max:
        compress = (
            "log_bin_compress" if probe.server.is_mariadb else "binlog_transaction_compression"
        )
        can = probe.variable(compress) is not None
        yield probe.make_finding(
            "MY035",
            Severity.WARNING,
            f"the source keeps {size_bytes / 2**30:.1f} GiB of binlog",
            "a full disk stops the server",
            probe.setting(compress, "ON") if can else "",
        )


@SOURCE_CHECKS.check("MY036", "server version")
def version(probe: MySQLProbe) -> Iterator[Finding]:
    """Check the version: MySQL 5.7 to 9, MariaDB 10.5 to 11."""
    yield from version_findings(probe)


def version_findings(probe: MySQLProbe) -> Iterator[Finding]:
    """Return the findings about a server's version, the same for source and target."""
    server = probe.server
    oldest, newest = ((10, 5), 11) if server.is_mariadb else ((5, 7), 9)
    if server.number[:2] < oldest:
        yield probe.make_finding(
            "MY036",
            Severity.ERROR,
            f"the {probe.side} is {server}; {'.'.join(map(str, oldest))} is the oldest supported",
            "older servers log rows in other forms",
            "upgrade the server",
        )
    elif server.number[0] > newest:
        yield probe.make_finding(
            "MY036",
            Severity.WARNING,
            f"the {probe.side} is {server}; {newest} is the newest known",
            "a newer server may send data that penstock does not know yet; penstock would stop, "
            "not skip it",
        )


@TARGET_CHECKS.check("MY036", "server version")
def target_version(probe: MySQLProbe) -> Iterator[Finding]:
    """Check the target's version in the same way."""
    yield from version_findings(probe)
