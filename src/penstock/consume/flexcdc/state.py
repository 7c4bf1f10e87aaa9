"""State tables: the captured tables, the position in the log, units of work, and their numbers.

All destinations understand every statement. The position is moved in the transaction of the rows
(`writing.py`).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.log.segment import Segment
from penstock.model import MarkerKind, PenstockError, TableName
from penstock.model.sections import StateNames
from penstock.ports.changelog import ChangelogSession

ROWS_MAX = 500  # rows of one INSERT
IDENTITIES = "penstock_columns"  # our column of mvlogs, which Flexviews does not have
_READING = "reading FlexCDC's state"
_WRITING = "writing FlexCDC's state"


class StateMissing(PenstockError):
    """The destination has no state tables: `setup` was not run."""

    code = "FX01"


class StateExists(PenstockError):
    """The destination has a state table already; only `setup --force` begins again."""

    code = "FX02"


class StateMoved(PenstockError):
    """The stored place is not the one that this process stored, so another process writes the same
    state.
    """

    code = "FX03"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Position in a change log.

    Attributes:
        log_id: empty before any log was read.
        segment: the last one that was read whole.
        trx: the last transaction that is in the destination.
        position: its end, as printed.
    """

    log_id: str = ""
    segment: int = -1
    trx: int = 0
    position: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mvlog:
    """Captured table and the name of its changelog.

    Attributes:
        identities: of the changelog's columns, as `Changelogs` writes them; empty if unknown.
    """

    table: TableName
    name: str
    identities: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitOfWork:
    """Row of mview_uow.

    Attributes:
        gsn_hwm: the last number of a row image that the transaction has used.
    """

    uow_id: int
    commit_time: datetime.datetime | None
    gsn_hwm: int


