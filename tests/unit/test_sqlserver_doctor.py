"""Doctor's checks of SQL Server: each fault has a finding with the SQL to run.

No server is asked: the answers are those of `harness.servers.change_tables`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.servers.change_tables import ChangeServer, FakeColumn
from harness.servers.change_writer import ChangeWriter
from penstock.engines.sqlserver.checks import (
    CHECKS_OF_A_NEW_TABLE,
    capture_checks,
    probe,
    table_checks,
    target_checks,
)
from penstock.engines.sqlserver.checks.probe import SOURCE_CHECKS, TARGET_CHECKS, SQLServerProbe
from penstock.engines.sqlserver.connect import Connection, server_error, server_errors
from penstock.engines.sqlserver.reading.catalog import Excluded, Exclusion, Survey
from penstock.engines.sqlserver.source import statements
from penstock.engines.sqlserver.source.instances import (
    Book,
    KnownTables,
    instances_of,
)
from penstock.model import TableName
from penstock.ports.checks import Finding, Looked, Severity, Side
from penstock.ports.config import Mode

DENIED = server_error("", 229, "", "The SELECT permission was denied")


class Examined:
    """A healthy source with one table, its checks, and faults to be made."""

    def __init__(self) -> None:
        self.server = ChangeServer()
        self.table = self.server.add_table("t", [("id", "int"), ("name", "varchar(9)")])
        self.writer = ChangeWriter(self.server)
        self.instance = self.server.capture(self.table, start=self.writer.next_lsn())
        self.log_end = self.writer.idle()
        self.survey = Survey(tables=())
        self.known: KnownTables | None = None
        self.mode = Mode.DATA_CHANGE
        self.start_lsn: str | None = None
        self.server.answers.update(
            {
                probe.SERVER: [("16.0.4135.4", "Developer Edition", 3, "shop", "app", "app")],
                capture_checks.LATENCY: [(1, 1)],
                capture_checks.ERRORS: [],
                capture_checks.AGE: [],
                capture_checks.TEXT_SIZE: [(-1,)],
                capture_checks.LOG_HELD: [("NOTHING", 1.5)],
                probe.SNAPSHOTS: [(1, True, "Latin1_General_CI_AS")],
                table_checks.COLUMNSTORES: [],
                table_checks.COLLATIONS: [(1000, "name", "Latin1_General_CI_AS")],
                table_checks.HIDDEN: [],
                table_checks.DELAYED: [("DISABLED",)],
                statements.UPDATEABILITY: [("READ_WRITE",)],
                "SELECT TOP (0) * FROM [dbo].[t]": [],
                "SELECT TOP (0) * FROM [cdc].[dbo_t_CT]": [],
                target_checks.RIGHTS: [(1, 1)],
            }
        )

    def look(self, monkeypatch: pytest.MonkeyPatch, code: str = "") -> list[Finding]:
        """Do the source's checks; return the findings, of one check if it is named."""
        config = SimpleNamespace(
            pipeline=SimpleNamespace(mode=self.mode),
            change_extractor=SimpleNamespace(start_lsn=self.start_lsn),
        )
        monkeypatch.setattr(table_checks, "known_tables", lambda _: self.known)
        monkeypatch.setattr(table_checks, "has_begun", lambda _: self.known is not None)
        monkeypatch.setattr(table_checks, "stored_identity", lambda _: None)
        monkeypatch.setattr(table_checks, "identity_of", lambda *_: None)
        found = SQLServerProbe(
            side=Side.SOURCE,
            url="sqlserver://u:p@h/shop",
            connection=cast("Connection", self.server.open()),
            tables=tuple(self.server.definitions()),
            survey=self.survey,
            pipeline=cast("Any", SimpleNamespace(config=config)),
            log_end=self.log_end,
        )
        looked = Looked(only=(code,) if code else ())
        looked.look(SOURCE_CHECKS, found, typed=server_errors)
        assert looked.skipped == 0
        return looked.findings

    def remember(self) -> None:
        """Keep the captured tables, as a log that has begun does."""
        book = Book(lambda _: True)
        session = self.server.open()
        book.check(instances_of(session.execute(statements.INSTANCES)), 0, exists=lambda _: True)
        self.known = book.state()


