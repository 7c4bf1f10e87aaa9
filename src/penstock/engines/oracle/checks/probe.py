"""Facts that the checks of an Oracle database query, the lists of checks, and their errors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from penstock.engines.oracle.beginning import DatabaseFacts, read_container, read_database
from penstock.engines.oracle.connect import Connection
from penstock.engines.oracle.reading.catalog import Survey
from penstock.engines.oracle.url import ROOT, OracleUrl
from penstock.host.errors import PrivilegeMissing, StatementFailed
from penstock.model import TableDefinition
from penstock.ports.checks import ITSELF, Checks, Finding, Severity, Side
from penstock.ports.config import Pipeline

NAMES_SHOWN_MAX = 10

SOURCE_CHECKS = Checks(Side.SOURCE)
TARGET_CHECKS = Checks(Side.TARGET)

USER = "SELECT SYS_CONTEXT('USERENV', 'SESSION_USER') FROM DUAL"
PRIVILEGES = "SELECT PRIVILEGE FROM SESSION_PRIVS"
PARAMETER = "SELECT VALUE FROM V$PARAMETER WHERE NAME = :name"
CHARACTER_SET = "SELECT VALUE FROM NLS_DATABASE_PARAMETERS WHERE PARAMETER = 'NLS_CHARACTERSET'"


@dataclass(slots=True, kw_only=True)
class OracleProbe:
    """One database under examination, with what was read from it once.

    Attributes:
        connection: Session of the container that has the tables.
        root: Session for mining; that of the tables on the side of the target.
        tables: The captured tables, as the source has them, on both sides.
        survey: The tables that the patterns match, with those that are left out.
        pipeline: None on the side of the target.
        log_end: Position of the log's end; 0 if there is none.
    """

    side: Side
    url: str
    connection: Connection
    root: Connection
    tables: tuple[TableDefinition, ...] = ()
    survey: Survey = field(default_factory=lambda: Survey(tables=()))
    pipeline: Pipeline | None = None
    log_end: int = 0
    memo: dict[str, Any] = field(default_factory=dict)

    def ask(self, sql: str, **binds: Any) -> list[tuple[Any, ...]] | None:
        """Run a query for mining; None if the user may not ask, or the server lacks the view."""
        try:
            return self.root.execute(sql, **binds)
        except (PrivilegeMissing, StatementFailed):
            return None

    @property
    def database(self) -> DatabaseFacts:
        """Facts of the database; read once."""
        if "database" not in self.memo:
            self.memo["database"] = read_database(self.root)
        found: DatabaseFacts = self.memo["database"]
        return found

    @property
    def user(self) -> str:
        """Return the user of the sessions, as in GRANT."""
        if "user" not in self.memo:
            self.memo["user"] = str(self.connection.execute(USER)[0][0])
        return str(self.memo["user"])

    @property
    def pdb(self) -> str:
        """Return the pluggable database that the URL names; empty without one."""
        return OracleUrl.parse(self.url).pdb

    @property
    def container(self) -> str:
        """Return the container of the mining session."""
        if "container" not in self.memo:
            self.memo["container"] = read_container(self.root)
        return str(self.memo["container"])

    @property
    def privileges(self) -> frozenset[str]:
        """Return the system privileges of the mining session."""
        if "privileges" not in self.memo:
            rows = self.root.execute(PRIVILEGES)
            self.memo["privileges"] = frozenset(str(row[0]) for row in rows)
        found: frozenset[str] = self.memo["privileges"]
        return found

    @property
    def grant_suffix(self) -> str:
        """Return the end of a GRANT to a common user."""
        return " CONTAINER=ALL" if self.container == ROOT else ""

    @property
    def has_data(self) -> bool:
        """Return whether the pipeline begins with a bulk load."""
        return self.pipeline is not None and self.pipeline.config.pipeline.mode.has_data

    @property
    def has_change(self) -> bool:
        """Return whether the pipeline follows changes."""
        return self.pipeline is not None and self.pipeline.config.pipeline.mode.has_change

    def parameter(self, name: str) -> str | None:
        """Return an initialization parameter; None if the user may not ask."""
        rows = self.ask(PARAMETER, name=name)
        return None if not rows or rows[0][0] is None else str(rows[0][0])

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
        "CT10": ("OR040",),
        "CT11": ("OR040",),
        "HS28": ("OR007",),
        "OR01": (ITSELF,),
        "OR02": (ITSELF,),
        "OR04": (ITSELF,),
        "OR06": ("OR001",),
        "OR07": ("OR002", "OR003"),
        "OR08": ("OR001",),
        "OR09": ("OR008",),
        "LD16": ("OR014",),
        "OR10": ("OR008",),
        "OR20": ("OR015", "OR041"),
        "OR21": ("OR015",),
        "OR32": ("OR041",),
    }
)
"""Codes of the checks that find an error, by the error's code."""

NOT_FOUND_BEFORE: Mapping[str, str] = MappingProxyType(
    {
        "OR22": "when LogMiner reads the redo",
        "OR24": "of a transaction, when its rows are read",
        "OR25": "of a transaction, when its rows are read",
        "OR26": "of a transaction, when its rows are read",
        "OR27": "of a parallel statement, when its rows are read",
        "OR28": "of a load or a DDL statement, when it is read",
        "OR29": "of a large object, when it is read",
        "OR31": "of a statement, when its rows are read",
        "OR33": "of a name in another database, when its table is created or altered",
    }
)
"""Reasons why no check finds the other errors before, by their codes."""
