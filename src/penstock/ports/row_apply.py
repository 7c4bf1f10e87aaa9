"""What the stage room asks of a target to which mutations are applied row by row.

An engine's part `row_apply` is called with a URL and gives a `RowTarget`. Not here: which mutations
in which order (`penstock.stage.apply`), and loading through Spark (`ports.target`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from penstock.model import PenstockError, Retry, TableDefinition
from penstock.model.hlc import Hlc
from penstock.ports.registry import part
from penstock.ports.staging import Group, Mutation, StagedTable
from penstock.ports.target import Applied

STATEMENT_ROWS = 10_000
"""Rows of one statement, where the user's module says nothing."""


class SchemaDrift(PenstockError):
    """A mutation does not fit the target's table: other columns, or another key."""

    code = "ST60"
    retry: ClassVar[Retry] = "operator"


class ValueUnfit(PenstockError):
    """The text of a value is nothing that the target's column can hold."""

    code = "ST61"
    retry: ClassVar[Retry] = "operator"


class ReferenceMissing(PenstockError):
    """A foreign key: the row that is referred to is not there yet, or one still refers to it."""

    code = "ST62"
    retry: ClassVar[Retry] = "backoff"


class RowKeyMissing(PenstockError):
    """Rows can be applied only to a table with a primary key, or not without its columns."""

    code = "ST63"
    retry: ClassVar[Retry] = "operator"


class RulesUnfit(PenstockError):
    """What the user's module says about a table names a column that the table does not have."""

    code = "ST64"
    retry: ClassVar[Retry] = "operator"


def reference_missing(said: str, **fields: Any) -> ReferenceMissing:
    """The error for a foreign key. said: by the server."""
    return ReferenceMissing(
        said,
        hint="It is tried again: the other row may come later. If it does not, let the feed have "
        "the table that is referred to, or drop the foreign key in the target.",
        **fields,
    )


def schema_drift(table: str, what: str, mutation: Mutation) -> SchemaDrift:
    """The error for a mutation that does not fit."""
    return SchemaDrift(
        f"schema drift detected in {table}: {what}: key {mutation.key}@{mutation.time}",
        hint="Alter the target's table like the source's; or give the column to ignore or "
        "extras in configure_table of the user's module.",
        table=table,
    )


def value_unfit(table: str, column: str, type_text: str) -> ValueUnfit:
    """The error for a value that a column cannot hold."""
    return ValueUnfit(
        f"could not parse a value of {table}.{column} as a {type_text}",
        hint="Give the column a type that holds what the source sends, or an expression in exprs "
        "of configure_table in the user's module.",
        table=table,
        column=column,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """How rows of a table are written, where it is not plainly. Names are those of the target.

    cas: a row is written only if it is not there or these columns, compared as a tuple, are greater
    than its own. deadlines: seconds; a row is written only if the column is later than so long ago.
    exprs: SQL that is written in place of a column's value, which is `$0` in it. extras: the JSON
    column that takes the properties which no column has. ignore: properties that are not written.
    row_limit: rows of one statement. wants_target: conflicts come with the target's row.
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
        """Whether a row may be refused."""
        return bool(self.cas or self.deadlines)

    def check(self, table: TableDefinition) -> None:
        """Raises RulesUnfit."""
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
    """A mutation that was not written because of cas or a deadline.

    target: the row that is there, None if there is none. proposed, before: those of the mutation,
    in the same spelling as target as far as they have the table's columns, so that equal values are
    equal. All three as JSON objects, and only where RowRules wants them: else None.
    """

    mutation: Mutation
    target: bytes | None = None
    proposed: bytes | None = None
    before: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A mutation for the table of dead letters. queue: its name there."""

    queue: str
    time: Hlc
    after: bytes | None
    before: bytes | None


class RowSession(Protocol):
    """One connection to a target. Belongs to one thread.

    Raises ReferenceMissing, what the server's errors are (`host.errors`), and of each method what
    it says. After an error within `transaction` nothing of it is there.
    """

    def tables(self, group: Group) -> Mapping[str, TableDefinition]:
        """The tables of a target schema as they are now, by name."""
        ...

    def exclusive(self, tables: Collection[StagedTable]) -> AbstractContextManager[None]:
        """Let nobody else who asks for one of these tables apply while the block runs."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """A transaction, for a with block: committed durably at its end."""
        ...

    def read_position(self, log_id: str) -> Applied:
        """Return how far a shared log is applied (`ports.progress.SharedProgress`).

        The log gets a row for it if it has none. Call it outside of `transaction`.
        """
        ...

    def locked_position(self, log_id: str, *, is_shared: bool = False) -> Applied:
        """Return how far a shared log is applied; nobody moves that until the transaction ends.

        is_shared: other sessions may lock it in the same way, but not to move it.
        """
        ...

    def advance(self, log_id: str, *, before: Applied, after: Applied) -> None:
        """Move the position that `locked_position` gave, within its transaction."""
        ...

    def upsert(
        self, table: TableDefinition, rules: RowRules, mutations: Sequence[Mutation]
    ) -> list[Conflict]:
        """Write rows, of which none has the key of another; gives those not written, in order.

        A column that a row does not have keeps its value, in a new row it gets its default.
        Raises SchemaDrift, ValueUnfit, RowKeyMissing.
        """
        ...

    def delete(self, table: TableDefinition, rules: RowRules, mutations: Sequence[Mutation]) -> int:
        """Delete the rows with these keys; how many there were. Raises SchemaDrift, ValueUnfit."""
        ...

    def add_dead_letters(self, table: TableDefinition, letters: Sequence[DeadLetter]) -> None:
        """Insert them. The table has the columns (`stage.apply.dead_letters`)."""
        ...

    def query(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run a statement of the user's module; its rows, if it has any."""
        ...

    def quoted(self, *names: str) -> str:
        """Names as SQL: of schema and table, of a column."""
        ...


class RowTarget(Protocol):
    """An engine's part `row_apply`, for one URL."""

    def opened(self) -> AbstractContextManager[RowSession]:
        """A session, for a with block. Raises what connecting does."""
        ...


def row_target_at(url: str) -> RowTarget:
    """The target that a URL names."""
    found: RowTarget = part(url, "row_apply")(url)
    return found
