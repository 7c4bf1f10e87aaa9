"""Doctor's checks of an Oracle source: redo, its logging, its archives, and the database itself."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.codec.oracle.scn import OraclePosition
from penstock.engines.oracle.beginning import (
    ARCHIVING_HINT,
    LOG_GROUPS,
    LOGGING_HINT,
    LOGS_ALL,
    LOGS_KEY,
    log_columns_text,
    read_pdb_mode,
)
from penstock.engines.oracle.checks.probe import CHARACTER_SET, SOURCE_CHECKS, OracleProbe, names
from penstock.engines.oracle.extraction import known_redo
from penstock.engines.oracle.source.errors import IncarnationChanged
from penstock.engines.oracle.source.mining import Miner
from penstock.engines.oracle.source.watermarks import Watermarks
from penstock.engines.oracle.url import ROOT
from penstock.ports.checks import Finding, Severity, fix_of

OLDEST, NEWEST_MAJOR = (12, 2), 23
SWITCHES_AN_HOUR_MAX = 12
LOG_BYTES_MIN = 2**30
READ_BYTES_A_SECOND = 20 * 2**20
CHARACTER_SETS = ("AL32UTF8", "UTF8")

KEY_LOGGING = "SELECT SUPPLEMENTAL_LOG_DATA_PK FROM V$DATABASE"
UNLOGGED_TABLES = "SELECT OWNER, TABLE_NAME FROM ALL_TABLES WHERE LOGGING = 'NO'"
UNRECOVERABLE = "SELECT FILE#, UNRECOVERABLE_CHANGE# FROM V$DATAFILE"
LOGS = "SELECT GROUP#, THREAD#, BYTES FROM V$LOG"
# Switches of the last day.
SWITCHES = "SELECT COUNT(*) FROM V$LOG_HISTORY WHERE FIRST_TIME > SYSDATE - 1"
THREADS = "SELECT THREAD#, STATUS, ENABLED FROM V$THREAD"


@SOURCE_CHECKS.check("OR001", "archiving of the redo", change_only=True)
def archiving(probe: OracleProbe) -> Iterator[Finding]:
    """Check that the database is a primary one whose redo is archived."""
    found = probe.database
    if found.role != "PRIMARY":
        yield probe.make_finding(
            "OR001",
            Severity.ERROR,
            f"the database {found.name} is a {found.role}",
            "penstock mines the redo of the primary only",
            "name the primary database in [source] url",
        )
    if found.log_mode != "ARCHIVELOG":
        yield probe.make_finding(
            "OR001",
            Severity.ERROR,
            f"the database {found.name} is in {found.log_mode} mode",
            "redo is overwritten before it is read",
            ARCHIVING_HINT,
        )


@SOURCE_CHECKS.check("OR002", "supplemental logging of the database", change_only=True)
def minimal_logging(probe: OracleProbe) -> Iterator[Finding]:
    """Check that the redo has what LogMiner needs to build statements."""
    if not probe.database.logs_minimal:
        yield probe.make_finding(
            "OR002",
            Severity.ERROR,
            f"the database {probe.database.name} has no supplemental logging",
            "changes lack the columns that identify their rows",
            LOGGING_HINT,
        )


@SOURCE_CHECKS.check("OR003", "supplemental logging of the tables", change_only=True)
def table_logging(probe: OracleProbe) -> Iterator[Finding]:
    """Check each table: its key is logged, or all columns where they are needed."""
    if probe.database.logs_all:
        return
    rows = probe.ask(KEY_LOGGING)
    logs_keys = bool(rows) and rows is not None and rows[0][0] == "YES"
    kinds: dict[tuple[str, str], set[str]] = {}
    for owner, name, kind in probe.connection.execute(LOG_GROUPS):
        kinds.setdefault((str(owner), str(name)), set()).add(str(kind))
    whole = probe.pipeline is not None and probe.pipeline.config.change_extractor.full_before_images
    for table in probe.tables:
        found = kinds.get((table.name.schema, table.name.name), set())
        if LOGS_ALL in found:
            continue
        has_key = logs_keys or LOGS_KEY in found
        sql = f"{log_columns_text(table.name)};"
        if not table.primary_key:
            yield probe.make_finding(
                "OR003",
                Severity.ERROR,
                f"{table.name} has no primary key, and not all of its columns are logged",
                "a change cannot find its row",
                sql,
            )
        elif not has_key:
            yield probe.make_finding(
                "OR003",
                Severity.ERROR,
                f"{table.name} logs neither its key nor all columns",
                "a change cannot find its row",
                sql,
            )
        elif whole:
            yield probe.make_finding(
                "OR003",
                Severity.ERROR,
                f"{table.name} logs its key alone, and fullBeforeImages is on",
                "the redo lacks the other columns of old rows",
                sql,
            )


@SOURCE_CHECKS.check("OR004", "loads without redo", change_only=True)
def force_logging(probe: OracleProbe) -> Iterator[Finding]:
    """Check that no row can be loaded without redo, and that none was since the log's end."""
    if not probe.database.is_forced:
        captured = {(one.name.schema, one.name.name): one.name for one in probe.tables}
        tables = [
            captured[key]
            for owner, name in probe.connection.execute(UNLOGGED_TABLES)
            if (key := (str(owner), str(name))) in captured
        ]
        yield probe.make_finding(
            "OR004",
            Severity.WARNING,
            f"the database {probe.database.name} does not force logging"
            + (f"; NOLOGGING is set for {names(tables)}" if tables else ""),
            "rows of a direct-path load with NOLOGGING are not in the redo, and nothing tells so",
            "ALTER DATABASE FORCE LOGGING;",
        )
    if not probe.log_end:
        return
    scn = OraclePosition(probe.log_end).scn
    files = [file for file, at in probe.ask(UNRECOVERABLE) or [] if at and int(at) > scn]
    if files:
        yield probe.make_finding(
            "OR004",
            Severity.WARNING,
            f"rows were loaded without redo after SCN {scn}, in the data files {names(files)}",
            "the log cannot have these rows",
            "load the tables of these files again: penstock table resync",
        )


