"""Load changes into databases: stage in merge tables, apply in one transaction.

A batch is applied with all its phases and the applied position in one transaction of the target,
which can be repeated until its commit. Not here: staging (`stage.py`), an engine's statements and
their order (`ports.target.SqlTarget`), the choice and time of batches (`loader.py`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog

from penstock.codec.types import Choices
from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import StatementInterrupted
from penstock.load.stage import StagedBatch, Stager, Steps, open_stager
from penstock.model import PenstockError, TableName
from penstock.model.policies import Policies
from penstock.ports.loading import LOADING_PART, Batch, BatchOptions, Loading, Target
from penstock.ports.registry import engine_at
from penstock.ports.target import (
    Applied,
    ShapeNote,
    SqlTarget,
    TableSync,
    TargetEngine,
    ValueRefused,
    engine_of,
)

logger = structlog.get_logger(__name__)
faults.declare(
    "load.alter.before",
    "load.alter.aside",
    "load.alter.freed",
    "load.alter.fill",
    "load.alter.between",
    "load.alter.after",
    "load.apply.before",
    "load.apply.after",
    "load.progress.before",
    "load.commit.before",
    "load.commit.after",
)

APPLY_ATTEMPTS_MAX = 6


class MergingTarget(Target):
    """Target that merges staged rows in one transaction with its progress."""

    def __init__(self, sql: SqlTarget, clock: Clock) -> None:
        """Keep the connection that applies."""
        self._sql = sql
        self._clock = clock
        self._log_id = ""

    @property
    def is_closed(self) -> bool:
        return self._sql.is_closed

    @property
    def replica(self) -> bool:
        return self._sql.replica

    def bind(self, log_id: str) -> Applied:
        self._log_id = log_id
        return self._sql.bind(log_id)

    def apply(
        self, batch: Batch, *, table_sync: TableSync | None = None, at: Applied | None = None
    ) -> Mapping[str, float]:
        assert isinstance(batch, StagedBatch), "it was staged by our stager"
        return apply_batch(
            self._sql, batch, log_id=self._log_id, table_sync=table_sync, at=at, clock=self._clock
        )

    def read_table_syncs(self) -> dict[TableName, TableSync]:
        return self._sql.read_table_syncs()

    def write_table_sync(self, rows: Sequence[TableSync], *, at: Applied) -> None:
        with self._sql.transaction():
            self._sql.advance(log_id=self._log_id, before=at, after=at)
            for row in rows:
                self._sql.write_table_sync(row)

    def take_notes(self) -> list[ShapeNote]:
        return self._sql.take_notes()

    def forget(self) -> None:
        self._sql.forget()

    def close(self) -> None:
        self._sql.close()


def apply_batch(
    target: SqlTarget,
    staged: StagedBatch,
    *,
    log_id: str,
    table_sync: TableSync | None = None,
    at: Applied | None = None,
    clock: Clock = REAL_CLOCK,
) -> Mapping[str, float]:
    """Apply a staged batch and commit it; return the seconds of each step, also of staging.

    table_sync: the only table of the batch, which is then behind it. at: the target's position,
    which stays and keeps every other loader out. Raises typed errors. Then nothing of the batch is
    applied, or all of it (a lost COMMIT): the target's applied position shows which.
    """
    return _Batch(target, staged, log_id, table_sync, at or staged.before, clock).run()


class _Batch:
    """One staged batch while it is applied."""

    def __init__(
        self,
        target: SqlTarget,
        staged: StagedBatch,
        log_id: str,
        table_sync: TableSync | None,
        at: Applied,
        clock: Clock,
    ) -> None:
        self._table_sync = table_sync
        self._at = at
        self._target = target
        self._staged = staged
        self._log_id = log_id
        self._clock = clock
        self._steps = Steps(clock)
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
                self._clock.sleep(0.1 * 2**attempt * (0.5 + random.random()))  # noqa: S311
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
            target.end_files(staged.files)
            faults.point("load.commit.before")
        faults.point("load.commit.after")
        self._steps.end_step("commit")

    def _advance(self) -> None:
        target, staged, at = self._target, self._staged, self._at
        if self._table_sync is None:
            target.advance(log_id=self._log_id, before=at, after=staged.after)
            return
        target.advance(log_id=self._log_id, before=at, after=at)
        target.write_table_sync(replace(self._table_sync, applied=staged.after))


class SqlLoading(Loading):
    """Loading into a database. The load has one engine object, whose parts share their
    knowledge.
    """

    def __init__(self, engine: TargetEngine) -> None:
        self._engine = engine

    @property
    def errors(self) -> tuple[type[BaseException], ...]:
        return self._engine.errors

    def convert_error(self, doing: str, error: BaseException) -> PenstockError:
        return self._engine.convert_error(doing, error)

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
        sql = self._engine.open_target(
            url, namespaces, allow_triggers=allow_triggers, choices=choices, policies=policies
        )
        return MergingTarget(sql, clock)

    def open_stager(self, options: BatchOptions, *, clock: Clock) -> Stager:
        return open_stager(self._engine, options, clock=clock)


def loading_of(url: str) -> Loading:
    """Return the loading of the target that a URL names. Raises EngineUnknown, PartMissing."""
    engine = engine_at(url)
    if LOADING_PART in engine.parts:
        return engine.part(LOADING_PART)
    return SqlLoading(engine_of(url))
