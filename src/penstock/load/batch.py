"""Applying one staged batch: all its phases and the applied position in one target transaction.

Repeatable until its commit. Not here: how it came into the merge tables (`stage.py`), the order of
statements (`target.py`), which batch and when (`loader.py`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

import structlog

from penstock.host import faults
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import StatementInterrupted
from penstock.load.stage import Staged, Steps
from penstock.ports.refusals import ValueRefused
from penstock.ports.table_sync import TableSync
from penstock.ports.target import Applied, SqlTarget

logger = structlog.get_logger(__name__)
faults.declare(
    "load.alter.before",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """A batch that is applied and committed. seconds: per step, those of staging too."""

    staged: Staged
    seconds: Mapping[str, float]


def apply_batch(
    target: SqlTarget,
    staged: Staged,
    *,
    log_id: str,
    apart: TableSync | None = None,
    at: Applied | None = None,
    clock: Clock = REAL_CLOCK,
) -> BatchResult:
    """Apply a staged batch and commit it.

    apart: the batch is of this table alone, which then stands behind it; at: where the target
    stands and stays, which keeps every other loader out.
    Raises typed errors with nothing applied, or with all of it (a lost COMMIT): the target's
    applied position tells.
    """
    return _Batch(target, staged, log_id, apart, at or staged.before, clock).run()


class _Batch:
    """One staged batch on its way into the target."""

    def __init__(
        self,
        target: SqlTarget,
        staged: Staged,
        log_id: str,
        apart: TableSync | None,
        at: Applied,
        clock: Clock,
    ) -> None:
        self._apart = apart
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

    def run(self) -> BatchResult:
        """Apply and commit; what a lock or a deadlock interrupts is done again as it stands."""
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
                if last or not self._target.mend(error, self._merges):
                    raise
            except BaseException:
                self._target.forget()
                raise
        self._target.drop_merge_tables(self._staged.extra)
        seconds = {**self._staged.seconds, **self._steps.seconds}
        return BatchResult(staged=self._staged, seconds=seconds)

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
            self._steps.done("apply")
            faults.point("load.progress.before")
            target.end_files(staged.files)
            faults.point("load.commit.before")
        faults.point("load.commit.after")
        self._steps.done("commit")

    def _advance(self) -> None:
        target, staged, at = self._target, self._staged, self._at
        if self._apart is None:
            target.advance(log_id=self._log_id, before=at, after=staged.after)
            return
        target.advance(log_id=self._log_id, before=at, after=at)
        target.write_table_sync(replace(self._apart, applied=staged.after))
