"""Changes of the log as mutations, which `[staging]` in a pipeline of any source keeps.

Each change has a time of its own, in the order of the log: the commit's nanoseconds, never fewer
than those of the change before, and a number that counts the changes of equal nanoseconds. So the
same changes get the same times whenever they are read again from a known place. The times are kept
in the table memo, one row for each log: for each place where the consumer may continue, and for
staged changes that are not yet applied. Not here: the consumer that reads the log, and applied
mutations (`penstock.control.feeds.staging_consumer`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codec.json_columns import json_images
from penstock.model import Op, Relation
from penstock.model.hlc import ZERO, Hlc
from penstock.ports.feeds import MUTATIONS, Group, StagedTable, StagingSession

KEPT_MAX = 1_000
_KEY = "log "


class Mark(NamedTuple):
    """Mark: everything up to a change of the log has this time or an earlier one."""

    gsn: int
    time: Hlc


class _Kept(msgspec.Struct, frozen=True):
    """Row of memo: the floor, the marks, and the groups, each as its parts."""

    floor: tuple[int, int]
    marks: list[tuple[int, int, int]]
    groups: list[Group]


class LogMarks:
    """Marks of one log, in order, and the groups of its rows.

    Changed by one thread; others may read `marks` and `groups`.
    """

    def __init__(
        self, log_id: str, floor: Hlc, marks: tuple[Mark, ...] = (), groups: tuple[Group, ...] = ()
    ) -> None:
        """Keep the marks. floor: the time after which the log's first changes are."""
        self.log_id, self._floor = log_id, floor
        self.marks, self.groups = marks, groups

    @classmethod
    def load(cls, session: StagingSession, log_id: str, floor: Callable[[], Hlc]) -> LogMarks:
        """Return the kept marks of a log. floor: asked if there are none; its time is then kept."""
        text = session.get_memo(_KEY + log_id)
        if text is None:
            found = cls(log_id, floor())
            found.save(session)
            return found
        kept = msgspec.json.decode(text, type=_Kept)
        marks = tuple(Mark(gsn, Hlc(n, m)) for gsn, n, m in kept.marks)
        return cls(log_id, Hlc(*kept.floor), marks, tuple(kept.groups))

    def save(self, session: StagingSession) -> None:
        """Save the marks. Raises the errors of the staging database."""
        kept = _Kept(
            floor=(self._floor.nanos, self._floor.logical),
            marks=[(gsn, time.nanos, time.logical) for gsn, time in self.marks],
            groups=list(self.groups),
        )
        session.put_memo(_KEY + self.log_id, msgspec.json.encode(kept))

    @property
    def last(self) -> Hlc:
        """Time of the last staged change."""
        return self.marks[-1].time if self.marks else self._floor

    def before(self, gsn: int) -> Hlc:
        """Return the time that the change's time must follow; later marks become void."""
        self.marks = tuple(one for one in self.marks if one.gsn < gsn)
        return self.last

    def add(self, new: Sequence[Mark], groups: Iterable[Group], applied: int) -> None:
        """Add marks at the end. applied: the change up to which the target has everything.

        Marks before `applied` are dropped, except the last one: the consumer may continue there or
        at the end.
        """
        self.groups = tuple(sorted({*self.groups, *groups}))
        done = sum(one.gsn <= applied for one in self.marks)
        kept = [*self.marks[max(0, done - 1) :], *new]
        if len(kept) > KEPT_MAX:  # nothing is lost, rows are only marked applied in larger steps
            kept = sorted({*kept[::2], *self.marks[-1:], new[-1]})
        self.marks = tuple(kept)


def time_of(marks: tuple[Mark, ...], gsn: int) -> Hlc:
    """Return the last time of everything up to a change; ZERO if none is known."""
    at = bisect_right([one.gsn for one in marks], gsn)
    return marks[at - 1].time if at else ZERO


Ints = npt.NDArray[np.int64]
KEYLESS = "[]"
"""Key of a row whose table has none: a JSON array without columns."""
_ENCODER = msgspec.json.Encoder()


