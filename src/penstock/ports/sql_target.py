"""Databases as targets: a batch with its position in one transaction, the steps in order.

An engine has the steps (`SqlTarget`). Not here: staging, and the choice of batches.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import MappingProxyType

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

    A batch whose tables are independent of each other can also be applied in parts, by several of
    these connections (`load.apply_parts`). An engine that allows this has `find_groups`; one that
    prepares transactions has the steps from `prepares` on, too.

    Attributes:
        progress: Progress tables, on the same connection.
        clock: Measures the steps, and waits between attempts.
        log_id: The log that is applied; empty before `bind`.
        ahead: See `read_ahead`.
    """

    progress: TargetProgress
    clock: Clock
    log_id: str
    ahead: Mapping[TableName, int] = MappingProxyType({})

    def bind(self, log_id: str) -> Applied:
        self.progress.ensure_tables()
        self.log_id = log_id
        applied = self.progress.bind_log(log_id)
        if self.progress.keeps_ahead:
            self.settle_prepared()
            self.ahead = self.progress.read_ahead(log_id)
        return applied

    def read_ahead(self) -> Mapping[TableName, int]:
        return self.ahead

    def check_ahead(self, at: Applied) -> Mapping[TableName, int]:
        """Return the tables that are ahead of a place where the target is, in a transaction.

        Raises AppliedByAnother if another process has brought a table elsewhere.
        """
        if not self.progress.keeps_ahead:
            return {}
        expected = {table: gsn for table, gsn in self.ahead.items() if gsn > at.gsn}
        self.progress.check_ahead(log_id=self.log_id, expected=expected, at=at)
        return expected

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
            self.check_ahead(at)
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

    # --- batches in parts -------------------------------------------------------------------------

    def find_groups(
        self,
        phase: PhaseSpec,  # noqa: ARG002
        *,
        source_engine: str,  # noqa: ARG002
    ) -> Sequence[frozenset[TableName]]:
        """Return the target tables with rows, in groups that depend on nothing outside of them.

        Their catalogue is known (`need`). Returns nothing if one session must apply the whole
        phase, as always if a table changes its shape, and unless an engine knows better.
        """
        return ()

    def prepares(self, count: int) -> bool:  # noqa: ARG002
        """Return whether the server keeps so many prepared transactions for us."""
        return False

    def read_transaction_id(self) -> str:
        """Return the id of the open transaction, after which prepared ones are named."""
        raise NotImplementedError

    def prepared_transaction(self, decider: str, part: int) -> AbstractContextManager[object]:
        """Return a transaction that is prepared at its end, to be committed if another one was.

        decider: id of that other one.
        """
        raise NotImplementedError

    def commit_prepared(self, decider: str, part: int) -> None:
        """Commit a prepared transaction, if no other process has committed it."""
        raise NotImplementedError

    def settle_prepared(self) -> None:
        """Commit prepared transactions of this log if those that decide about them were committed,
        and roll back the others.

        Raises a typed error for one that is still undecided.
        """


def apply_repeatedly(
    target: SqlTarget, merges: Sequence[MergeSpec], apply: Callable[[], None]
) -> None:
    """Apply in a transaction; repeat work unchanged that a lock or a deadlock has interrupted."""
    for attempt in range(1, APPLY_ATTEMPTS_MAX + 1):
        try:
            apply()
            return
        except StatementInterrupted as error:
            target.forget()
            if attempt == APPLY_ATTEMPTS_MAX or target.is_closed:
                raise
            logger.warning("apply interrupted", attempt=attempt, reason=error.message)
            wait_s = 0.1 * 2**attempt * (0.5 + random.random())  # noqa: S311
            target.clock.sleep(wait_s)
        except ValueRefused as error:
            target.forget()
            last = attempt == APPLY_ATTEMPTS_MAX
            if last or not target.resolve_refusal(error, merges):
                raise
        except BaseException:
            target.forget()
            raise


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
        """Apply and commit."""
        self._target.need(spec.table for spec in self._merges)
        apply_repeatedly(self._target, self._merges, self._once)
        self._target.drop_merge_tables(self._staged.extra)
        return {**self._staged.seconds, **self._steps.seconds}

    def _once(self) -> None:
        target, staged = self._target, self._staged
        faults.point("load.apply.before")
        target.reshape(staged.phases, source_engine=staged.source_engine, before=self._at)
        with target.transaction():
            # First of all, so that a second loader waits here and then finds itself refused.
            self._advance()
            ahead = target.check_ahead(self._at)
            target.check_staged(self._expected)
            target.apply_phases(staged.phases)
            faults.point("load.apply.after")
            self._steps.end_step("apply")
            faults.point("load.progress.before")
            target.progress.end_files(staged.files)
            if ahead and self._table_sync is None:
                target.progress.clear_ahead(log_id=target.log_id, gsn=staged.after.gsn)
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
