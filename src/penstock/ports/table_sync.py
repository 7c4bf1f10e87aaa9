"""Tables that stand apart from the flow: paused, copied again, or catching up.

A batch applies all tables at once, so that the target stands at one commit. A table that stands
apart is left out of the batches; a row of `wirekite.wirekite_apart` says up to where the log is
applied to it. When it goes on, batches of it alone, from the same segments, take it from there to
where the others are, and it is one of them again. The row is written in the transaction that
moves it, so that each change is applied once whatever is killed. Pure. Not here: batches
(`apart_flow.py`), the table (`postgres/progress.py`, `mysql/progress.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from penstock.model import TableName
from penstock.model.wishes import Capture, CaptureAnswers, TableWish, TableWishes
from penstock.ports.target import Applied


class ApartState(StrEnum):
    """Where a table is. Values are kept in the target: never rename one.

    FOLLOWING: with the others. PAUSED: its changes wait. COPYING: its rows are copied at a
    consistent point of their own. JOINING: its changes since are applied, beside the others.
    REMOVED: its changes count no more. ISOLATED: a change of it could not be applied; those behind
    count no more, until its rows are copied again.
    """

    FOLLOWING = "following"
    PAUSED = "paused"
    COPYING = "copying"
    JOINING = "joining"
    REMOVED = "removed"
    ISOLATED = "isolated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """A row of wirekite_apart.

    applied: up to where the log is applied to this table, unless it is with the others. start:
    position from which its changes count, those before are in the copy; 0: from the bulk load's.
    copy_id: the wish to be copied that was carried out last, or is now.
    """

    table: TableName
    state: ApartState
    applied: Applied = field(default_factory=Applied)
    start: int = 0
    copy_id: int = 0


def next_state(row: Apart | None, wish: TableWish, answers: CaptureAnswers) -> ApartState | None:
    """The state that a wish asks for next; None: the table stays as it is.

    What ends by itself (a copy, catching up) is not decided here.
    """
    state = row.state if row is not None else ApartState.FOLLOWING
    served = row.copy_id if row is not None else 0
    if wish.capture is Capture.LEFT and row is None:
        return None
    if wish.capture in (Capture.REMOVED, Capture.LEFT):
        return ApartState.REMOVED if state is not ApartState.REMOVED else None
    if wish.copy_id > served:
        return ApartState.COPYING if answers.is_done(wish) else None
    if wish.paused and state in (ApartState.FOLLOWING, ApartState.JOINING):
        return ApartState.PAUSED
    if not wish.paused and state is ApartState.PAUSED:
        return ApartState.JOINING
    return None


def moves(
    rows: Mapping[TableName, Apart],
    wishes: TableWishes,
    answers: CaptureAnswers,
    applied: Applied,
    *,
    copied: Mapping[TableName, int],
) -> list[Apart]:
    """The rows that have to be written now.

    applied: where the other tables are, at the end of whole segments or inside one. copied: start
    positions of tables whose copy has ended.
    """
    found: list[Apart] = []
    for table in sorted({*rows, *(wish.table for wish in wishes.tables)}):
        row, wish = rows.get(table), wishes.of(table)
        state = next_state(row, wish, answers)
        if state is not None:
            found.append(_moved(row, wish, state, applied))
        elif row is not None and row.state is ApartState.COPYING and table in copied:
            after = ApartState.PAUSED if wish.paused else ApartState.JOINING
            found.append(replace(row, state=after, start=copied[table]))
        elif row is not None and row.state is ApartState.JOINING and has_met(row, applied):
            found.append(replace(row, state=ApartState.FOLLOWING, applied=Applied()))
    return found


def _moved(row: Apart | None, wish: TableWish, state: ApartState, applied: Applied) -> Apart:
    known = row or Apart(table=wish.table, state=ApartState.FOLLOWING)
    if known.state in (ApartState.FOLLOWING, ApartState.REMOVED):
        known = replace(known, applied=applied)
    if state is ApartState.COPYING:
        # Its rows will be those of a later point: all that was left out until now is in them.
        return replace(known, state=state, copy_id=wish.copy_id, applied=applied)
    if state is ApartState.REMOVED:
        return replace(known, state=state, applied=Applied())
    return replace(known, state=state)


def isolated(row: Apart | None, table: TableName, applied: Applied) -> Apart:
    """The row of a table that is left behind where its changes are applied to.

    applied: where the others are, and it, if it was with them.
    """
    known = row or Apart(table=table, state=ApartState.FOLLOWING)
    if known.state is ApartState.FOLLOWING:
        known = replace(known, applied=applied)
    return replace(known, state=ApartState.ISOLATED)


def has_met(row: Apart, applied: Applied) -> bool:
    """Whether a table that catches up is where the others are."""
    return row.applied.segment == applied.segment and row.applied.gsn >= applied.gsn


def left_out(rows: Iterable[Apart], wishes: TableWishes) -> frozenset[TableName]:
    """The tables that batches of all tables leave out.

    Also one that was added and is not copied yet: it may have no table in the target.
    """
    served = {row.table: row.copy_id for row in rows}
    apart = {row.table for row in rows if row.state is not ApartState.FOLLOWING}
    awaited = {
        wish.table
        for wish in wishes.tables
        if wish.capture is Capture.ADDED and wish.copy_id > served.get(wish.table, 0)
    }
    return frozenset(apart | awaited)


def segment_needed(rows: Iterable[Apart], applied: Applied) -> int:
    """The number of the last segment that no table needs any more."""
    waiting = (ApartState.PAUSED, ApartState.COPYING, ApartState.JOINING)
    return min([applied.segment, *(row.applied.segment for row in rows if row.state in waiting)])
