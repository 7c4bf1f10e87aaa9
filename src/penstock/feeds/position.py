"""The fenced position of a target schema, which every writer moves or verifies.

The target keeps it in a row of its own. Its segment number is the fence: taking the schema
over raises it. Its position is the time up to which everything is applied. There are two kinds of
writers:

- The holder of the schema's lease applies windows and sweeps. Each of its transactions verifies
  that the fence is still its own, and moves the position once all rows up to a time are written.
- Any instance may write the rows of a request directly. It reads the position, then looks at the
  staged mutations of the rows' keys, and its transaction verifies that the position is the same.

Rows and checkpoints are marked applied up to the position, never further (`settle`). That is exact
because a window gets no more rows once its end is proposed (`StagingSession.stage`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from penstock.host import faults
from penstock.model import PenstockError
from penstock.model.hlc import Hlc
from penstock.ports.feeds import (
    Group,
    StagedTable,
    StagingSession,
    Window,
    group_name,
    position_behind,
    time_through,
)
from penstock.ports.target import Applied

faults.declare("stage.mark.rows", "stage.mark.checkpoint")


class LeaseLost(PenstockError):
    """The lease of a target schema was taken away, or could not be renewed in time."""

    code = "ST43"
    retry = "backoff"


class PositionMoved(PenstockError):
    """The target's position moved while a request was looked at."""

    code = "ST46"
    retry = "backoff"


class PositionAhead(PenstockError):
    """The target has applied more than the staging database has checkpoints for."""

    code = "ST47"
    retry = "operator"


class TakenOver(NamedTuple):
    """Shared log of which this process is the holder: no other holder has its segment number."""

    log_id: str
    segment: int


def lease_lost(names: str, why: str) -> LeaseLost:
    """Return the error for a lease that is not ours any more."""
    return LeaseLost(
        f"lease {names} is not ours any more: {why}",
        hint="Another instance goes on, or this one does as soon as it gets the lease; "
        "look at the staging database: select * from leases;",
        names=names,
    )


def check_fence(group: Group, there: Applied, holder: TakenOver) -> None:
    """Raise LeaseLost if another holder has taken the schema over. there: the locked position."""
    if there.segment != holder.segment:
        raise lease_lost(group_name(group), "another instance has taken over")


def check_unmoved(group: Group, there: Applied, seen: Applied) -> None:
    """Raise PositionMoved unless the locked position is the one that was seen."""
    if not there.is_at(seen):
        raise _position_moved(group)


def _position_moved(group: Group) -> PositionMoved:
    name = group_name(group)
    return PositionMoved(
        f"the position of {name} in the target moved while a request was looked at",
        hint="Nothing to do: penstock looks at the request again.",
        group=name,
    )


def start_of(window: Window, there: Applied) -> Hlc:
    """Return the time after which rows of a window are not applied yet."""
    return max(window.committed, time_through(there.position))


def advance_to(there: Applied, through: Hlc) -> Applied:
    """Return the position with everything up to a time applied; it never goes back."""
    return replace(there, position=max(there.position, position_behind(through)))


def check_not_ahead(group: Group, window: Window, there: Applied) -> None:
    """Raise PositionAhead if checkpoints up to the position were deleted."""
    applied = time_through(there.position)
    if applied > window.proposed:
        name = group_name(group)
        raise PositionAhead(
            f"{name} is applied up to {applied} in the target, and the staging database has "
            f"checkpoints up to {window.proposed} only",
            hint="Nothing is applied meanwhile. To have everything after a time applied again, "
            "stop all instances and run: penstock stage FILE --rewind TIME",
            group=name,
        )


def settle(
    session: StagingSession,
    group: Group,
    there: Applied,
    on_marked: Callable[[Mapping[StagedTable, int], Hlc], None] = lambda _marked, _applied: None,
) -> Window:
    """Mark rows, then checkpoints, as far as the target has them; return the window after that.

    Both steps may be repeated, so the process may end at any moment.

    Args:
        session: Session of the staging database.
        group: The target schema.
        there: The position in the target.
        on_marked: Called with the number of rows by table, and the time up to which they are.

    Raises:
        PositionAhead: Checkpoints were deleted.
    """
    window, applied = session.window(group), time_through(there.position)
    if applied <= window.committed:
        return window
    check_not_ahead(group, window, there)
    marked = session.mark_applied_through(
        session.staged_tables(group), applied, after=window.committed
    )
    on_marked(marked, applied)
    faults.point("stage.mark.rows")
    session.commit(group, applied)
    faults.point("stage.mark.checkpoint")
    return session.window(group)
