"""SQL Server as the loader's target: a batch and its progress in one transaction.

An error ends the transaction at the server (XACT_ABORT), so a statement is never tried twice inside
of it. What a refusal teaches is remembered in `Knowledge`, and the whole batch is repeated: with
foreign keys that are checked at the end, a table emptied by DELETE, a change of shape given up. Not
here: the order of a phase (`phase.py`), the statements (`merge.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import structlog

from penstock.engines.sqlserver.target.catalog import TargetTable
from penstock.engines.sqlserver.target.merge_tables import check_staged, drop_merge_tables
from penstock.engines.sqlserver.target.nulls import allow_null
from penstock.engines.sqlserver.target.phase import PhaseApply
from penstock.engines.sqlserver.target.progress import SQLServerProgress, transaction
from penstock.engines.sqlserver.target.quiet import deferred_foreign_keys, quiet_triggers
from penstock.engines.sqlserver.target.refusals import NULL_REFUSED
from penstock.engines.sqlserver.target.session import ApplySession, Knowledge
from penstock.engines.sqlserver.target.translation import Translation
from penstock.model import PenstockError
from penstock.ports.sql_target import SqlTarget
from penstock.ports.target import (
    Applied,
    MergeSpec,
    PhaseSpec,
    ShapeNote,
)

logger = structlog.get_logger(__name__)


@dataclass(kw_only=True)
class SQLServerTarget(ApplySession, SqlTarget):
    """The loader's connection to the target; see `SqlTarget`."""

    progress: SQLServerProgress

    @property
    def is_closed(self) -> bool:
        return self.connection.is_closed

    def forget(self) -> None:
        self.noted.clear()
        self.tables.clear()
        self.records.forget()

    def reshape(self, phases: Sequence[PhaseSpec], *, source_engine: str, before: Applied) -> None:
        """Take the source's types. Tables are altered inside the transaction."""
        del phases
        self.translation = Translation(engine=source_engine, choices=self.choices)
        if not self.knowledge.before.is_at(before):
            self.knowledge = Knowledge(before=before)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with transaction(self.connection):
            yield

    def check_staged(self, expected: Mapping[str, tuple[int, int]]) -> None:
        check_staged(self.connection, expected)

    def apply_phases(self, phases: Sequence[PhaseSpec]) -> None:
        names = {
            name
            for phase in phases
            for name in (*(spec.table for spec in phase.merges), *phase.truncated, *phase.reloaded)
        }
        self.need(names)
        tables = [self.tables[name] for name in sorted(names)]
        with self._resting(tables):
            for phase in phases:
                PhaseApply(self, phase).run()

    @contextmanager
    def _resting(self, tables: Sequence[TargetTable]) -> Iterator[None]:
        """Let triggers rest, and foreign keys, if a refusal showed the need: see `quiet.py`.

        Checking keys at the end reads their tables, which is why it is not done for every batch.
        """
        with ExitStack() as stack:
            if not self.allow_triggers:
                stack.enter_context(quiet_triggers(self.run, tables))
            if self.knowledge.defers_keys:
                stack.enter_context(deferred_foreign_keys(self.run, tables))
            yield

    def resolve_refusal(self, error: PenstockError, merges: Iterable[MergeSpec]) -> bool:
        """Let columns of our tables be NULL, if the source's rows have NULL there."""
        if error.fields.get("errno") != NULL_REFUSED:
            return False
        made = self.progress.made_tables()
        specs = [spec for spec in merges if spec.table in made]
        return allow_null(self.connection, specs, self.translation) > 0

    def drop_merge_tables(self, names: Iterable[str]) -> None:
        drop_merge_tables(self.connection, names)

    def take_notes(self) -> list[ShapeNote]:
        taken = list(self.noted)
        self.noted.clear()
        return taken

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()
