"""Times in the staging database of a log's changes, as far as they are still needed.

They are kept in the table memo, one row for each log: for each place where the consumer may
continue, and for staged changes that are not yet applied.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from penstock.model.hlc import ZERO, Hlc
from penstock.ports.staging import Group, StagingSession

KEPT_MAX = 1_000
_KEY = "log "


class Mark(NamedTuple):
    """Mark: everything up to a change of the log has this time or an earlier one."""

    gsn: int
    time: Hlc


class _Kept(msgspec.Struct, frozen=True):
    """Row of memo: the floor, the marks, and the groups, each as its parts."""

    floor: tuple[int, int]
    marks: list[tuple[int, int, int]]
    groups: list[Group]


class LogMarks:
    """Marks of one log, in order, and the groups of its rows.

    Changed by one thread; others may read `marks` and `groups`.
    """

    def __init__(
        self, log_id: str, floor: Hlc, marks: tuple[Mark, ...] = (), groups: tuple[Group, ...] = ()
    ) -> None:
        """Keep the marks. floor: the time after which the log's first changes are."""
        self.log_id, self._floor = log_id, floor
        self.marks, self.groups = marks, groups

    @classmethod
    def load(cls, session: StagingSession, log_id: str, floor: Callable[[], Hlc]) -> LogMarks:
        """Return the kept marks of a log. floor: asked if there are none; its time is then kept."""
        text = session.get_memo(_KEY + log_id)
        if text is None:
            found = cls(log_id, floor())
            found.save(session)
            return found
        kept = msgspec.json.decode(text, type=_Kept)
        marks = tuple(Mark(gsn, Hlc(n, m)) for gsn, n, m in kept.marks)
        return cls(log_id, Hlc(*kept.floor), marks, tuple(kept.groups))

    def save(self, session: StagingSession) -> None:
        """Save the marks. Raises the errors of the staging database."""
        kept = _Kept(
            floor=(self._floor.nanos, self._floor.logical),
            marks=[(gsn, time.nanos, time.logical) for gsn, time in self.marks],
            groups=list(self.groups),
        )
        session.put_memo(_KEY + self.log_id, msgspec.json.encode(kept))

    @property
    def last(self) -> Hlc:
        """Time of the last staged change."""
        return self.marks[-1].time if self.marks else self._floor

    def before(self, gsn: int) -> Hlc:
        """Return the time after which this change's time is; marks from there on are void."""
        self.marks = tuple(one for one in self.marks if one.gsn < gsn)
        return self.last

    def add(self, new: Sequence[Mark], groups: Iterable[Group], applied: int) -> None:
        """Add some more, at the end. applied: the change up to which the target has everything.

        Of the earlier ones, the last one stays, too: the consumer may continue there or at the end.
        """
        self.groups = tuple(sorted({*self.groups, *groups}))
        done = sum(one.gsn <= applied for one in self.marks)
        kept = [*self.marks[max(0, done - 1) :], *new]
        if len(kept) > KEPT_MAX:  # nothing is lost, rows are only marked applied in larger steps
            kept = sorted({*kept[::2], *self.marks[-1:], new[-1]})
        self.marks = tuple(kept)


def time_of(marks: tuple[Mark, ...], gsn: int) -> Hlc:
    """Return the last time of everything up to a change; ZERO if none is known."""
    at = bisect_right([one.gsn for one in marks], gsn)
    return marks[at - 1].time if at else ZERO
