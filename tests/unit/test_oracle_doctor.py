"""Doctor's checks of Oracle on the fake driver: each fault has a finding with the SQL to run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.codec.oracle.scn import OraclePosition
from penstock.control.pipeline.config import load_config
from penstock.engines.oracle import checks
from penstock.engines.oracle.checks import log_checks, table_checks, target_checks
from penstock.engines.oracle.checks.probe import SOURCE_CHECKS, TARGET_CHECKS, OracleProbe
from penstock.engines.oracle.connect import Connection, connect, connect_root
from penstock.engines.oracle.extraction import identity
from penstock.engines.oracle.reading.catalog import survey
from penstock.engines.oracle.server_errors import server_errors
from penstock.engines.oracle.source.views import Incarnation
from penstock.engines.oracle.source.watermarks import REDO_FILE, Watermarks
from penstock.host import files
from penstock.host.state_file import StateFile
from penstock.ports.checks import Examined, Finding, Looked, Severity, Side, SourceSeen
from penstock.ports.config import BulkState, Pipeline
from penstock.ports.identity import keep_identity
from sim_oracle.database import Database
from sim_oracle.driver_servers import install
from sim_oracle.session import ALL_PRIVILEGES, Server

T = {"ID": "NUMBER(10)", "NAME": "VARCHAR2(40)"}
FILE = """
[pipeline]
name = "{name}"
mode = "{mode}"
directory = "d"
[source]
url = "{url}"
tables = ["SHOP.*"]
[target]
url = "{target}"
[changeExtractor]
{keys}
"""


class Case:
    """A healthy source with one table, its checks, and faults to be made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self.database = Database("ORCL", pdbs=["SHOPPDB"])
        self.database.settings.force_logging = "YES"
        self.server = Server(self.database)
        self.address = install(monkeypatch, self.server)
        self.url = f"oracle://c%23%23penstock:secret@{self.address}/ORCL?pdb=shoppdb"
        self.table = self.database.add_table("SHOP", "T", T, key=["ID"])
        self.path = path
        self.mode, self.keys, self.name = "data+change", "", "p"
        self.log_end = 0

    def add(self, name: str, columns: dict[str, str] | None = None, **more: Any) -> Any:
        """Add a table of SHOP."""
        return self.database.add_table("SHOP", name, columns or T, **more)

    def withdraw(self, *grants: str) -> None:
        """Take rights from the user."""
        given = ALL_PRIVILEGES | set(target_checks.WRITES + target_checks.CREATES)
        self.database.settings.grants = given - set(grants)

    def pipeline(self) -> Pipeline:
        """Return the pipeline."""
        file = self.path / "p.toml"
        target = "postgresql://u:p@h/d"
        text = FILE.format(
            name=self.name, mode=self.mode, url=self.url, target=target, keys=self.keys
        )
        file.write_text(text, encoding="utf-8")
        return Pipeline(config=load_config(file), log_position=lambda: 0, bulk=lambda: BulkState())

    def look(self, code: str = "") -> list[Finding]:
        """Do the source's checks; return the findings, of one check if it is named."""
        with connect(self.url) as session, connect_root(self.url) as root:
            seen = survey(session, ["SHOP.*", "!SHOP.NOT"])
            probe = OracleProbe(
                side=Side.SOURCE,
                url=self.url,
                connection=session,
                root=root,
                tables=seen.tables,
                survey=seen,
                pipeline=self.pipeline(),
                log_end=self.log_end,
            )
            looked = Looked(only=(code,) if code else ())
            looked.look(SOURCE_CHECKS, probe, typed=server_errors)
        assert looked.skipped == 0, looked.findings
        return looked.findings

    def remember(self, low: int | None = None) -> None:
        """Let a log end at the present SCN. low: its watermark."""
        with connect_root(self.url) as root:
            scn = int(root.execute("SELECT CURRENT_SCN FROM V$DATABASE")[0][0])
        self.log_end = OraclePosition.of_scn(scn).ordinal
        marks = Watermarks()
        marks.note(self.log_end, scn if low is None else low)
        incarnation = self.database.logs.incarnation
        config = self.pipeline().config
        files.REAL_FILES.make_directory(config.layout.state)
        known = marks.state(
            Incarnation(
                dbid=self.database.dbid,
                name="ORCL",
                resetlogs=(incarnation.scn, incarnation.time),
                is_forced=True,
            )
        )
        StateFile(config.layout.state / REDO_FILE, type(known)).save(known)


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Case:
    """Return a healthy source."""
    return Case(monkeypatch, tmp_path)


