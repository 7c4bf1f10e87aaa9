"""Choice of the log files that have the redo of a window: a pure function of rows of views.

A log is known by its thread and SEQUENCE#. Rules (reference, sections 3, 1a O3 and O4, 1b.6):

- The CURRENT log is read online. A full one is read from its archive, and online only while it has
  no archive that can be read.
- Of several archives of one log, that of the first destination is read.
- Archives of another incarnation (OPEN RESETLOGS) are not of this log.
- Within a thread the sequence numbers have no gap. Steps between the SCNs of consecutive logs are
  no gap: they are usual after a restart.
- Each thread that may have redo of the window contributes: an open one up to the window's end, a
  closed one up to its checkpoint. A thread that was enabled inside the window has redo from there.

LogMiner itself notices none of this: with too few files it returns fewer rows. Not here: how often
a missing log is looked for again (`mining`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from itertools import pairwise

CURRENT = "CURRENT"
_ONLINE = frozenset((CURRENT, "ACTIVE", "INACTIVE"))
Resetlogs = tuple[int, datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineLog:
    """Row of V$LOG. next_scn: a huge number for the CURRENT log."""

    group: int
    thread: int
    sequence: int
    is_archived: bool
    status: str
    first_scn: int
    next_scn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Row of V$LOGFILE. status: empty for a file that can be used."""

    group: int
    status: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedLog:
    """Row of V$ARCHIVED_LOG that has a file. resetlogs: SCN and time of its incarnation's begin."""

    name: str
    destination: int
    thread: int
    sequence: int
    resetlogs: Resetlogs
    first_scn: int
    next_scn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RedoThread:
    """Row of V$THREAD.

    Attributes:
        is_open: Whether an instance writes it.
        enabled: PUBLIC, PRIVATE or DISABLED.
        enable_scn: SCN from which on it has redo.
        checkpoint_scn: SCN up to which a closed thread is complete.
        last_scn: SCN of its newest written redo.
    """

    number: int
    is_open: bool
    enabled: str
    enable_scn: int
    checkpoint_scn: int
    last_scn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogViews:
    """Rows of the views at one time.

    Attributes:
        resetlogs: SCN and time at which the present incarnation began.
        destinations: Archive destinations that may be read, the preferred one first.
    """

    resetlogs: Resetlogs
    online: Sequence[OnlineLog]
    members: Sequence[Member]
    archived: Sequence[ArchivedLog]
    threads: Sequence[RedoThread]
    destinations: Sequence[int] = ()

    @property
    def end_scn(self) -> int:
        """Highest SCN up to which all open threads have written their redo; 0 if none is open."""
        return min((one.last_scn for one in self.threads if one.is_open), default=0)


class Lack(Enum):
    """Reason why there is no complete choice."""

    BEGIN = "no log has the redo from the wanted SCN on"
    HOLE = "a log between two others is missing"
    END = "the newest logs are not listed yet"
    FILE = "a log has no file that can be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """File to read. is_online: it is overwritten after some switches."""

    name: str
    thread: int
    sequence: int
    first_scn: int
    next_scn: int
    is_online: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Redo that no file has.

    Attributes:
        lack: The reason.
        thread: Thread of the redo.
        sequence: SEQUENCE# of the first missing log; 0 if it is not known.
        scn: First SCN that is wanted and that no log has; 0 if it is not known.
    """

    lack: Lack
    thread: int
    sequence: int = 0
    scn: int = 0

    def __str__(self) -> str:
        """Return the reason with its place."""
        log = f" log {self.sequence}" if self.sequence else ""
        scn = f", SCN {self.scn}" if self.scn else ""
        return f"{self.lack.value}: thread {self.thread}{log}{scn}"


@dataclass(frozen=True, slots=True)
class _Thread:
    """Logs of one thread by SEQUENCE#, None for one without a readable file."""

    logs: dict[int, LogFile] = field(default_factory=dict)
    unreadable: dict[int, tuple[int, int]] = field(default_factory=dict)


def choose_logs(views: LogViews, low: int, high: int) -> list[LogFile] | Missing:
    """Return the files with all redo of the SCNs from low to high, or what is missing.

    The files are in order of thread and SEQUENCE#. high must not be above `views.end_scn`.
    """
    known = {one.number: one for one in views.threads}
    logs = _list_logs(views)
    chosen: list[LogFile] = []
    for number in sorted(known.keys() | logs.keys()):
        thread, listed = known.get(number), logs.get(number, _Thread())
        if thread is not None and thread.enable_scn > high:
            continue
        found = _choose_of_thread(number, thread, listed, low, high)
        if isinstance(found, Missing):
            return found
        chosen += found
    return chosen


