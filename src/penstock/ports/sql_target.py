"""Databases as targets: a batch with its position in one transaction, the steps in order.

An engine has the steps (`SqlTarget`). Not here: staging, and the choice of batches.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import structlog

from penstock.host import faults
from penstock.host.clock import Clock, Steps
from penstock.host.errors import StatementInterrupted
from penstock.model import PenstockError, TableName
from penstock.ports.target import (
    Applied,
    MergeBatch,
    MergeSpec,
    PhaseSpec,
    TableSync,
    Target,
    TargetProgress,
    ValueRefused,
)

logger = structlog.get_logger(__name__)

APPLY_ATTEMPTS_MAX = 6


class SqlTarget(Target):
    """Database to which the loader applies batches (`Target`), by merge tables.

    A batch is applied with all its phases and the applied position in one transaction, which can be
    repeated until its commit. The order of the steps is here; an engine has the steps, on one
    connection, and the known facts of the target's tables.

    Attributes:
        progress: Progress tables, on the same connection.
        clock: Measures the steps, and waits between attempts.
        log_id: The log that is applied; empty before `bind`.
    """

    progress: TargetProgress
    clock: Clock
    log_id: str

    def bind(self, log_id: str) -> Applied:
        self.progress.ensure_tables()
        self.log_id = log_id
        return self.progress.bind_log(log_id)

    def apply(
        self, batch: object, *, table_sync: TableSync | None = None, at: Applied | None = None
    ) -> Mapping[str, float]:
        assert isinstance(batch, MergeBatch), "it was staged in merge tables"
        return _Batch(self, batch, table_sync, at or batch.before).run()

    def read_table_syncs(self) -> dict[TableName, TableSync]:
        return self.progress.read_table_syncs()

    def write_table_sync(self, rows: Sequence[TableSync], *, at: Applied) -> None:
        with self.transaction():
            self.progress.advance(log_id=self.log_id, before=at, after=at)
            for row in rows:
                self.progress.write_table_sync(row)

    @abstractmethod
    def need(self, names: Iterable[TableName]) -> None:
        """Read the catalogue of these tables. Raises TargetTableMissing, TriggersWouldFire."""

    @abstractmethod
    def reshape(self, phases: Sequence[PhaseSpec], *, source_engine: str, before: Applied) -> None:
        """Alter tables whose shape changed before the batch's transaction, if DDL commits.

        Raises AppliedByAnother if the target is not at `before`.
        """

    @abstractmethod
    def transaction(self) -> AbstractContextManager[object]:
        """Return the batch's transaction; errors are typed, with all of it rolled back."""

    @abstractmethod
    def check_staged(self, expected: Mapping[str, tuple[int, int]]) -> None:
        """Check that merge tables hold the staged rows, by stamp and number, and keep writers out
        of them.
        """

    @abstractmethod
    def apply_phases(self, phases: Sequence[PhaseSpec]) -> None:
        """Apply all phases, inside the transaction."""

    @abstractmethod
    def resolve_refusal(self, error: PenstockError, merges: Iterable[MergeSpec]) -> bool:
        """Fix the cause of the target's refusal of these merges, if possible; return whether it was
        fixed.
        """

    @abstractmethod
    def drop_merge_tables(self, names: Iterable[str]) -> None:
        """Drop merge tables that only one batch needed."""


class _Batch:
    """One staged batch while it is applied."""

    def __init__(
        self, target: SqlTarget, staged: MergeBatch, table_sync: TableSync | None, at: Applied
    ) -> None:
        self._target = target
        self._staged = staged
        self._table_sync = table_sync
        self._at = at
        self._steps = Steps(target.clock)
        self._merges = [spec for phase in staged.phases for spec in phase.merges]
        self._expected = {
            spec.staging: (spec.stamp, spec.staged_row_count) for spec in self._merges
        }

    def run(self) -> Mapping[str, float]:
        """Apply and commit; work that a lock or a deadlock interrupts is repeated unchanged."""
        self._target.need(spec.table for spec in self._merges)
        for attempt in range(1, APPLY_ATTEMPTS_MAX + 1):
            try:
                self._once()
                break
            except StatementInterrupted as error:
                self._target.forget()
                if attempt == APPLY_ATTEMPTS_MAX or self._target.is_closed:
                    raise
                logger.warning("apply interrupted", attempt=attempt, reason=error.message)
                wait_s = 0.1 * 2**attempt * (0.5 + random.random())  # noqa: S311
                self._target.clock.sleep(wait_s)
            except ValueRefused as error:
                self._target.forget()
                last = attempt == APPLY_ATTEMPTS_MAX
                if last or not self._target.resolve_refusal(error, self._merges):
                    raise
            except BaseException:
                self._target.forget()
                raise
        self._target.drop_merge_tables(self._staged.extra)
        return {**self._staged.seconds, **self._steps.seconds}

    def _once(self) -> None:
        target, staged = self._target, self._staged
        faults.point("load.apply.before")
        target.reshape(staged.phases, source_engine=staged.source_engine, before=self._at)
        with target.transaction():
            # First of all, so that a second loader waits here and then finds itself refused.
            self._advance()
            target.check_staged(self._expected)
            target.apply_phases(staged.phases)
            faults.point("load.apply.after")
            self._steps.end_step("apply")
            faults.point("load.progress.before")
            target.progress.end_files(staged.files)
            faults.point("load.commit.before")
        faults.point("load.commit.after")
        self._steps.end_step("commit")

    def _advance(self) -> None:
        log_id, progress, at = self._target.log_id, self._target.progress, self._at
        if self._table_sync is None:
            progress.advance(log_id=log_id, before=at, after=self._staged.after)
            return
        progress.advance(log_id=log_id, before=at, after=at)
        progress.write_table_sync(replace(self._table_sync, applied=self._staged.after))
