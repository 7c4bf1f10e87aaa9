"""Doctor's checks of a SQL Server source: change data capture of the database and its tables."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.engines.sqlserver.checks.probe import SOURCE_CHECKS, SQLServerProbe, names
from penstock.engines.sqlserver.connect import quote
from penstock.engines.sqlserver.source import statements
from penstock.engines.sqlserver.source.instances import columns_of, enable_text
from penstock.ports.checks import Finding, Severity

LATENCY_S_MAX = 60
OLDEST_MAJOR, NEWEST_MAJOR = 13, 17  # SQL Server 2016, 2025
RETENTION_MINUTES_MIN = 3 * 1440
RETENTION_ADVICE = "EXEC sys.sp_cdc_change_job @job_type = N'cleanup', @retention = 10080;"
TEXT_SIZE_ADVICE = "EXEC sys.sp_configure N'max text repl size', -1; RECONFIGURE;"

LATENCY = (
    "SELECT TOP (1) latency, DATEDIFF(second, end_time, GETDATE()) AS age_s "
    "FROM sys.dm_cdc_log_scan_sessions WHERE session_id > 0 ORDER BY session_id DESC"
)
ERRORS = (
    "SELECT TOP (5) error_number, error_message FROM sys.dm_cdc_errors "
    "WHERE entry_time > DATEADD(day, -1, GETDATE()) ORDER BY entry_time DESC"
)
AGE = (
    "SELECT TOP (1) DATEDIFF(minute, tran_end_time, GETDATE()) AS age_minutes "
    "FROM cdc.lsn_time_mapping WHERE start_lsn > CAST(? AS binary(10)) ORDER BY start_lsn"
)
TEXT_SIZE = "SELECT CONVERT(int, value_in_use) FROM sys.configurations WHERE name = ?"
TEXT_SIZE_NAME = "max text repl size (B)"
LOG_HELD = (
    "SELECT d.log_reuse_wait_desc, "
    "(SELECT used_log_space_in_percent FROM sys.dm_db_log_space_usage) AS used_percent "
    "FROM sys.databases AS d WHERE d.name = DB_NAME()"
)
LOG_USED_PERCENT_MAX = 50.0


@SOURCE_CHECKS.check("MS001", "capture of the database", change_only=True)
def database_enabled(probe: SQLServerProbe) -> Iterator[Finding]:
    """Check that change data capture is enabled for the database."""
    if not probe.is_enabled:
        database = quote(probe.server.database)
        yield probe.make_finding(
            "MS001",
            Severity.ERROR,
            f"change data capture is not enabled for {probe.server.database}",
            "the server records no changes",
            f"USE {database}; EXEC sys.sp_cdc_enable_db;  -- on Amazon RDS: "
            f"EXEC msdb.dbo.rds_cdc_enable_db N'{probe.server.database}';",
        )


@SOURCE_CHECKS.check("MS002", "capture of the tables", change_only=True)
def tables_enabled(probe: SQLServerProbe) -> Iterator[Finding]:
    """Check that each table has a capture instance; the command enables it."""
    captured = {one.source_id for one in probe.list_captured()}
    for table in probe.tables:
        if table.source_id not in captured:
            yield probe.make_finding(
                "MS002",
                Severity.ERROR,
                f"{table.name} has no capture instance",
                "its changes are not recorded",
                enable_text(*table.name),
            )


@SOURCE_CHECKS.check("MS003", "SQL Server Agent", change_only=True)
def agent_runs(probe: SQLServerProbe) -> Iterator[Finding]:
    """Check that the Agent runs, whose job fills the change tables. Azure has a scheduler."""
    if probe.server.is_azure:
        return
    rows = probe.ask(statements.SERVICES)
    if rows is None:
        yield probe.make_finding(
            "MS003",
            Severity.INFO,
            f"{probe.server.login} may not ask whether SQL Server Agent runs",
            "a stopped Agent looks like a source without changes",
            f"GRANT VIEW SERVER STATE TO {quote(probe.server.login)};",
        )
    elif statements.AGENT_RUNS not in (statements.agent_states(rows) or [statements.AGENT_RUNS]):
        yield probe.make_finding(
            "MS003",
            Severity.ERROR,
            "SQL Server Agent does not run",
            "no change reaches the change tables, and the log cannot be truncated",
            "sudo /opt/mssql/bin/mssql-conf set sqlagent.enabled true && "
            "sudo systemctl restart mssql-server  -- on Windows: net start SQLSERVERAGENT",
        )


@SOURCE_CHECKS.check("MS004", "capture lag", change_only=True)
def latency(probe: SQLServerProbe) -> Iterator[Finding]:
    """Check how far the capture job is behind the log."""
    rows = probe.ask(LATENCY)
    if rows is None:
        yield probe.make_finding(
            "MS004",
            Severity.INFO,
            f"{probe.server.user} may not see the scans of the log",
            "the lag of the capture job is not known, and exitWhenIdle waits for a fixed time",
            f"GRANT VIEW DATABASE STATE TO {quote(probe.server.user)};",
        )
    elif rows and int(rows[0][0] or 0) > LATENCY_S_MAX:
        yield probe.make_finding(
            "MS004",
            Severity.WARNING,
            f"the capture job is {int(rows[0][0])} seconds behind the log",
            "changes arrive that much later",
            "EXEC sys.sp_cdc_change_job @job_type = N'capture', @maxtrans = 5000, @maxscans = 100;"
            " EXEC sys.sp_cdc_stop_job @job_type = N'capture';"
            " EXEC sys.sp_cdc_start_job @job_type = N'capture';",
        )


@SOURCE_CHECKS.check("MS005", "capture errors", change_only=True)
def errors(probe: SQLServerProbe) -> Iterator[Finding]:
    """Report what the capture job has failed with in the last day."""
    for told, text in probe.ask(ERRORS) or []:
        yield probe.make_finding(
            "MS005",
            Severity.WARNING,
            f"the capture job failed with {told}: {' '.join(str(text).split())}",
            "until it succeeds no change reaches the change tables",
            "SELECT * FROM sys.dm_cdc_errors ORDER BY entry_time DESC;",
        )


@SOURCE_CHECKS.check("MS006", "retention", change_only=True)
def retention(probe: SQLServerProbe) -> Iterator[Finding]:
    """Check how long changes are kept, against the age of the log's position."""
    jobs = probe.ask(statements.JOBS) or []
    kept = [one for job, _, one in jobs if job == statements.CLEAN_UP_JOB and one is not None]
    if not kept:
        return
    minutes = int(kept[0])
    if minutes < RETENTION_MINUTES_MIN:
        yield probe.make_finding(
            "MS006",
            Severity.WARNING,
            f"the clean-up job keeps changes for {minutes / 60:g} hours",
            "when the pipeline is stopped for longer, its tables have to be loaded again",
            RETENTION_ADVICE,
        )
    ages = probe.ask(AGE, probe.log_end.to_bytes(10)) if probe.log_end else None
    if ages and ages[0][0] is not None and int(ages[0][0]) > minutes * 3 // 4:
        yield probe.make_finding(
            "MS006",
            Severity.WARNING,
            f"the first change that the log lacks is {int(ages[0][0]) / 60:.1f} hours old, and the "
            f"clean-up job keeps {minutes / 60:g} hours",
            "it will be removed soon, and the tables have to be loaded again then",
            RETENTION_ADVICE,
        )


