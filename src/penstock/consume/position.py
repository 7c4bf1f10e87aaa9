"""Saved state of a consumer: its position and the tables that it was told of.

Each file is replaced as a whole, and synced, so a crash leaves the old or the new one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from penstock.host.faults import declare, point
from penstock.host.files import REAL_FILES, Files
from penstock.host.state_file import StateFile
from penstock.host.state_of_log import StateOfOtherLog
from penstock.log.listing import ReaderErrors, SavedSegment
from penstock.model import PenstockError

declare(
    "consume.state.before",
    "consume.state.after",
)

_STATE = "state"
POSITION_FILE = "cdc-wal-state.json"
TYPES_FILE = "cdc-types-state.json"
MAPPINGS_FILE = "cdc-mappings-state.json"
CACHES_FILE = "cdc-caches-state.json"
SETTLED_FILE = "place-settled.json"
_Kind = TypeVar("_Kind")


class ConsumerStateCorrupt(PenstockError):
    """A state file of a consumer does not hold what was written to it. Fields: path."""

    code = "CN02"
    retry = "operator"


class ConsumerOfOtherLog(StateOfOtherLog):
    """A consumer's state belongs to another change log. Fields: place, expected, actual."""

    code = "CN03"


class SegmentsMissed(PenstockError):
    """A consumer's links have a gap: changes are lost to it. Fields: consumer, last, next."""

    code = "CN08"
    retry = "operator"


def reader_errors(directory: Path) -> ReaderErrors:
    """Return the errors for the consumer of a directory that cannot continue."""
    name = directory.name

    def make_missed(text: str, last: int, following: int) -> SegmentsMissed:
        return SegmentsMissed(
            text,
            hint="Continue after the gap: penstock delete-lost-segment-links FILE --consumer "
            f"{name}; then fill it: penstock resend FILE --tables with the tables that matter.",
            consumer=name,
            last=last,
            next=following,
        )

    return ReaderErrors(
        missed=make_missed,
        other_log=ConsumerOfOtherLog,
        state=f"the saved state in {directory / _STATE / POSITION_FILE}",
        begin_anew="The log was created again, or the state is from another pipeline. Let the "
        f"consumer begin again: penstock consumers remove FILE {name} --yes, then "
        f"penstock consumers add FILE {name}.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Place in a log: after row `gsn` of `segment`, and after the entries that are read there.

    Attributes:
        markers: how many of the segment's TRUNCATE and RELOAD markers at this gsn are done:
            several may stand between two rows.
        entries: how much of the rest is read: with batches the number in a run; 1 between two
            events with one gsn, as earlier logs have them for an update that changes the key.
        unit: kind of entries, as the callback's name; empty without entries.
        log_id: of the log; empty while it has none.
    """

    segment: int
    gsn: int
    markers: int = 0
    entries: int = 0
    unit: str = ""
    log_id: str = ""

    def __str__(self) -> str:
        """Return the position as messages have it."""
        return f"({self.segment}, {self.gsn}, {self.entries})"

    @property
    def of_listing(self) -> SavedSegment:
        """Part that selects the next segment."""
        return SavedSegment(segment=self.segment, log_id=self.log_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Content of a metadata file: the facts that the consumer was given, by the table's id."""

    told: dict[str, Any] = field(default_factory=dict)


class ConsumerState:
    """State files of one consumer, below `cdc/<consumer>/state/`."""

    def __init__(self, directory: Path, files: Files = REAL_FILES) -> None:
        """Set the directory; nothing is read yet.

        Args:
            directory: the consumer's.
            files: the disk.
        """
        self.directory = directory / _STATE
        self._files = files
        self._is_settled = False

    def load(self) -> Position | None:
        """Return the saved position; None if nothing was saved. Raises ConsumerStateCorrupt."""
        return self._file(POSITION_FILE, Position).load()

    def save(self, position: Position) -> None:
        """Replace the saved position, durably."""
        point("consume.state.before")
        self._files.make_directory(self.directory)
        self._file(POSITION_FILE, Position).save(position)
        point("consume.state.after")

    def drop(self) -> bool:
        """Forget the saved position; return whether there was one."""
        return self._file(POSITION_FILE, Position).remove()

    def is_settled(self) -> bool:
        """Return whether this state follows a place that the consumer stored."""
        return self._file(SETTLED_FILE, Known).load() is not None

    def note_settled(self) -> None:
        """Note, durably, that a missing place of the consumer is a lost one from now on."""
        if not self._is_settled:
            self.save_known(SETTLED_FILE, Known())
            self._is_settled = True

    def load_known(self, name: str) -> Known:
        """Return the content of a metadata file. Raises ConsumerStateCorrupt."""
        return self._file(name, Known).load() or Known()

    def save_known(self, name: str, known: Known) -> None:
        """Replace a metadata file, durably."""
        self._files.make_directory(self.directory)
        self._file(name, Known).save(known)

    def _file(self, name: str, kind: type[_Kind]) -> StateFile[_Kind]:
        consumer = self.directory.parent.name
        return StateFile(
            self.directory / name,
            kind,
            name="the consumer's state file",
            hint="Let the consumer begin again: "
            f"penstock consumers remove FILE {consumer} --yes, then penstock consumers add FILE "
            "with its name.",
            error=ConsumerStateCorrupt,
            files=self._files,
        )
