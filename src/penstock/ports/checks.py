"""Doctor's checks: their form, their findings, their counts, and an engine's part.

A check is one small function that looks at one side and yields findings; it has the code that
`docs/doctor.md` lists, and is in a list with the others that look at the same: one list for
each engine and side, one for this machine, one for the load. Not here: the checks (the engines'
`checks`, `penstock.control.doctor`), and running them all (`penstock.control.doctor.doctor`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from penstock.model import PenstockError, TableDefinition, TableName
from penstock.ports.config import Config, Pipeline
from penstock.ports.registry import PartName, part

if TYPE_CHECKING:
    from penstock.codec.server_pair import ServerPair


# Doctor fails with the same error, because its first query needs the same.
ITSELF = "itself"

DOING = "a check of doctor"  # the work that an error of a server names


class Severity(StrEnum):
    """Severity: an error stops `penstock run`, a warning does not, an info is good to know."""

    ERROR = "E"
    WARNING = "W"
    INFO = "I"


class Side(StrEnum):
    """Place at which a check looks."""

    HOST = "host"
    SOURCE = "source"
    TARGET = "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Finding of doctor.

    Attributes:
        what: The fact, with names and numbers.
        why: Its consequence.
        command: The exact SQL or shell command that fixes it, or "" if there is none.
    """

    code: str
    severity: Severity
    side: Side
    what: str
    why: str
    command: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the finding as `--json` prints it."""
        return {
            "code": self.code,
            "severity": str(self.severity),
            "side": str(self.side),
            "what": self.what,
            "why": self.why,
            "command": self.command,
        }


# Beginning of the hint of an error that a running pipeline handles.
_AUTOMATIC = re.compile(r"[^.;]*automatically[^.;]*[.;]?\s*")


def fix_of(error: PenstockError, instead: str = "") -> str:
    """Return an error's hint, as a finding's command. Checks are not repeated automatically.

    instead: the command for errors whose hint says to run doctor, which is running.
    """
    if "`penstock doctor`" in error.hint:
        return instead
    found = _AUTOMATIC.match(error.hint)
    if found is None:
        return error.hint
    more = error.hint[found.end() :]
    return f"Run the command again. {more[:1].upper()}{more[1:]}".rstrip()


def unreachable(error: PenstockError, side: Side) -> Finding:
    """Return the finding for a server that cannot be connected to."""
    return Finding(
        code=error.code,
        severity=Severity.ERROR,
        side=side,
        what=f"{side}: {error.message}",
        why="nothing can be asked of this server or done with it",
        command=fix_of(error),
    )


def tables_not_read(error: PenstockError, side: Side) -> Finding:
    """Return the finding for a source whose tables cannot be read from its catalogue."""
    return Finding(
        code=error.code,
        severity=Severity.ERROR,
        side=side,
        what=error.message,
        why="the tables to replicate are not known",
        command=fix_of(error),
    )


def not_done(check: Check, error: PenstockError) -> Finding:
    """Return the finding for a check that failed with an error, so that this is never silent."""
    return Finding(
        code=check.code,
        severity=Severity.ERROR,
        side=check.side,
        what=f"the check of {check.title} could not be done: {error.message}",
        why="what it would have found is not known",
        command=fix_of(error),
    )


# The subject differs by list: a server's connection, the configuration, a load.
CheckFunction = Callable[[Any], Iterator[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check.

    Attributes:
        change_only: It does not concern pipelines of mode data.
        load_only: It does not concern pipelines without a target.
        needs_source: A check of the target that compares it with the source, or looks at the
            captured tables, which only the source knows: if that cannot be asked, the check is
            skipped.
    """

    code: str
    title: str
    side: Side
    change_only: bool
    load_only: bool
    needs_source: bool
    function: CheckFunction


class Checks(list[Check]):
    """Checks of one subject, in the order in which they are done."""

    def __init__(self, side: Side) -> None:
        super().__init__()
        self.side = side

    def check(
        self,
        code: str,
        title: str,
        *,
        change_only: bool = False,
        load_only: bool = False,
        needs_source: bool = False,
    ) -> Callable[[CheckFunction], CheckFunction]:
        """Register a function as the check with this code; several functions may share one code."""

        def register(function: CheckFunction) -> CheckFunction:
            self.append(
                Check(
                    code=code,
                    title=title,
                    side=self.side,
                    change_only=change_only,
                    load_only=load_only,
                    needs_source=needs_source,
                    function=function,
                )
            )
            return function

        return register


