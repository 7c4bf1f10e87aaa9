"""End a batch before a change of shape, for targets whose DDL commits.

On such a target the rows before and after the change cannot share a transaction, because the ALTER
is between them. So the batch ends with the last transaction before the change, and the next batch
begins with the change. The target is altered between the two, as the source was. A transaction that
changes a shape after its own rows cannot be divided: its batch has all of it, and the target is
altered before the batch. Not here: the alterations (`SqlTarget.reshape`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.codec.ckt import FrameEntry
from penstock.load.plan import BatchPlan, Window
from penstock.log.segment import Segment
from penstock.model.position import to_ordinal
from penstock.model.whole_number import INT64_MAX
from penstock.ports.target import Applied


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One row change and the number of its transaction."""

    gsn: int
    trx: int
    position: int
    commit_time_us: int


def cut_at_alteration(
    segments: Sequence[Segment], window: Window, plan: BatchPlan, *, applied: Applied
) -> tuple[Window, Applied] | None:
    """Return the part of a batch up to its first change of shape; None if it must not be divided.

    segments: open ones. plan: the plan of the batch, with several phases. applied: where the batch
    begins.
    """
    for barrier in [phase.gsn_upto for phase in plan.phases[:-1]]:
        last, following = _last_upto(segments, barrier), _first_behind(segments, barrier)
        if following is not None and last is not None and following.trx == last.trx:
            following = _first_behind(segments, _first_of(segments, last) - 1)
            last = None if following is None else _last_upto(segments, following.gsn - 1)
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
    before = INT64_MAX if following is None else following.trx
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
    window = replace(window, gsn_upto=last.gsn, markers_before=before, shapes_before=last.gsn)
    return window, after


def _has_news(segment: Segment, gsn: int) -> bool:
    shapes = any(totals.gsn >= gsn for totals in segment.tables)
    return shapes or any(marker.gsn >= gsn for marker in segment.markers())


def _first_of(segments: Sequence[Segment], row: _Row) -> int:
    """Return the number of the first row of a row's transaction in these segments."""
    first = row.gsn
    for segment, entry in _frames(segments):
        if entry.gsn_first > row.gsn:
            continue
        batch = segment.read_rows(entry).batch
        trx = batch.column("trx").to_numpy()
        low = int(np.searchsorted(trx, row.trx, side="left"))
        if low < len(trx) and trx[low] == row.trx:
            first = min(first, int(batch.column("gsn")[low].as_py()))
    return first


def _last_upto(segments: Sequence[Segment], gsn: int) -> _Row | None:
    """Return the last row up to this number; None if the segments have none."""
    before = [
        (min(entry.gsn_last, gsn), segment, entry)
        for segment, entry in _frames(segments)
        if entry.gsn_first <= gsn
    ]
    found: _Row | None = None
    for highest, segment, entry in sorted(before, key=lambda one: one[0], reverse=True):
        if found is not None and found.gsn >= highest:
            break
        batch = segment.read_rows(entry).batch
        at = int(np.searchsorted(batch.column("gsn").to_numpy(), gsn, "right")) - 1
        found = max((one for one in (found, _row(segment, batch, at)) if one), key=_number)
    return found


def _first_behind(segments: Sequence[Segment], gsn: int) -> _Row | None:
    """Return the first row after this number; None if the segments have none."""
    behind = [
        (max(entry.gsn_first, gsn + 1), segment, entry)
        for segment, entry in _frames(segments)
        if entry.gsn_last > gsn
    ]
    found: _Row | None = None
    for lowest, segment, entry in sorted(behind, key=lambda one: one[0]):
        if found is not None and found.gsn <= lowest:
            break
        batch = segment.read_rows(entry).batch
        at = int(np.searchsorted(batch.column("gsn").to_numpy(), gsn, "right"))
        found = min((one for one in (found, _row(segment, batch, at)) if one), key=_number)
    return found


def _number(row: _Row) -> int:
    return row.gsn


def _row(segment: Segment, batch: Any, at: int) -> _Row:
    row = segment.add_commit(batch.slice(at, 1))
    return _Row(
        gsn=int(row.column("gsn")[0].as_py()),
        trx=int(row.column("trx")[0].as_py()),
        position=to_ordinal(row.column("position")[0].as_py()),
        commit_time_us=int(row.column("commit_time")[0].value),
    )


def _frames(segments: Sequence[Segment]) -> Iterator[tuple[Segment, FrameEntry]]:
    """Yield the frames with rows, of all tables."""
    return ((segment, entry) for segment in segments for entry in segment.row_frames())