@pytest.mark.parametrize("has_log", [False, True])
def test_a_healthy_source_has_no_finding(case: Case, has_log: bool) -> None:
    """Every check asks its question, and finds nothing."""
    if has_log:
        case.remember()
        keep_identity(case.pipeline().config, identity(case.pipeline().config))
    assert case.look() == []


def set_up(name: str, value: Any) -> Callable[[Case], None]:
    """Return the function that changes a setting of the database."""

    def change(case: Case) -> None:
        setattr(case.database.settings, name, value)

    return change


def log_keys_alone(case: Case) -> None:
    """Log the key of the table alone, and want whole images."""
    case.add("K", key=["ID"], supplemental="PRIMARY KEY")
    case.keys = "fullBeforeImages = true"


def log_nothing(case: Case) -> None:
    """Log nothing of a table."""
    case.add("K", key=["ID"], supplemental="NONE")


def log_little_of_keyless(case: Case) -> None:
    """Have a table without a key whose columns are not all logged."""
    case.add("K", supplemental="NONE")


def load_unlogged(case: Case) -> None:
    """Let tables be loaded without redo."""
    case.database.settings.force_logging = "NO"
    case.add("K", key=["ID"], is_logging=False)


def load_without_redo(case: Case) -> None:
    """Load rows without redo after the log's end."""
    case.remember()
    case.database.tick()
    case.database.unrecoverable_scn = case.database.scn + 1000


def keep_little_undo(case: Case) -> None:
    """Keep undo for a second, with a large table."""
    case.database.settings.parameters["undo_retention"] = "1"
    log_checks.READ_BYTES_A_SECOND = 1
    transaction = case.database.begin()
    for number in range(200):
        transaction.insert(case.table, {"ID": number})
    transaction.commit()
    case.table.analyzed_rows = 200


def name_the_pdb_service(case: Case) -> None:
    """Connect to the pluggable database in place of the root."""
    case.url = f"oracle://c%23%23penstock:secret@{case.address}/shoppdb"


def add_instance(case: Case) -> None:
    """Add an instance."""
    case.database.add_thread(2)


def match_temporary(case: Case) -> None:
    """Match a temporary table."""
    case.add("G", key=["ID"], is_temporary=True)


def match_documents(case: Case) -> None:
    """Match a table with XML."""
    case.add("D", {"ID": "NUMBER(10)", "X": "XMLTYPE"}, key=["ID"])


def forget_key(case: Case) -> None:
    """Have a table without a key, with a large column."""
    case.add("K", {"A": "NUMBER", "C": "CLOB"})


def have_long(case: Case) -> None:
    """Have a table with a LONG RAW."""
    case.add("L", {"ID": "NUMBER(10)", "L": "LONG RAW"}, key=["ID"])


def lose_redo(case: Case) -> None:
    """Remove the archives that the log needs."""
    case.remember(low=1)
    for _ in range(4):
        case.database.archive_current()
    case.database.logs.purge(case.database.scn, "rman")


def restore(case: Case) -> None:
    """Restore the database to an earlier time."""
    case.remember()
    case.database.restore(case.database.scn)


def take_other_directory(case: Case) -> None:
    """Take the directory of another pipeline."""
    keep_identity(case.pipeline().config, identity(case.pipeline().config))
    case.name = "other"


def begin_later(case: Case) -> None:
    """Let the log begin in the future."""
    case.mode, case.keys = "change", f'startScn = "{2**50}"'


def begin_too_early(case: Case) -> None:
    """Let the log begin before the oldest redo."""
    for _ in range(4):
        case.database.archive_current()
    case.database.logs.purge(case.database.scn, "rman")
    case.mode, case.keys = "change", 'startScn = "1"'


def deny(*grants: str) -> Callable[[Case], None]:
    """Return the function that takes rights away."""
    return lambda case: case.withdraw(*grants)


def deny_statement(number: int, text: str) -> Callable[[Case], None]:
    """Return the function that lets statements with a text fail."""
    return lambda case: case.server.fail_next(number, text, times=99)


