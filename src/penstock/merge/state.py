"""Position of a merge in each of its inputs, kept beside the merged log.

It is saved before each flush, so there is always an entry for the log's last flush point,
whichever of the two is written last before a crash.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.host.faults import declare, point
from penstock.host.state_file import StateFiles
from penstock.merge.order import Reached
from penstock.merge.shapes import ShapeState
from penstock.model import PenstockError

STATE_FILE = "merge.json"
SHAPES_FILE = "merge_shapes.json"
KEPT = 3

declare("merge.state.before", "merge.state.after", "merge.shapes.before")


class BaseLacking(PenstockError):
    """A merged log should have a base, and has begun without the rows of its logs' bases."""

    code = "MG07"
    retry = "operator"


class MergeStateLost(PenstockError):
    """The merged log's position in its inputs is missing, or belongs to another time."""

    code = "MG05"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputState:
    """State of one input.

    Attributes:
        number: its number in the log.
        segment: the segment that has the next transaction.
        is_over: it has ended, and all of it is merged.
    """

    name: str
    number: int
    log_id: str = ""
    segment: int = -1
    reached: Reached = field(default_factory=Reached)
    is_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeState:
    """State after one transaction of the merged log.

    Attributes:
        watermark_us: see `order.Order`.
        has_base: the log began with the rows of its logs' bases.
        settles_us: these rows are of one moment once the watermark is here; 0: they are.
    """

    trx: int = 0
    watermark_us: int = 0
    joined_count: int = 0
    unjoined_count: int = 0
    has_base: bool = False
    settles_us: int = 0
    inputs: tuple[InputState, ...] = ()


class MergeStates:
    """Files of the states. Used by one thread."""

    def __init__(self, files: StateFiles) -> None:
        """Read the files. Raises CheckpointCorrupt."""
        self._files = files
        self.entries = tuple(files.load(STATE_FILE, list[MergeState]) or ())
        self._shapes = tuple(files.load(SHAPES_FILE, list[ShapeState]) or ())

    def at(self, trx: int) -> tuple[MergeState, ShapeState]:
        """Return the state after a transaction of the log. Raises MergeStateLost."""
        if not trx:
            return MergeState(), ShapeState()
        found = next((one for one in self.entries if one.trx == trx), None)
        shapes = [one for one in self._shapes if one.since <= trx]
        if found is None or not shapes:
            raise MergeStateLost(
                f"the merged log ends with transaction {trx}, and {STATE_FILE} beside it is of "
                "another time",
                hint="Restore the whole directory from one copy. Or begin again: with another "
                "name in [pipeline], in a directory of its own, into tables that are empty.",
            )
        return found, shapes[-1]

    def forget(self) -> None:
        """Forget the entries, because the log is empty and begins at another place than the saved
        one.
        """
        self.entries = self._shapes = ()

    def save(self, state: MergeState, shapes: ShapeState | None) -> None:
        """Save the state before the log becomes durable up to here.

        Args:
            state: the state.
            shapes: the shapes, if they changed.
        """
        if shapes is not None or not self._shapes:
            point("merge.shapes.before")
            oldest = self.entries[0].trx if self.entries else 0
            known = [one for one in self._shapes if one.since < state.trx]
            past = [one for one in known if one.since <= oldest]
            kept = [*past[-1:], *(one for one in known if one.since > oldest)]
            self._shapes = (*kept, shapes or ShapeState())
            self._files.save(SHAPES_FILE, list(self._shapes))
        point("merge.state.before")
        earlier = [one for one in self.entries if one.trx < state.trx]
        self.entries = (*earlier[-KEPT:], state)
        self._files.save(STATE_FILE, list(self.entries))
        point("merge.state.after")
