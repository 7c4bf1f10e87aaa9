"""Databases as targets of the change loader: staged in merge tables, applied in one transaction.

Not here: staging (`stage.py`), the order of a batch's steps (`batch.py`), an engine's statements
(`ports.target.SqlTarget`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.codec.types import Choices
from penstock.host.clock import Clock
from penstock.load.batch import apply_batch
from penstock.load.stage import Staged, Stager, open_stager
from penstock.model import PenstockError, TableName
from penstock.ports.loading import Batch, BatchOptions, Loading, Target
from penstock.ports.policies import Policies
from penstock.ports.registry import engine_at
from penstock.ports.table_sync import TableSync
from penstock.ports.target import Applied, Engine, SqlTarget, engine_of


class MergingTarget:
    """See `Target`."""

    def __init__(self, sql: SqlTarget, clock: Clock) -> None:
        """sql: the connection that applies."""
        self._sql = sql
        self._clock = clock
        self._log_id = ""

    @property
    def is_closed(self) -> bool:
        """See Target."""
        return self._sql.is_closed

    @property
    def replica(self) -> bool:
        """See Target."""
        return self._sql.replica

    def bind(self, log_id: str) -> Applied:
        """See Target."""
        self._log_id = log_id
        return self._sql.bind(log_id)

    def apply(
        self, batch: Batch, *, apart: TableSync | None = None, at: Applied | None = None
    ) -> Mapping[str, float]:
        """See Target."""
        assert isinstance(batch, Staged), "it was staged by our stager"
        done = apply_batch(
            self._sql, batch, log_id=self._log_id, apart=apart, at=at, clock=self._clock
        )
        return done.seconds

    def read_table_syncs(self) -> dict[TableName, TableSync]:
        """See Target."""
        return self._sql.read_table_syncs()

    def write_table_sync(self, rows: Sequence[TableSync], *, at: Applied) -> None:
        """See Target."""
        with self._sql.transaction():
            self._sql.advance(log_id=self._log_id, before=at, after=at)
            for row in rows:
                self._sql.write_table_sync(row)

    def take_notes(self) -> list[tuple[TableName, str]]:
        """See Target."""
        return self._sql.take_notes()

    def forget(self) -> None:
        """See Target."""
        self._sql.forget()

    def close(self) -> None:
        """See Target."""
        self._sql.close()


class SqlLoading:
    """See `Loading`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def errors(self) -> tuple[type[BaseException], ...]:
        """See Loading."""
        return self._engine.errors

    def typed(self, doing: str, error: BaseException) -> PenstockError:
        """See Loading."""
        return self._engine.typed(doing, error)

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
        """See Loading."""
        sql = self._engine.open_target(
            url, namespaces, allow_triggers=allow_triggers, choices=choices, policies=policies
        )
        return MergingTarget(sql, clock)

    def open_stager(self, options: BatchOptions, *, clock: Clock) -> Stager:
        """See Loading."""
        return open_stager(options, clock=clock)


def loading_of(url: str) -> Loading:
    """How the target that a URL names is loaded. Raises EngineUnknown, PartMissing."""
    engine = engine_at(url)
    if "loading" in engine.parts:
        loading: Loading = engine.part("loading")
        return loading
    return SqlLoading(engine_of(url))
