"""What the change loader asks of a target of any kind: batches, each applied with its progress.

Small, so that what is no database can be one: a table format on files needs no more than this. How
a database is loaded, through merge tables, is behind it (`penstock.load.sql_target`, which asks
an engine by `ports/target.py`). Not here: which batch and when (`penstock.load.loader`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from penstock.codec.types import NO_CHOICES, Choices
from penstock.host.clock import Clock
from penstock.log.layout import SegmentFile
from penstock.log.segment import Segment
from penstock.model import PenstockError, TableName
from penstock.ports.policies import EVOLVE_ALL, Policies
from penstock.ports.table_sync import TableSync
from penstock.ports.target import Applied, Counts, ShapeNote


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """What a batch must know besides its segments.

    starts, settled, left_out, only, copied: see `load.plan.Window`. choices: of [target.types].
    policies: of changes of shape. rows_directory: on a disk that the workers and the loader
    share, for rows that the target need not hold before they are applied; None where there is none.
    ships_frames: the workers cannot read the log, and get what they need of it with their tasks.
    """

    url: str
    log_id: str
    namespaces: Mapping[str, str]
    threads_max: int
    extension: str
    starts: Mapping[TableName, int]
    settled: Mapping[TableName, int] = field(default_factory=dict)
    choices: Choices = NO_CHOICES
    policies: Policies = EVOLVE_ALL
    left_out: frozenset[TableName] = frozenset()
    only: TableName | None = None
    copied: frozenset[TableName] | None = None
    rows_directory: Path | None = None
    ships_frames: bool = False


class Batch(Protocol):
    """A batch that is staged: it can be applied, or thrown away at any moment.

    The rest of it is the target's business.
    """

    @property
    def before(self) -> Applied:
        """Where the target must be."""
        ...

    @property
    def after(self) -> Applied:
        """Where it will be."""
        ...

    @property
    def place(self) -> int:
        """0 or 1: two batches may wait at a time, one being applied and one behind it."""
        ...

    @property
    def is_cut(self) -> bool:
        """Whether it ends inside its last file."""
        ...

    @property
    def whole(self) -> tuple[SegmentFile, ...]:
        """The files that are done with once it is applied."""
        ...

    @property
    def size_bytes(self) -> int:
        """Of those files."""
        ...

    @property
    def counts(self) -> Counts:
        """Of its rows."""
        ...

    @property
    def tables(self) -> int:
        """How many tables have rows in it."""
        ...

    @property
    def heartbeats(self) -> tuple[int, ...]:
        """When the heartbeats in it were sent, microseconds since 1970 by our own clock."""
        ...


class BatchStager(Protocol):
    """Stages one batch after the other; to be thrown away after an error."""

    def stage(
        self,
        files: Sequence[SegmentFile],
        session: Any,
        *,
        applied: Applied,
        before: int,
        place: int,
    ) -> Batch:
        """Stage the rows behind `applied` of these files. session: Spark's.

        files: to be opened by a `log.tail.SegmentOpener`; the last may still be written, and is
        read up to what was durable when it was found. `applied` may lie inside the first: in a
        transaction's end, so that a marker with its gsn may have been applied already.
        before: the rows with a smaller position only, or `model.position.POSITION_MAX`. Raises
        typed errors; then nothing is left that the next batch in this place would not replace.
        """
        ...

    def empty_ahead(self) -> None:
        """Make room for the next batch: all that was staged is applied, and nothing is to do.

        Nothing goes wrong where it does nothing.
        """
        ...

    def close(self) -> None:
        """Let go of what is staged."""
        ...


class Target(Protocol):
    """Where batches are applied. Errors come out typed, or as `Loading.errors`."""

    @property
    def is_closed(self) -> bool:
        """Whether the connection is gone."""
        ...

    @property
    def replica(self) -> bool:
        """Whether nothing there acts on what is written, such as foreign keys."""
        ...

    def bind(self, log_id: str) -> Applied:
        """Bind the target to this log; how far it is applied. Raises LogOfAnother."""
        ...

    def apply(
        self, batch: Batch, *, table_sync: TableSync | None = None, at: Applied | None = None
    ) -> Mapping[str, float]:
        """Apply a batch with its progress: all of it, or nothing; the seconds of each step.

        The target is then at `batch.after`. table_sync: the batch is of this table alone, which is
        then behind it; at: where the target is and stays. Raises AppliedByAnother where the target
        is not where the batch begins. An error may come though all was applied (a lost COMMIT):
        what `bind` of a new connection says is so.
        """
        ...

    def read_table_syncs(self) -> dict[TableName, TableSync]:
        """The tables that have, or had, a table sync."""
        ...

    def write_table_sync(self, rows: Sequence[TableSync], *, at: Applied) -> None:
        """Insert or replace rows of tables: all, or none. at: where the target is."""
        ...

    def take_notes(self) -> list[ShapeNote]:
        """Return the changes of shape since the last call, applied or not."""
        ...

    def forget(self) -> None:
        """Forget what is known of the target's tables: somebody has altered some."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def applied_behind(segment: Segment) -> Applied:
    """Where a target stands that has applied a segment, or what was durable of one still open."""
    end = segment.end
    return Applied(
        segment=segment.number if segment.is_closed else segment.number - 1,
        gsn=end.gsn,
        trx=end.trx,
        position=end.position,
        commit_time_us=end.commit_time_us,
    )


class Loading(Protocol):
    """A kind of target, as the loader opens it: an engine's part `loading`.

    An engine without this part is a database, loaded through merge tables.
    """

    @property
    def errors(self) -> tuple[type[BaseException], ...]:
        """What its driver raises."""
        ...

    def typed(self, doing: str, error: BaseException) -> PenstockError:
        """The typed error for one of the driver's; doing names the work."""
        ...

    def open_target(
        self,
        url: str,
        namespaces: Mapping[str, str],
        *,
        allow_triggers: bool,
        choices: Choices,
        policies: Policies,
        clock: Clock,
    ) -> Target:
        """Connect for applying. choices: of [target.types]; policies: of [schemaChanges]."""
        ...

    def open_stager(self, options: BatchOptions, *, clock: Clock) -> BatchStager:
        """What stages batches for this target."""
        ...