@SOURCE_CHECKS.check("MS007", "gating role", change_only=True)
def readable(probe: SQLServerProbe) -> Iterator[Finding]:
    """Check that each capture instance can be read: min_lsn is 0x0 for one that cannot be."""
    for one in probe.list_captured():
        if not one.least:
            table = quote(*one.table) if one.table is not None else one.name
            yield probe.make_finding(
                "MS007",
                Severity.ERROR,
                f"{probe.server.user} may not read the capture instance {one.name}",
                "its gating role, or SELECT on its columns, is missing",
                f"GRANT SELECT ON {table} TO {quote(probe.server.user)}; SELECT role_name FROM "
                f"cdc.change_tables WHERE capture_instance = N'{one.name}';  -- then: ALTER ROLE "
                f"[ROLE] ADD MEMBER {quote(probe.server.user)};",
            )


@SOURCE_CHECKS.check("MS009", "max text repl size", change_only=True)
def text_size(probe: SQLServerProbe) -> Iterator[Finding]:
    """Check the limit above which a write of a large value fails at the source."""
    rows = probe.ask(TEXT_SIZE, TEXT_SIZE_NAME)
    if rows and int(rows[0][0]) != -1:
        yield probe.make_finding(
            "MS009",
            Severity.WARNING,
            f"max text repl size of the source is {int(rows[0][0])} bytes",
            "a statement of an application fails if it writes a larger value to a captured table",
            TEXT_SIZE_ADVICE,
        )


