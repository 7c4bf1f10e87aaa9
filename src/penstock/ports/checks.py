"""Doctor's checks: what one is, what they find, how they are counted, and what an engine gives.

A check is one small function that looks at one side and yields findings; it has the code that
`docs/doctor.md` lists, and is in a list with the others that look at the same: one list for
each engine and side, one for this machine, one for the load. Not here: the checks (the engines'
`checks`, `penstock.control.doctor_*`), and running them all (`penstock.control.doctor`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from penstock.model import PenstockError, TableDefinition, TableName
from penstock.ports.config import Config
from penstock.ports.pipeline import Pipeline
from penstock.ports.registry import part

if TYPE_CHECKING:
    from penstock.ports.server_pair import ServerPair

# Doctor fails with the same error: it needs the same for its first query.
ITSELF = "itself"
DOING = "a check of doctor"  # the work that an error of a server names


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

    what: the fact, with names and numbers. why: its consequence. command: the exact SQL or shell
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
    """An error's hint, as a finding's command.

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


def tables_not_read(error: PenstockError, side: Side) -> Finding:
    """The finding for a source whose tables cannot be read from its catalogue."""
    return Finding(
        code=error.code,
        severity=Severity.ERROR,
        side=side,
        what=error.message,
        why="the tables to replicate are not known",
        command=mend_of(error),
    )


def not_done(check: Check, error: PenstockError) -> Finding:
    """The finding for a check that failed itself, so that it is never silent."""
    return Finding(
        code=check.code,
        severity=Severity.ERROR,
        side=check.side,
        what=f"the check of {check.title} could not be done: {error.message}",
        why="what it would have found is not known",
        command=mend_of(error),
    )


# Each list has its own subject: a server's connection, the configuration, a load.
CheckFunction = Callable[[Any], Iterator[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check. change_only: it does not concern pipelines of mode data. load_only: it does not
    concern those without a target.

    needs_source: a check of the target that compares it with the source, or looks at the captured
    tables, which only the source knows: where that cannot be asked, it cannot be done.
    """

    code: str
    title: str
    side: Side
    change_only: bool
    load_only: bool
    needs_source: bool
    function: CheckFunction


class Checks(list[Check]):
    """The checks of one subject, in the order in which they are done."""

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


def _untyped(_doing: str) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(slots=True, kw_only=True)
class Looked:
    """What checks found, and how many there were.

    has_change, has_target, only: which of them are wanted: those that concern changes, those that
    concern a load, and of all codes or of these. done: how many were; skipped: of those that could
    not ask what they ask.
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
        typed: Callable[[str], AbstractContextManager[None]] = _untyped,
        source_known: bool = True,
    ) -> None:
        """Do those of these checks that are wanted.

        One that fails itself is a finding and counts as skipped, never as done. typed: what makes
        a driver's errors typed ones; its argument says what was being done. source_known: whether
        the source could be asked for the captured tables.
        """
        for check in self._wanted(checks):
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
        """Count those that are wanted as skipped: what they ask cannot be asked."""
        self.skipped += sum(len(self._wanted(checks)) for checks in lists)

    def away(self, error: PenstockError, side: Side, *lists: Iterable[Check]) -> None:
        """A server cannot be reached: one finding, and its checks are skipped."""
        self.findings.append(unreachable(error, side))
        self.skip(*lists)

    def _wanted(self, checks: Iterable[Check]) -> list[Check]:
        return [
            check
            for check in checks
            if (self.has_change or not check.change_only)
            and (self.has_target or not check.load_only)
            and (not self.only or check.code in self.only)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A pipeline whose servers are examined: the facts in its directory, read when asked for.

    log_id: of its change log, "" before there is one. log_end: position of the newest flush point,
    in segments that are being written too; 0 for none. followed: the tables that the log follows,
    dropped ones too. copied: those that are copied by request, not by the bulk load. known: of the
    source's tables those that are followed or asked for. judged: those that concern a start, and
    the findings about new ones. extracts: whether our own extract process runs. servers: the two
    servers, None where every type is the same at both. Whatever reads the directory raises
    CheckpointCorrupt.
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
        """The pipeline's configuration."""
        return self.pipeline.config


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSeen:
    """What the source's checks saw of it.

    tables: the captured ones, None where the source could not be asked. database: what
    distinguishes it from every other database of its engine, empty where nothing does.
    """

    tables: tuple[TableDefinition, ...] | None = None
    database: tuple[str, ...] = ()


class EngineChecks(Protocol):
    """An engine's part `checks`; an engine that can be only one side has only that side's function.

    CHECKS: all of them. CHECKS_OF_A_NEW_TABLE: codes of the source's checks that concern a table
    which a running pipeline takes in; empty for all. DROP_PROGRESS: the statement that takes the
    progress tables out of a target. CHECKS_OF: codes of errors that need somebody to fix something,
    each with the codes of the checks that find it. NOT_FOUND_BEFORE: the other such errors, by code
    or by what codes begin with, and why no check finds them: a test compares both with the engine's
    error classes.
    """

    CHECKS: Sequence[Check]
    CHECKS_OF_A_NEW_TABLE: Collection[str]
    DROP_PROGRESS: str
    CHECKS_OF: Mapping[str, tuple[str, ...]]
    NOT_FOUND_BEFORE: Mapping[str, str]

    def server_errors(self, doing: str, /) -> AbstractContextManager[None]:
        """Make the driver's errors typed ones. doing: what was being done."""
        ...

    def look_at_source(self, examined: Examined, looked: Looked, /) -> SourceSeen:
        """Do the source's checks. A server that cannot be reached is one finding."""
        ...

    def look_at_target(self, examined: Examined, looked: Looked, source: SourceSeen, /) -> bool:
        """Do the target's checks; whether it could be reached. source: what was seen of it."""
        ...


def checks_of(url: str) -> EngineChecks:
    """The checks of the engine that a URL names. Raises EngineUnknown, PartMissing."""
    found: EngineChecks = part(url, "checks")
    return found
