"""Oracle as the loader's target: changed shapes first, then a batch and its progress in one
transaction.

The server undoes a statement that it refuses, and only that; the transaction is nevertheless rolled
back whole, and the batch is repeated. Foreign keys that are DEFERRABLE wait until the end of the
transaction. Triggers cannot be switched off for one session: a table with triggers is refused
unless they are allowed. Not here: the order of a phase (`phase.py`), the statements (`merge.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from penstock.engines.oracle.target.merge_tables import check_staged, drop_merge_tables
from penstock.engines.oracle.target.phase import PhaseApply
from penstock.engines.oracle.target.progress import (
    OracleProgress,
    name_work,
    open_session,
    progress_of,
    transaction,
)
from penstock.engines.oracle.target.refusals import COMMIT_REFUSED, apply_error
from penstock.engines.oracle.target.reshape import Reshaping
from penstock.engines.oracle.target.session import ApplySession, last_shapes
from penstock.engines.oracle.target.translation import Translation
from penstock.host import faults
from penstock.host.errors import StatementFailed
from penstock.model import PenstockError, Relation, TableName
from penstock.model.policies import ChangeKind
from penstock.ports.sql_target import SqlTarget
from penstock.ports.target import Applied, MergeSpec, PhaseSpec, ShapeNote
from penstock.sql.schema_drift import find_kept_merges
from penstock.sql.shape_changes import is_applied, with_copied_ids
from penstock.sql.state_store import applied_by_another

DEFER = "SET CONSTRAINTS ALL DEFERRED"


@dataclass(kw_only=True)
class OracleTarget(ApplySession, SqlTarget):
    """The loader's connection to the target; see `SqlTarget`."""

    progress: OracleProgress

    @property
    def is_closed(self) -> bool:
        return self.connection.is_closed

    def forget(self) -> None:
        self.noted.clear()
        self.tables.clear()
        self.records.forget()

    # --- changes of shape -------------------------------------------------------------------------

    def reshape(self, phases: Sequence[PhaseSpec], *, source_engine: str, before: Applied) -> None:
        """Alter the tables that changed their shape, and record the shapes; safe to repeat."""
        self.translation = Translation(engine=source_engine, choices=self.choices)
        for phase in phases:
            for name in phase.truncated:
                what = "all rows were removed (TRUNCATE)"
                self.policies.check(ChangeKind.TRUNCATE, what, table=str(name))
        if not self._news(phases):
            return
        with self._guard(before):
            # Another loader, which was waited for, may have altered tables until now.
            self.records.forget()
            self.tables.clear()
            self._alter_all(phases, self._news(phases))

    def _news(self, phases: Sequence[PhaseSpec]) -> list[Relation]:
        """Return the last shapes of source tables that the target does not have yet."""
        return [
            relation
            for relation in last_shapes(phases).values()
            if not is_applied(self.record(relation), relation, self.log_id)
        ]

    @contextmanager
    def _guard(self, before: Applied) -> Iterator[None]:
        """Hold the applied position in a second session, after checking that it is unchanged."""
        with closing(open_session(self.url)) as guard, transaction(guard):
            with name_work("altering target tables"):
                applied = progress_of(guard).read_applied(self.log_id, lock="update")
            if not applied.is_at(before):
                raise applied_by_another(before)
            yield

    def _alter_all(self, phases: Sequence[PhaseSpec], changed: Sequence[Relation]) -> None:
        self.need({spec.table for phase in phases for spec in phase.merges})
        self.need({self.target_name(relation) for relation in changed})
        replaced = {
            spec.table
            for phase in phases
            for spec in find_kept_merges(phase, self.record, self.policies)
        }
        emptied = {name for phase in phases for name in (*phase.truncated, *phase.reloaded)}
        starts = {name: at for phase in phases for name, at in phase.starts.items()}
        found = []
        for relation in changed:
            name = self.target_name(relation)
            found.append(
                Reshaping(
                    target=self,
                    record=with_copied_ids(self.record(relation), relation, starts),
                    relation=relation,
                    name=name,
                    is_emptied=name in emptied or self._is_empty(name),
                    is_replaced=name in replaced,
                )
            )
        for reshaping in found:
            reshaping.check()
        for reshaping in found:
            faults.point("load.alter.before")
            record = reshaping.run()
            faults.point("load.alter.between")
            self.records.put(record)
            faults.point("load.alter.after")
        self.need({reshaping.name for reshaping in found})

    def _is_empty(self, name: TableName) -> bool:
        """Return whether a table has no rows: an earlier batch may have emptied it."""
        table = self.tables[name]
        with name_work(f"looking at {name}"):
            return not self.connection.execute(f"SELECT 1 FROM {table.sql_name} WHERE ROWNUM = 1")

    # --- rows -------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Open the batch's transaction. A constraint that its end refuses has a typed error."""
        try:
            with transaction(self.connection):
                yield
        except StatementFailed as error:
            if error.fields.get("errno") != COMMIT_REFUSED:
                raise
            raise apply_error(error, TableName("", "the batch's tables")) from error

    def check_staged(self, expected: Mapping[str, tuple[int, int]]) -> None:
        check_staged(self.connection, expected)

    def apply_phases(self, phases: Sequence[PhaseSpec]) -> None:
        names = {
            name
            for phase in phases
            for name in (*(spec.table for spec in phase.merges), *phase.truncated, *phase.reloaded)
        }
        self.need(names)
        tables = [self.tables[name] for name in names]
        keys = [key for table in tables for key in (*table.parents, *table.children)]
        if any(key.is_deferrable for key in keys):
            self.connection.run(DEFER)
        shapes = last_shapes(phases)
        for phase in phases:
            PhaseApply(self, phase, shapes).run()

    def resolve_refusal(
        self,
        error: PenstockError,  # noqa: ARG002
        merges: Iterable[MergeSpec],  # noqa: ARG002
    ) -> bool:
        """Return false: types are altered when the log says so, never because of a row."""
        return False

    def drop_merge_tables(self, names: Iterable[str]) -> None:
        drop_merge_tables(self.connection, names)

    def take_notes(self) -> list[ShapeNote]:
        taken = list(self.noted)
        self.noted.clear()
        return taken

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()