@pytest.mark.parametrize(
    ("break_it", "code", "severity", "said", "command"),
    [
        (set_up("log_mode", "NOARCHIVELOG"), "OR001", "E", "NOARCHIVELOG", "ARCHIVELOG"),
        (set_up("role", "PHYSICAL STANDBY"), "OR001", "E", "STANDBY", "primary"),
        (set_up("minimal_logging", "NO"), "OR002", "E", "no supplemental", "SUPPLEMENTAL LOG"),
        (log_nothing, "OR003", "E", "neither its key", 'ALTER TABLE "SHOP"."K"'),
        (log_little_of_keyless, "OR003", "E", "no primary key", "(ALL) COLUMNS"),
        (log_keys_alone, "OR003", "E", "fullBeforeImages", "(ALL) COLUMNS"),
        (load_unlogged, "OR004", "W", "SHOP.K", "FORCE LOGGING"),
        (load_without_redo, "OR004", "W", "without redo", "resync"),
        (keep_little_undo, "OR005", "W", "UNDO_RETENTION is 1 s", "UNDO_RETENTION ="),
        (deny_statement(942, "V$THREAD"), "OR007", "E", "V_$THREAD", "SYS.V_$THREAD"),
        (deny_statement(942, "GV$TRANSACTION"), "OR007", "E", "GV_$TRANSACTION", "CONTAINER=ALL"),
        (deny("EXECUTE_CATALOG_ROLE"), "OR007", "E", "DBMS_LOGMNR", "EXECUTE_CATALOG_ROLE"),
        (deny("LOGMINING"), "OR007", "E", "start LogMiner", "GRANT LOGMINING"),
        (deny_statement(942, "V$LOGMNR_CONTENTS"), "OR007", "E", "CONTENTS", "V_$LOGMNR_CONTENTS"),
        (deny("ALTER SYSTEM"), "OR007", "W", "switch logs", "GRANT ALTER SYSTEM"),
        (deny("SELECT ANY TABLE", "FLASHBACK ANY TABLE"), "OR007", "E", "SHOP.T", "GRANT SELECT"),
        (deny("FLASHBACK ANY TABLE"), "OR007", "E", "as of an SCN", "GRANT FLASHBACK ON"),
        (deny_statement(942, "DBA_EXTENTS"), "OR007", "W", "DBA_EXTENTS", "SYS.DBA_EXTENTS"),
        (name_the_pdb_service, "OR008", "E", "not at the root", "?pdb=SHOPPDB"),
        (set_up("character_set", "WE8MSWIN1252"), "OR009", "W", "WE8MSWIN1252", "catch up"),
        (add_instance, "OR012", "I", "1, 2", ""),
        (match_temporary, "OR011", "I", "SHOP.G", '"!SHOP.G"'),
        (match_documents, "OR011", "W", "SHOP.D: it has a column that the log", '"!SHOP.D"'),
        (have_long, "OR011", "W", "column L of SHOP.L is LONG RAW", 'MODIFY ("L" BLOB)'),
        (set_up("version", "12.1.0.2.0"), "OR013", "E", "12.1", "upgrade"),
        (set_up("version", "29.1.0.0.0"), "OR013", "W", "29.1", ""),
        (forget_key, "OR014", "W", "large columns C", "PRIMARY KEY"),
        (lose_redo, "OR015", "E", "from SCN 1 on", "RESTORE ARCHIVELOG"),
        (restore, "OR015", "E", "RESETLOGS", "penstock reset"),
        (take_other_directory, "OR040", "E", "belongs to the pipeline p", "directory"),
        (begin_later, "OR041", "E", "the server is at", "CURRENT_SCN"),
        (begin_too_early, "OR041", "E", "oldest redo", "startScn ="),
    ],
)  # fmt: skip
def test_each_fault_is_found(
    case: Case,
    monkeypatch: pytest.MonkeyPatch,
    break_it: Callable[[Case], None],
    code: str,
    severity: str,
    said: str,
    command: str,
) -> None:
    """Find it by its check, with the severity that it deserves and the command that helps."""
    monkeypatch.setattr(log_checks, "READ_BYTES_A_SECOND", log_checks.READ_BYTES_A_SECOND)
    break_it(case)
    findings = case.look(code)
    found = [one for one in findings if said in one.what]
    assert found, findings
    assert (found[0].code, found[0].severity) == (code, Severity(severity))
    assert command in found[0].command
    assert found[0].why