class State:
    """Reads and writes the state tables in the session's transaction."""

    def __init__(self, session: ChangelogSession, names: StateNames) -> None:
        self.session = session
        self.names = names
        self._tables = {
            name: session.quote(*names.table(getattr(names, name)))
            for name in ("mvlogs", "binlog_consumer_status", "mview_uow", "place")
        }

    # -- setup -----------------------------------------------------------------------------------

    def existing(self) -> list[str]:
        """Return the names of the state tables that exist."""
        names = self.names
        wanted = (names.mvlogs, names.binlog_consumer_status, names.mview_uow, names.place)
        return [name for name in wanted if self.session.shape(names.table(name)) is not None]

    def require(self) -> None:
        """Raise StateMissing unless all state tables exist."""
        names = self.names
        missing = {names.binlog_consumer_status, names.mvlogs, names.mview_uow, names.place}
        missing -= set(self.existing())
        if missing:
            raise StateMissing(
                f"the destination has no table {names.namespace}.{min(missing)}",
                hint="Run `penstock flexcdc --ini FILE setup` first.",
            )
        self._complete()

    def check_new(self, *, force: bool) -> list[str]:
        """Return the existing tables; without force there must be none. Raises StateExists."""
        there = self.existing()
        if there and not force:
            raise StateExists(
                f"Table already exists:{there[0]}. Setup aborted! (use --force to ignore this "
                "error)",
                hint="To begin again: penstock flexcdc --ini FILE setup --force. Changelogs stay, "
                "and their tables are captured again after add-table.",
                table=there[0],
            )
        return there

    def create(self, *, force: bool) -> None:
        """Create the tables. Raises StateExists.

        Args:
            force: drop existing tables first.
        """
        for name in self.check_new(force=force):
            self.session.drop(self.names.table(name))
        self.session.create_state(self.names)
        self._complete()

    def _complete(self) -> None:
        """Add our column to the table of changelogs, if an earlier setup did not."""
        mvlogs = self.names.table(self.names.mvlogs)
        if IDENTITIES not in (self.session.shape(mvlogs) or {}):
            self.session.add_column(mvlogs, IDENTITIES, self.session.text_type, after="active_flag")

    # -- captured tables -------------------------------------------------------------------------

    def mvlogs(self) -> list[Mvlog]:
        """Return the captured tables."""
        found = self.session.rows(
            f"select * from {self._tables['mvlogs']}"
            " where active_flag order by table_schema, table_name",
            doing=_READING,
        )
        return [
            Mvlog(
                table=TableName(str(row["table_schema"]), str(row["table_name"])),
                name=str(row["mvlog_name"]),
                identities=str(row.get(IDENTITIES) or ""),
            )
            for row in found
        ]

    def put_identities(self, table: TableName, text: str) -> None:
        """Store the identities of a changelog's columns."""
        self.session.run(
            f"update {self._tables['mvlogs']} set {IDENTITIES} = %s"
            " where table_schema = %s and table_name = %s",
            (text, *table),
            doing=_WRITING,
        )

    def put_mvlog(self, mvlog: Mvlog) -> None:
        """Note that a table is captured."""
        self._complete()
        self.remove_mvlog(mvlog.table)
        self.session.run(
            f"insert into {self._tables['mvlogs']} (table_schema, table_name, mvlog_name,"
            f" {IDENTITIES}) values (%s, %s, %s, %s)",
            (*mvlog.table, mvlog.name, mvlog.identities),
            doing=_WRITING,
        )

    def remove_mvlog(self, table: TableName) -> int:
        """Note that a table is not captured; return the number of removed rows."""
        return self.session.run(
            f"delete from {self._tables['mvlogs']} where table_schema = %s and table_name = %s",
            tuple(table),
            doing=_WRITING,
        )

    # -- numbers ---------------------------------------------------------------------------------

    def last_unit(self) -> UnitOfWork:
        """Return the newest row of mview_uow, after which numbers continue."""
        found = self.session.rows(
            f"select uow_id, commit_time, gsn_hwm from {self._tables['mview_uow']}"
            " order by uow_id desc limit 1",
            doing=_READING,
        )
        if not found:
            raise StateMissing(
                f"{self.names.namespace}.{self.names.mview_uow} has no row: the last numbers are "
                "not known",
                hint=f"Put its newest row back: insert into {self._tables['mview_uow']} values "
                "(UOW_ID, now(), GSN_HWM); with the highest numbers of all changelogs.",
            )
        row = found[0]
        return UnitOfWork(
            uow_id=int(row["uow_id"]), commit_time=row["commit_time"], gsn_hwm=int(row["gsn_hwm"])
        )

    def put_units(self, units: Sequence[UnitOfWork]) -> None:
        """Add rows to mview_uow."""
        self._insert("mview_uow", [(u.uow_id, u.commit_time, u.gsn_hwm) for u in units])

    def _insert(self, table: str, rows: Sequence[tuple[object, ...]]) -> None:
        for start in range(0, len(rows), ROWS_MAX):
            some = rows[start : start + ROWS_MAX]
            marks = ", ".join(f"({', '.join(['%s'] * len(row))})" for row in some)
            self.session.run(
                f"insert into {self._tables[table]} values {marks}",
                [value for row in some for value in row],
                doing=_WRITING,
            )

    # -- the place in the log --------------------------------------------------------------------

    def place(self, *, lock: bool = False) -> Place:
        """Return the position in the log.

        Args:
            lock: lock the row until the transaction ends.
        """
        found = self.session.rows(
            f"select log_id, segment, trx, position from {self._tables['place']}"
            + (" for update" if lock else ""),
            doing=_READING,
        )
        if not found:
            return Place()
        row = found[0]
        return Place(
            log_id=str(row["log_id"]),
            segment=int(row["segment"]),
            trx=int(row["trx"]),
            position=str(row["position"]),
        )

    def check_place(self, expected: Place) -> None:
        """Lock the place, which must be the expected one. Raises StateMoved."""
        found = self.place(lock=True)
        is_new = not found.log_id and not expected.trx
        if found != expected and not is_new:
            raise StateMoved(
                f"the state in {self.names.namespace} is at transaction {found.trx} of log "
                f"{found.log_id or 'none'}, and was left at {expected.trx} of "
                f"{expected.log_id or 'none'}",
                hint="Another process writes to the same state: let one run; to begin again, run "
                "`penstock flexcdc --ini FILE setup --force`.",
                expected=expected.trx,
                actual=found.trx,
            )

    def move(self, place: Place) -> None:
        """Store another place."""
        values = (place.log_id, place.segment, place.trx, place.position)
        moved = self.session.run(
            f"update {self._tables['place']} set log_id = %s, segment = %s, trx = %s,"
            " position = %s",
            values,
            doing=_WRITING,
        )
        if not moved:
            self._insert("place", [values])

    # -- binlog_consumer_status ------------------------------------------------------------------

    def put_files(self, server_id: int, files: Iterable[tuple[str, int]]) -> None:
        """Store the list of the server's files. Deletes files that the server has removed and that
        are fully read.
        """
        table = self._tables["binlog_consumer_status"]
        known = {
            str(row["master_log_file"]): row
            for row in self.session.rows(
                f"select master_log_file, master_log_size, exec_master_log_pos from {table}"
                " where server_id = %s",
                (server_id,),
                doing=_READING,
            )
        }
        there = dict(files)
        new = [(server_id, name, size, 0) for name, size in there.items() if name not in known]
        self._insert("binlog_consumer_status", new)
        for name, size in there.items():
            if name in known and known[name]["master_log_size"] != size:
                self._set_file(server_id, name, "master_log_size", size)
        for name, row in known.items():
            size, done = row["master_log_size"], row["exec_master_log_pos"]
            if there and name not in there and (done or 0) >= (size or 0):
                self.session.run(
                    f"delete from {table} where server_id = %s and master_log_file = %s",
                    (server_id, name),
                    doing=_WRITING,
                )

    def put_position(self, server_id: int, file: str, offset: int, *, in_files: bool) -> None:
        """Store how far a server's log is read.

        Args:
            server_id: the server.
            file: the file; without files the printed position.
            offset: the offset in it.
            in_files: the log has files, and earlier ones are fully read. Otherwise there is one
                row.
        """
        table = self._tables["binlog_consumer_status"]
        if not in_files:
            self.session.run(
                f"delete from {table} where server_id = %s", (server_id,), doing=_WRITING
            )
            self._insert("binlog_consumer_status", [(server_id, file, None, offset)])
            return
        if not self._set_file(server_id, file, "exec_master_log_pos", offset):
            self._insert("binlog_consumer_status", [(server_id, file, offset, offset)])
        self.session.run(
            f"update {table} set exec_master_log_pos = master_log_size where server_id = %s"
            " and master_log_file < %s and exec_master_log_pos < master_log_size",
            (server_id, file),
            doing=_WRITING,
        )

    def _set_file(self, server_id: int, file: str, column: str, value: int) -> int:
        return self.session.run(
            f"update {self._tables['binlog_consumer_status']} set {column} = %s"
            " where server_id = %s and master_log_file = %s",
            (value, server_id, file),
            doing=_WRITING,
        )


