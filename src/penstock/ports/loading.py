"""The change loader's port to a target of any kind: batches, each applied with its progress.

It is small, so that a target need not be a database: a table format on files needs no more. A
database is loaded through merge tables: `penstock.load.sql_target` stages, and
`ports.sql_target.SqlTarget` applies. Not here: the choice of batches (`penstock.load.loader`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from penstock.codec.types import NO_CHOICES, Choices
from penstock.host.clock import Clock
from penstock.log.layout import SegmentFile
from penstock.log.segment import Segment
from penstock.model import PenstockError, TableName
from penstock.model.policies import EVOLVE_ALL, Policies
from penstock.ports.registry import PartName
from penstock.ports.target import Applied, Counts, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """Facts that a batch must know besides its segments.

    Attributes:
        starts: See `load.plan.Window`; also settled, left_out, only and copied.
        choices: Of [target.types].
        policies: For changes of shape.
        rows_directory: On a disk that the workers and the loader share, for rows that the target
            need not hold before they are applied; None if there is none.
        ships_frames: The workers cannot read the log, and get what they need of it with their
            tasks.
        ahead: See `Target.read_ahead`.
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
    ahead: Mapping[TableName, int] = field(default_factory=dict)


class Batch(Protocol):
    """Staged batch: it can be applied, or thrown away at any moment.

    The target decides about everything else.
    """

    @property
    def before(self) -> Applied:
        """Place where the target must be."""
        ...

    @property
    def after(self) -> Applied:
        """Place where the target will be."""
        ...

    @property
    def place(self) -> int:
        """Number 0 or 1: two batches may wait at a time, one being applied and one after it."""
        ...

    @property
    def is_cut(self) -> bool:
        """Return whether the batch ends inside its last file."""
        ...

    @property
    def whole(self) -> tuple[SegmentFile, ...]:
        """Files that are finished once the batch is applied."""
        ...

    @property
    def size_bytes(self) -> int:
        """Size of those files."""
        ...

    @property
    def counts(self) -> Counts:
        """Counts of the batch's rows."""
        ...

    @property
    def tables(self) -> int:
        """Number of tables with rows in it."""
        ...

    @property
    def heartbeats(self) -> tuple[int, ...]:
        """Times at which its heartbeats were sent, microseconds since 1970 by our own clock."""
        ...


class BatchStager(Protocol):
    """Stager of one batch after the other; to be thrown away after an error."""

    @abstractmethod
    def stage(
        self,
        files: Sequence[SegmentFile],
        session: Any,
        *,
        applied: Applied,
        before: int,
        place: int,
    ) -> Batch:
        """Stage the rows of these files after `applied`. Raises typed errors.

        After an error, the next batch in this place replaces everything that is left.

        Args:
            files: To be opened by a `log.tail.SegmentOpener`; the last may still be written, and is
                read up to what was durable when it was found.
            session: Spark's session.
            applied: May lie inside the first file: in a transaction's end, so that a marker with
                its gsn may have been applied already.
            before: Only rows with a smaller position, or `model.position.POSITION_MAX`.
            place: The place of the batch.
        """
        ...

    @abstractmethod
    def empty_ahead(self) -> None:
        """Make room for the next batch: all that was staged is applied, and the loader is idle.

        It may do nothing.
        """
        ...

    @abstractmethod
    def close(self) -> None:
        """Release what is staged."""
        ...


def applied_behind(segment: Segment) -> Applied:
    """Return the applied position of a target that has applied a whole segment, or the durable part
    of an open one.
    """
    end = segment.end
    return Applied(
        segment=segment.number if segment.is_closed else segment.number - 1,
        gsn=end.gsn,
        trx=end.trx,
        position=end.position,
        commit_time_us=end.commit_time_us,
    )


class Loading(Protocol):
    """Kind of target, as the loader opens it: an engine's part `loading`.

    An engine without this part is a database, loaded through merge tables.

    Attributes:
        errors: Classes of errors that its driver raises.
    """

    errors: tuple[type[BaseException], ...]

    @abstractmethod
    def convert_error(self, doing: str, error: BaseException) -> PenstockError:
        """Return the typed error for one of the driver's; doing names the work."""
        ...

    @abstractmethod
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

    @abstractmethod
    def open_stager(self, options: BatchOptions, *, clock: Clock) -> BatchStager:
        """Return the stager of batches for this target."""
        ...


LOADING_PART: PartName[Loading] = PartName("loading")
