"""The handover's state and the decision about its next step: pure, except for reading the file.

Not here: carrying it out (`handover.py` of each engine).
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec

from penstock.host import files
from penstock.host.clock import REAL_CLOCK
from penstock.host.state_file import StateFile
from penstock.model import PenstockError
from penstock.model.position import PositionKind
from penstock.ports.bulk import Point
from penstock.ports.config import Config, HandoverMode
from penstock.ports.positions import positions_of

STATE_FILE = "handover.json"

FORMAT_VERSION = 1


class LogWithoutBulkLoad(PenstockError):
    """A directory of mode change would continue in mode data+change."""

    code = "CT64"


class HandoverPhase(StrEnum):
    """Progress of the handover. The file keeps these values."""

    NEW = "new"
    STOPPED = "stopped"
    CAPTURED = "captured"
    STARTED = "started"
    DONE = "done"


class Do(StrEnum):
    """Next step."""

    MAKE_SLOT = "make slot"
    ADOPT_SLOT = "adopt slot"
    UNPAUSE = "unpause"
    PAUSE = "pause"
    CAPTURE = "capture"
    WAIT = "wait"
    LET_EXTRACT = "let extract"
    NOTE_START = "note start"
    RESUME = "resume"
    RELEASE = "release"


STEPS = ("Stop Replication", "Capture Position", "Start Change Processes", "Resume Replication")


class HandoverStep(msgspec.Struct, frozen=True, kw_only=True):
    """One of the four steps, done. at: UTC, ISO 8601. text: the work done, for people."""

    number: int
    name: str
    text: str
    at: str


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """Content of handover.json.

    Attributes:
        slot_position: Where the slot's changes begin, as text; empty until captured.
        position: The position that the bulk load reads at, as text; equal to slot_position in mode
            snapshot; empty until captured.
        snapshot_id: The exported snapshot, empty if there is none (any more).
        snapshot_text: The content of the snapshot.
        gtids: The transactions before the position (MySQL and MariaDB).
        settled: See `Point`; empty if it is the position.
        stopped: Parts of a replica that are paused.
        definitions: See `Point`.
    """

    version: int = FORMAT_VERSION
    mode: HandoverMode = HandoverMode.SNAPSHOT
    phase: HandoverPhase = HandoverPhase.NEW
    slot: str = ""
    slot_position: str = ""
    position: str = ""
    snapshot_id: str = ""
    snapshot_text: str = ""
    keeper_pid: int = 0
    gtids: str = ""
    settled: str = ""
    paused: bool = False
    stopped: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    steps: tuple[HandoverStep, ...] = ()
    definitions: dict[str, str] | None = None

    def point(self, positions: PositionKind) -> Point | None:
        """Return the point that the bulk load reads at; None without a snapshot.

        positions: parses those of the source.
        """
        if not self.snapshot_id:
            return None
        return Point(
            position=positions.parse(self.position),
            snapshot_id=self.snapshot_id,
            snapshot_text=self.snapshot_text,
            settled=positions.parse(self.settled) if self.settled else None,
            definitions=self.definitions,
        )

    def with_step(self, number: int, text: str) -> Handover:
        """Return the state with this step done now. An earlier record of it and of later steps is
        removed.
        """
        at = datetime.fromtimestamp(REAL_CLOCK.now_us() / 1e6, UTC).isoformat(timespec="seconds")
        step = HandoverStep(number=number, name=STEPS[number - 1], text=text, at=at)
        kept = tuple(done for done in self.steps if done.number < number)
        return msgspec.structs.replace(self, steps=(*kept, step))

    def as_dict(self) -> dict[str, Any]:
        """Return the state as `penstock status --json` prints it."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        return shown


# The part of it that `penstock status` and the live view show.
HandoverView = Handover


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Facts as they are now. snapshot_held: this process holds the snapshot. paused: the standby's
    replay is paused.
    """

    slot_exists: bool = False
    slot_active: bool = False
    paused: bool = False
    snapshot_held: bool = False
    bulk_finished: bool = False


def decide(state: Handover, seen: Seen) -> Do:
    """Return the next step; does nothing. The same state and facts always give the same answer."""
    if state.phase is HandoverPhase.STARTED:
        return Do.RESUME
    if state.phase is HandoverPhase.DONE:
        return Do.RELEASE if seen.bulk_finished and seen.snapshot_held else Do.WAIT
    if state.mode is HandoverMode.PAUSE:
        return _decide_paused(state, seen)
    if state.phase is HandoverPhase.CAPTURED:
        return Do.NOTE_START if seen.slot_active else Do.LET_EXTRACT
    return Do.ADOPT_SLOT if seen.slot_exists else Do.MAKE_SLOT


def _decide_paused(state: Handover, seen: Seen) -> Do:
    if not state.slot_position:
        if seen.slot_exists:
            return Do.ADOPT_SLOT
        # A slot is made from replayed WAL; a run that was killed may have left a pause.
        return Do.UNPAUSE if seen.paused else Do.MAKE_SLOT
    if state.phase is HandoverPhase.CAPTURED and seen.bulk_finished:
        return Do.NOTE_START if seen.slot_active else Do.LET_EXTRACT
    if not seen.paused:
        return Do.PAUSE
    if state.phase is HandoverPhase.CAPTURED and seen.snapshot_held:
        return Do.WAIT
    return Do.CAPTURE


def read_handover(config: Config) -> Handover | None:
    """Return the handover's state; None if none was begun. Raises CheckpointCorrupt."""
    return StateFile(config.layout.state / STATE_FILE, Handover).load()


def check_bulk_load(config: Config, begun: Handover | None, *, has_begun: bool) -> None:
    """Refuse, in mode data+change, a log with a position that was begun without a bulk load.

    begun: the handover's state. has_begun: the log has a position. Raises LogWithoutBulkLoad.
    """
    if has_begun and begun is None:
        raise LogWithoutBulkLoad(
            f"the change log in {config.layout.log} was begun without a bulk load",
            hint='Set mode = "change" again, or begin with a bulk load: '
            f"penstock reset {config.path.name} --target, then penstock run {config.path.name}",
        )


def write_handover(config: Config, state: Handover) -> None:
    """Replace the file whole, durably."""
    files.REAL_FILES.make_directory(config.layout.state)
    StateFile(config.layout.state / STATE_FILE, Handover).save(state)


def log_begin(config: Config) -> int:
    """Return the begin of the log according to the handover; 0 without one."""
    handover = read_handover(config)
    if handover is None or not handover.slot_position:
        return 0
    return positions_of(config).parse(handover.slot_position)