@SOURCE_CHECKS.check("OR005", "undo for the bulk load")
def undo(probe: OracleProbe) -> Iterator[Finding]:
    """Compare UNDO_RETENTION with the time that the largest table takes."""
    value = probe.parameter("undo_retention")
    if not probe.has_data or value is None or not probe.tables:
        return
    largest = max(probe.tables, key=lambda one: one.size_bytes)
    seconds = largest.size_bytes // READ_BYTES_A_SECOND
    if seconds > int(value):
        yield probe.make_finding(
            "OR005",
            Severity.WARNING,
            f"UNDO_RETENTION is {value} s, and reading {largest.name} may take {seconds} s",
            "rows as of the snapshot may be gone (ORA-01555): the table is then read again",
            f"ALTER SYSTEM SET UNDO_RETENTION = {2 * seconds}; enlarge the undo tablespace for it",
        )


@SOURCE_CHECKS.check("OR008", "containers", change_only=True)
def containers(probe: OracleProbe) -> Iterator[Finding]:
    """Check that changes are mined at the root, and that the tables' container is open."""
    if probe.database.is_container and probe.container != ROOT:
        yield probe.make_finding(
            "OR008",
            Severity.ERROR,
            f"the service of the URL is in {probe.container}, not at the root",
            "logs can be added to LogMiner at CDB$ROOT only (ORA-65040)",
            f"name the root's service, and ?pdb={probe.container}, in [source] url, with a common "
            "user (C##...)",
        )
    elif probe.database.is_container and not probe.pdb:
        yield probe.make_finding(
            "OR008",
            Severity.ERROR,
            "the URL names no pluggable database",
            "tables at the root are those of the server",
            "add ?pdb=NAME to [source] url: SELECT NAME FROM V$PDBS;",
        )
    elif probe.pdb and (mode := read_pdb_mode(probe.root, probe.pdb)) not in (None, "READ WRITE"):
        yield probe.make_finding(
            "OR008",
            Severity.ERROR,
            f"the pluggable database {probe.pdb} is {mode or 'not visible to this user'}",
            "LogMiner waits for a closed container",
            f"ALTER PLUGGABLE DATABASE {probe.pdb} OPEN; ALTER PLUGGABLE DATABASE ALL SAVE STATE;",
        )


@SOURCE_CHECKS.check("OR009", "character set", change_only=True)
def character_set(probe: OracleProbe) -> Iterator[Finding]:
    """Check the character set; rows of older table versions arrive in it."""
    rows = probe.connection.execute(CHARACTER_SET)
    found = str(rows[0][0]) if rows else ""
    if found not in CHARACTER_SETS:
        yield probe.make_finding(
            "OR009",
            Severity.WARNING,
            f"the character set of the database is {found}",
            "rows that were written before a DDL statement and are read after it arrive in this "
            "character set; penstock reads AL32UTF8 there, and stops at other texts",
            "let penstock catch up before a captured table is altered",
        )


