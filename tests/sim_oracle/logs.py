"""The logs of a database: threads, switches, archiving, purge, incarnations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from sim_oracle.errors import ModelMisuse, OraError
from sim_oracle.redo import Archive, Group, LogFile, Record, RedoThread

GROUPS = 3


@dataclass(frozen=True, slots=True)
class Incarnation:
    """A life of the database, which OPEN RESETLOGS begins.

    Attributes:
        number: INCARNATION#.
        scn: RESETLOGS_CHANGE#.
        time: RESETLOGS_TIME.
    """

    number: int
    scn: int
    time: datetime


class Logs:
    """All redo of a database.

    Attributes:
        threads: Redo threads by number.
        groups: Online log groups by number.
        logs: All logs that were ever begun, oldest first.
        destinations: Numbers of the archive destinations; the value tells whether it is a standby.
        archive_lag: How many full logs of a thread wait for their archiving.
        incarnations: All incarnations; the last is the current one.
        before_switch: Called with a thread before its log is switched.
    """

    def __init__(self, name: str, scn: int, time: datetime) -> None:
        self.name = name
        self.threads: dict[int, RedoThread] = {}
        self.groups: dict[int, Group] = {}
        self.logs: list[LogFile] = []
        self.destinations: dict[int, bool] = {1: False}
        self.archive_lag = 0
        self.incarnations = [Incarnation(1, scn, time)]
        self.before_switch: Callable[[RedoThread], None] = lambda _: None
        self._waiting: list[LogFile] = []
        self._sequences: dict[int, int] = {}

    @property
    def incarnation(self) -> Incarnation:
        """Return the current incarnation."""
        return self.incarnations[-1]

    def add_thread(self, number: int, scn: int, time: datetime, sequence: int) -> RedoThread:
        """Enable a redo thread and open it."""
        groups = []
        for place in range(1, GROUPS + 1):
            group_number = (number - 1) * GROUPS + place
            members = [
                f"/oradata/{self.name}/redo{group_number:02d}{letter}.log" for letter in "ab"
            ]
            groups.append(Group(group_number, number, members))
            self.groups[group_number] = groups[-1]
        thread = RedoThread(number, groups, scn, last_scn=scn)
        self.threads[number] = thread
        self._sequences[number] = sequence
        self._begin_log(thread, scn, time)
        return thread

    def _begin_log(self, thread: RedoThread, scn: int, time: datetime) -> None:
        groups = thread.groups
        place = 0 if thread.current is None else groups.index(thread.current) + 1
        group = groups[place % len(groups)]
        if group.log is not None and not group.log.is_archived:
            self.archive(group.log, time)  # an instance waits here for the archiver
        sequence = self._sequences[thread.number]
        self._sequences[thread.number] += 1
        log = LogFile(thread.number, sequence, scn, time, self.incarnation.number)
        group.log = log
        thread.current = group
        self.logs.append(log)

    def switch(self, thread: RedoThread, scn: int, time: datetime) -> LogFile:
        """Close a thread's log at an SCN and begin the next; return the closed one."""
        self.before_switch(thread)
        log = thread.log
        log.next_scn, log.next_time = scn, time
        self._waiting.append(log)
        self._begin_log(thread, scn, time)
        self.run_archiver(time)
        return log

    def run_archiver(self, time: datetime, *, everything: bool = False) -> None:
        """Archive full logs that waited long enough."""
        keep = 0 if everything else self.archive_lag
        for thread in self.threads:
            waiting = [log for log in self._waiting if log.thread == thread]
            for log in waiting[: len(waiting) - keep]:
                self.archive(log, time)

    def archive(self, log: LogFile, time: datetime) -> None:
        """Copy a log to every destination."""
        if log in self._waiting:
            self._waiting.remove(log)
        for destination, is_standby in self.destinations.items():
            if destination in log.archives:
                continue
            resetlogs = self.incarnations[log.incarnation - 1].scn
            name = f"/arch{destination}/{log.thread}_{log.sequence}_{resetlogs}.dbf"
            log.archives[destination] = Archive(name, destination, log, time, is_standby=is_standby)

    def list_current_as_archived(self, thread: RedoThread, time: datetime) -> None:
        """List a CURRENT log among the archived ones too, as managed services show it."""
        self.archive(thread.log, time)

    def archives(self) -> Iterable[Archive]:
        """Return all archived copies, oldest first."""
        return [copy for log in self.logs for copy in log.archives.values()]

    def purge(self, before_scn: int, how: str = "rman") -> int:
        """Remove archived copies of logs that end at or before an SCN; return how many.

        Args:
            before_scn: Highest NEXT_CHANGE# of a removed log.
            how: `rman` clears NAME, `delete` sets DELETED and keeps NAME, `expired` sets STATUS X,
                `rm` leaves the views as they are.
        """
        count = 0
        for copy in self.archives():
            log = copy.log
            if not copy.exists or log.next_scn is None or log.next_scn > before_scn:
                continue
            copy.exists = False
            count += 1
            if how == "rman":
                copy.name, copy.status = None, "D"
            elif how == "delete":
                copy.status = "D"
            elif how == "expired":
                copy.status = "X"
            elif how != "rm":
                raise ModelMisuse(how)
        return count

    def close_thread(self, thread: RedoThread, scn: int, time: datetime) -> None:
        """Stop a thread's instance cleanly."""
        self.switch(thread, scn, time)
        thread.status = "CLOSED"
        thread.checkpoint_scn = scn

    def open_thread(self, thread: RedoThread, scn: int, time: datetime) -> None:
        """Start the instance of a closed thread again."""
        thread.status = "OPEN"
        thread.log.first_scn = min(thread.log.first_scn, scn)

    def reset(self, scn: int, time: datetime) -> None:
        """Begin a new incarnation: sequences start at 1 in every thread."""
        number = len(self.incarnations) + 1
        for thread in self.threads.values():
            log = thread.log
            if log.next_scn is None:
                log.next_scn, log.next_time = scn, time
        self.run_archiver(time, everything=True)
        self.incarnations.append(Incarnation(number, scn, time))
        for thread in self.threads.values():
            self.archive(thread.log, time)
            self._sequences[thread.number] = 1
            thread.last_scn = scn
            self._begin_log(thread, scn, time)

    def find(self, name: str) -> tuple[LogFile, Group | None]:
        """Return the log in a file, and its group if it is an online log.

        Raises:
            OraError: 1284, the file cannot be opened.
        """
        for group in self.groups.values():
            if name in group.members:
                if group.log is None or not group.is_readable:
                    raise OraError(1284, name)
                return group.log, group
        for copy in self.archives():
            if copy.name == name and copy.exists:
                return copy.log, None
        raise OraError(1284, name)

    def status_of(self, group: Group) -> str:
        """Return STATUS of a group in V$LOG."""
        if group.log is None:
            return "UNUSED"
        thread = self.threads[group.thread]
        if thread.current is group:
            return "CURRENT"
        previous = thread.groups[thread.groups.index(group) - len(thread.groups) + 1]
        # The log before the current one is still needed for a crash recovery.
        return "ACTIVE" if previous is thread.current else "INACTIVE"

    def write(self, record: Record) -> None:
        """Write a record into its thread's current log."""
        self.threads[record.thread].write(record)
