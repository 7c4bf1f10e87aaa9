"""Session that a batch is applied in, with the known facts of the target's tables.

What a refusal teaches is remembered in `Knowledge`, for the batch's next attempt. Not here: the
steps of a batch (`apply.py`), the order of a phase (`phase.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from penstock.codec.types import NO_CHOICES, Choices
from penstock.engines.sqlserver.connect import Connection
from penstock.engines.sqlserver.target.catalog import TargetTable, read_target_tables, require
from penstock.engines.sqlserver.target.progress import SQLServerProgress
from penstock.engines.sqlserver.target.refusals import apply_error
from penstock.engines.sqlserver.target.translation import Translation
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import StatementInterrupted
from penstock.model import PenstockError, TableName
from penstock.model.policies import EVOLVE_ALL, Policies
from penstock.ports.target import Applied, ShapeNote
from penstock.sql.state_store import Records


@dataclass(slots=True)
class Knowledge:
    """Facts that refusals have shown while one batch was applied, for its next attempt.

    Attributes:
        before: The target's place when they were found; at another place they count no more.
        defers_keys: Foreign keys are checked at the end, since the order cannot satisfy them.
        undeletable: Tables that cannot be emptied by TRUNCATE.
        given_up: Changes of shape that the target refused: the table and the change's sentence,
            with the reason.
    """

    before: Applied = field(default_factory=Applied)
    defers_keys: bool = False
    undeletable: set[TableName] = field(default_factory=set)
    given_up: dict[tuple[TableName, str], str] = field(default_factory=dict)


@dataclass(kw_only=True)
class ApplySession:
    """The loader's connection to the target, and its settings.

    Attributes:
        replica: False: foreign keys act unless a batch needs them to wait.
        choices: Of [target.types].
        policies: Of changes of shape.
        translation: Meaning of the rows' types here.
        knowledge: See `Knowledge`.
        noted: See `take_notes`.
    """

    connection: Connection
    namespaces: Mapping[str, str]
    progress: SQLServerProgress
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
    knowledge: Knowledge = field(default_factory=Knowledge)

    def need(self, names: Iterable[TableName]) -> None:
        """Read the catalogue of tables that are not known yet. Raises TargetTableMissing."""
        missing = [name for name in names if name not in self.tables]
        if not missing:
            return
        found = read_target_tables(self.connection, missing)
        for name in missing:
            require(found, name)
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

    @contextmanager
    def identity_insert(self, table: TargetTable, *, is_needed: bool) -> Iterator[None]:
        """Allow rows with values of the identity column; a session may do so for one table."""
        if not is_needed:
            yield
            return
        self.run(f"SET IDENTITY_INSERT {table.sql_name} ON", table.name)
        try:
            yield
        except BaseException:
            with suppress(PenstockError):  # the connection may be lost, and the setting with it
                self.connection.run(f"SET IDENTITY_INSERT {table.sql_name} OFF")
            raise
        self.run(f"SET IDENTITY_INSERT {table.sql_name} OFF", table.name)