def test_a_healthy_source_has_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every check asks its question, and finds nothing."""
    case = Examined()
    case.remember()
    assert case.look(monkeypatch) == []


def disable(case: Examined) -> None:
    """Disable capture for the database."""
    case.server.is_enabled = False


def uncapture(case: Examined) -> None:
    """Disable capture for the table."""
    case.server.instances.clear()


def stop_agent(case: Examined) -> None:
    """Stop the Agent."""
    case.server.agent = 1


def lag(case: Examined) -> None:
    """Let the capture job lag."""
    case.server.answers[capture_checks.LATENCY] = [(600, 1)]


def fail_capture(case: Examined) -> None:
    """Let the capture job fail."""
    case.server.answers[capture_checks.ERRORS] = [(2628, "String would be truncated")]


def keep_little(case: Examined) -> None:
    """Keep changes for one day."""
    case.server.retention = 1440


def grow_old(case: Examined) -> None:
    """Let the first unread change grow old."""
    case.server.answers[capture_checks.AGE] = [(4000,)]


def gate(case: Examined) -> None:
    """Take the gating role away."""
    case.instance.is_readable = False


def forbid_snapshots(case: Examined) -> None:
    """Forbid snapshot isolation."""
    case.server.answers[probe.SNAPSHOTS] = [(0, True, "Latin1_General_CI_AS")]


def limit_text(case: Examined) -> None:
    """Limit large values."""
    case.server.answers[capture_checks.TEXT_SIZE] = [(65536,)]


def collate(case: Examined) -> None:
    """Give a column a collation of its own."""
    case.server.answers[table_checks.COLLATIONS] = [(1000, "name", "Greek_CI_AS")]


def leave_out(case: Examined) -> None:
    """Match a memory-optimised table."""
    row = Excluded(name=TableName("dbo", "m"), reason=Exclusion.MEMORY)
    case.survey = Survey(tables=(), excluded=(row,))


def columnstore(case: Examined) -> None:
    """Give the table a clustered columnstore."""
    case.server.answers[table_checks.COLUMNSTORES] = [(1000,)]


def encrypt(case: Examined) -> None:
    """Encrypt a column."""
    case.server.answers[table_checks.HIDDEN] = [(1000, "name")]


def delay(case: Examined) -> None:
    """Delay durability."""
    case.server.answers[table_checks.DELAYED] = [("FORCED",)]


def hold_log(case: Examined) -> None:
    """Let the log grow."""
    case.server.answers[capture_checks.LOG_HELD] = [("REPLICATION", 80.0)]


def age_version(case: Examined) -> None:
    """Answer as an old version."""
    case.server.answers[probe.SERVER] = [("12.0.1", "Standard Edition", 2, "shop", "app", "app")]


def express(case: Examined) -> None:
    """Answer as the free edition."""
    case.server.answers[probe.SERVER] = [("16.0.1", "Express Edition", 4, "shop", "app", "app")]


def deny_table(case: Examined) -> None:
    """Deny SELECT on the table."""
    case.server.failing["SELECT TOP (0) * FROM [dbo].[t]"] = DENIED


def deny_changes(case: Examined) -> None:
    """Deny SELECT on the change table."""
    case.server.failing["SELECT TOP (0) * FROM [cdc].[dbo_t_CT]"] = DENIED


def lose(case: Examined) -> None:
    """Clean up changes that the log lacks."""
    case.remember()
    case.writer.idle()
    case.server.clean_up(case.writer.last)
    case.writer.idle()


def go_back(case: Examined) -> None:
    """Restore an older database."""
    case.remember()
    assert case.known is not None
    case.known = KnownTables(tables=case.known.tables, newest="00000027:00009000:0001")


def replace_database(case: Examined) -> None:
    """Let another database have the name."""
    case.remember()
    assert case.known is not None
    case.known = KnownTables(tables=case.known.tables, database="another")


def add_column(case: Examined) -> None:
    """Add a column that is not captured."""
    case.table.columns.append(FakeColumn("phone", "varchar(20)", 9))


def lose_key(case: Examined) -> None:
    """Drop the primary key."""
    case.table.key = ()


def lose_key_on_secondary(case: Examined) -> None:
    """Drop the primary key; the URL leads to a readable secondary."""
    lose_key(case)
    case.server.answers[statements.UPDATEABILITY] = [("READ_ONLY",)]


def begin_early(case: Examined) -> None:
    """Begin before the change table."""
    case.mode, case.start_lsn = Mode.CHANGE, "00000027:00000100:0001"


def begin_late(case: Examined) -> None:
    """Begin after all captured commits."""
    case.mode, case.start_lsn = Mode.CHANGE, "00000099:00000100:0001"


@pytest.mark.parametrize(
    ("fault", "code", "severity", "command"),
    [
        (disable, "MS001", Severity.ERROR, "USE [shop]; EXEC sys.sp_cdc_enable_db;"),
        (
            uncapture,
            "MS002",
            Severity.ERROR,
            "EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N't', "
            "@role_name = NULL, @supports_net_changes = 0;",
        ),
        (stop_agent, "MS003", Severity.ERROR, "sqlagent.enabled true"),
        (lag, "MS004", Severity.WARNING, "sp_cdc_change_job @job_type = N'capture'"),
        (fail_capture, "MS005", Severity.WARNING, "sys.dm_cdc_errors"),
        (keep_little, "MS006", Severity.WARNING, "@retention = 10080"),
        (grow_old, "MS006", Severity.WARNING, "@retention = 10080"),
        (gate, "MS007", Severity.ERROR, "GRANT SELECT ON [dbo].[t] TO [app];"),
        (forbid_snapshots, "MS008", Severity.WARNING, "SET ALLOW_SNAPSHOT_ISOLATION ON;"),
        (limit_text, "MS009", Severity.WARNING, "N'max text repl size', -1; RECONFIGURE;"),
        (collate, "MS010", Severity.WARNING, "nvarchar(N)"),
        (leave_out, "MS011", Severity.INFO, '"!dbo.m"'),
        (columnstore, "MS011", Severity.ERROR, '"!dbo.t"'),
        (encrypt, "MS011", Severity.WARNING, ""),
        (delay, "MS011", Severity.WARNING, "DELAYED_DURABILITY = DISABLED"),
        (hold_log, "MS012", Severity.ERROR, "EXEC sys.sp_cdc_start_job @job_type = N'capture';"),
        (age_version, "MS013", Severity.ERROR, "upgrade"),
        (express, "MS013", Severity.ERROR, "Standard, Enterprise or Developer"),
        (deny_table, "MS014", Severity.ERROR, "GRANT SELECT ON [dbo].[t] TO [app];"),
        (deny_changes, "MS014", Severity.ERROR, "GRANT SELECT ON SCHEMA::[cdc] TO [app];"),
        (lose, "MS015", Severity.ERROR, "penstock reset --target"),
        (go_back, "MS015", Severity.ERROR, "penstock reset --target"),
        (replace_database, "MS040", Severity.ERROR, "penstock reset --target"),
        (add_column, "MS016", Severity.WARNING, "@capture_instance = N'dbo_t_2';"),
        (lose_key, "MS017", Severity.WARNING, "PRIMARY KEY"),
        (lose_key_on_secondary, "MS017", Severity.ERROR, "primary replica"),
        (begin_early, "MS041", Severity.ERROR, "startLsn = "),
        (begin_late, "MS041", Severity.ERROR, "sys.fn_cdc_get_max_lsn()"),
    ],
    ids=lambda one: one.__name__ if callable(one) else "",
)
def test_each_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, fault: Any, code: str, severity: Severity, command: str
) -> None:
    """The finding has the check's code, and the exact text to run."""
    case = Examined()
    fault(case)
    findings = case.look(monkeypatch, code)
    assert [(one.code, one.severity) for one in findings] == [(code, severity)]
    assert command in findings[0].command
    assert findings[0].what
    assert findings[0].why


