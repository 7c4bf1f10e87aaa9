"""Facts that the checks of a SQL Server database query, the lists of checks, and their errors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from penstock.engines.sqlserver.connect import Connection
from penstock.engines.sqlserver.reading.catalog import Survey
from penstock.engines.sqlserver.source import statements
from penstock.engines.sqlserver.source.instances import Instance, instances_of
from penstock.host.errors import PrivilegeMissing, StatementFailed
from penstock.model import TableDefinition
from penstock.ports.checks import ITSELF, Checks, Finding, Severity, Side
from penstock.ports.config import Pipeline

NAMES_SHOWN_MAX = 10
AZURE_DATABASE, MANAGED_INSTANCE = 5, 8  # EngineEdition

SOURCE_CHECKS = Checks(Side.SOURCE)
TARGET_CHECKS = Checks(Side.TARGET)

SNAPSHOTS = (
    "SELECT snapshot_isolation_state, is_read_committed_snapshot_on, collation_name "
    "FROM sys.databases WHERE name = DB_NAME()"
)
SERVER = (
    "SELECT CONVERT(nvarchar(128), SERVERPROPERTY('ProductVersion')) AS version, "
    "CONVERT(nvarchar(128), SERVERPROPERTY('Edition')) AS edition, "
    "CONVERT(int, SERVERPROPERTY('EngineEdition')) AS engine_edition, "
    "DB_NAME() AS database_name, SUSER_SNAME() AS login_name, USER_NAME() AS user_name"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Server and session. engine_edition: 5 for Azure SQL Database, 8 for a managed instance."""

    version: str
    edition: str
    engine_edition: int
    database: str
    login: str
    user: str

    @property
    def major(self) -> int:
        """Return the major version: 13 is SQL Server 2016, 16 is 2022.

        Returns 0 for Azure's services, whose number stays at 12.
        """
        if self.engine_edition in (AZURE_DATABASE, MANAGED_INSTANCE):
            return 0
        return int(self.version.partition(".")[0] or 0)

    @property
    def is_azure(self) -> bool:
        """Return whether there is no SQL Server Agent, because it is Azure SQL Database."""
        return self.engine_edition == AZURE_DATABASE


@dataclass(slots=True, kw_only=True)
class SQLServerProbe:
    """One database under examination, with what was read from it once.

    Attributes:
        tables: The captured tables, as the source has them, on both sides.
        survey: The tables that the patterns match, with those that are left out.
        pipeline: None on the side of the target.
        log_end: Position of the log's end; 0 if there is none.
    """

    side: Side
    url: str
    connection: Connection
    tables: tuple[TableDefinition, ...] = ()
    survey: Survey = field(default_factory=lambda: Survey(tables=()))
    pipeline: Pipeline | None = None
    log_end: int = 0
    memo: dict[str, Any] = field(default_factory=dict)

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a query and return its rows. Raises the typed errors of `connect.server_errors`."""
        return self.connection.execute(sql, *parameters)

    def ask(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]] | None:
        """Run a query; None if the user may not ask, or the server does not have the view."""
        try:
            return self.rows(sql, *parameters)
        except (PrivilegeMissing, StatementFailed):
            return None

    @property
    def server(self) -> ServerFacts:
        """Facts of the server; read once."""
        if "server" not in self.memo:
            ((version, edition, engine, database, login, user),) = self.rows(SERVER)
            self.memo["server"] = ServerFacts(
                version=str(version),
                edition=str(edition),
                engine_edition=int(engine),
                database=str(database),
                login=str(login),
                user=str(user),
            )
        found: ServerFacts = self.memo["server"]
        return found

    @property
    def is_enabled(self) -> bool:
        """Return whether change data capture is enabled for the database."""
        if "enabled" not in self.memo:
            ((_, _, is_enabled, _, _),) = self.rows(statements.DATABASE)
            self.memo["enabled"] = bool(is_enabled)
        return bool(self.memo["enabled"])

    @property
    def is_secondary(self) -> bool:
        """Return whether the database is a readable secondary."""
        if "secondary" not in self.memo:
            ((state,),) = self.rows(statements.UPDATEABILITY)
            self.memo["secondary"] = str(state) == statements.READ_ONLY
        return bool(self.memo["secondary"])

    @property
    def copies_rows(self) -> bool:
        """Return whether the pipeline begins with a bulk load."""
        return self.pipeline is not None and self.pipeline.config.pipeline.mode.has_data

    @property
    def instances(self) -> list[Instance]:
        """Return all capture instances; none if capture is not enabled. Read once."""
        if "instances" not in self.memo:
            rows = self.rows(statements.INSTANCES) if self.is_enabled else []
            self.memo["instances"] = instances_of(rows)
        found: list[Instance] = self.memo["instances"]
        return found

    def list_captured(self) -> list[Instance]:
        """Return the instances of the captured tables."""
        wanted = {one.source_id for one in self.tables}
        return [one for one in self.instances if one.source_id in wanted]

    def make_finding(
        self, code: str, severity: Severity, what: str, why: str, command: str = ""
    ) -> Finding:
        """Return a finding on this probe's side."""
        return Finding(
            code=code, severity=severity, side=self.side, what=what, why=why, command=command
        )


def names(found: Collection[object]) -> str:
    """Return names as a list in text; if there are many, only the first ones."""
    shown = [str(name) for name in found][:NAMES_SHOWN_MAX]
    more = f" and {len(found) - len(shown)} more" if len(found) > len(shown) else ""
    return ", ".join(shown) + more


CHECKS_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "CT10": ("MS040",),
        "CT11": ("MS040",),
        "HS28": ("MS014",),
        "MS01": (ITSELF,),
        "MS03": ("MS001",),
        "MS04": ("MS002",),
        "MS05": ("MS007",),
        "MS06": ("MS015", "MS041"),
        "MS07": ("MS015",),
        "MS08": ("MS015", "MS041"),
        "MS12": ("MS040",),
        "LD16": ("MS017",),
        "MS14": ("MS017",),
        "MS40": (ITSELF,),
        "TG01": ("PK20",),
        "TG10": ("PK20",),
        "TG37": ("PK20",),
    }
)
"""Codes of the checks that find an error, by the error's code."""

NOT_FOUND_BEFORE: Mapping[str, str] = MappingProxyType(
    {
        "MS09": "while change tables are read",
        "MS11": "of a command that creates an instance",
        "MS13": "of a table that is renamed while it is captured",
        "MS42": "of verify alone: MS008 looks at snapshots",
        "MS43": "of rewriting rows that differ",
        "CT73": "of a value, when its row is written",
    }
)
"""Reasons why no check finds the other errors before, by their codes."""
