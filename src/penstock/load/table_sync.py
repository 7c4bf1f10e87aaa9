"""Table sync: tables that are paused, copied again, or catching up, apart from the batches.

A batch applies all tables at once, so that the target is at one commit. A table with a table sync
is left out of the batches; a row of `wirekite.wirekite_apart` says up to where the log is applied
to it. When it continues, batches of it alone, from the same segments, bring it from there to the
others' position, and it is one of them again. The row is written in the transaction that moves it,
so that each change is applied once whatever is killed.

The order of states is in pure functions. The loader calls `TableSyncFlow` between two of its
batches. It reads the requests, decides which tables the common batches leave out, has rows copied
by the `Copier`, and stages batches of one table that catches up, on its own thread while the other
tables continue. The loader applies them, one batch after the other. Not here: copying rows
(`control.run.table_copy`), the table `wirekite_apart` (`progress.py` of each target).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import structlog

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES, Files
from penstock.host.state_file import Follower
from penstock.load.prefetch import StagePrefetch, Wanted
from penstock.log.layout import SegmentFile
from penstock.model import TableName
from penstock.model.table_requests import (
    CAPTURED_FILE,
    REQUESTS_FILE,
    Capture,
    CaptureAnswers,
    TableRequest,
    TableRequests,
)
from penstock.ports.loading import Batch, BatchOptions
from penstock.ports.target import Applied, SyncState, TableSync


def next_state(
    row: TableSync | None, request: TableRequest, answers: CaptureAnswers
) -> SyncState | None:
    """Return the state that a request asks for next; None if the table's state does not change.

    The ends of a copy and of catching up are decided elsewhere.
    """
    state = row.state if row is not None else SyncState.FOLLOWING
    served = row.copy_id if row is not None else 0
    if request.capture is Capture.LEFT and row is None:
        return None
    if request.capture in (Capture.REMOVED, Capture.LEFT):
        return SyncState.REMOVED if state is not SyncState.REMOVED else None
    if request.copy_id > served:
        return SyncState.COPYING if answers.is_done(request) else None
    if request.paused and state in (SyncState.FOLLOWING, SyncState.CATCHING_UP):
        return SyncState.PAUSED
    if not request.paused and state is SyncState.PAUSED:
        return SyncState.CATCHING_UP
    return None


def moves(
    rows: Mapping[TableName, TableSync],
    requests: TableRequests,
    answers: CaptureAnswers,
    applied: Applied,
    *,
    copied: Mapping[TableName, int],
) -> list[TableSync]:
    """Return the rows that must be written now.

    Args:
        rows: The present rows.
        requests: The requests.
        answers: The answers to them.
        applied: Where the other tables are, at the end of whole segments or inside one.
        copied: Start positions of tables whose copy has ended.
    """
    found: list[TableSync] = []
    for table in sorted({*rows, *(request.table for request in requests.tables)}):
        row, request = rows.get(table), requests.of(table)
        state = next_state(row, request, answers)
        if state is not None:
            found.append(_move(row, request, state, applied))
        elif row is not None and row.state is SyncState.COPYING and table in copied:
            after = SyncState.PAUSED if request.paused else SyncState.CATCHING_UP
            found.append(replace(row, state=after, start=copied[table]))
        elif row is not None and row.state is SyncState.CATCHING_UP and has_met(row, applied):
            found.append(replace(row, state=SyncState.FOLLOWING, applied=Applied()))
    return found


def _move(
    row: TableSync | None, request: TableRequest, state: SyncState, applied: Applied
) -> TableSync:
    known = row or TableSync(table=request.table, state=SyncState.FOLLOWING)
    if known.state in (SyncState.FOLLOWING, SyncState.REMOVED):
        known = replace(known, applied=applied)
    if state is SyncState.COPYING:
        # Its rows will be those of a later point: they include all that was left out until now.
        return replace(known, state=state, copy_id=request.copy_id, applied=applied)
    if state is SyncState.REMOVED:
        return replace(known, state=state, applied=Applied())
    return replace(known, state=state)


def isolate(row: TableSync | None, table: TableName, applied: Applied) -> TableSync:
    """Return the row of a table that stays at the position up to which its changes are applied.

    applied: where the others are, and it, if it was with them.
    """
    known = row or TableSync(table=table, state=SyncState.FOLLOWING)
    if known.state is SyncState.FOLLOWING:
        known = replace(known, applied=applied)
    return replace(known, state=SyncState.ISOLATED)


def has_met(row: TableSync, applied: Applied) -> bool:
    """Return whether a table that catches up is where the others are."""
    return row.applied.segment == applied.segment and row.applied.gsn >= applied.gsn


def left_out(rows: Iterable[TableSync], requests: TableRequests) -> frozenset[TableName]:
    """Return the tables that batches of all tables leave out.

    Added tables that are not copied yet are among them: the target may not have them.
    """
    served = {row.table: row.copy_id for row in rows}
    syncing = {row.table for row in rows if row.state is not SyncState.FOLLOWING}
    awaited = {
        request.table
        for request in requests.tables
        if request.capture is Capture.ADDED and request.copy_id > served.get(request.table, 0)
    }
    return frozenset(syncing | awaited)


def segment_needed(rows: Iterable[TableSync], applied: Applied) -> int:
    """Return the number of the last segment that no table needs any more."""
    waiting = (SyncState.PAUSED, SyncState.COPYING, SyncState.CATCHING_UP)
    return min([applied.segment, *(row.applied.segment for row in rows if row.state in waiting)])


logger = structlog.get_logger(__name__)

BUSY = (SyncState.COPYING, SyncState.CATCHING_UP)
JOBS = "catching up"
NEAR_SEGMENTS = 3


class Copier(Protocol):
    """Copier of a table's rows from the source into the target."""

    @abstractmethod
    def copy(self, table: TableName, copy_id: int, *, replaces: bool) -> int | None:
        """Return the position of the copy once its rows are there; the first call begins it.

        Returns None while it runs or is to be retried. The same copy_id is the same copy, also in
        another process. replaces: whether existing rows of the target may be deleted.
        """
        ...

    @abstractmethod
    def drop(self, table: TableName, copy_id: int) -> None:
        """Forget a copy that is complete or no longer requested; it stops writing."""
        ...


