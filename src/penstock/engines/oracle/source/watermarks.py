"""Low watermarks: the SCN from which on the redo has to be read, for positions of the log.

Everything that is not committed at a position began at its watermark or later. A position's
watermark holds for all later ones, only that more is read again. So one that is on our disk before
the log's end is always a valid place to continue from (reference, sections 4 F0 and 7).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from penstock.codec.oracle.scn import OraclePosition
from penstock.engines.oracle.source.views import Incarnation

REDO_FILE = "oracle-redo.json"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Position as text, and its watermark."""

    position: str
    low: int


class KnownRedo(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the state file.

    Attributes:
        dbid: DBID.
        name: Name of the database.
        resetlogs_scn: RESETLOGS_CHANGE# of its incarnation.
        resetlogs_time: RESETLOGS_TIME, in ISO form.
        begin: Position at which the log begins.
        marks: Watermarks in order of positions.
        unrecoverable: Newest load without redo of each data file that was warned of.
    """

    dbid: int
    name: str
    resetlogs_scn: int
    resetlogs_time: str
    begin: str
    marks: tuple[Mark, ...]
    unrecoverable: dict[int, int] = {}

    @property
    def incarnation(self) -> Incarnation:
        """Return the incarnation of the log."""
        time = datetime.fromisoformat(self.resetlogs_time)
        return Incarnation(
            dbid=self.dbid, name=self.name, resetlogs=(self.resetlogs_scn, time), is_forced=False
        )


@dataclass(slots=True)
class Watermarks:
    """Watermarks of a log.

    Attributes:
        begin: Ordinal of the position at which the log begins.
        unrecoverable: As in KnownRedo.
        is_changed: Whether they have to be saved.
    """

    begin: int = 0
    unrecoverable: dict[int, int] = field(default_factory=dict)
    is_changed: bool = False
    _marks: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def load(cls, state: KnownRedo | None) -> Watermarks:
        """Return those of a state file."""
        if state is None:
            return cls()
        marks = [(OraclePosition.parse(one.position).ordinal, one.low) for one in state.marks]
        begin = OraclePosition.parse(state.begin).ordinal
        return cls(begin, dict(state.unrecoverable), _marks=marks)

    def state(self, incarnation: Incarnation) -> KnownRedo:
        """Return what the state file has to remember."""
        return KnownRedo(
            dbid=incarnation.dbid,
            name=incarnation.name,
            resetlogs_scn=incarnation.resetlogs[0],
            resetlogs_time=incarnation.resetlogs[1].isoformat(),
            begin=str(OraclePosition(self.begin)),
            marks=tuple(
                Mark(position=str(OraclePosition(position)), low=low)
                for position, low in self._marks
            ),
            unrecoverable=dict(self.unrecoverable),
        )

    def has_low(self, position: int) -> bool:
        """Return whether a position has a watermark, so that all transactions open then are
        known.
        """
        return any(at <= position for at, _ in self._marks)

    @property
    def first(self) -> tuple[int, int] | None:
        """Return the first position and its watermark; None without any."""
        return self._marks[0] if self._marks else None

    def low_at(self, position: int) -> int:
        """Return the SCN from which on to read, to continue after a position.

        Without a watermark it is that of the position, before which transactions may have begun.
        """
        lows = [low for at, low in self._marks if at <= position]
        return lows[-1] if lows else position >> 64

    def note(self, position: int, low: int) -> None:
        """Note the watermark of a position, which is after the previous one."""
        if self._marks and self._marks[-1][0] >= position:
            return
        if len(self._marks) > 1 and self._marks[-1][1] == low:
            return  # that of the previous one holds, and is the same
        self._marks.append((position, low))
        self.is_changed = True

    def rewind(self, position: int) -> None:
        """Forget the watermarks after a position: the log continues there."""
        self._marks = [one for one in self._marks if one[0] <= position]

    def prune(self, position: int) -> None:
        """Forget those that are not needed once the log is durable up to a position."""
        while len(self._marks) > 1 and self._marks[1][0] <= position:
            del self._marks[0]
            self.is_changed = True
