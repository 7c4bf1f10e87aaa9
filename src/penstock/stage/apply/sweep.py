"""One round over the staged mutations of tables that foreign keys connect, in order of time.

Batches of whole times are written to the target, one transaction each, and are marked. If foreign
keys do not fit, the batch is tried once more; then its keys are poisoned: a later batch that has
one of them waits, too, and everything from the first such time on stays staged for the next round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import structlog

from penstock.model.hlc import Hlc
from penstock.ports.row_apply import ReferenceMissing
from penstock.ports.staging import Slice, StagedTable, StagingSession

logger = structlog.get_logger()
FLUSH_ROWS = 1_000
"""Rows of a batch; more only if one slice has more."""

Batches = Mapping[StagedTable, pa.RecordBatch]
Apply = Callable[[Batches], int]
"""Applies the unapplied mutations of a batch, and marks them; returns their number."""


@dataclass(slots=True)
class Round:
    """Result of a round. waits_from: the first time that could not be applied."""

    applied: int = 0
    poisoned: set[tuple[StagedTable, str]] = field(default_factory=set)
    waits_from: Hlc | None = None


def sweep_once(
    session: StagingSession,
    tables: Collection[StagedTable],
    after: Hlc,
    through: Hlc,
    apply: Apply,
) -> Round:
    """Apply the staged mutations with after < time <= through, as far as possible.

    Raises the errors of apply except ReferenceMissing.
    """
    done = Round()
    for batches in _gather(session.read(tables, after, through, limit=FLUSH_ROWS)):
        keys = {
            (table, key)
            for table, batch in batches.items()
            for key in batch.column("key").to_pylist()
        }
        count = None if keys & done.poisoned else _try_apply(apply, batches)
        if count is None:
            done.poisoned |= keys
            first = _first_time(batches)
            done.waits_from = min(done.waits_from or first, first)
        else:
            done.applied += count
    return done


def _try_apply(apply: Apply, batches: Batches) -> int | None:
    """Apply a batch; return None if a foreign key does not fit, twice."""
    try:
        return apply(batches)
    except ReferenceMissing:
        pass
    try:
        return apply(batches)
    except ReferenceMissing as error:
        logger.warning("mutations wait for others", code=error.code, error=error.message)
        return None


def _gather(slices: Iterator[Slice]) -> Iterator[Batches]:
    """Yield slices put together until they are enough for a batch."""
    waiting: dict[StagedTable, list[pa.RecordBatch]] = {}
    count = 0
    for one in slices:
        for table, batch in one.rows.items():
            waiting.setdefault(table, []).append(batch)
            count += batch.num_rows
        if count >= FLUSH_ROWS:
            yield {table: _join(batches) for table, batches in waiting.items()}
            waiting, count = {}, 0
    if count:
        yield {table: _join(batches) for table, batches in waiting.items()}


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _first_time(batches: Batches) -> Hlc:
    return min(
        Hlc(batch.column("nanos")[0].as_py(), batch.column("logical")[0].as_py())
        for batch in batches.values()
        if batch.num_rows
    )
