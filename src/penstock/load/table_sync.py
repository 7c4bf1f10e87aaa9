"""Table sync: tables that are paused, copied again, or catching up.

A batch applies all tables at once, so that the target is at one commit. A table with a table sync
is left out of the batches; a row of `wirekite.wirekite_apart` says up to where the log is applied
to it. When it continues, batches of it alone, from the same segments, bring it from there to the
others' position, and it is one of them again. The row is written in the transaction that moves it,
so that each change is applied once whatever is killed. Pure. Not here: batches
(`table_sync_flow.py`), the table (`progress.py` of each target).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from penstock.model import TableName
from penstock.model.table_requests import Capture, CaptureAnswers, TableRequest, TableRequests
from penstock.ports.target import Applied, SyncState, TableSync


def next_state(
    row: TableSync | None, request: TableRequest, answers: CaptureAnswers
) -> SyncState | None:
    """Return the state that a request asks for next; None: the table stays as it is.

    The ends of a copy and of catching up are not decided here.
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
    """Return the rows that have to be written now.

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
