"""The wait of a process at a server before it can continue: a small file for readers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES, FileMissing
from penstock.host.state_file import StatusFile

WAITS_FILE = "waits.json"

FRESH_US = 15_000_000  # a waiting process writes more often


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Thing that is waited for. what: for people. command: ends it, if it is typed there."""

    what: str
    command: str


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Wait of a process.

    Attributes:
        what: The work that cannot continue, as a part of a sentence.
        since_us: When the wait began, microseconds since 1970 UTC.
        written_us: When this was written.
        holders: The things that have to end first.
    """

    what: str
    since_us: int
    written_us: int
    holders: tuple[Holder, ...]

    def lines(self) -> list[str]:
        """Return a line for each holder, for people."""
        return [f"{self.what} waits for {one.what}; end it: {one.command}" for one in self.holders]

    def as_dict(self) -> dict[str, Any]:
        """Return the object as `penstock status --json` prints it."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        return shown


def write_waits(
    run: Path, what: str, waited_s: float, holders: Sequence[Holder], clock: Clock = REAL_CLOCK
) -> None:
    """Write the things that are waited for; remove the file if there are none.

    Call it more often than every FRESH_US: an older file counts as left over. run: the pipeline's
    directory run/.
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
    """Return the present wait of a process, or None."""
    try:
        found = msgspec.json.decode(REAL_FILES.read_whole(run / WAITS_FILE), type=Waits)
    except FileMissing:
        return None
    return found if clock.now_us() - found.written_us < FRESH_US else None
