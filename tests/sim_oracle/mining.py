"""LogMiner sessions: files, window, rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sim_oracle import redo
from sim_oracle.errors import OraError
from sim_oracle.literals import Nls
from sim_oracle.redo import Group, LogFile, Record
from sim_oracle.statements import Options, Renderer

if TYPE_CHECKING:
    from sim_oracle.database import Database

# Constants of the package DBMS_LOGMNR.
NEW, REMOVE, ADD = 1, 2, 3
CONSTANTS = {
    "NEW": NEW,
    "REMOVEFILE": REMOVE,
    "ADDFILE": ADD,
    "COMMITTED_DATA_ONLY": 2,
    "SKIP_CORRUPTION": 4,
    "DDL_DICT_TRACKING": 8,
    "DICT_FROM_ONLINE_CATALOG": 16,
    "DICT_FROM_REDO_LOGS": 32,
    "NO_SQL_DELIMITER": 64,
    "PRINT_PRETTY_SQL": 512,
    "CONTINUOUS_MINE": 1024,
    "NO_ROWID_IN_STMT": 2048,
    "STRING_LITERALS_IN_STMT": 4096,
}
REFUSED = CONSTANTS["PRINT_PRETTY_SQL"] | CONSTANTS["STRING_LITERALS_IN_STMT"]


@dataclass(slots=True)
class _File:
    """A file of a session: the log that was in it when it was added."""

    name: str
    log: LogFile
    group: Group | None


class MiningSession:
    """The LogMiner session of one connection.

    Attributes:
        files: Added files.
        is_started: Whether START_LOGMNR ran.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.files: list[_File] = []
        self.is_started = False
        self._start_scn = self._end_scn = 0
        self._options = Options()

    def add_file(self, name: str, option: int, *, is_in_pdb: bool = False) -> None:
        """Run ADD_LOGFILE; raises OraError."""
        if is_in_pdb:
            raise OraError(65040)
        if option == NEW:
            self.files = []
        elif option not in (ADD, REMOVE):
            raise OraError(1281, text="invalid option of ADD_LOGFILE")
        if option == REMOVE:
            self.files = [one for one in self.files if one.name != name]
            return
        log, group = self.database.logs.find(name)
        if any(one.log is log for one in self.files):
            raise OraError(1289, name)
        self.files.append(_File(name, log, group))

    def start(self, start_scn: int, end_scn: int, options: int) -> None:
        """Run START_LOGMNR; raises OraError."""
        if options & CONSTANTS["CONTINUOUS_MINE"]:
            raise OraError(44609)
        if options & REFUSED:
            raise OraError(900, text="the simulator does not write texts of these options")
        if not self.files:
            raise OraError(1292)
        if end_scn == 0:  # the view is frozen at the session's start
            end_scn = max(one.last_scn for one in self.database.logs.threads.values())
        if end_scn <= start_scn:
            raise OraError(1281)
        self._check_recycled(1368)
        self._check_coverage(start_scn, end_scn)
        from_redo = bool(options & CONSTANTS["DICT_FROM_REDO_LOGS"])
        if from_redo and not any(one.log.has_dictionary for one in self.files):
            raise OraError(1371)
        self._options = Options(
            has_row_ids=not options & CONSTANTS["NO_ROWID_IN_STMT"],
            has_delimiter=not options & CONSTANTS["NO_SQL_DELIMITER"],
            is_committed_only=bool(options & CONSTANTS["COMMITTED_DATA_ONLY"]),
            has_dictionary=from_redo or bool(options & CONSTANTS["DICT_FROM_ONLINE_CATALOG"]),
            tracks_ddl=from_redo and bool(options & CONSTANTS["DDL_DICT_TRACKING"]),
        )
        self._start_scn, self._end_scn = start_scn, end_scn
        self.is_started = True

    def end(self) -> None:
        """Run END_LOGMNR; raises OraError 1307 without a session."""
        if not self.is_started and not self.files:
            raise OraError(1307)
        self.files, self.is_started = [], False

    def _check_recycled(self, code: int) -> None:
        for one in self.files:
            if one.group is not None and one.group.log is not one.log:
                assert one.group.log is not None
                if code == 310:
                    raise OraError(code, one.group.log.sequence, one.log.sequence, one.name)
                raise OraError(code, one.name)

    def _check_coverage(self, start_scn: int, end_scn: int) -> None:
        """Raise ORA-01291 if the files of a thread have a hole; other threads are not missed."""
        for number in {one.log.thread for one in self.files}:
            logs = sorted(
                (one.log for one in self.files if one.log.thread == number),
                key=lambda log: (log.incarnation, log.sequence),
            )
            thread = self.database.logs.threads[number]
            if logs[0].first_scn > max(start_scn, thread.enable_scn):
                raise OraError(1291)
            for before, after in pairwise(logs):
                if after.incarnation == before.incarnation and (
                    after.sequence != before.sequence + 1
                ):
                    raise OraError(1291)
            end = logs[-1].next_scn
            is_closed = thread.status == "CLOSED" and thread.checkpoint_scn <= (end or 0)
            if end is not None and end < end_scn and not is_closed:
                raise OraError(1291)

    def check_readable(self) -> None:
        """Raise an error if a file changed while its rows are fetched."""
        if not self.is_started:
            raise OraError(1306)
        self._check_recycled(310)
        for one in self.files:
            if one.group is None and not any(
                copy.name == one.name and copy.exists for copy in one.log.archives.values()
            ):
                raise OraError(1284, one.name)

    def records(self) -> Iterator[Record]:
        """Yield the records of the window: threads merged by SCN, each in redo order."""
        first = self._start_scn
        if not self.database.settings.has_exclusive_start:
            first -= 1
        streams: list[list[Record]] = []
        for number in sorted({one.log.thread for one in self.files}):
            logs = sorted(
                (one.log for one in self.files if one.log.thread == number),
                key=lambda log: (log.incarnation, log.sequence),
            )
            streams.append(
                [
                    record
                    for log in logs
                    for record in log.records
                    if first < record.scn <= self._end_scn
                ]
            )
        yield from merge_by_scn(streams)

    def contents(self, nls: Nls) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of V$LOGMNR_CONTENTS."""
        self.check_readable()
        database = self.database
        containers = {"CDB$ROOT": 1}
        containers |= {name: number for number, name in enumerate(database.pdbs, 3)}
        renderer = Renderer(
            replace(nls, doubles_quotes=database.settings.doubles_quotes),
            self._options,
            self._start_scn,
            database.find_table,
            has_partial_ids=database.settings.has_partial_ids,
            mismatch_form=database.settings.mismatch_form,
            containers=containers,
        )
        if self._options.is_committed_only:
            yield from self._group_committed(renderer)
            return
        for record in self.records():
            yield from renderer.rows(record)

    def _group_committed(self, renderer: Renderer) -> Iterator[tuple[Any, ...]]:
        """Yield whole transactions; those that began before the window are lost."""
        open_: dict[Any, list[Record]] = {}
        for record in self.records():
            rows = open_.setdefault(record.xid, []) if record.code == redo.START else None
            if rows is None and record.xid not in open_:
                continue
            held = open_[record.xid]
            if record.rollback:
                _drop_undone(held, record)
                continue
            held.append(record)
            if record.code == redo.ROLLBACK:
                del open_[record.xid]
            elif record.code == redo.COMMIT:
                for one in open_.pop(record.xid):
                    yield from renderer.rows(one, record.scn)


def _drop_undone(held: list[Record], undo: Record) -> None:
    for place in range(len(held) - 1, -1, -1):
        if held[place].row_id == undo.row_id and held[place].version is not None:
            del held[place]
            return


def merge_by_scn(streams: list[list[Record]]) -> Iterator[Record]:
    """Yield records of several threads; the head with the lowest SCN is next."""
    places = [0] * len(streams)
    while True:
        best = -1
        for number, stream in enumerate(streams):
            if places[number] == len(stream):
                continue
            if best < 0 or stream[places[number]].scn < streams[best][places[best]].scn:
                best = number
        if best < 0:
            return
        yield streams[best][places[best]]
        places[best] += 1
