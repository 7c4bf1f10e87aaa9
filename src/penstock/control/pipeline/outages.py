"""Servers that cannot be asked, since when, and the next try.

A caller of a server sees that it is away; a process of the pipeline writes its next try into
run/.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.control.pipeline.display import human_seconds
from penstock.control.pipeline.running import ProcessState
from penstock.extract.extractor import STATUS_FILE
from penstock.host.clock import Clock
from penstock.host.files import REAL_FILES, FileMissing
from penstock.host.retry import is_outage
from penstock.load.loader_state import STATE_NAME
from penstock.model import PenstockError
from penstock.ports.config import Config

SIDES = {"extract": "source", "load": "target"}  # the server that each process needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Server that cannot be asked. side: source or target. since_us: 0 if unknown.

    unreachable: whether there is no answer at all; otherwise the server answers and refuses.
    """

    side: str
    code: str
    error: str
    hint: str
    since_us: int = 0
    unreachable: bool = True

    @property
    def words(self) -> str:
        """Text for people: `target unreachable`, `source cannot be read`."""
        return f"{self.side} {'unreachable' if self.unreachable else 'cannot be read'}"

    def as_dict(self) -> dict[str, Any]:
        """Return the object as JSON has it."""
        return {
            "side": self.side,
            "unreachable": self.unreachable,
            "since": utc_text(self.since_us) if self.since_us else None,
            "code": self.code,
            "error": self.error,
            "hint": self.hint,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Failed work of a process that is tried again. next_us: time of the next try, which may be
    past.
    """

    process: str
    error: str
    since_us: int
    next_us: int

    def as_dict(self) -> dict[str, Any]:
        """Return the object as JSON has it."""
        return {
            "process": self.process,
            "error": self.error,
            "since": utc_text(self.since_us),
            "next_try": utc_text(self.next_us),
        }


class Outages:
    """Memory since when a server is away, for a caller that asks it repeatedly."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_us: dict[str, int] = {}

    def note_failure(self, side: str, error: PenstockError) -> Outage:
        """Note that a server could not be asked just now."""
        since_us = self._since_us.setdefault(side, self._clock.now_us())
        return Outage(
            side=side,
            code=error.code,
            error=" ".join(error.message.split()).rstrip("."),  # drivers write it in several lines
            hint=error.hint,
            since_us=since_us,
            unreachable=is_outage(error),
        )

    def note_answer(self, side: str) -> None:
        """Note that a server could be asked."""
        self._since_us.pop(side, None)


class _Written(msgspec.Struct):
    """Report about a failure in both files of run/."""

    pid: int = 0
    state: str = ""
    problem: str = ""
    problem_since_us: int = 0
    next_try_us: int = 0


def read_retries(config: Config, processes: Iterable[ProcessState]) -> tuple[Retry, ...]:
    """Return the work that the running processes try again."""
    found = []
    names = {"extract": STATUS_FILE, "load": STATE_NAME}
    for process in processes:
        if not process.pid or process.name not in names:
            continue
        try:
            data = REAL_FILES.read_whole(config.layout.run / names[process.name])
        except FileMissing:
            continue
        written = msgspec.json.decode(data, type=_Written)
        if written.pid == process.pid and written.state in ("retrying", "reconnecting"):
            found.append(
                Retry(
                    process=process.name,
                    error=written.problem,
                    since_us=written.problem_since_us,
                    next_us=written.next_try_us,
                )
            )
    return tuple(found)


def date_outages(outages: Iterable[Outage], retries: Sequence[Retry]) -> tuple[Outage, ...]:
    """Return the outages, dated by the process that lost the server first."""
    known = {SIDES[retry.process]: retry.since_us for retry in retries}
    return tuple(
        replace(one, since_us=min(one.since_us, known.get(one.side) or one.since_us))
        for one in outages
    )


def outage_lines(
    outages: Sequence[Outage], retries: Sequence[Retry], *, running: Sequence[str], now_us: int
) -> list[str]:
    """Return the text for people: a line for each server and for each process that retries."""
    lines = []
    for one in outages:
        lines.append(f"{one.words} {_since(one.since_us, now_us)}: {one.error}")
    for retry in retries:
        wait_s = (retry.next_us - now_us) / 1e6
        when = f"in {human_seconds(wait_s)}" if wait_s > 0.05 else "now"
        known = any(one.side == SIDES[retry.process] for one in outages)
        why = "" if known else f", {_since(retry.since_us, now_us)}: {retry.error}"
        lines.append(f"{retry.process} tries again {when}{why}")
    if outages and not running:
        lines.append("no process of this pipeline runs, so nothing is tried again")
    return lines


def _since(since_us: int, now_us: int) -> str:
    if not since_us:
        return "now"
    lasted = human_seconds(max(now_us - since_us, 0) / 1e6)
    return f"since {datetime.fromtimestamp(since_us / 1e6, UTC):%H:%M:%S} UTC ({lasted})"


def utc_text(us: int) -> str:
    """Return a moment as `2026-11-21T20:15:03+00:00`."""
    return datetime.fromtimestamp(us // 1_000_000, UTC).isoformat()
