"""What a process waits for at a server before it can go on: a small file for whoever looks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES, FileMissing
from penstock.host.status_file import StatusFile

WAITS_FILE = "waits.json"
FRESH_US = 15_000_000  # who waits writes more often


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is waited for. what: for people. command: ends it, if it is typed there."""

    what: str
    command: str


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """What a process waits for.

    Attributes:
        what: the work that cannot go on, as a part of a sentence.
        since_us: when the wait began, microseconds since 1970 UTC.
        written_us: when this was written.
        holders: what has to end first.
    """

    what: str
    since_us: int
    written_us: int
    holders: tuple[Holder, ...]

    def lines(self) -> list[str]:
        """Return a line for each holder, for people."""
        return [f"{self.what} waits for {one.what}; end it: {one.command}" for one in self.holders]

    def as_dict(self) -> dict[str, Any]:
        """Return it as `penstock status --json` prints it."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        return shown


def write_waits(
    run: Path, what: str, waited_s: float, holders: Sequence[Holder], clock: Clock = REAL_CLOCK
) -> None:
    """Write what is waited for; remove the file if nothing is. run: the pipeline's directory run/.

    Call it more often than every FRESH_US: a file that is older counts as left over.
    """
    if not holders:
        with suppress(FileMissing):
            REAL_FILES.unlink(run / WAITS_FILE)
        return
    now_us = clock.now_us()
    waits = Waits(
        what=what,
        since_us=now_us - round(waited_s * 1e6),
        written_us=now_us,
        holders=tuple(holders),
    )
    StatusFile(run / WAITS_FILE).write(waits.as_dict())


def read_waits(run: Path, clock: Clock = REAL_CLOCK) -> Waits | None:
    """Return what a process waits for now; None for nothing."""
    try:
        found = msgspec.json.decode(REAL_FILES.read_whole(run / WAITS_FILE), type=Waits)
    except FileMissing:
        return None
    return found if clock.now_us() - found.written_us < FRESH_US else None
