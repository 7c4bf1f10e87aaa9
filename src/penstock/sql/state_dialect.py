"""State tables in an engine's SQL: the differences between engines, and an upsert without them.

Not here: the tables and the statements (`state_store.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.model import TableName
from penstock.ports.target import SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class Upsert:
    """Row to insert, or to change if it exists.

    Attributes:
        table: Name of the table, with its schema.
        values: SQL of the inserted value of each column.
        keys: Columns of the unique keys that may already hold the row, the primary key first.
        changes: SQL of the new value of each column to change; empty: an existing row stays as it
            is. `StateDialect.old` and `new` name the existing and the inserted value.
    """

    table: str
    values: Mapping[str, str]
    keys: tuple[tuple[str, ...], ...]
    changes: Mapping[str, str] = field(default_factory=dict)

    @property
    def insert_text(self) -> str:
        """Return the part of an INSERT after the table: `(columns) values (...)`."""
        return f"({', '.join(self.values)}) values ({', '.join(self.values.values())})"

    @property
    def changes_text(self) -> str:
        """Return the assignments."""
        return ", ".join(f"{column} = {value}" for column, value in self.changes.items())


def upsert_on_conflict(row: Upsert) -> str:
    """Return `insert ... on conflict`; the existing row is `t`, the inserted one `excluded`."""
    insert = f"insert into {row.table} as t {row.insert_text} on conflict"
    if not row.changes:
        return f"{insert} do nothing"
    return f"{insert} ({', '.join(row.keys[0])}) do update set {row.changes_text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLock:
    """SQL that locks the selected rows until the transaction ends.

    Attributes:
        hint: Text after the table's name, for engines with table hints.
        suffix: Text at the end of the statement.
    """

    hint: str = ""
    suffix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDialect:
    """State tables in an engine's SQL.

    Attributes:
        container: What holds the tables: "schema" or "database".
        types: Column types of the definitions in `state_store.py`, by the word in braces there.
        bigint: Type of an integer of 64 bits.
        create_table: Beginning of a definition.
        varchar: Type of a text of at most {} characters.
        table_options: End of a definition.
        has_schema: Query that returns a row if the schema exists.
        create_schema: Statement that creates it.
        drop_schema: Statement that drops it with its tables, as an operator types it, too.
        present: Query for the names of existing tables; {names} are those to look for.
        has_no_ahead: Condition that holds as long as `wirekite_ahead` does not exist; empty for
            engines whose batches are never divided.
        placeholder: Parameter of a statement; {} is its number, from 1.
        upsert: Returns the statement of an `Upsert`: ON CONFLICT, ON DUPLICATE KEY or MERGE.
        old: Existing value of a column in an upsert.
        new: Inserted value of a column in an upsert.
        true: Value of a flag that is set.
        either: Value of a flag that is set if one of two flags is.
        now: Present time in wirekite_progress, whose columns Wirekite's guide prescribes.
        utc_now: Present time in the other tables: UTC.
        for_update: Lock against every other transaction.
        for_share: Lock against changes.
        newest: Query for the newest progress rows, as Wirekite's guide prints it for the engine.
        merge_name_max: Greatest length of a merge table's name. It leaves room for the suffix of a
            set and a phase (`ports.target.staging_name`).
        name_encoding: Encoding whose bytes limit a name; empty if characters do.
        folds_case: Names that differ in case alone may be the same.
    """

    container: str
    types: Mapping[str, str]
    varchar: str = "varchar({})"
    bigint: str = "bigint"
    create_table: str = "create table if not exists"
    table_options: str = ""
    has_schema: str
    create_schema: str = f"create schema {SCHEMA}"
    drop_schema: str
    present: str
    has_no_ahead: str = ""
    placeholder: str = "%s"
    upsert: Callable[[Upsert], str] = upsert_on_conflict
    old: str = "t.{}"
    new: str = "excluded.{}"
    true: str = "true"
    either: str = "{} or {}"
    now: str
    utc_now: str
    for_update: RowLock = RowLock(suffix=" for update")
    for_share: RowLock = RowLock(suffix=" for share")
    newest: str = """
    SELECT source, mark, start_time, finish_time
    FROM wirekite.wirekite_progress
    WHERE operation = '{operation}'
    ORDER BY start_time DESC
    LIMIT {limit}
"""
    merge_name_max: int
    name_encoding: str = ""
    folds_case: bool = False

    def number_parameters(self, sql: str) -> str:
        """Return a statement with this dialect's parameters in place of `?`."""
        first, *rest = sql.split("?")
        marked = (self.placeholder.format(n) + text for n, text in enumerate(rest, 1))
        return first + "".join(marked)

    def take_inserted(self, columns: tuple[str, ...]) -> dict[str, str]:
        """Return the changes of an upsert that takes these columns from the inserted row."""
        return {column: self.new.format(column) for column in columns}

    def merge_name(self, table: TableName, taken: Mapping[str, TableName]) -> str:
        """Return the name of a table's merge table: `<table>_wkm` if it fits and is free.

        A name that the table of another schema has taken, or that is too long, is cut and gets
        eight hex digits of a hash of the whole name, so that it is the same in every run.

        Args:
            table: The target table.
            taken: Merge names in use, and the target tables that they belong to.
        """
        wanted = f"{table.name}_wkm"
        fits = self._cut(wanted, self.merge_name_max) == wanted
        others = {self._fold(name): of for name, of in taken.items()}
        if fits and others.get(self._fold(wanted), table) == table:
            return wanted
        digest = hashlib.sha256("\0".join(table).encode()).hexdigest()[:8]
        stem = self._cut(table.name, self.merge_name_max - len(digest) - len("__wkm"))
        return f"{stem}_{digest}_wkm"

    def _fold(self, name: str) -> str:
        return name.lower() if self.folds_case else name

    def _cut(self, name: str, length: int) -> str:
        if not self.name_encoding:
            return name[:length]
        return name.encode()[:length].decode(self.name_encoding, errors="ignore")