def _leave_untyped(_doing: str) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(slots=True, kw_only=True)
class Looked:
    """Findings and counts of the checks that were done.

    Attributes:
        has_change: Whether checks that concern changes are wanted.
        has_target: Whether checks that concern a load are wanted.
        only: Codes of the wanted checks; empty for all.
        done: Number of checks done.
        skipped: Number of checks that could not ask their questions.
    """

    findings: list[Finding] = field(default_factory=list)
    has_change: bool = True
    has_target: bool = True
    only: Collection[str] = ()
    done: int = 0
    skipped: int = 0

    def look(
        self,
        checks: Iterable[Check],
        subject: object,
        *,
        typed: Callable[[str], AbstractContextManager[None]] = _leave_untyped,
        source_known: bool = True,
    ) -> None:
        """Do those of these checks that are wanted.

        A check that fails itself is a finding and counts as skipped, never as done.

        Args:
            checks: The checks.
            subject: Their argument.
            typed: Converts a driver's errors to typed ones; its argument names the work.
            source_known: Whether the source could be asked for the captured tables.
        """
        for check in self._select(checks):
            if check.needs_source and not source_known:
                self.skipped += 1
                continue
            try:
                with typed(DOING):
                    self.findings.extend(check.function(subject))
                self.done += 1
            except PenstockError as error:
                self.findings.append(not_done(check, error))
                self.skipped += 1

    def skip(self, *lists: Iterable[Check]) -> None:
        """Count the wanted checks as skipped: their questions cannot be asked."""
        self.skipped += sum(len(self._select(checks)) for checks in lists)

    def away(self, error: PenstockError, side: Side, *lists: Iterable[Check]) -> None:
        """Report an unreachable server as one finding, and skip the checks that need it."""
        self.findings.append(unreachable(error, side))
        self.skip(*lists)

    def _select(self, checks: Iterable[Check]) -> list[Check]:
        return [
            check
            for check in checks
            if (self.has_change or not check.change_only)
            and (self.has_target or not check.load_only)
            and (not self.only or check.code in self.only)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A pipeline whose servers are examined: the facts in its directory, read at each call.

    Each function that reads the directory raises CheckpointCorrupt.

    Attributes:
        log_id: Id of its change log, "" before there is one.
        log_end: Position of the newest flush point, also in the open segment; 0 for none.
        followed: The tables that the log follows, dropped ones too.
        copied: The tables that are copied by request, not by the bulk load.
        known: The source's tables that are followed or requested.
        judged: The tables that concern a start, and the findings about new ones.
        extracts: Whether our own extract process runs.
        servers: The two servers, None if every type is the same at both.
    """

    pipeline: Pipeline
    log_id: Callable[[], str]
    log_end: Callable[[], int]
    followed: Callable[[], frozenset[TableName]]
    copied: Callable[[], frozenset[TableName]]
    known: Callable[[Iterable[TableDefinition]], list[TableDefinition]]
    judged: Callable[[Sequence[TableDefinition]], tuple[tuple[TableDefinition, ...], list[Finding]]]
    extracts: Callable[[], bool]
    servers: Callable[[], ServerPair | None]

    @property
    def config(self) -> Config:
        """Configuration of the pipeline."""
        return self.pipeline.config


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSeen:
    """Facts that the source's checks found.

    Attributes:
        tables: The captured ones, None if the source could not be asked.
        database: Values that distinguish it from every other database of its engine; may be empty.
    """

    tables: tuple[TableDefinition, ...] | None = None
    database: tuple[str, ...] = ()


class EngineChecks(Protocol):
    """Part `checks` of an engine; an engine that can be only one side has only that side's
    function.

    A test compares CHECKS_OF and NOT_FOUND_BEFORE with the engine's error classes.

    Attributes:
        CHECKS: All checks.
        CHECKS_OF_A_NEW_TABLE: Codes of the source's checks that concern a new table of a running
            pipeline; empty for all.
        DROP_PROGRESS: The statement that removes the progress tables from a target.
        CHECKS_OF: Codes of errors that need operator action, each with the codes of the checks that
            find it.
        NOT_FOUND_BEFORE: The other such errors, by code or prefix of codes, and why no check finds
            them.
    """

    CHECKS: Sequence[Check]
    CHECKS_OF_A_NEW_TABLE: Collection[str]
    DROP_PROGRESS: str
    CHECKS_OF: Mapping[str, tuple[str, ...]]
    NOT_FOUND_BEFORE: Mapping[str, str]

    def server_errors(self, doing: str, /) -> AbstractContextManager[None]:
        """Convert the driver's errors to typed ones. doing: names the work."""
        ...

    def look_at_source(self, examined: Examined, looked: Looked, /) -> SourceSeen:
        """Do the source's checks. A server that cannot be reached is one finding."""
        ...

    def look_at_target(self, examined: Examined, looked: Looked, source: SourceSeen, /) -> bool:
        """Do the target's checks; return whether it was reached. source: facts found there."""
        ...


CHECKS_PART: PartName[EngineChecks] = PartName("checks")


def checks_of(url: str) -> EngineChecks:
    """Return the checks of the engine that a URL names. Raises EngineUnknown, PartMissing."""
    return part(url, CHECKS_PART)