class TableSyncFlow:
    """State of the loader's table syncs. Only the loader's thread uses it.

    Attributes:
        is_frozen: No table moves, because those of the batches are not at one place
            (`Target.read_ahead`).
    """

    def __init__(
        self,
        state_directory: Path,
        starts: Mapping[TableName, int] | None,
        copier: Copier | None,
        *,
        clock: Clock = REAL_CLOCK,
        files: Files = REAL_FILES,
    ) -> None:
        """Keep the parts. starts: see LoaderOptions. copier: None if nothing can be copied."""
        self.rows: dict[TableName, TableSync] = {}
        self.is_frozen = False
        self._starts = starts
        self._copier = copier
        self._clock = clock
        self._requests = Follower(state_directory / REQUESTS_FILE, TableRequests(), files)
        self._answers = Follower(state_directory / CAPTURED_FILE, CaptureAnswers(), files)
        self._ahead: StagePrefetch | None = None
        self._joining: TableName | None = None
        self._batch_segments = 0

    # -- what the common batches must know ---------------------------------------------------

    def set_rows(self, rows: Mapping[TableName, TableSync]) -> None:
        """Set the target's state, which is read again after every failure."""
        self.rows = dict(rows)
        self.look()

    def look(self) -> bool:
        """Read the requests; return whether they have changed since the last call."""
        requests, answers = self._requests.look(), self._answers.look()
        return requests or answers

    @property
    def left_out(self) -> frozenset[TableName]:
        """Return the tables that the batches leave out."""
        return left_out(self.rows.values(), self._requests.value)

    @property
    def starts(self) -> dict[TableName, int]:
        """Return the position of each table from which its changes count."""
        later = {row.table: row.start for row in self.rows.values() if row.start}
        return {**(self._starts or {}), **later}

    @property
    def copied_tables(self) -> frozenset[TableName] | None:
        """Return the tables whose rows were or are being copied; None if the pipeline copies no
        rows.
        """
        return None if self._starts is None else frozenset(self._starts) | frozenset(self.rows)

    @property
    def is_busy(self) -> bool:
        """Return whether a table is being copied or catches up, or will be."""
        busy = any(row.state in BUSY for row in self.rows.values())
        return busy or bool(moves_open(self.rows, self._requests.value, self._answers.value))

    def segment_needed(self, applied: Applied) -> int:
        """Return the last segment that is no longer needed."""
        return segment_needed(self.rows.values(), applied)

    # -- moves -------------------------------------------------------------------------------

    def due(self, applied: Applied) -> list[TableSync]:
        """Return the rows that must be written before anything else."""
        if self.is_frozen:
            return []
        requests: TableRequests = self._requests.value
        copied: dict[TableName, int] = {}
        for row in self.rows.values():
            if row.state is SyncState.COPYING and self._copier is not None:
                request = requests.of(row.table)
                if request.copy_id > row.copy_id:
                    continue  # it is to be copied once more
                position = self._copier.copy(row.table, row.copy_id, replaces=request.replaces)
                if position is not None:
                    copied[row.table] = position
        return moves(self.rows, requests, self._answers.value, applied, copied=copied)

    def isolate(self, tables: Iterable[TableName], applied: Applied) -> list[TableSync]:
        """Return the rows of tables that are left behind."""
        return [isolate(self.rows.get(table), table, applied) for table in tables]

    def took(self, rows: Iterable[TableSync]) -> None:
        """Record that these rows are in the target."""
        for row in rows:
            before = self.rows.get(row.table)
            if before is not None and before.state is SyncState.COPYING and self._copier:
                self._copier.drop(row.table, before.copy_id)
            self.rows[row.table] = row
            logger.info(
                "table's state changed",
                table=str(row.table),
                state=str(row.state),
                gsn=row.applied.gsn,
                copy=row.copy_id,
            )
            if self._joining == row.table and row.state is not SyncState.CATCHING_UP:
                self.abandon()

    # -- catching up -------------------------------------------------------------------------

    def find_staged(
        self,
        applied: Applied,
        files_after: Callable[[Applied], Sequence[SegmentFile]],
        open_ahead: Callable[[TableName], StagePrefetch],
    ) -> tuple[TableSync, Batch] | None:
        """Return a batch of one table that catches up, if one is ready to be applied.

        applied: position of the others; nothing after it is staged. files_after: the segments
        that follow a place.
        """
        row = self._next_joining(applied)
        if row is None:
            return None
        if self._ahead is None:
            self._ahead, self._joining = open_ahead(row.table), row.table
        if not self._ahead.is_asked:
            files = [f for f in files_after(row.applied) if f.number <= applied.segment]
            if not files:
                return None
            self._ahead.request(Wanted(applied=row.applied, look=lambda: files))
        staged = self._ahead.fetch(0.0)
        return None if staged is None else (row, staged)

    def is_meeting(self, applied: Applied) -> bool:
        """Return whether a table that catches up is near the others, which then end at closed
        segments.
        """
        return any(
            row.state is SyncState.CATCHING_UP and self._may_wait(row, applied)
            for row in self.rows.values()
        )

    def note_batch(self, segment_count: int) -> None:
        """Note how many segments the newest batch of the others had."""
        self._batch_segments = segment_count

    def _may_wait(self, row: TableSync, applied: Applied) -> bool:
        """Return whether the others may wait for a table: no longer than a batch of theirs takes.

        Where batches are slow, there are always many segments between the two.
        """
        distance = applied.segment - row.applied.segment
        return distance <= max(NEAR_SEGMENTS, self._batch_segments)

    def is_near(self, applied: Applied) -> bool:
        """Return whether a batch is being staged that may bring a table to the others' position."""
        row = self.rows.get(self._joining) if self._joining is not None else None
        return (
            row is not None
            and self._ahead is not None
            and self._ahead.is_asked
            and self._may_wait(row, applied)
        )

    def _next_joining(self, applied: Applied) -> TableSync | None:
        """Return the table whose batches are staged next: one table after the other, by name."""
        waiting = [
            row
            for row in self.rows.values()
            if row.state is SyncState.CATCHING_UP and not has_met(row, applied)
        ]
        row = next((row for row in waiting if row.table == self._joining), None)
        if row is None and self._joining is not None:
            self.abandon()
        return row or min(waiting, key=lambda one: one.table, default=None)

    def caught_up(self, row: TableSync, staged: Batch) -> TableSync:
        """Return the table's row once its batch is applied."""
        return replace(row, applied=staged.after)

    def abandon(self) -> None:
        """Abandon the staged batch, and close its connection."""
        if self._ahead is not None:
            self._ahead.close()
        self._ahead, self._joining = None, None


def moves_open(
    rows: Mapping[TableName, TableSync], requests: TableRequests, answers: CaptureAnswers
) -> list[TableSync]:
    """Return the moves that are requested and not begun."""
    return moves(rows, requests, answers, Applied(), copied={})


def options_for(options: BatchOptions, table: TableName) -> BatchOptions:
    """Return the options for staging batches of one table alone."""
    return replace(options, only=table, left_out=frozenset())
