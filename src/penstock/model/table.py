"""A table's definition: all that a target needs to create it like the source has it.

Not the shape of rows in the log: that is `relation.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.model.relation import Identity, TypeDefinition


class TableName(NamedTuple):
    """A table's schema and name, unquoted, as the catalogue has them."""

    schema: str
    name: str

    def __str__(self) -> str:
        """`schema.name`, for messages; not quoted."""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDefinition:
    """One column as the catalogue has it.

    type_text: as format_type() prints it with search_path empty. generated: `` stored `s`,
    virtual `v` or none; identity_kind: `a` always, `d` by default or none. missing: text of the
    value that old rows have since ADD COLUMN ... DEFAULT; None when there is none. base_type,
    base_oid: the type below a domain, the type itself otherwise. neutral: how the log keeps the
    values, as in `Column.neutral`. collation: as SQL, when it is not the type's own.
    For MySQL and MariaDB: type_text as information_schema has it, with default and the expression
    of a generated column as SQL; identity_kind `d` for AUTO_INCREMENT; charset and collation of
    text; is_invisible: left out by `select *`. id: identity within the table, as `Column.id`; 0 if
    the catalogue has none.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueKey:
    """A unique index or constraint besides the primary key. definition: pg_get_indexdef().

    prefixes: per column the characters (bytes of binary) that the key holds, 0 for all; empty when
    it holds all of each (MySQL). is_whole: over columns alone, whole ones, and over all rows.
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
    """A foreign key. definition: pg_get_constraintdef(), or that part of CREATE TABLE.

    on_update, on_delete: the actions for referencing rows, as in `CASCADE`; empty when not read.
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
    """A captured table. partition_leaves: oids of the storage relations when it is partitioned.

    primary_key_deferrable: rows may share a key until their transaction ends, so that no change can
    be found by it. identity_columns: what a before image holds. In a partitioned table with
    identity NOTHING that is up to its partitions' identities: the primary key, or else all columns.
    MySQL and MariaDB: source_id is made from the name; identity is INDEX where a unique key without
    NULLs stands in for a primary key, FULL where there is neither. primary_key_prefixes: as
    in UniqueKey. engine: the storage engine. is_versioned: MariaDB keeps old rows, too. create_sql:
    SHOW CREATE TABLE, where it was asked for. widens: its columns get types that hold more when a
    value needs it, so a target table may have such types already. changed_s: when the definition
    was last written, or the table last rebuilt, in seconds since 1970; 0 if not known.
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

    @property
    def row_key(self) -> tuple[str, ...]:
        """The columns by which changes find a row, as `Relation.key`; empty where all are."""
        is_told = self.identity in (Identity.DEFAULT, Identity.INDEX) and self.identity_columns
        key = self.identity_columns if is_told else self.key_of_changes
        # A source that has identities of columns sends no generated ones.
        unsent = {column.name for column in self.columns if column.generated and column.id}
        return () if unsent & {*key} else key

    @property
    def key_of_changes(self) -> tuple[str, ...]:
        """The primary key if it identifies one row at any moment, empty otherwise."""
        return () if self.primary_key_deferrable else self.primary_key