@SOURCE_CHECKS.check("OR010", "size of the redo logs", change_only=True)
def log_sizes(probe: OracleProbe) -> Iterator[Finding]:
    """Check how often logs are switched: each window reads whole logs."""
    switches = probe.ask(SWITCHES)
    logs = probe.ask(LOGS)
    if not switches or not logs:
        return
    an_hour = int(switches[0][0]) / 24
    smallest = min(int(row[2]) for row in logs)
    if an_hour > SWITCHES_AN_HOUR_MAX and smallest < LOG_BYTES_MIN:
        yield probe.make_finding(
            "OR010",
            Severity.WARNING,
            f"logs were switched {an_hour:.0f} times an hour, and the smallest has "
            f"{smallest // 2**20} MB",
            "a log may be reused while it is read, and is then read again",
            "ALTER DATABASE ADD LOGFILE SIZE 1G;  -- for each group; then drop the small ones",
        )


@SOURCE_CHECKS.check("OR012", "redo threads", change_only=True)
def threads(probe: OracleProbe) -> Iterator[Finding]:
    """Report a cluster's threads; one that nothing writes holds nothing back."""
    rows = probe.ask(THREADS) or []
    there = [number for number, _, enabled in rows if enabled != "DISABLED"]
    with_logs = {int(row[1]) for row in probe.ask(LOGS) or []}
    if len(there) > 1:
        yield probe.make_finding(
            "OR012",
            Severity.INFO,
            f"redo of the threads {names(there)} is merged",
            "a change is emitted when every open thread has written its redo up to it",
        )
    missing = [number for number in there if int(number) not in with_logs]
    if missing:
        yield probe.make_finding(
            "OR012",
            Severity.ERROR,
            f"no online log of the threads {names(missing)} is listed",
            "changes of these instances would be lost",
            "SELECT * FROM V$LOG; grant the user rights at the root, with CONTAINER=ALL",
        )


@SOURCE_CHECKS.check("OR013", "server version")
def version(probe: OracleProbe) -> Iterator[Finding]:
    """Check the version."""
    yield from version_findings(probe)


def version_findings(probe: OracleProbe) -> Iterator[Finding]:
    """Yield the findings about a server's version, the same for source and target."""
    found = probe.connection.version
    shown = ".".join(map(str, found))
    if found[:2] < OLDEST:
        yield probe.make_finding(
            "OR013",
            Severity.ERROR,
            f"the {probe.side} is Oracle {shown}; 12.2 is the oldest supported",
            "older servers lack statements that penstock uses, and names are limited to 30 bytes",
            "upgrade the server",
        )
    elif found[0] > NEWEST_MAJOR:
        yield probe.make_finding(
            "OR013",
            Severity.WARNING,
            f"the {probe.side} is Oracle {shown}; {NEWEST_MAJOR} is the newest known",
            "a newer server may print redo in forms that penstock does not know; it would stop",
        )


@SOURCE_CHECKS.check("OR015", "redo after the log's end", change_only=True)
def nothing_lost(probe: OracleProbe) -> Iterator[Finding]:
    """Check that all redo is there from the low watermark of the log's end on."""
    if probe.pipeline is None or not probe.log_end:
        return
    known = known_redo(probe.pipeline.config)
    if known is None:
        return
    miner = Miner(lambda: probe.root)
    miner.incarnation = known.incarnation
    try:
        miner.check()
    except IncarnationChanged as error:
        yield probe.make_finding(
            "OR015",
            Severity.ERROR,
            error.message,
            "SCNs of one incarnation mean nothing in another",
            fix_of(error),
        )
        return
    low = Watermarks.load(known).low_at(probe.log_end)
    oldest = miner.oldest_scn()
    if oldest > low:
        yield probe.make_finding(
            "OR015",
            Severity.ERROR,
            f"redo is needed from SCN {low} on, and the oldest log that is there begins at "
            f"{oldest}",
            "changes in between are lost",
            f"restore archived logs: RMAN> RESTORE ARCHIVELOG FROM SCN {low}; or load the tables "
            "again: penstock reset --target, then penstock run",
        )
