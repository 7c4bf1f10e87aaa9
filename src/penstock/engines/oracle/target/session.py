"""Session that a batch is applied in, with the known facts of the target's tables.

Not here: the steps of a batch (`apply.py`), the order of a phase (`phase.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.codec.types import NO_CHOICES, Choices
from penstock.engines.oracle.connect import Connection
from penstock.engines.oracle.target.catalog import TargetTable, read_target_tables, require
from penstock.engines.oracle.target.progress import OracleProgress
from penstock.engines.oracle.target.refusals import apply_error
from penstock.engines.oracle.target.translation import Translation
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import StatementInterrupted
from penstock.model import PenstockError, Relation, TableName
from penstock.model.policies import EVOLVE_ALL, Policies
from penstock.ports.target import (
    PhaseSpec,
    ShapeNote,
    TableRecord,
    TriggersWouldFire,
    target_name,
)
from penstock.sql.state_store import Records


@dataclass(kw_only=True)
class ApplySession:
    """The loader's connection to the target, and its settings.

    Attributes:
        url: Where a second session connects, which guards changes of shape.
        replica: False: foreign keys act.
        choices: Of [target.types].
        policies: Of changes of shape.
        translation: Meaning of the rows' types here.
        noted: See `take_notes`.
    """

    url: str
    connection: Connection
    namespaces: Mapping[str, str]
    progress: OracleProgress
    records: Records
    replica: bool = False
    clock: Clock = REAL_CLOCK
    allow_triggers: bool = False
    choices: Choices = NO_CHOICES
    policies: Policies = EVOLVE_ALL
    log_id: str = ""
    translation: Translation = field(default_factory=Translation)
    tables: dict[TableName, TargetTable] = field(default_factory=dict)
    noted: list[ShapeNote] = field(default_factory=list)

    def need(self, names: Iterable[TableName]) -> None:
        """Read the catalogue of tables that are not known yet.

        Raises TargetTableMissing, and TriggersWouldFire: to disable a trigger would commit, and
        would disable it for other sessions.
        """
        missing = [name for name in names if name not in self.tables]
        if not missing:
            return
        found = read_target_tables(self.connection, missing)
        for name in missing:
            table = require(found, name)
            if table.triggers and not self.allow_triggers:
                raise triggers_fire(table)
        self.tables |= found

    def run(self, sql: str, table: TableName) -> int:
        """Run a statement about a table; return its number of rows. Raises typed errors."""
        try:
            return self.connection.run(sql)
        except PenstockError as error:
            raise apply_error(error, table) from error

    def repeat(self, why: str) -> StatementInterrupted:
        """Return the error after which the batch is repeated with what is known now."""
        return StatementInterrupted(why, hint="penstock retries automatically.")

    def target_name(self, relation: Relation) -> TableName:
        """Return the target's name of a relation's table."""
        return target_name(TableName(relation.schema, relation.name), self.namespaces)

    def record(self, relation: Relation) -> TableRecord:
        """Return what the target knows of a relation's table."""
        source = TableName(relation.schema, relation.name)
        return self.records.get(source, self.target_name(relation))


def triggers_fire(table: TargetTable) -> TriggersWouldFire:
    """Return the error for a table whose triggers would act a second time."""
    names = ", ".join(f"{owner}.{name}" for owner, name in table.triggers)
    owner, name = table.triggers[0]
    return TriggersWouldFire(
        f"target table {table.name} has triggers that would act a second time: {names}",
        hint=f'Disable them in the target: ALTER TRIGGER "{owner}"."{name}" DISABLE;',
        table=str(table.name),
    )


def last_shapes(phases: Iterable[PhaseSpec]) -> dict[TableName, Relation]:
    """Return the last shape of each source table in these phases."""
    return {
        TableName(relation.schema, relation.name): relation
        for phase in phases
        for relation in phase.relations
    }
