"""Decides which mutations of a request still have to be applied.

With a resolved timestamp a feed promises that nothing new follows at or before it. So a mutation
that does is one of four things: it was sent before; a later one of its key is applied; its feed is
new, and began before the schema's other feeds were resolved; or a promise is broken, and it is
refused. Not here: staging (`StagingSession.stage`) and writing (`sequencer.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.model import PenstockError
from penstock.model.hlc import Hlc
from penstock.ports.feeds import FeedState, Group, RowState, StagedTable, StagingSession

Batches = Mapping[StagedTable, pa.RecordBatch]


class MutationLate(PenstockError):
    """A feed sends a new mutation at or before the time up to which it has sent everything."""

    code = "ST28"
    retry = "operator"


class FeedEarly(PenstockError):
    """A feed that is new to a target schema has to wait until its other feeds are applied."""

    code = "ST29"
    retry = "backoff"


@dataclass(slots=True)
class Admitted:
    """Mutations that must be applied; all others are staged or applied already.

    Attributes:
        on_time: By table, those later than the time that their feed has resolved.
        joining: By table, those of a new feed, at times that are committed. They must be
            written now: no window covers these times any more.
    """

    on_time: dict[StagedTable, pa.RecordBatch] = field(default_factory=dict)
    joining: dict[StagedTable, pa.RecordBatch] = field(default_factory=dict)


def admit(session: StagingSession, group: Group, partition: str, batches: Batches) -> Admitted:
    """Sort the mutations of a request.

    Args:
        session: Session of the staging database.
        group: The target schema.
        partition: The feed.
        batches: Mutations by table.

    Raises:
        MutationLate: The feed has broken its promise.
        FeedEarly: The feed must send the request again.
    """
    feed = session.feed_state(group, partition)
    admitted = Admitted()
    for table, batch in batches.items():
        is_late = _is_late(batch, feed.resolved)
        if not is_late.any():
            admitted.on_time[table] = batch
            continue
        late = batch.filter(pa.array(is_late))
        on_time = batch.filter(pa.array(~is_late))
        if on_time.num_rows:
            admitted.on_time[table] = on_time
        is_new = _is_new(late, session.states_of(table, late), feed)
        if any(is_new):
            joining = late.filter(pa.array(is_new, pa.bool_()))
            _check_joining(table, joining, partition, feed)
            admitted.joining[table] = joining
    return admitted


def unreplaced_of(
    session: StagingSession, table: StagedTable, batch: pa.RecordBatch
) -> pa.RecordBatch:
    """Return the unapplied mutations that no later mutation of their key replaces."""
    states = session.states_of(table, batch)
    wanted = [state in (RowState.NEW, RowState.WAITING) for state in states]
    return batch.filter(pa.array(wanted, pa.bool_()))


def time_at(batch: pa.RecordBatch, place: int) -> Hlc:
    """Return the time of a mutation."""
    return Hlc(batch.column("nanos")[place].as_py(), batch.column("logical")[place].as_py())


def _is_late(batch: pa.RecordBatch, resolved: Hlc) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    nanos, logical = batch.column("nanos").to_numpy(), batch.column("logical").to_numpy()
    is_late: np.ndarray[tuple[int], np.dtype[np.bool_]] = (nanos < resolved.nanos) | (
        (nanos == resolved.nanos) & (logical <= resolved.logical)
    )
    return is_late


def _is_new(late: pa.RecordBatch, states: Sequence[RowState], feed: FeedState) -> list[bool]:
    """Return for each late mutation whether it still must be applied.

    A waiting mutation at a committed time counts as new, because no window covers that time any
    more.
    """
    committed = feed.window.committed
    return [
        state is RowState.NEW or (state is RowState.WAITING and time_at(late, place) <= committed)
        for place, state in enumerate(states)
    ]


def _check_joining(
    table: StagedTable, joining: pa.RecordBatch, partition: str, feed: FeedState
) -> None:
    """Refuse mutations unless a joining feed sends them and everything up to their times is
    committed.
    """
    key, time = joining.column("key")[0].as_py(), time_at(joining, 0)
    if not feed.is_joining:
        raise MutationLate(
            f"{table} key {key} at {time} is new, and feed {partition} has resolved "
            f"{feed.resolved}",
            hint="Let one changefeed send a table, and one changefeed post to a schema; feeds with "
            "a query post to their tables. To have everything after a time applied again, stop all "
            "instances and run: penstock stage FILE --rewind TIME",
            table=str(table),
            partition=partition,
        )
    last = max(time_at(joining, place) for place in range(joining.num_rows))
    if feed.window.committed < last:
        raise FeedEarly(
            f"feed {partition} is new, and what other feeds have resolved up to {feed.resolved} is "
            "not applied yet",
            hint="The feed sends it again. If this lasts: penstock status FILE",
            table=str(table),
            partition=partition,
        )
