"""A relation: one version of a table's shape, as the rows of the log have it.

Not here: what a target needs to create the table (see `table.py`), and the layout of values in
memory (see `penstock.codec.columns`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self


class Identity(StrEnum):
    """PostgreSQL's replica identity: the columns that a before image holds."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a relation.

    Attributes:
        source_type: the type as the source prints it, with modifiers: `numeric(12,2)`,
            `public.mood`.
        neutral: type of the values in the log; one of `bool int16 int32 int64 uint32 uint64
            float32 float64 decimal(p,s) date time timestamp timestamptz uuid binary string`. A
            value that its neutral type cannot hold exactly (infinity, NaN in a decimal, 24:00:00,
            year 294276) moves the column to `string` in a new relation version: the text form is
            always exact.
        base_type: the type below a domain, same as source_type otherwise.
        missing: text of the value in rows older than the column; None: NULL.
        id: identity of the column within its table (`Relation.source_id`), from 1, never used
            again: a column that is dropped and added again has another id, a renamed one keeps it.
            0 if the source has no identities; then the name is the identity.
        collation: of text, if the source has one per column (MySQL); empty otherwise.
        names: the names of the column in order, each with the source's position from which it
            holds; the last one is the present name. Empty: this name for as long as the log knows
            the table.
    """

    name: str
    source_type: str
    neutral: str
    base_type: str = ""
    type_oid: int = 0
    typmod: int = -1
    nullable: bool = True
    missing: str | None = None
    id: int = 0
    collation: str = ""
    names: tuple[tuple[int, str], ...] = field(default=(), compare=False)

    def name_at(self, position: int) -> str | None:
        """Return the name that the column had at a position; None before it was added."""
        if not self.names:
            return self.name
        return next((name for since, name in reversed(self.names) if since <= position), None)

    def as_text(self) -> Self:
        """Return the same column, kept as exact text."""
        return replace(self, neutral="string")


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeDefinition:
    """User-defined type that a table needs, listed after the types that it depends on.

    Types of extensions are not listed: the target needs the extension.

    Attributes:
        kind: `e` enum, `d` domain, `c` composite, `r` range.
        labels: of an enum, in their order.
    """

    schema: str
    name: str
    kind: str
    create_sql: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedColumn:
    """A generated column whose values the source does not send.

    Attributes:
        source_type: its type, as the source prints it.
        expression: SQL of the source that computes a value from the row's other columns.
        is_stored: values are kept in the rows; if not, they are computed when they are read.
        id: identity of the column within its table, in one sequence with `Column.id`.
    """

    name: str
    source_type: str
    expression: str
    is_stored: bool
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """One version of a table's shape. A relation is replaced, never changed.

    Attributes:
        key: indexes into columns that identify a row for a merge; empty if the table has no key.
        before: indexes into columns that a before image holds: the identity columns with DEFAULT
            and INDEX, all with FULL, none with NOTHING unless partitions have an identity of their
            own.
        source_id: the table's oid (the root's for a partitioned table).
        version: counts up from 1 per table within one log; assigned by the log writer's caller.
        unique: the columns of each unique key besides `key`, by name; None if the source does not
            say.
        awaits_reload: why the rows before this version are not known in it; empty if they are
            known. All rows follow after a RELOAD marker, in a later version. Until then a reader
            that keeps the table's contents leaves it as it is, and skips the rows of this version.
        types: the user's types of the columns as of the start of the version, each after those
            that it depends on.
        computed: the generated columns that rows do not have; None if they are not known.
        since: the source's position from which the table has this shape; 0 if unknown.
    """

    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[int, ...] = ()
    before: tuple[int, ...] = ()
    identity: Identity = Identity.DEFAULT
    source_id: int = 0
    version: int = 1
    unique: tuple[tuple[str, ...], ...] | None = None
    awaits_reload: str = ""
    computed: tuple[ComputedColumn, ...] | None = None
    types: tuple[TypeDefinition, ...] = field(default=(), compare=False)
    since: int = field(default=0, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        """Check that key and before point at columns."""
        for index in (*self.key, *self.before):
            if not 0 <= index < len(self.columns):
                raise ValueError(f"column index {index} outside {self.schema}.{self.name}")

    @property
    def identifying(self) -> tuple[int, ...]:
        """Indexes of the columns that identify a row: the key, or all columns of a table without
        one.

        Empty if a before image lacks one of them: then no update is known to have changed them.
        """
        found = self.key or tuple(range(len(self.columns)))
        return found if set(found) <= set(self.before) else ()

    @property
    def full_name(self) -> str:
        """Text `schema.name`, for messages only: not quoted, not parsable."""
        return f"{self.schema}.{self.name}"

    def same_shape(self, other: Relation) -> bool:
        """Return whether rows of both may share a batch: all but the version is equal."""
        return replace(self, version=0) == replace(other, version=0)

    def with_text_column(self, index: int) -> Relation:
        """Return the next version, in which one column is kept as exact text."""
        columns = tuple(c.as_text() if i == index else c for i, c in enumerate(self.columns))
        return replace(self, columns=columns, version=self.version + 1)
