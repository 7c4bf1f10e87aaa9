"""The port of feeds to a target to which mutations are applied row by row.

An engine's part `row_apply` is called with a URL and returns a `RowTarget`. Not here: the order of
mutations (`penstock.feeds.apply`), and loading through Spark (`ports.target`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from penstock.model import PenstockError, Retry, TableDefinition
from penstock.model.hlc import Hlc
from penstock.ports.feeds import Group, Mutation, StagedTable
from penstock.ports.registry import PartName, part
from penstock.ports.target import Applied

STATEMENT_ROWS = 10_000
"""Number of rows of one statement, unless the user's module sets one."""


class SchemaDrift(PenstockError):
    """A mutation does not fit the target's table: other columns, or another key."""

    code = "ST60"
    retry: ClassVar[Retry] = "operator"


class ValueUnfit(PenstockError):
    """The target's column cannot hold the text of a value."""

    code = "ST61"
    retry: ClassVar[Retry] = "operator"


class ReferenceMissing(PenstockError):
    """A foreign key refuses a row: its referenced row is missing, or it is still referred to."""

    code = "ST62"
    retry: ClassVar[Retry] = "backoff"


class RowKeyMissing(PenstockError):
    """Rows can be applied only to a table with a primary key, and only with its columns."""

    code = "ST63"
    retry: ClassVar[Retry] = "operator"


class RulesUnfit(PenstockError):
    """The user's module names a column of a table that the table does not have."""

    code = "ST64"
    retry: ClassVar[Retry] = "operator"


def reference_missing(said: str, **fields: Any) -> ReferenceMissing:
    """Return the error for a foreign key. said: the server's words."""
    return ReferenceMissing(
        said,
        hint="penstock retries: the other row may arrive later. If it does not, let the feed have "
        "the table that is referred to, or drop the foreign key in the target.",
        **fields,
    )


def schema_drift(table: str, what: str, mutation: Mutation) -> SchemaDrift:
    """Return the error for a mutation that does not fit."""
    return SchemaDrift(
        f"schema drift detected in {table}: {what}: key {mutation.key}@{mutation.time}",
        hint="Alter the target's table like the source's; or give the column to ignore or "
        "extras in configure_table of the user's module.",
        table=table,
    )


def value_unfit(table: str, column: str, type_text: str) -> ValueUnfit:
    """Return the error for a value that a column cannot hold."""
    return ValueUnfit(
        f"could not parse a value of {table}.{column} as a {type_text}",
        hint="Give the column a type that holds what the source sends, or an expression in exprs "
        "of configure_table in the user's module.",
        table=table,
        column=column,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """Rules for writing rows of a table, if they differ from plain writing.

    Names are those of the target.

    Attributes:
        cas: A row is written only if it does not exist or these columns, compared as a tuple, are
            greater than its own.
        deadlines: Seconds by column; a row is written only if the column is later than so long ago.
        exprs: SQL that is written in place of a column's value, which is `$0` in it.
        extras: The JSON column for properties without a column.
        ignore: Properties that are not written.
        row_limit: Rows of one statement.
        wants_target: Conflicts have the target's row.
    """

    cas: tuple[str, ...] = ()
    deadlines: Mapping[str, float] = field(default_factory=dict)
    exprs: Mapping[str, str] = field(default_factory=dict)
    extras: str = ""
    ignore: frozenset[str] = frozenset()
    row_limit: int = STATEMENT_ROWS
    wants_target: bool = False

    @property
    def has_conditions(self) -> bool:
        """Return whether a row may be refused."""
        return bool(self.cas or self.deadlines)

    def check(self, table: TableDefinition) -> None:
        """Raise RulesUnfit if a rule names a column that the table does not have."""
        there = {column.name for column in table.columns}
        named = (
            *(("cas", name) for name in self.cas),
            *(("deadline", name) for name in self.deadlines),
            *(("expression", name) for name in self.exprs),
            *(("extras", name) for name in (self.extras,) if name),
        )
        for kind, name in named:
            if name not in there:
                raise RulesUnfit(
                    f"{kind} column name {name} not found in table {table.name}",
                    hint="Correct configure_table in the user's module, or add the column to the "
                    "target's table.",
                    table=str(table.name),
                    column=name,
                )


PLAIN = RowRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Mutation that was not written because of cas or a deadline.

    The three rows are JSON objects, and None unless RowRules wants them.

    Attributes:
        target: The existing row, None if there is none.
        proposed: The mutation's row, in the same spelling as target as far as it has the table's
            columns, so that equal values are equal.
        before: The row before the mutation, in the same spelling.
    """

    mutation: Mutation
    target: bytes | None = None
    proposed: bytes | None = None
    before: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Mutation for the table of dead letters. queue: name of the queue in that table."""

    queue: str
    time: Hlc
    after: bytes | None
    before: bytes | None


class RowSession(Protocol):
    """Connection to a target. Belongs to one thread.

    Raises ReferenceMissing, errors of the server (`host.errors`), and those of each method.
    After an error within `transaction` everything in it is undone.
    """

    @abstractmethod
    def tables(self, group: Group) -> Mapping[str, TableDefinition]:
        """Return the present tables of a target schema, by name."""
        ...

    @abstractmethod
    def exclusive(self, tables: Collection[StagedTable]) -> AbstractContextManager[None]:
        """Lock these tables for a block, so that no other session that also calls this applies to
        them.
        """
        ...

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """Return a transaction, for a with block: committed durably at its end."""
        ...

    @abstractmethod
    def read_position(self, log_id: str) -> Applied:
        """Return how far a shared log is applied (`ports.progress.SharedProgress`).

        The log gets a row for it if it has none. Call it outside of `transaction`.
        """
        ...

    @abstractmethod
    def locked_position(self, log_id: str, *, is_shared: bool = False) -> Applied:
        """Return how far a shared log is applied, and lock that until the transaction ends.

        is_shared: other sessions may lock it in the same way, but not to move it.
        """
        ...

    @abstractmethod
    def advance(self, log_id: str, *, before: Applied, after: Applied) -> None:
        """Move the position that `locked_position` returned, within its transaction."""
        ...

    @abstractmethod
    def upsert(
        self, table: TableDefinition, rules: RowRules, mutations: Sequence[Mutation]
    ) -> list[Conflict]:
        """Write rows with different keys; return those not written, in order.

        A column that a row does not have keeps its value; in a new row it gets its default.
        Raises SchemaDrift, ValueUnfit, RowKeyMissing.
        """
        ...

    @abstractmethod
    def delete(self, table: TableDefinition, rules: RowRules, mutations: Sequence[Mutation]) -> int:
        """Delete the rows with these keys; return how many. Raises SchemaDrift, ValueUnfit."""
        ...

    @abstractmethod
    def add_dead_letters(self, table: TableDefinition, letters: Sequence[DeadLetter]) -> None:
        """Insert dead letters. The table has the columns (`stage.apply.tables`)."""
        ...

    @abstractmethod
    def query(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run a statement of the user's module; return its rows, if it has any."""
        ...

    @abstractmethod
    def quote(self, *names: str) -> str:
        """Return names as SQL: of schema and table, of a column."""
        ...


class RowTarget(Protocol):
    """Part `row_apply` of an engine, for one URL."""

    @abstractmethod
    def open_session(self) -> AbstractContextManager[RowSession]:
        """Return a session, for a with block. Raises the errors of connecting."""
        ...


ROW_APPLY_PART: PartName[Callable[[str], RowTarget]] = PartName("row_apply")


def row_target_at(url: str) -> RowTarget:
    """Return the target that a URL names."""
    return part(url, ROW_APPLY_PART)(url)