@SOURCE_CHECKS.check("MS012", "log held by capture", change_only=True)
def log_held(probe: SQLServerProbe) -> Iterator[Finding]:
    """Check that the log can be truncated: what is not captured yet is kept."""
    rows = probe.ask(LOG_HELD)
    if not rows:
        return
    reason, used = str(rows[0][0]), float(rows[0][1] or 0)
    if reason == "REPLICATION":
        yield probe.make_finding(
            "MS012",
            Severity.ERROR if used > LOG_USED_PERCENT_MAX else Severity.WARNING,
            f"the log cannot be truncated, because changes are not captured yet; {used:.0f} % of "
            "it is used",
            "a full log stops the source's writes",
            "EXEC sys.sp_cdc_start_job @job_type = N'capture';",
        )


@SOURCE_CHECKS.check("MS013", "server version")
def version(probe: SQLServerProbe) -> Iterator[Finding]:
    """Check version and edition."""
    yield from version_findings(probe)
    server = probe.server
    if "express" in server.edition.lower() or "web" in server.edition.lower():
        yield probe.make_finding(
            "MS013",
            Severity.ERROR,
            f"the source is the {server.edition}",
            "this edition has no change data capture",
            "use Standard, Enterprise or Developer Edition",
        )


def version_findings(probe: SQLServerProbe) -> Iterator[Finding]:
    """Yield the findings about a server's version, the same for source and target."""
    server = probe.server
    if server.is_azure or not server.major:
        return
    if server.major < OLDEST_MAJOR:
        yield probe.make_finding(
            "MS013",
            Severity.ERROR,
            f"the {probe.side} is SQL Server {server.version}; 13 (2016) is the oldest supported",
            "older servers lack statements that penstock uses",
            "upgrade the server",
        )
    elif server.major > NEWEST_MAJOR:
        yield probe.make_finding(
            "MS013",
            Severity.WARNING,
            f"the {probe.side} is SQL Server {server.version}; 17 (2025) is the newest known",
            "a newer server may have types that penstock does not know yet; penstock would stop",
        )


@SOURCE_CHECKS.check("MS016", "captured columns", change_only=True)
def columns_captured(probe: SQLServerProbe) -> Iterator[Finding]:
    """Check that the newest instance of each table has all of its columns."""
    if not probe.is_enabled:
        return
    columns = columns_of(probe.rows(statements.COLUMNS))
    for table in probe.tables:
        instances = [one for one in probe.list_captured() if one.source_id == table.source_id]
        if not instances:
            continue  # MS002 reports it
        newest = max(instances, key=lambda one: (one.start, one.created))
        there = {one.name for one in columns.get(newest.object_id, ())}
        missing = [one.name for one in table.columns if not one.generated and one.name not in there]
        if missing:
            second = f"{table.name.schema}_{table.name.name}_{len(instances) + 1}"
            is_full = len(instances) > 1
            drop = (
                "EXEC sys.sp_cdc_disable_table @source_schema = "
                f"N'{table.name.schema}', @source_name = N'{table.name.name}', "
                f"@capture_instance = N'{instances[0].name}'; "
            )
            yield probe.make_finding(
                "MS016",
                Severity.WARNING,
                f"the capture instance {newest.name} of {table.name} lacks {names(missing)}",
                "changes of these columns are not recorded; existing rows are copied without later "
                "values",
                (drop if is_full else "") + enable_text(*table.name, instance=second),
            )