def test_logs_that_are_switched_often(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small logs are reused while they are read."""
    monkeypatch.setattr(log_checks, "SWITCHES_AN_HOUR_MAX", 0)
    monkeypatch.setattr(log_checks, "LOG_BYTES_MIN", 2**50)
    for _ in range(48):
        case.database.archive_current()
    (found,) = case.look("OR010")
    assert "times an hour" in found.what


def test_closed_and_unknown_containers(case: Case) -> None:
    """LogMiner would wait for a closed one; the root alone has no tables."""
    case.url = case.url.partition("?")[0]
    (found,) = case.look("OR008")
    assert "names no pluggable database" in found.what


def test_services_of_clouds(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """RDS removes archives early; an Autonomous Database cannot be mined."""
    answers = {table_checks.ON_RDS: [(1,)], table_checks.CLOUD: [("OLTP",)]}
    original = Connection.execute
    monkeypatch.setattr(
        Connection,
        "execute",
        lambda self, sql, **binds: answers.get(sql) or original(self, sql, **binds),
    )
    rds, autonomous = case.look("OR018")
    assert "archivelog retention" in rds.command
    assert (autonomous.severity, "data" in autonomous.command) == (Severity.ERROR, True)


def test_policies_that_hide_rows_or_values(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Require the privileges that exempt the user."""
    answers = {
        table_checks.POLICIES: [("SHOP", "T"), ("SHOP", "OTHER")],
        table_checks.REDACTIONS: [("SHOP", "T")],
    }
    original = Connection.execute
    monkeypatch.setattr(
        Connection,
        "execute",
        lambda self, sql, **binds: answers.get(sql) or original(self, sql, **binds),
    )
    hidden, changed = case.look("OR016")
    assert hidden.command == "GRANT EXEMPT ACCESS POLICY TO C##PENSTOCK;"
    assert changed.command == "GRANT EXEMPT REDACTION POLICY TO C##PENSTOCK;"
    assert "SHOP.T" in hidden.what
    assert "OTHER" not in hidden.what
    exempt = {"EXEMPT ACCESS POLICY", "EXEMPT REDACTION POLICY"}
    case.database.settings.grants = ALL_PRIVILEGES | exempt
    assert case.look("OR016") == []


def make_examined(case: Case) -> Examined:
    """Return what doctor gives to an engine."""
    return Examined(
        pipeline=case.pipeline(),
        log_id=lambda: "",
        log_end=lambda: case.log_end,
        followed=lambda: frozenset(),
        copied=lambda: frozenset(),
        known=lambda tables: list(tables),
        judged=lambda tables: (tuple(tables), []),
        extracts=lambda: False,
        servers=lambda: None,
    )


def test_the_part_of_doctor(case: Case) -> None:
    """The survey of the tables is among the findings; a server that is down is one."""
    looked = Looked()
    seen = checks.look_at_source(make_examined(case), looked)
    assert [str(one.name) for one in seen.tables or ()] == ["SHOP.T"]
    assert looked.findings == []
    assert looked.done == len(SOURCE_CHECKS)
    case.add("G", key=["ID"], is_temporary=True)
    given = make_examined(case)
    object.__setattr__(given.config.source, "tables", ("SHOP.G",))
    looked = Looked()
    checks.look_at_source(given, looked)
    assert "OR04" in {one.code for one in looked.findings}
    case.server.is_down = True
    looked = Looked()
    assert checks.look_at_source(make_examined(case), looked) == SourceSeen()
    assert [one.code for one in looked.findings] == ["HS22"]
    assert looked.skipped == len(SOURCE_CHECKS)


def look_at_target(case: Case, code: str) -> list[Finding]:
    """Do a check of the target."""
    with connect(case.url) as session:
        probe = OracleProbe(side=Side.TARGET, url=case.url, connection=session, root=session)
        looked = Looked(only=(code,))
        looked.look(TARGET_CHECKS, probe, typed=server_errors)
    assert looked.skipped == 0
    return looked.findings


def test_the_target(case: Case) -> None:
    """Version, character set and rights."""
    case.withdraw()
    for code in ("OR013", "OR038", "OR039"):
        assert look_at_target(case, code) == []
    case.database.settings.character_set = "WE8ISO8859P1"
    assert "WE8ISO8859P1" in look_at_target(case, "OR038")[0].what
    case.withdraw("CREATE USER", "DELETE ANY TABLE")
    (found,) = look_at_target(case, "OR039")
    assert found.command == "GRANT DELETE ANY TABLE, CREATE USER TO C##PENSTOCK;"
    case.database.settings.version = "11.2.0.4.0"
    assert look_at_target(case, "OR013")[0].severity is Severity.ERROR


def test_target_tables_of_mode_change(case: Case) -> None:
    """Report those that do not exist, by PK20."""
    case.mode = "change"
    given = make_examined(case)
    object.__setattr__(given.config.target, "url", case.url)
    other = case.add("MISSING", key=["ID"])
    with connect(case.url) as session:
        tables = survey(session, ["SHOP.*"]).tables
    case.database.drop_table(other)
    looked = Looked(only=("PK20",))
    assert checks.look_at_target(given, looked, SourceSeen(tables=tables))
    assert ["MISSING" in one.what for one in looked.findings] == [True]
    case.server.is_down = True
    looked = Looked()
    assert not checks.look_at_target(given, looked, SourceSeen(tables=tables))