def oldest_scn(views: LogViews) -> int:
    """Return the lowest SCN from which on every thread has all logs without a gap."""
    oldest = 0
    known = {one.number: one for one in views.threads}
    for number, listed in _list_logs(views).items():
        at = max(listed.logs, default=None)
        if at is None:
            continue
        while at - 1 in listed.logs:
            at -= 1
        thread = known.get(number)
        first = listed.logs[at].first_scn
        if thread is not None and thread.enable_scn >= first:
            continue
        oldest = max(oldest, first)
    return oldest


def _list_logs(views: LogViews) -> dict[int, _Thread]:
    """Return the logs of each thread, each with the one file that is read."""
    threads: dict[int, _Thread] = {}
    archives = _prefer_destinations(views)
    members = _list_members(views.members)
    for (number, sequence), archive in archives.items():
        thread = threads.setdefault(number, _Thread())
        thread.logs[sequence] = LogFile(
            name=archive.name,
            thread=number,
            sequence=sequence,
            first_scn=archive.first_scn,
            next_scn=archive.next_scn,
            is_online=False,
        )
    for log in views.online:
        if log.status not in _ONLINE or not log.sequence:
            continue
        thread = threads.setdefault(log.thread, _Thread())
        if log.status != CURRENT and log.sequence in thread.logs:
            continue
        name = members.get(log.group)
        if name is None:
            if log.sequence not in thread.logs:
                thread.unreadable[log.sequence] = log.first_scn, log.next_scn
            continue
        thread.logs[log.sequence] = LogFile(
            name=name,
            thread=log.thread,
            sequence=log.sequence,
            first_scn=log.first_scn,
            next_scn=log.next_scn,
            is_online=True,
        )
    return threads


def _prefer_destinations(views: LogViews) -> Mapping[tuple[int, int], ArchivedLog]:
    rank = {number: place for place, number in enumerate(views.destinations)}
    chosen: dict[tuple[int, int], ArchivedLog] = {}
    for log in views.archived:
        if log.resetlogs != views.resetlogs or (rank and log.destination not in rank):
            continue
        key = log.thread, log.sequence
        other = chosen.get(key)
        if other is None or _rank(log, rank) < _rank(other, rank):
            chosen[key] = log
    return chosen


def _rank(log: ArchivedLog, rank: Mapping[int, int]) -> tuple[int, int, str]:
    return rank.get(log.destination, len(rank)), log.destination, log.name


def _list_members(members: Iterable[Member]) -> dict[int, str]:
    """Return one usable file of each group."""
    names: dict[int, str] = {}
    for one in members:
        if one.kind == "ONLINE" and not one.status:
            names[one.group] = min(one.name, names.get(one.group, one.name))
    return names


def _choose_of_thread(
    number: int, thread: RedoThread | None, listed: _Thread, low: int, high: int
) -> list[LogFile] | Missing:
    # Redo that was written late is in a later log than its SCN tells, never in an earlier one.
    wanted = {at: log for at, log in listed.logs.items() if log.next_scn > low}
    wanted = {at: log for at, log in wanted.items() if log.first_scn <= high}
    broken = [at for at, (_, following) in listed.unreadable.items() if following > low]
    sequences = sorted([*wanted, *(at for at in broken if listed.unreadable[at][0] <= high)])
    begin = low if thread is None else max(low, thread.enable_scn)
    is_complete = thread is not None and not thread.is_open and thread.checkpoint_scn <= begin
    if is_complete or (thread is None and not sequences):
        return [wanted[at] for at in sequences if at in wanted]
    if not sequences:
        return Missing(lack=Lack.BEGIN, thread=number, scn=begin)
    for before, after in pairwise(sequences):
        if after != before + 1:
            return Missing(lack=Lack.HOLE, thread=number, sequence=before + 1)
    lacking = next((at for at in sequences if at not in wanted), None)
    if lacking is not None:
        return Missing(lack=Lack.FILE, thread=number, sequence=lacking)
    first, last = wanted[sequences[0]], wanted[sequences[-1]]
    # Consecutive logs may have a step between their SCNs; the previous one then ends before low.
    has_begin = first.first_scn <= begin or first.sequence - 1 in listed.logs
    if not has_begin and thread is not None:
        return Missing(lack=Lack.BEGIN, thread=number, scn=begin, sequence=first.sequence - 1)
    if last.next_scn <= high and thread is not None and thread.is_open:
        return Missing(lack=Lack.END, thread=number, sequence=last.sequence + 1)
    if last.next_scn <= high and thread is not None and last.next_scn < thread.checkpoint_scn:
        return Missing(lack=Lack.END, thread=number, sequence=last.sequence + 1)
    return [wanted[at] for at in sequences]
