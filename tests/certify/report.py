"""The report: a text to read, and JSON with the records' place, to send to the project."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from certify.cases import Outcome, State
from certify.rights import Right
from certify.suites import SuiteResult
from penstock import __version__

SEND = "Please attach both files to an issue of the project. They contain no password and no data."


@dataclass(slots=True, kw_only=True)
class SoakResult:
    """Result of a soak. problem: why it failed; empty if all rows are equal."""

    seconds: float = 0.0
    statements: int = 0
    kills: int = 0
    rows: int = 0
    problem: str = ""


@dataclass(slots=True, kw_only=True)
class Report:
    """Results of a certification.

    Attributes:
        engine: Name of the engine, in the names of the files.
        shown: First lines of the text: the server.
        server: Facts of the server, for JSON.
        lacks_of: Name of what `lacks` explains.
        lacks: Why nothing can be captured; empty if capture works.
        left_out: Cases that were not run, with reasons.
        suites: None if they were not run.
        soak: None if it was not run.
        left: Databases that could not be dropped.
        is_whole: Nothing was deselected.
    """

    engine: str
    shown: Sequence[str]
    server: Mapping[str, Any]
    lacks_of: str
    rights: list[Right] = field(default_factory=list)
    lacks: str = ""
    outcomes: list[Outcome] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    suites: SuiteResult | None = None
    soak: SoakResult | None = None
    left: list[str] = field(default_factory=list)
    is_interrupted: bool = False
    is_whole: bool = True

    @property
    def is_good(self) -> bool:
        """Return whether nothing failed. Skipped cases are not failures."""
        return not (
            self.is_interrupted
            or self.left
            or any(one.state is State.FAILED for one in self.outcomes)
            or (self.suites is not None and (self.suites.failed or self.suites.problem))
            or (self.soak is not None and self.soak.problem)
        )

    @property
    def verdict(self) -> str:
        """Return the verdict, in words."""
        if not self.is_good:
            return "NOT certified"
        is_skipped = any(one.state is State.SKIPPED for one in self.outcomes)
        if self.lacks or self.left_out or is_skipped or not self.is_whole:
            return "nothing failed, but not everything was run"
        return "certified"

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text."""
        first, *rest = self.shown
        yield f"penstock {__version__} on {first}"
        yield from rest
        for right in self.rights:
            yield f"  {'has' if right.is_there else 'LACKS'}  {right.name}  {right.said}".rstrip()
        if self.lacks:
            yield f"{self.lacks_of}: {self.lacks}"
        counts = Counter(one.state for one in self.outcomes)
        yield (
            f"cases: {counts[State.PASSED]} passed, {counts[State.FAILED]} failed, "
            f"{counts[State.SKIPPED]} skipped, {len(self.left_out)} left out"
        )
        for one in self.outcomes:
            if one.state is not State.PASSED:
                yield f"  {one.state:8}{one.case.name}  {one.reason}".rstrip()
            for checked in one.broken:
                yield f"          assumption {checked.assumption.name}: {checked.assumption.says}"
                yield f"          code that depends on it: {checked.assumption.code}"
                yield f"          the server showed: {checked.seen}"
        for name, reason in self.left_out.items():
            yield f"  left out  {name}  {reason}"
        yield from self._rest()

    def _rest(self) -> Iterator[str]:
        if self.suites is None:
            yield "suites: not run"
        else:
            yield (
                f"suites: {self.suites.passed} passed, {len(self.suites.failed)} failed, "
                f"{len(self.suites.skipped)} skipped  {self.suites.problem}".rstrip()
            )
            yield from (f"  failed  {name}" for name in self.suites.failed)
        if self.soak is None:
            yield "soak: not run"
        else:
            soak = self.soak
            yield (
                f"soak: {soak.seconds:.0f} s, {soak.statements} transactions, {soak.kills} kills, "
                f"{soak.rows} rows: {soak.problem or 'all rows are equal'}"
            )
        if self.left:
            yield f"could not be dropped: {', '.join(self.left)}"
        if self.is_interrupted:
            yield "interrupted: the report is not complete"
        yield f"verdict: {self.verdict}"

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        return {
            "penstock": __version__,
            "server": dict(self.server),
            "rights": [asdict(one) for one in self.rights],
            "lacks": self.lacks,
            "cases": [
                {
                    "case": one.case.name,
                    "about": one.case.about,
                    "state": str(one.state),
                    "reason": one.reason,
                    "seconds": round(one.seconds, 2),
                    "assumptions": [
                        {
                            "name": checked.assumption.name,
                            "says": checked.assumption.says,
                            "code": checked.assumption.code,
                            "holds": checked.holds,
                            "seen": checked.seen,
                        }
                        for checked in one.checked
                    ],
                }
                for one in self.outcomes
            ],
            "left_out": self.left_out,
            "suites": None if self.suites is None else asdict(self.suites),
            "soak": None if self.soak is None else asdict(self.soak),
            "left": self.left,
            "interrupted": self.is_interrupted,
            "verdict": self.verdict,
        }

    def write(self, build: Path) -> tuple[Path, Path]:
        """Write text and JSON; return their paths."""
        build.mkdir(parents=True, exist_ok=True)
        text, data = (build / f"certify-{self.engine}.{ending}" for ending in ("txt", "json"))
        text.write_text("\n".join(self.lines()) + "\n", encoding="utf-8")
        data.write_text(json.dumps(self.as_dict(), indent=1, ensure_ascii=False), encoding="utf-8")
        return text, data
