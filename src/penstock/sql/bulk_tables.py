"""Tables of a database that the bulk load creates and fills, in steps that engines share.

An engine gives the statements of its tables (their shapes), the order in which it creates and
empties them, and what it does with tables that lost workers have left. Chunks are read in the shape
of the change log. Not here: the writers of chunks, the state tables (`state_store.py`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import structlog

from penstock.host.errors import StatementFailed
from penstock.model import (
    ColumnDefinition,
    ForeignKey,
    PenstockError,
    TableDefinition,
    TableName,
    UniqueKey,
)
from penstock.ports.bulk import BulkTarget, Found, Mark, TablePlan, TargetFires, chunks_missing
from penstock.ports.deferred_keys import DeferredKey
from penstock.ports.target import TableRecord, TargetDdlFailed, copied_ids, target_name
from penstock.sql.schema_translation import Extras
from penstock.sql.state_store import StateStore

logger = structlog.get_logger(__name__)


class Session(Protocol):
    """Session of the driver, in autocommit outside of a transaction."""

    def run(self, sql: str, /) -> int:
        """Run a statement that is not a query."""
        ...

    def close(self) -> None:
        """End the session."""
        ...


class Shape(Protocol):
    """A table as the load creates it; its methods return statements."""

    @property
    def name(self) -> TableName:
        """Return its name in the target."""
        ...

    @property
    def definition(self) -> TableDefinition:
        """Return its definition at the source."""
        ...

    @property
    def columns(self) -> Sequence[ColumnDefinition]:
        """Return the copied columns."""
        ...

    @property
    def extras(self) -> Extras:
        """Return its defaults, indexes and foreign keys."""
        ...

    def defaults(self) -> Iterator[tuple[str, str]]:
        """Yield each column with a default, and the statement that sets it."""
        ...

    def primary_key(self) -> str | None:
        """Return the statement that adds the primary key; None if the table has none."""
        ...

    def unique_keys(self) -> Iterable[UniqueKey]:
        """Return the unique keys that the target can have."""
        ...

    def unique_key_sql(self, key: UniqueKey, /) -> str:
        """Return the statement that adds a unique key."""
        ...

    def key_name(self, key: UniqueKey, /) -> str:
        """Return the name of a unique key in the target."""
        ...

    def indexes(self) -> Iterable[tuple[str, str]]:
        """Return the name of each index that is not a key, and its statement."""
        ...

    def foreign_key_name(self, key: ForeignKey, /) -> str:
        """Return the name of a foreign key in the target."""
        ...

    def foreign_key_sql(self, key: ForeignKey, parent: TableName, /) -> str:
        """Return the statement that adds a foreign key."""
        ...


class Named(Protocol):
    """An index or a foreign key of an existing table."""

    @property
    def name(self) -> str:
        """Return the name."""
        ...


class Table(Protocol):
    """An existing table."""

    @property
    def sql_name(self) -> str:
        """Return the quoted, qualified name."""
        ...

    @property
    def indexes(self) -> Sequence[Named]:
        """Return the indexes."""
        ...

    @property
    def primary(self) -> Any:
        """Return the index of the primary key; None without one."""
        ...

    @property
    def triggers(self) -> Sequence[Any]:
        """Return the enabled triggers."""
        ...

    @property
    def parents(self) -> Sequence[Named]:
        """Return the enabled foreign keys from it."""
        ...


S = TypeVar("S", bound=Shape)
T = TypeVar("T", bound=Table)


class BulkTables(BulkTarget, Generic[S, T]):
    """Connection of the driver; see `BulkTarget`.

    Attributes:
        NO_SUCH_COLUMN: The server's number for a key over a column that does not exist.
    """

    NO_SUCH_COLUMN: ClassVar[int]
    _connection: Session
    _namespaces: Mapping[str, str]
    _progress: StateStore

    # --- of the engine ----------------------------------------------------------------------------

    @abstractmethod
    def _shape(self, definition: TableDefinition) -> S: ...

    @abstractmethod
    def _read_tables(self, names: Collection[TableName]) -> Mapping[TableName, T]: ...

    @abstractmethod
    def _is_empty(self, table: TableName) -> bool: ...

    @abstractmethod
    def _fires(self, table: T) -> TargetFires: ...

    @abstractmethod
    def _find_deferred(self, shape: S) -> tuple[DeferredKey, ...]: ...

    @abstractmethod
    def _name_work(self, doing: str) -> AbstractContextManager[None]: ...

    @abstractmethod
    def _drop_heaps(self, plans: Iterable[str]) -> None: ...

    def _gather_statistics(self, table: TableName) -> None:
        """Do nothing: the server gathers statistics itself."""

    # --- of all engines ---------------------------------------------------------------------------

    def reads_log_rows(self) -> bool:
        return True

    def read_action(self) -> str:
        return self._progress.read_action()

    def read_done(self) -> Mapping[str, Mapping[int, int]]:
        return self._progress.read_done()

    def under_way(self) -> Mapping[TableName, int]:
        return self._progress.under_way()

    def look(self, targets: Collection[TableName]) -> Found:
        present = self._read_tables(targets)
        refusals: dict[TableName, PenstockError] = {
            name: self._fires(table)
            for name, table in present.items()
            if table.triggers or table.parents
        }
        return Found(
            empty={name: self._is_empty(name) for name in present},
            marks=self.marks(),
            truncates={name: f"TRUNCATE TABLE {table.sql_name}" for name, table in present.items()},
            refusals=refusals,
        )

    def is_replica(self) -> bool:
        """Return False: sessions have no switch for triggers and foreign keys."""
        return False

    # --- tables -----------------------------------------------------------------------------------

    def _ddl(self, statement: str, doing: str, table: TableName) -> None:
        try:
            with self._name_work(doing):
                self._connection.run(statement)
        except StatementFailed as error:
            raise TargetDdlFailed(
                error.message,
                hint="Run `penstock doctor`: it prints the GRANTs that the target needs.",
                table=str(table),
                **error.fields,
            ) from error

    def _defaults(self, shape: S) -> list[str]:
        """Give columns their defaults. Rows never need one, so one that fails is a note."""
        notes = []
        for column, statement in shape.defaults():
            try:
                with self._name_work("its default"):
                    self._connection.run(statement)
            except StatementFailed as error:
                notes.append(f"{shape.name}.{column} has no default in the target: {error.message}")
        return notes

    def _record(self, shapes: Sequence[S], made: Collection[TableName]) -> None:
        taken = {one.merge_name: one.target for one in self._progress.read_tables().values()}
        records = []
        for shape in shapes:
            merge_name = self._progress.dialect.merge_name(shape.name, taken)
            taken[merge_name] = shape.name
            definition, copied = shape.definition, shape.columns
            records.append(
                TableRecord(
                    source=definition.name,
                    target=shape.name,
                    merge_name=merge_name,
                    made=shape.name in made,
                    columns=tuple((column.name, column.type_text) for column in copied),
                    ids=copied_ids(copied),
                    source_id=definition.source_id,
                    unique=UniqueKey.columns_of(definition.unique_keys),
                    key=definition.row_key,
                    not_null=tuple(column.name for column in copied if column.not_null),
                )
            )
        self._progress.write_tables(records)

    def marks(self) -> dict[TableName, Mark]:
        return self._progress.read_marks()

    def takes_binary(self, definition: TableDefinition) -> bool:
        del definition
        return False

    def finish_table(self, plan: TablePlan) -> int:
        with self._name_work(f"finishing {plan.target}"), self._progress.transaction():
            done = self._progress.finished_chunks(plan.source)
            missing = [chunk.number for chunk in plan.chunks if chunk.number not in done]
            count = sum(done.values())
            is_marked = self._progress.finish_mark(plan.source, plan.name, count)
            if missing or not is_marked:
                raise chunks_missing(plan, missing, is_marked=is_marked)
        self._drop_heaps((plan.name,))
        return count

    # --- keys -------------------------------------------------------------------------------------

    def add_keys(
        self,
        definitions: Sequence[TableDefinition],
        *,
        threads: int,
        stop: Callable[[], bool],
    ) -> None:
        """Add keys to one table after the other: the server itself uses several processors."""
        del threads
        made = self._progress.made_tables()
        for definition in sorted(definitions, key=lambda one: -one.size_bytes):
            shape = self._shape(definition)
            if stop():
                return
            if shape.name in made:
                self._add_keys(shape)
            self._gather_statistics(shape.name)

    def _add_keys(self, shape: S) -> None:
        there = self._read_tables([shape.name]).get(shape.name)
        if there is None:
            return
        present = {index.name for index in there.indexes}
        statement = shape.primary_key()
        if statement is not None and there.primary is None:
            self._add_key(statement, "the primary key", shape.name)
        for key in shape.unique_keys():
            if shape.key_name(key) not in present:
                self._add_key(shape.unique_key_sql(key), f"unique key {key.name}", shape.name)
        for name, statement in shape.indexes():
            if name not in present:
                self._add_index(statement, name, shape.name)

    def _add_key(self, statement: str, what: str, table: TableName) -> None:
        """Add a key, unless it needs a column that the source got after the copy."""
        try:
            self._ddl(statement, f"adding {what} of {table}", table)
        except TargetDdlFailed as error:
            if error.fields.get("errno") != self.NO_SUCH_COLUMN:
                raise
            logger.warning("key not made", table=str(table), key=what, reason=error.message)

    def _add_index(self, statement: str, name: str, table: TableName) -> None:
        """Add an index that is not a key; warn of one that the server refuses."""
        try:
            self._ddl(statement, f"adding index {name} of {table}", table)
        except TargetDdlFailed as error:
            logger.warning("index not made", table=str(table), reason=error.message)

    def deferred_keys(self, definition: TableDefinition) -> tuple[DeferredKey, ...]:
        shape = self._shape(definition)
        return self._find_deferred(shape) if shape.name in self._progress.made_tables() else ()

    def add_foreign_keys(self, definitions: Sequence[TableDefinition]) -> list[str]:
        made = self._progress.made_tables()
        notes: list[str] = []
        for definition in definitions:
            shape = self._shape(definition)
            if shape.name in made:
                notes += [
                    f"{shape.name}: {one}"
                    for one in shape.extras.lacking
                    if one.startswith("foreign key")
                ]
                for key in shape.extras.foreign_keys:
                    notes += self._add_foreign_key(shape, key)
        return notes

    def _add_foreign_key(self, shape: S, key: ForeignKey) -> list[str]:
        """Create a foreign key; return a note if it cannot be created."""
        parent = target_name(key.target, self._namespaces)
        found = self._read_tables([shape.name, parent])
        own = found.get(shape.name)
        if own is not None and shape.foreign_key_name(key) in {one.name for one in own.parents}:
            return []
        reason = f"{key.target} is not captured"
        if parent in found:
            try:
                doing = f"adding foreign key {key.name} of {shape.name}"
                self._ddl(shape.foreign_key_sql(key, parent), doing, shape.name)
            except TargetDdlFailed as error:
                reason = error.message
            else:
                return []
        return [f"{shape.name} has no foreign key {key.name} in the target: {reason}"]

    def close(self) -> None:
        self._connection.close()
