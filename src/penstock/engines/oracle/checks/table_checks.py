"""Doctor's checks of an Oracle source: rights by using them, tables, and positions."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.codec.oracle.scn import OraclePosition
from penstock.codec.oracle.types import parse_type
from penstock.engines.oracle.beginning import OPEN_TRANSACTIONS, read_scn
from penstock.engines.oracle.checks.probe import SOURCE_CHECKS, OracleProbe, names
from penstock.engines.oracle.connect import Connection, quote
from penstock.engines.oracle.errors import SnapshotLost
from penstock.engines.oracle.extraction import has_begun, identity_of
from penstock.engines.oracle.reading import statements as reading
from penstock.engines.oracle.reading.catalog import Exclusion
from penstock.engines.oracle.server_errors import is_gone
from penstock.engines.oracle.source import statements
from penstock.engines.oracle.source.log_choice import choose_logs
from penstock.engines.oracle.source.mining import Miner
from penstock.engines.oracle.source.views import read_incarnation, read_views
from penstock.host.errors import PrivilegeMissing, StatementFailed
from penstock.ports.checks import Finding, Severity, fix_of
from penstock.ports.config import Mode
from penstock.ports.identity import (
    DirectoryOfOtherPipeline,
    DirectoryOfOtherSource,
    check_identity,
    stored_identity,
)

# Views of mining, each with its name in a GRANT and a query that uses it.
VIEWS: tuple[tuple[str, str], ...] = (
    ("V_$DATABASE", reading.CURRENT_SCN),
    ("V_$LOG", statements.LOG),
    ("V_$LOGFILE", statements.LOG_FILE),
    ("V_$ARCHIVED_LOG", "SELECT COUNT(*) FROM V$ARCHIVED_LOG"),
    ("V_$ARCHIVE_DEST_STATUS", statements.DESTINATIONS),
    ("V_$THREAD", statements.THREAD),
    ("V_$DATAFILE", statements.UNRECOVERABLE),
    ("GV_$TRANSACTION", OPEN_TRANSACTIONS),
)
CONTENTS = "SELECT SCN FROM V$LOGMNR_CONTENTS WHERE OPERATION_CODE = 7"
EXTENTS = "SELECT COUNT(*) FROM DBA_EXTENTS WHERE OWNER = :owner AND SEGMENT_NAME = :name"
IDENTITIES = "SELECT OWNER, TABLE_NAME FROM ALL_TAB_COLS WHERE IDENTITY_COLUMN = 'YES'"
# Rows that the server hides from a user, and values that it changes for one.
POLICIES = "SELECT OBJECT_OWNER, OBJECT_NAME FROM ALL_POLICIES WHERE ENABLE = 'YES'"
REDACTIONS = "SELECT OBJECT_OWNER, OBJECT_NAME FROM REDACTION_POLICIES"
CLOUD = "SELECT SYS_CONTEXT('USERENV', 'CLOUD_SERVICE') FROM DUAL"
ON_RDS = "SELECT COUNT(*) FROM ALL_USERS WHERE USERNAME = 'RDSADMIN'"
_ROWLESS = "1 = 0"


@SOURCE_CHECKS.check("OR007", "rights for mining", change_only=True)
def mining_rights(probe: OracleProbe) -> Iterator[Finding]:
    """Check the rights by using them: each view, and LogMiner on the newest redo."""
    for view, sql in VIEWS:
        if not _may(probe.root, sql):
            yield _missing(probe, f"may not read {view}", f"GRANT SELECT ON SYS.{view} TO")
    yield from _try_mining(probe)
    if "ALTER SYSTEM" not in probe.privileges and not _is_on_rds(probe):
        yield probe.make_finding(
            "OR007",
            Severity.WARNING,
            f"{probe.user} may not switch logs",
            "mining begins on online logs, which may be reused before they are archived",
            f"GRANT ALTER SYSTEM TO {probe.user}{probe.grant_suffix};",
        )


def _try_mining(probe: OracleProbe) -> Iterator[Finding]:
    """Mine the redo of the last SCN, and report the first right that is missing."""
    try:
        scn = read_scn(probe.root)
        views = read_views(probe.root, read_incarnation(probe.root).resetlogs, scn)
        files = choose_logs(views, scn - 1, scn)
    except (PrivilegeMissing, StatementFailed):
        return  # the views tell why
    if not isinstance(files, list) or not files:
        return  # the redo of this moment is not listed yet
    try:
        add = statements.ADD_FIRST
        for file in files:
            probe.root.run(add, name=file.name)
            add = statements.ADD_NEXT
    except PrivilegeMissing:
        yield _missing(probe, "may not run DBMS_LOGMNR", "GRANT EXECUTE_CATALOG_ROLE TO")
        return
    except StatementFailed:
        return  # a log was switched meanwhile; no right is missing
    try:
        probe.root.run(statements.START, low=scn - 1, high=scn)
        probe.root.execute(CONTENTS)
    except PrivilegeMissing as error:
        reads = "LOGMNR_CONTENTS" in error.message
        yield (
            _missing(
                probe,
                "may not read V_$LOGMNR_CONTENTS",
                "GRANT SELECT ON SYS.V_$LOGMNR_CONTENTS TO",
            )
            if reads
            else _missing(probe, "may not start LogMiner", "GRANT LOGMINING TO")
        )
    except StatementFailed:
        return
    finally:
        _end_mining(probe.root)


def _end_mining(root: Connection) -> None:
    try:
        root.run(statements.END)
    except (PrivilegeMissing, StatementFailed):
        return  # it was not started


@SOURCE_CHECKS.check("OR007", "rights on the tables")
def table_rights(probe: OracleProbe) -> Iterator[Finding]:
    """Check whether the user may read each table, now and as of an SCN, and DBA_EXTENTS."""
    try:
        scn = read_scn(probe.root)
    except PrivilegeMissing:
        yield _missing(probe, "may not read V_$DATABASE", "GRANT SELECT ON SYS.V_$DATABASE TO")
        return
    for table in probe.tables:
        name = quote(*table.name)
        if not _may(probe.connection, f"SELECT 1 FROM {name} WHERE {_ROWLESS}"):
            yield probe.make_finding(
                "OR007",
                Severity.ERROR,
                f"{probe.user} may not read {table.name}",
                "its rows cannot be copied, and large objects cannot be read",
                f"GRANT SELECT ON {name} TO {probe.user};",
            )
        elif not _may(probe.connection, reading.rows(table.name, ["1"], scn, _ROWLESS)):
            yield probe.make_finding(
                "OR007",
                Severity.ERROR,
                f"{probe.user} may not read {table.name} as of an SCN",
                "rows of one moment cannot be copied",
                f"GRANT FLASHBACK ON {name} TO {probe.user};",
            )
    if probe.has_data and probe.tables:
        owner, table_name = probe.tables[0].name
        if not _may(probe.connection, EXTENTS, owner=owner, name=table_name):
            yield probe.make_finding(
                "OR007",
                Severity.WARNING,
                f"{probe.user} may not read DBA_EXTENTS",
                "tables are cut by their keys in place of row ids, which is slower; tables without "
                "a key are one piece",
                f"GRANT SELECT ON SYS.DBA_EXTENTS TO {probe.user};",
            )


def _missing(probe: OracleProbe, what: str, grant: str) -> Finding:
    return probe.make_finding(
        "OR007",
        Severity.ERROR,
        f"{probe.user} {what}",
        "changes cannot be read from the redo",
        f"{grant} {probe.user}{probe.grant_suffix};",
    )


def _may(session: Connection, sql: str, **binds: object) -> bool:
    """Return whether a query may be run. A table that is not visible is not permitted either."""
    try:
        session.execute(sql, **binds)
    except PrivilegeMissing:
        return False
    except StatementFailed as error:
        if not is_gone(error):
            raise
        return False
    except SnapshotLost:
        return True  # the table was altered just now: the right is there
    return True


def _is_on_rds(probe: OracleProbe) -> bool:
    rows = probe.connection.execute(ON_RDS)
    return bool(rows and rows[0][0])


@SOURCE_CHECKS.check("OR011", "tables without capture")
def left_out(probe: OracleProbe) -> Iterator[Finding]:
    """Report tables that a pattern matches and that LogMiner does not show."""
    for one in probe.survey.excluded:
        if one.pattern:
            continue
        has_rows = one.reason in (Exclusion.COLUMN, Exclusion.LONG_NAME)  # that users wrote
        yield probe.make_finding(
            "OR011",
            Severity.WARNING if has_rows else Severity.INFO,
            f"left out: {one}",
            "a pattern matches it, but none of its rows are copied",
            f'"!{one.name}" in [source] tables says that on purpose',
        )
    for table in probe.tables if probe.has_change else ():
        for column in table.columns:  # a table of Oracle has at most one LONG or LONG RAW
            base = parse_type(column.base_type or column.type_text).base
            if base not in ("LONG", "LONG RAW"):
                continue
            large = "CLOB" if base == "LONG" else "BLOB"
            yield probe.make_finding(
                "OR011",
                Severity.WARNING,
                f"column {column.name} of {table.name} is {base}",
                "LogMiner does not show a value that is too large for a statement, and the "
                "extractor stops at one (DC82)",
                f"ALTER TABLE {quote(*table.name)} MODIFY ({quote(column.name)} {large});",
            )
    captured = {(one.name.schema, one.name.name): one.name for one in probe.tables}
    numbered = [
        captured[key]
        for owner, name in probe.connection.execute(IDENTITIES)
        if (key := (str(owner), str(name))) in captured
    ]
    if numbered and probe.has_change and probe.connection.version < (21,):
        yield probe.make_finding(
            "OR011",
            Severity.WARNING,
            f"identity columns: {names(numbered)}",
            "Oracle's 19c guide names tables with one among those that LogMiner does not support",
            "compare these tables now and then: penstock verify",
        )


@SOURCE_CHECKS.check("OR014", "tables without a key", change_only=True)
def keyless(probe: OracleProbe) -> Iterator[Finding]:
    """Report tables whose rows are found by all of their values."""
    for table in probe.tables:
        if table.row_key:
            continue
        large = [
            one.name for one in table.columns if parse_type(one.base_type or one.type_text).is_large
        ]
        yield probe.make_finding(
            "OR014",
            Severity.WARNING,
            f"{table.name} has no primary key"
            + (f", and the large columns {names(large)}" if large else ""),
            "a change has to find its row by all values"
            + (", and the redo has no old values of large columns" if large else ""),
            f"ALTER TABLE {quote(*table.name)} ADD PRIMARY KEY (COLUMN);",
        )


@SOURCE_CHECKS.check("OR016", "policies on the tables")
def policies(probe: OracleProbe) -> Iterator[Finding]:
    """Check that no policy hides rows from the user or changes values: copies would differ."""
    captured = {(one.name.schema, one.name.name): one.name for one in probe.tables}
    for sql, exempt, why in (
        (POLICIES, "EXEMPT ACCESS POLICY", "rows that the policy hides are not copied"),
        (REDACTIONS, "EXEMPT REDACTION POLICY", "values that the policy changes are copied so"),
    ):
        if exempt in probe.privileges:
            continue
        try:
            rows = probe.connection.execute(sql)
        except (PrivilegeMissing, StatementFailed):
            continue  # the user may not ask, or the server lacks the feature
        found = sorted(
            {captured[key] for row in rows if (key := (str(row[0]), str(row[1]))) in captured}
        )
        if found:
            yield probe.make_finding(
                "OR016",
                Severity.ERROR,
                f"policies apply to {probe.user} on {names(found)}",
                why,
                f"GRANT {exempt} TO {probe.user};",
            )


@SOURCE_CHECKS.check("OR018", "services of a cloud", change_only=True)
def cloud(probe: OracleProbe) -> Iterator[Finding]:
    """Tell what differs on Amazon RDS and in an Autonomous Database."""
    if _is_on_rds(probe):
        yield probe.make_finding(
            "OR018",
            Severity.INFO,
            "this is Amazon RDS",
            "archived logs are removed after some hours",
            "EXEC rdsadmin.rdsadmin_util.set_configuration('archivelog retention hours', 48);",
        )
    try:
        rows = probe.connection.execute(CLOUD)
    except StatementFailed:
        return  # the parameter is newer than the server
    if rows and rows[0][0]:
        yield probe.make_finding(
            "OR018",
            Severity.ERROR,
            f"this is an Autonomous Database ({rows[0][0]})",
            "logs cannot be added to LogMiner there, so penstock does not follow its changes",
            'use it with mode = "data", or as a target',
        )


@SOURCE_CHECKS.check("OR040", "same source as before", change_only=True)
def same_source(probe: OracleProbe) -> Iterator[Finding]:
    """Check that the directory belongs to this pipeline and was filled from this database."""
    if probe.pipeline is None:
        return
    config, found = probe.pipeline.config, probe.database
    try:
        check_identity(config, stored_identity(config), identity_of(config, found.dbid, found.name))
    except (DirectoryOfOtherPipeline, DirectoryOfOtherSource) as error:
        yield probe.make_finding(
            "OR040",
            Severity.ERROR,
            error.message,
            "positions of one source mean nothing in another; changes would be missed or mixed",
            fix_of(error),
        )


@SOURCE_CHECKS.check("OR041", "starting position", change_only=True)
def beginning(probe: OracleProbe) -> Iterator[Finding]:
    """Check that all redo from startScn on is there, if a new log begins there."""
    if probe.pipeline is None:
        return
    config = probe.pipeline.config
    text = config.change_extractor.start_scn
    if text is None or config.pipeline.mode is Mode.DATA_CHANGE or has_begun(probe.pipeline):
        return
    scn, now = OraclePosition.parse(text).scn, read_scn(probe.root)
    miner = Miner(lambda: probe.root)
    miner.check()
    oldest = miner.oldest_scn()
    if scn > now:
        what, command = f"the server is at SCN {now}", reading.CURRENT_SCN
    elif scn <= oldest:
        what = f"the oldest redo begins at SCN {oldest}"
        command = f'write startScn = "{oldest + 1}" or a later one'
    else:
        return
    yield probe.make_finding(
        "OR041",
        Severity.ERROR,
        f"startScn is {scn}, and {what}",
        "the change log cannot begin there",
        command,
    )
