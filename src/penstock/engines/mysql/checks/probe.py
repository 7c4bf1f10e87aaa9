"""Facts that the checks of a MySQL or MariaDB server query, the lists of checks, their errors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from penstock.engines.mysql.connect import Connection, ServerVersion, rows
from penstock.engines.mysql.source.catalog import Survey
from penstock.engines.mysql.source.rights import Rights, read_rights
from penstock.engines.mysql.source.status import ResumePoint, account
from penstock.model import TableDefinition
from penstock.ports.checks import DOING, ITSELF, Checks, Finding, Severity, Side

LOG_SIZE_BYTES_MAX = 100 * 2**30
NAMES_SHOWN_MAX = 10

SOURCE_CHECKS = Checks(Side.SOURCE)
TARGET_CHECKS = Checks(Side.TARGET)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeScope:
    """Requirements of a pipeline on these servers.

    Attributes:
        has_change: the pipeline's mode follows changes.
        has_data: the pipeline's mode copies rows.
        server_id: ours, as a replica.
        resume: position from which the change log would continue.
        search_zero_dates: search the tables for invalid dates, which takes long.
        log_size_bytes_max: binlog that the source may keep before doctor reports it, bytes.
        has_heartbeats: heartbeats are committed at the source.
        wants_whole_rows: the log is to have whole old rows.
        threads: maxThreads, the greatest of those that concern this server.
        more_sessions: further ones that apply changes, by applySessions.
    """

    has_change: bool = True
    has_data: bool = True
    server_id: int = 0
    resume: ResumePoint | None = None
    search_zero_dates: bool = False
    log_size_bytes_max: int = LOG_SIZE_BYTES_MAX
    has_heartbeats: bool = False
    wants_whole_rows: bool = False
    threads: int = 1
    more_sessions: int = 0


@dataclass(slots=True, kw_only=True)
class MySQLProbe:
    """One server under examination, with what was read from it once.

    Attributes:
        tables: the captured tables, as the source has them, on both sides.
        source: on the target side the source's probe, if the source is MySQL or MariaDB as well.
    """

    side: Side
    url: str
    connection: Connection
    wanted: ProbeScope
    tables: tuple[TableDefinition, ...] = ()
    survey: Survey = field(default_factory=lambda: Survey(tables=()))
    source: MySQLProbe | None = None
    memo: dict[str, Any] = field(default_factory=dict)

    @property
    def server(self) -> ServerVersion:
        """Flavour and version of the server."""
        return self.connection.server

    def rows(self, sql: str, parameters: object = None) -> list[dict[str, Any]]:
        """Run a query and return its rows as dicts. Raises the typed errors of `server_errors`."""
        return rows(self.connection, sql, parameters, doing=DOING)

    def variable(self, name: str) -> str | None:
        """Return a global variable as text; None if this server does not have it."""
        if "variables" not in self.memo:
            found = self.rows("show global variables")
            self.memo["variables"] = {
                row["variable_name"].lower(): str(row["value"]) for row in found
            }
        text: str | None = self.memo["variables"].get(name)
        return text

    def is_on(self, *names: str) -> bool:
        """Return whether any of these variables is on."""
        return any((self.variable(name) or "").upper() in ("ON", "1", "YES") for name in names)

    def number(self, name: str) -> int | None:
        """Return a variable as a whole number; None if it is missing or empty."""
        text = self.variable(name)
        return int(float(text)) if text else None

    @property
    def rights(self) -> Rights:
        """Rights of the account; read once."""
        if "rights" not in self.memo:
            self.memo["rights"] = read_rights(self.connection)
        rights: Rights = self.memo["rights"]
        return rights

    @property
    def account(self) -> str:
        """Name of the account, quoted as GRANT requires."""
        if "account" not in self.memo:
            self.memo["account"] = account(self.connection)
        return str(self.memo["account"])

    @property
    def is_rds(self) -> bool:
        """Flag of Amazon's RDS or Aurora, where settings are made elsewhere."""
        if "rds" not in self.memo:
            found = self.rows(
                "select 1 as one from information_schema.routines "
                "where routine_schema = 'mysql' and routine_name = 'rds_set_configuration'"
            )
            self.memo["rds"] = bool(found)
        return bool(self.memo["rds"])

    def setting(self, name: str, text: str) -> str:
        """Return the statement that sets a variable permanently. text: the value as SQL."""
        if self.is_rds:
            return f"set {name} = {text} in the instance's parameter group"
        if self.server.mysql(8):
            return f"set persist {name} = {text};"
        return f"set global {name} = {text};  -- and in the server's configuration file"

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
        "CT10": ("MY040",),
        "CT11": ("MY040",),
        "CT36": ("MY042",),
        "CT37": ("MY042",),
        "HS28": ("MY016", "MY039"),
        "MY40": (ITSELF,),
        "MY50": ("MY009", "MY041"),
        "MY51": ("MY009",),
        "MY52": ("MY009", "MY041"),
        "MY53": ("MY009", "MY041"),
        "MY54": ("MY010",),
        "MY57": ("MY014",),
        "MY58": ("MY001",),
        "MY60": ("MY010",),
        "MY70": ("MY017",),
        "MY72": ("MY034",),
        "MY88": ("MY041",),
        "TG01": ("PK20",),
        "TG02": ("MY039",),
        "TG10": ("PK20",),
        "TG34": ("PK20",),
        "TG37": ("PK20",),
    }
)
"""Codes of the checks that find an error, by the error's code."""

NOT_FOUND_BEFORE: Mapping[str, str] = MappingProxyType(
    {
        "MY89": "a file of the directory, read by every command",
        "CT38": "of asking for the lag: MY010 has looked at which server answers",
        "MY55 MY59 MY80 MY81 MY82 MY83 MY84 MY85 MY86 MY87": "while the binlog is followed",
    }
)
"""Reasons why no check finds the other errors before, by their codes."""