class Changes(NamedTuple):
    """Rows of one relation version. batch: gsn, trx, op, absent, after, before, commit_time."""

    relation: Relation
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Timed:
    """Changes in the order of the log: the batch and row of each, and its time."""

    gsns: Ints
    trxs: Ints
    nanos: Ints
    logical: Ints
    places: list[Ints]

    @property
    def last(self) -> Hlc:
        """Time of the last change."""
        return self.time(len(self.gsns) - 1)

    def time(self, at: int) -> Hlc:
        """Return the time of a change."""
        return Hlc(int(self.nanos[at]), int(self.logical[at]))


def assign_times(changes: Sequence[Changes], before: Hlc) -> Timed:
    """Assign times to changes. before: the time of the previous change, or ZERO."""
    counts = [one.batch.num_rows for one in changes]
    gsns = _join(one.batch.column("gsn") for one in changes)
    order = np.argsort(gsns, kind="stable")
    commits = _join(one.batch.column("commit_time").cast(pa.int64()) for one in changes)[order]
    nanos = np.maximum.accumulate(np.maximum(commits * 1000, before.nanos))
    at = np.arange(len(nanos))
    is_new = np.append(True, nanos[1:] != nanos[:-1])
    logical = at - np.maximum.accumulate(np.where(is_new, at, 0))
    logical[nanos == before.nanos] += before.logical + 1
    places = np.empty(len(order), np.int64)
    places[order] = at
    return Timed(
        gsns=gsns[order],
        trxs=_join(one.batch.column("trx") for one in changes)[order],
        nanos=nanos,
        logical=logical,
        places=np.split(places, np.cumsum(counts)[:-1]),
    )


def _join(columns: Any) -> Ints:
    return np.concatenate([column.to_numpy(zero_copy_only=False) for column in columns])


def mutations(
    changes: Sequence[Changes], times: Timed, table_of: Callable[[Relation], StagedTable]
) -> dict[StagedTable, pa.RecordBatch]:
    """Return the mutations of each table, as MUTATIONS. table_of: returns a relation's target
    table.

    A column that was not sent is not in the row's JSON. An update that changes the key is a removal
    of the old key and a row of the new one.
    """
    found: dict[StagedTable, list[pa.RecordBatch]] = {}
    for one, places in zip(changes, times.places, strict=True):
        batch = _mutations(one, times.nanos[places], times.logical[places])
        found.setdefault(table_of(one.relation), []).append(batch)
    return {table: pa.concat_batches(some) for table, some in found.items()}


def _mutations(changes: Changes, nanos: Ints, logical: Ints) -> pa.RecordBatch:
    relation, batch = changes
    key = [relation.columns[place].name for place in relation.key]
    afters = json_images(batch.column("after"), relation.columns, batch.column("absent"))
    sent = [relation.columns[place] for place in relation.before]
    befores = json_images(batch.column("before"), sent, None)
    rows: list[tuple[int, int, str, bytes | None, bytes | None]] = []
    ops = batch.column("op").to_pylist()
    for n, m, op, after, before in zip(
        nanos.tolist(), logical.tolist(), ops, afters, befores, strict=True
    ):
        was = None if before is None else _ENCODER.encode(before)
        old = None if before is None or op == Op.INSERT else _key(key, before)
        if op == Op.DELETE or after is None:
            rows.append((n, m, old or KEYLESS, None, was))
            continue
        new = _key(key, after if before is None else {**before, **after})
        if old is not None and old != new:
            rows.append((n, m, old, None, was))
        rows.append((n, m, new, _ENCODER.encode(after), was))
    columns = zip(*rows, strict=True) if rows else [[] for _ in MUTATIONS]
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, MUTATIONS, strict=True)],
        schema=MUTATIONS,
    )


def _key(names: Sequence[str], row: dict[str, Any]) -> str:
    if not names or not all(name in row for name in names):
        return KEYLESS
    return _ENCODER.encode([row[name] for name in names]).decode()
