"""Order in which the transactions of a segment ended, for all its changes together.

Entries with the same nearXid are a transaction, at the place of its last record. An entry
without one is a transaction of its own. Only a transaction of several records, or one that is
not in one stretch, needs a loop over the stretches of entries; otherwise the entries are in
order.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.codec.ignite.changes import Changes, Ints

_NEAR = ("near", "near_order", "near_topology", "near_node")


class Ordered(NamedTuple):
    """Changes in the order of their transactions.

    Attributes:
        counts: number of entries of each transaction.
        offsets: offsets of the records with entries.
        before: number of entries before each record.
        is_open: whether a transaction continues there.
    """

    changes: Changes
    counts: Ints
    offsets: Ints
    before: Ints
    is_open: npt.NDArray[np.bool_]


def in_order(changes: Changes) -> Ordered:
    """Put the changes of a segment in order."""
    rows = changes.rows
    offsets = rows["offset"].astype(np.int64)
    is_record = _differs(offsets)
    records = runs = np.flatnonzero(is_record)
    if rows["near"].any():
        runs = np.flatnonzero(np.any([is_record, *(_differs(rows[one]) for one in _NEAR)], axis=0))
        near = rows["near"][runs]
        # Those of one order and different nodes are treated as one here, and separated below.
        if _repeats(rows["near_order"][runs][near]) or _repeats(offsets[runs][~near]):
            return _woven(changes, offsets, runs)
    counts = np.diff(np.append(runs, len(offsets)))
    is_open = np.zeros(len(records), np.bool_)
    return Ordered(changes, counts, offsets[records], records, is_open)


def _differs(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return where a value differs from the previous one; the first one does."""
    found = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=found[1:])
    return found


def _repeats(values: npt.NDArray[Any]) -> bool:
    return len(np.unique(values)) < len(values)


def _woven(changes: Changes, offsets: Ints, runs: Ints) -> Ordered:
    """Return the order if stretches of entries have to be joined."""
    rows = changes.rows
    fields = [rows[name][runs].tolist() for name in _NEAR]
    nears = [near if near[0] else None for near in zip(*fields, strict=True)]
    places = list(zip(offsets[runs].tolist(), nears, range(len(runs)), strict=True))
    lasts = _lasts(places)
    given: list[list[int]] = []  # the runs of each transaction
    open_ones: dict[Any, list[int]] = {}
    sizes = np.diff(np.append(runs, len(offsets))).tolist()
    ends, is_open, record_offsets, count = [], [], [], 0
    for offset, some in groupby(places, key=lambda one: one[0]):
        record_offsets.append(offset)
        ends.append(count)
        is_open.append(bool(open_ones))
        by_near: dict[Any, list[int]] = {}
        for _, near, run in some:
            by_near.setdefault(near, []).append(run)
        for near, here in by_near.items():
            if lasts.get(near, offset) == offset:
                given.append([*open_ones.pop(near, ()), *here])
                count += sum(sizes[run] for run in given[-1])
            else:
                open_ones.setdefault(near, []).extend(here)
    order = [np.arange(runs[run], runs[run] + sizes[run]) for some in given for run in some]
    return Ordered(
        changes.pick(np.concatenate(order)),
        np.array([sum(sizes[run] for run in some) for some in given], np.int64),
        np.array(record_offsets, np.int64),
        np.array(ends, np.int64),
        np.array(is_open, np.bool_),
    )


def _lasts(places: list[tuple[int, Any, int]]) -> dict[Any, int]:
    """Return the offset of the last record of each transaction."""
    return {near: offset for offset, near, _ in places if near is not None}