@pytest.mark.parametrize(
    ("sql", "code", "grant"),
    [
        (statements.SERVICES, "MS003", "GRANT VIEW SERVER STATE TO [app];"),
        (capture_checks.LATENCY, "MS004", "GRANT VIEW DATABASE STATE TO [app];"),
    ],
)
def test_a_question_that_is_refused_is_said(
    monkeypatch: pytest.MonkeyPatch, sql: str, code: str, grant: str
) -> None:
    """Not knowing is not the same as nothing wrong: the finding has the GRANT."""
    case = Examined()
    case.server.failing[sql] = server_error("", 300, "", "permission was denied")
    (finding,) = case.look(monkeypatch, code)
    assert finding.severity is Severity.INFO
    assert finding.command == grant


def test_s17_azure_has_no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a scheduler instead, and the view of services does not exist."""
    case = Examined()
    case.server.answers[probe.SERVER] = [("12.0.2000.8", "SQL Azure", 5, "shop", "app", "app")]
    case.server.agent = 1
    assert case.look(monkeypatch, "MS003") == []
    assert case.look(monkeypatch, "MS013") == []


def test_a_second_instance_that_lacks_a_column_replaces_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A table has two instances at most."""
    case = Examined()
    case.server.capture(case.table, start=case.writer.next_lsn(), instance="dbo_t_2")
    add_column(case)
    (finding,) = case.look(monkeypatch, "MS016")
    assert "sp_cdc_disable_table" in finding.command
    assert "@capture_instance = N'dbo_t'; " in finding.command
    assert "@capture_instance = N'dbo_t_3';" in finding.command


