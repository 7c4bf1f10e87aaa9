"""The server of a log as `penstock status` shows it: its process, and the slots of its clients.

Slots are read from the server's state file, so they are right whether or not it runs; only the
running process knows the connected clients, and reports them in run/serve.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from penstock.consume.lock import LOCK_FILE
from penstock.control.pipeline.display import human_count
from penstock.host.files import REAL_FILES, FileMissing
from penstock.host.process import holder_of
from penstock.host.state_file import StatusFile
from penstock.model import PenstockError
from penstock.model.words import count_words
from penstock.ports.config import Config
from penstock.ports.lag import LogEnd
from penstock.serve.numbers import end_of
from penstock.serve.saved_state import FILE_NAME, SLOTS, SavedState
from penstock.serve.slots import NAME, SavedSlots

REPORT_NAME = "serve.json"


class ServeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Last report of the serving process.

    Attributes:
        pid: Its process id.
        address: Where it listens, as HOST:PORT.
        connections: Clients that are logged in.
        streaming: Names of the slots that a client streams from now.
    """

    pid: int = 0
    address: str = ""
    connections: int = 0
    streaming: tuple[str, ...] = ()


class ServeReportFile:
    """Writer of run/serve.json, once a second at most. A failed write stops no client."""

    def __init__(self, run_directory: Path) -> None:
        """Create the directory."""
        self._file = StatusFile(run_directory / REPORT_NAME)

    def is_due(self) -> bool:
        """Return whether the last report is a second old."""
        return self._file.due()

    def write(self, report: ServeReport) -> None:
        """Replace the file, if the disk permits."""
        with suppress(OSError, PenstockError):
            self._file.write(msgspec.to_builtins(report))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSeen:
    """Slot of the server.

    Attributes:
        plugin: Its output plugin.
        is_active: Whether a client streams from it now.
        confirmed: LSN up to which its client has everything, as clients write it.
        behind: Rows and boundaries of transactions in the log after that; None if it is lost.
        lost: Why nothing can be streamed from it any more; empty if it can.
    """

    name: str
    plugin: str
    is_active: bool
    confirmed: str
    behind: int | None
    lost: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the object as `penstock status --json` prints it."""
        return {
            "slot": self.name,
            "plugin": self.plugin,
            "active": self.is_active,
            "confirmed": self.confirmed,
            "behind": self.behind,
            "lost": self.lost,
        }

    def line(self) -> str:
        """Return the object in words, for people."""
        head = f"slot {self.name} ({self.plugin}): "
        if self.lost:
            return f"{head}lost, {self.lost}"
        state = "active" if self.is_active else "no client streams from it"
        behind = f"{human_count(self.behind)} behind the log" if self.behind else "has all"
        return f"{head}{state}, confirmed {self.confirmed}, {behind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSeen:
    """Server of a log.

    Attributes:
        pid: Id of its process, 0 if it does not run.
        address: Where it listens; empty if it does not run, or not yet.
        connections: Clients that are logged in; None if it is not known.
        slots: Its slots, by name.
        error: Why its slots cannot be read; empty if they can.
        hint: What to do then.
    """

    pid: int
    address: str = ""
    connections: int | None = None
    slots: tuple[SlotSeen, ...] = ()
    error: str = ""
    hint: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the object as `penstock status --json` prints it."""
        return {
            "pid": self.pid or None,
            "address": self.address or None,
            "connections": self.connections,
            "slots": [one.as_dict() for one in self.slots],
            "error": self.error,
            "hint": self.hint,
        }

    def lines(self) -> Iterator[tuple[str, bool]]:
        """Yield the lines for people, and whether each is a trouble."""
        if not self.pid:
            yield "serve: does not run", False
        elif not self.address:
            yield f"serve: starting (pid {self.pid})", False
        else:
            clients = count_words(self.connections or 0, "connection")
            yield f"serve: listens on {self.address} (pid {self.pid}), {clients}", False
        for slot in self.slots:
            yield slot.line(), bool(slot.lost)
        if self.error:
            yield f"serve: {self.error}", True
            yield f"        > {self.hint}", True


def read_serve(config: Config, end: LogEnd) -> ServeSeen | None:
    """Return what is known of the server of a log; None if the log is not served.

    Args:
        config: The pipeline.
        end: The end of its log.
    """
    state = config.layout.state / FILE_NAME
    if config.serve is None and not REAL_FILES.exists(state):
        return None
    pid = holder_of(config.layout.consumers / NAME / LOCK_FILE)
    report = _read_report(config.layout.run, pid)
    try:
        saved = SavedState(config.layout.state, log_id=end.log_id).load(SLOTS, SavedSlots)
    except PenstockError as error:
        return ServeSeen(pid=pid, address=report.address, error=error.message, hint=error.hint)
    last = end_of(end.end.gsn, end.end.trx)
    slots = tuple(
        SlotSeen(
            name=one.name,
            plugin=one.plugin,
            is_active=one.name in report.streaming,
            confirmed=one.lsn_text,
            behind=None if one.lost else max(0, last - one.confirmed),
            lost=one.lost,
        )
        for one in (saved.slots if saved is not None else ())
    )
    return ServeSeen(
        pid=pid,
        address=report.address,
        connections=report.connections if report.pid else None,
        slots=slots,
    )


def _read_report(run_directory: Path, pid: int) -> ServeReport:
    """Return the report of this process; an empty one if it has not written yet."""
    with suppress(FileMissing, msgspec.DecodeError):  # a crash of the machine may empty it
        data = REAL_FILES.read_whole(run_directory / REPORT_NAME)
        found = msgspec.json.decode(data, type=ServeReport)
        if pid and found.pid == pid:
            return found
    return ServeReport()
