"""What doctor finds, and the registry of its checks.

A check is one small function that looks at one side and yields findings; a registered check has
the code that `docs/doctor.md` lists. Not here: the checks (`doctor_*.py`) and running them
(`doctor.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row

from penstock.engines.postgres.connect import server_errors
from penstock.engines.postgres.source.catalog import Survey
from penstock.model import PenstockError, TableDefinition
from penstock.ports.config import Config


class Severity(StrEnum):
    """How bad: an error stops `penstock run`, a warning does not, an info is good to know."""

    ERROR = "E"
    WARNING = "W"
    INFO = "I"


class Side(StrEnum):
    """Where a check looks."""

    HOST = "host"
    SOURCE = "source"
    TARGET = "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing doctor found.

    what: the fact, with names and numbers. why: what it leads to. command: the exact SQL or shell
    command that mends it, or "" where there is none.
    """

    code: str
    severity: Severity
    side: Side
    what: str
    why: str
    command: str = ""

    def as_dict(self) -> dict[str, str]:
        """The finding as `--json` prints it."""
        return {
            "code": self.code,
            "severity": str(self.severity),
            "side": str(self.side),
            "what": self.what,
            "why": self.why,
            "command": self.command,
        }


def mend_of(error: PenstockError, instead: str = "") -> str:
    """What an error says to do, fit to be a finding's command.

    instead: for errors that say to run doctor, which is what runs.
    """
    return instead if "`penstock doctor`" in error.hint else error.hint


def unreachable(error: PenstockError, side: Side) -> Finding:
    """The finding for a server that cannot be connected to."""
    return Finding(
        code=error.code,
        severity=Severity.ERROR,
        side=side,
        what=f"{side}: {error.message}",
        why="nothing can be asked of this server or done with it",
        command=mend_of(error),
    )


def untold(error: PenstockError, side: Side) -> Finding:
    """The finding for a source whose tables cannot be read from its catalogue."""
    return Finding(
        code=error.code,
        severity=Severity.ERROR,
        side=side,
        what=error.message,
        why="the tables to replicate cannot be told",
        command=mend_of(error),
    )


def not_done(check: Check, side: Side, error: PenstockError) -> Finding:
    """The finding for a check that failed itself: never silence."""
    return Finding(
        code=check.code,
        severity=Severity.ERROR,
        side=side,
        what=f"the check of {check.title} could not be done: {error.message}",
        why="what it would have found is not known",
        command=mend_of(error),
    )


@dataclass(slots=True, kw_only=True)
class Probe:
    """What the checks of one database ask: its connection and what was read from it once.

    tables: the wanted tables of the source; on the target side the same, as the source has them.
    survey: what the patterns come to (source side).
    source_id: the source's system identifier and database, for checks that compare both sides.
    """

    config: Config
    connection: psycopg.Connection
    version: int
    tables: tuple[TableDefinition, ...] = ()
    survey: Survey = field(default_factory=lambda: Survey(tables=()))
    source_id: tuple[str, str] | None = None
    memo: dict[str, Any] = field(default_factory=dict)

    def rows(self, query: LiteralString, **parameters: object) -> list[dict[str, Any]]:
        """Run a query; rows as dicts. Raises the typed errors of `server_errors`."""
        with server_errors("a check of doctor"), self.connection.cursor(row_factory=dict_row) as c:
            c.execute(query, parameters)
            return c.fetchall()

    def value(self, query: LiteralString, **parameters: object) -> Any:
        """The first column of the first row; None when there is no row."""
        found = self.rows(query, **parameters)
        return next(iter(found[0].values())) if found else None

    def setting(self, name: str) -> str | None:
        """A server setting as text, None where this server has no such."""
        text = self.value("select current_setting(%(name)s, true)", name=name)
        return None if text is None else str(text)

    @property
    def table_ids(self) -> list[int]:
        """Oids of the wanted tables, their partitions' storage included (source side)."""
        return [oid for table in self.tables for oid in (table.source_id, *table.partition_leaves)]

    @property
    def user(self) -> str:
        """The role we are on this server."""
        return self.connection.info.user


CheckFunction = Callable[[Any], Iterator[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A registered check. change_only: it does not concern pipelines of mode data."""

    code: str
    title: str
    side: Side
    change_only: bool
    function: CheckFunction


CHECKS: list[Check] = []


@dataclass(slots=True)
class Looked:
    """What checks found. done: how many were; skipped: of those that could not ask the server."""

    findings: list[Finding] = field(default_factory=list)
    done: int = 0
    skipped: int = 0

    def take(self, check: Check, side: Side, found: Callable[[], Iterator[Finding]]) -> None:
        """Do a check. One that fails itself is a finding and counts as skipped, never as done."""
        try:
            with server_errors("a check of doctor"):
                self.findings.extend(found())
            self.done += 1
        except PenstockError as error:
            self.findings.append(not_done(check, side, error))
            self.skipped += 1


def check(
    code: str, title: str, *, side: Side, change_only: bool = False, into: list[Check] = CHECKS
) -> Callable[[CheckFunction], CheckFunction]:
    """Register a function as the check with this code; several functions may share one code."""

    def register(function: CheckFunction) -> CheckFunction:
        into.append(
            Check(code=code, title=title, side=side, change_only=change_only, function=function)
        )
        return function

    return register