@pytest.mark.parametrize(
    ("version", "edition", "engine", "severity"),
    [
        ("12.0.6024.0", "Enterprise Edition", 3, Severity.ERROR),
        ("13.0.4001.0", "Standard Edition", 2, None),
        ("17.0.1000.7", "Enterprise Developer Edition", 3, None),
        ("18.0.1.0", "Enterprise Edition", 3, Severity.WARNING),
        ("16.0.1000.6", "Express Edition (64-bit)", 4, Severity.ERROR),
        ("16.0.1000.6", "Web Edition (64-bit)", 2, Severity.ERROR),
        ("12.0.2000.8", "SQL Azure", 5, None),
        ("12.0.2000.8", "SQL Azure", 8, None),
    ],
)
def test_versions_and_editions(
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    edition: str,
    engine: int,
    severity: Severity | None,
) -> None:
    """Azure's services say 12, whatever they run; Express and Web capture nothing."""
    case = Examined()
    case.server.answers[probe.SERVER] = [(version, edition, engine, "shop", "app", "app")]
    found = [one.severity for one in case.look(monkeypatch, "MS013")]
    assert found == ([] if severity is None else [severity])


@pytest.mark.parametrize("has_versions", [True, False])
def test_snapshots_of_the_source_are_advised(
    monkeypatch: pytest.MonkeyPatch, has_versions: bool
) -> None:
    """Row versions of READ COMMITTED are not one moment; readers do not wait with them."""
    case = Examined()
    case.server.answers[probe.SNAPSHOTS] = [(0, has_versions, "Latin1_General_CI_AS")]
    (finding,) = case.look(monkeypatch, "MS008")
    assert ("readers wait for writers" in finding.why) is not has_versions


def test_row_versions_are_advised_at_the_target() -> None:
    """Without them queries wait while a batch is applied."""
    case = Examined()
    case.server.answers[probe.SNAPSHOTS] = [(1, False, "Latin1_General_CI_AS")]
    (finding,) = look_at_target(case)
    assert (finding.code, finding.severity) == ("MS018", Severity.INFO)
    assert finding.command.startswith("ALTER DATABASE [shop] SET READ_COMMITTED_SNAPSHOT ON")


def look_at_target(case: Examined) -> list[Finding]:
    """Do the target's checks."""
    found = SQLServerProbe(
        side=Side.TARGET,
        url="sqlserver://u:p@h/shop",
        connection=cast("Connection", case.server.open()),
    )
    looked = Looked()
    looked.look(TARGET_CHECKS, found, typed=server_errors)
    return looked.findings


def test_rights_at_the_target() -> None:
    """The target's user has to create tables, and the schema wirekite."""
    case = Examined()
    case.server.answers[target_checks.RIGHTS] = [(1, 0)]
    assert [one.command for one in look_at_target(case)] == ["GRANT CREATE SCHEMA TO [app];"]


def test_checks_of_a_new_table_exist() -> None:
    """Their codes are those of checks of the source."""
    assert set(CHECKS_OF_A_NEW_TABLE) <= {one.code for one in SOURCE_CHECKS}
