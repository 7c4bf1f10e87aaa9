"""Table definition: all that a target needs to create the table like the source has it.

Not here: the shape of rows in the log (`relation.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.model.relation import Identity, TypeDefinition


class TableName(NamedTuple):
    """Schema and name of a table, unquoted, as the catalogue has them."""

    schema: str
    name: str

    def __str__(self) -> str:
        """Return `schema.name`, for messages; not quoted."""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDefinition:
    """One column as the catalogue has it.

    Attributes:
        type_text: as format_type() prints it with search_path empty; for MySQL and MariaDB as
            information_schema has it.
        default: as SQL.
        generated: `` stored `s`, virtual `v` or empty. The expression is in default, as SQL.
        identity_kind: `a` always, `d` by default (and AUTO_INCREMENT), or empty.
        collation: as SQL, if it is not the type's own; of text for MySQL and MariaDB.
        missing: text of the value in rows that are older than an ADD COLUMN ... DEFAULT; None if
            there is none.
        base_type: the type below a domain, the type itself otherwise.
        base_oid: oid of base_type.
        neutral: how the log keeps the values, as in `Column.neutral`.
        charset: character set of text, for MySQL and MariaDB.
        is_invisible: `select *` leaves the column out.
        id: identity within the table, as `Column.id`; 0 if the catalogue has none.
        is_filled: new rows get a value without naming the column, by a default or as an identity;
            not told by every source.
    """

    name: str
    type_text: str
    type_oid: int
    typmod: int
    not_null: bool = False
    default: str | None = None
    generated: str = ""
    identity_kind: str = ""
    collation: str | None = None
    missing: str | None = None
    base_type: str = ""
    base_oid: int = 0
    neutral: str = "string"
    charset: str = ""
    is_invisible: bool = False
    id: int = 0
    is_filled: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueKey:
    """Unique index or constraint besides the primary key.

    Attributes:
        definition: the text of pg_get_indexdef().
        prefixes: per column the characters (bytes of binary) that the key holds, 0 for all; empty
            if the key holds every column whole (MySQL).
        is_whole: the key is over whole columns, without expressions, and over all rows.
    """

    name: str
    columns: tuple[str, ...]
    definition: str
    is_constraint: bool
    deferrable: bool = False
    prefixes: tuple[int, ...] = ()
    is_whole: bool = True

    @staticmethod
    def columns_of(keys: Iterable[UniqueKey]) -> tuple[tuple[str, ...], ...]:
        """Return the columns of the keys that are whole, for `Relation.unique`."""
        return tuple(key.columns for key in keys if key.is_whole and not any(key.prefixes))


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKey:
    """Foreign key of a table.

    Attributes:
        definition: the text of pg_get_constraintdef(), or that part of CREATE TABLE.
        on_update: the action for referencing rows, as in `CASCADE`; empty if it was not read.
        on_delete: as on_update.
    """

    name: str
    columns: tuple[str, ...]
    target: TableName
    target_columns: tuple[str, ...]
    definition: str
    deferrable: bool = False
    on_update: str = ""
    on_delete: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition:
    """Captured table.

    Attributes:
        source_id: the table's oid; for MySQL and MariaDB computed from the name.
        primary_key_deferrable: rows may share a key until their transaction ends, so no change can
            be found by it.
        identity: the replica identity. For MySQL and MariaDB INDEX if a unique key without NULLs
            stands in for a primary key, FULL if there is neither.
        identity_columns: the columns of a before image. In a partitioned table with identity
            NOTHING they depend on the identities of its partitions: the primary key, or else all
            columns.
        partition_leaves: oids of the storage relations of a partitioned table.
        primary_key_prefixes: as in UniqueKey.
        engine: the storage engine.
        is_versioned: MariaDB keeps old rows, too.
        create_sql: the text of SHOW CREATE TABLE, if it was asked for.
        widens: the source widens a column's type when a value needs it, so a target table may have
            such types already.
        changed_s: when the definition was last written, or the table last rebuilt, in seconds
            since 1970; 0 if unknown.
        file: the storage of its rows, which another one replaces when they are rewritten; 0 if
            unknown.
    """

    name: TableName
    source_id: int
    columns: tuple[ColumnDefinition, ...]
    primary_key: tuple[str, ...] = ()
    primary_key_deferrable: bool = False
    identity: Identity = Identity.DEFAULT
    identity_columns: tuple[str, ...] = ()
    unique_keys: tuple[UniqueKey, ...] = ()
    indexes: tuple[str, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    types: tuple[TypeDefinition, ...] = ()
    is_partitioned: bool = False
    partition_leaves: tuple[int, ...] = ()
    size_bytes: int = 0
    row_estimate: int = 0
    primary_key_prefixes: tuple[int, ...] = ()
    engine: str = ""
    is_versioned: bool = False
    create_sql: str = ""
    widens: bool = False
    changed_s: int = 0
    file: int = field(default=0, compare=False)

    @property
    def row_key(self) -> tuple[str, ...]:
        """Columns by which changes find a row, as `Relation.key`; empty if all columns do."""
        is_told = self.identity in (Identity.DEFAULT, Identity.INDEX) and self.identity_columns
        key = self.identity_columns if is_told else self.key_of_changes
        # A source whose columns have identities sends no generated columns.
        unsent = {column.name for column in self.columns if column.generated and column.id}
        return () if unsent & {*key} else key

    @property
    def key_of_changes(self) -> tuple[str, ...]:
        """Primary key, which identifies one row at any moment; empty if it is deferrable."""
        return () if self.primary_key_deferrable else self.primary_key
