"""Where a batch ends when a table changes its shape in it and the target's DDL commits.

There the rows before the change and those after it cannot share a transaction with the ALTER
between them. So the batch ends with the last transaction before the change, and the next batch
begins with the change: between the two the target is altered, as the source was. A transaction that
changes a shape after rows of its own cannot be divided: its batch has all of it, and the target is
altered before it. Not here: what is altered (`SqlTarget.reshape`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.load.plan import BatchPlan, Window
from penstock.log.segment import Segment
from penstock.model.position import POSITION_MAX, to_ordinal
from penstock.ports.target import Applied


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One row change: which transaction it belongs to."""

    gsn: int
    trx: int
    position: int
    commit_time_us: int


def cut_at_alteration(
    segments: Sequence[Segment], window: Window, plan: BatchPlan, *, applied: Applied
) -> tuple[Window, Applied] | None:
    """The part of a batch up to its first change of shape; None: it must not be divided.

    segments: open. plan: the batch's, of several phases. applied: where it begins.
    """
    for barrier in [phase.gsn_upto for phase in plan.phases[:-1]]:
        last, following = _row_at(segments, barrier), _row_at(segments, barrier + 1)
        if following is not None and last is not None and following.trx == last.trx:
            following = _row_at(segments, _first_of(segments, last))
            last = None if following is None else _row_at(segments, following.gsn - 1)
        if last is None or last.gsn <= window.gsn_after:
            continue  # the batch's first transaction is applied whole
        if following is not None and following.gsn > window.gsn_upto:
            following = None
        return _cut(segments, window, last, following, applied)
    return None


def _cut(
    segments: Sequence[Segment],
    window: Window,
    last: _Row,
    following: _Row | None,
    applied: Applied,
) -> tuple[Window, Applied]:
    before = POSITION_MAX if following is None else following.position
    number = applied.segment
    for segment in segments:
        # What happens after the last row of a file belongs to the next batch: the file stays open.
        if segment.end.gsn > last.gsn or _has_news(segment, last.gsn):
            break
        number = segment.number
    after = Applied(
        segment=number,
        gsn=last.gsn,
        trx=last.trx,
        position=last.position,
        commit_time_us=last.commit_time_us,
    )
    return replace(window, gsn_upto=last.gsn, markers_before=before), after


def _has_news(segment: Segment, gsn: int) -> bool:
    shapes = any(totals.gsn >= gsn for totals in segment.tables)
    return shapes or any(marker.gsn >= gsn for marker in segment.markers())


def _first_of(segments: Sequence[Segment], row: _Row) -> int:
    """The number of the first row of a row's transaction, as far as the segments hold it."""
    first = row.gsn
    for _, batch in _batches(segments, upto=row.gsn):
        trx = batch.column("trx").to_numpy()
        low = int(np.searchsorted(trx, row.trx, side="left"))
        if low < len(trx) and trx[low] == row.trx:
            first = min(first, int(batch.column("gsn")[low].as_py()))
    return first


def _row_at(segments: Sequence[Segment], gsn: int) -> _Row | None:
    """The row of this number, or None when the segments do not hold it."""
    for segment, batch in _batches(segments, upto=gsn, since=gsn):
        numbers = batch.column("gsn").to_numpy()
        at = int(np.searchsorted(numbers, gsn))
        if at < len(numbers) and numbers[at] == gsn:
            row = segment.dated(batch.slice(at, 1))
            return _Row(
                gsn=gsn,
                trx=int(row.column("trx")[0].as_py()),
                position=to_ordinal(row.column("position")[0].as_py()),
                commit_time_us=int(row.column("commit_time")[0].value),
            )
    return None


def _batches(segments: Sequence[Segment], *, upto: int, since: int | None = None) -> Any:
    """The frames that may hold rows of these numbers; of all tables."""
    for segment in segments:
        for entry in segment.row_frames():
            if entry.gsn_first <= upto and (since is None or entry.gsn_last >= since):
                yield segment, segment.read_rows(entry).batch