def behind(place: Place, *, segment: int, trx: int, position: str) -> Place:
    """Return a later place in the same log."""
    return replace(place, segment=segment, trx=trx, position=position)


_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - a DATETIME column has no zone
TIMES_MAX = 10_000  # of one lookup


class Units:
    """Numbers of transactions. They continue after the stored number, and skip FlexCDC's own
    transactions.

    A transaction keeps its number however often it is read, until its number is committed.
    """

    def __init__(self, segment: Segment, trx: int, last: UnitOfWork) -> None:
        """Find our own transactions in the segment.

        Args:
            segment: the segment.
            trx: the last transaction that is in the destination.
            last: its unit, the newest.
        """
        self._segment = segment
        self._trx = trx
        self._last = last
        self._ours = np.array(
            sorted(
                {m.trx for m in segment.markers() if m.kind is MarkerKind.HEARTBEAT and m.trx > trx}
            ),
            np.int64,
        )

    def of(self, transactions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the unit of each of these transactions."""
        ours = np.searchsorted(self._ours, transactions, side="right")
        numbers: npt.NDArray[np.int64] = self._last.uow_id + transactions - self._trx - ours
        return numbers

    def number(self, trx: int) -> int:
        """Return the unit of one transaction."""
        return int(self.of(np.array([trx], np.int64))[0])

    def is_ours(self, trx: int) -> bool:
        """Return whether a transaction is a heartbeat, which has no unit."""
        at = int(np.searchsorted(self._ours, trx))
        return at < len(self._ours) and int(self._ours[at]) == trx

    def between(
        self, after: int, through: int, ends: dict[int, int], last: int
    ) -> list[UnitOfWork]:
        """Return the units of transactions after `after`, up to `through`.

        Args:
            after: the transaction before the first.
            through: the last transaction.
            ends: by transaction the last number of its row images, if it has any.
            last: the last number before them.
        """
        found = []
        for trx, time_us in self._times(after, through):
            last = ends.get(trx, last)
            if not self.is_ours(trx):
                found.append(
                    UnitOfWork(
                        uow_id=self.number(trx),
                        commit_time=_EPOCH + datetime.timedelta(seconds=time_us // 1_000_000),
                        gsn_hwm=last,
                    )
                )
        return found

    def _times(self, after: int, through: int) -> Iterator[tuple[int, int]]:
        for start in range(after + 1, through + 1, TIMES_MAX):
            numbers = range(start, min(start + TIMES_MAX, through + 1))
            batch = pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], names=["trx"])
            times: Any = self._segment.add_commit(batch).column("commit_time").cast(pa.int64())
            yield from zip(numbers, times.to_pylist(), strict=True)
