"""Definitions of tables from SQL Server's catalogue: columns, keys, indexes and foreign keys.

Columns of an alias type have the type below it. Computed columns are `generated`; their values are
NULL in change tables, so they are neither copied nor captured (reference, S12). Follows sections 2
and 7 of the reference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.codec.sqlserver.types import SqlServerType, catalogue_type
from penstock.engines.sqlserver.connect import Connection, quote
from penstock.engines.sqlserver.reading.statements import COLUMNS, FOREIGN_KEYS, INDEXES
from penstock.model import (
    ColumnDefinition,
    ForeignKey,
    Identity,
    TableDefinition,
    TableName,
    UniqueKey,
)

PAGE_BYTES = 8192
_ROWSTORE = (1, 2)  # clustered and nonclustered, not columnstore, XML, spatial
_NO_ACTION = "NO ACTION"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A table as `sys.tables` has it.

    Attributes:
        modified: modify_date, as text.
        row_count: of the heap or the clustered index.
        page_count: of 8,192 bytes.
    """

    name: TableName
    object_id: int
    is_memory_optimized: bool
    is_external: bool
    is_filetable: bool
    temporal_type: int
    modified: str
    row_count: int
    page_count: int

    @classmethod
    def of(cls, row: Sequence[Any]) -> TableRow:
        """Return a row of `TABLES`."""
        schema, name, number, memory, external, files, temporal, modified, rows, pages = row
        return cls(
            name=TableName(str(schema), str(name)),
            object_id=int(number),
            is_memory_optimized=bool(memory),
            is_external=bool(external),
            is_filetable=bool(files),
            temporal_type=int(temporal or 0),
            modified=str(modified),
            row_count=int(rows or 0),
            page_count=int(pages or 0),
        )


def definitions_of(
    connection: Connection, tables: Mapping[TableName, TableRow]
) -> list[TableDefinition]:
    """Return the definitions of these tables, ordered by name."""
    if not tables:
        return []
    columns = _by_table(connection.execute(COLUMNS))
    indexes = _by_table(connection.execute(INDEXES))
    keys = _by_table(connection.execute(FOREIGN_KEYS))
    return [
        _definition(
            tables[name],
            columns[tables[name].object_id],
            indexes[tables[name].object_id],
            keys[tables[name].object_id],
        )
        for name in sorted(tables)
    ]


def _by_table(rows: Iterable[Sequence[Any]]) -> dict[int, list[Sequence[Any]]]:
    found: dict[int, list[Sequence[Any]]] = defaultdict(list)
    for row in rows:
        found[int(row[0])].append(row)
    return found


def _definition(
    table: TableRow,
    columns: Sequence[Sequence[Any]],
    indexes: Sequence[Sequence[Any]],
    keys: Sequence[Sequence[Any]],
) -> TableDefinition:
    made = tuple(map(column_of, columns))
    known = [_Index(table.name, rows) for rows in _group(indexes, 1)]
    primary = next((one.columns for one in known if one.is_primary), ())
    stand_in = primary or _without_null(known, made)
    sent = tuple(column.name for column in made if not column.generated)
    return TableDefinition(
        name=table.name,
        source_id=table.object_id,
        columns=made,
        primary_key=primary,
        identity=(Identity.DEFAULT if primary else Identity.INDEX if stand_in else Identity.FULL),
        identity_columns=stand_in or sent,
        unique_keys=tuple(one.unique_key for one in known if one.is_unique and not one.is_primary),
        indexes=tuple(one.sql for one in known if one.is_rowstore and not one.is_unique),
        foreign_keys=tuple(_foreign_key(rows) for rows in _group(keys, 1)),
        size_bytes=table.page_count * PAGE_BYTES,
        row_estimate=table.row_count,
    )


def _group(rows: Sequence[Sequence[Any]], place: int) -> list[list[Sequence[Any]]]:
    groups: dict[Any, list[Sequence[Any]]] = {}
    for row in rows:
        groups.setdefault(row[place], []).append(row)
    return list(groups.values())


def column_of(row: Sequence[Any]) -> ColumnDefinition:
    """Return a row of `COLUMNS` as a column."""
    (_, number, name, base, own, length, precision, scale, nullable, identity, collation,
     default, computed, is_persisted) = row  # fmt: skip
    kind = type_of(base, own, int(length), int(precision), int(scale))
    generated = "" if computed is None else "s" if is_persisted else "v"
    return ColumnDefinition(
        name=str(name),
        type_text=kind.text,
        type_oid=0,
        typmod=-1,
        not_null=not nullable,
        default=computed if computed is not None else default,
        generated=generated,
        identity_kind="a" if identity else "",
        collation=collation,
        neutral=kind.neutral,
        id=int(number),
        is_filled=bool(identity) or default is not None or kind.base == "rowversion",
    )


def type_of(
    base: str | None, own: str, max_length: int, precision: int, scale: int
) -> SqlServerType:
    """Return the type of a column. base: NULL for types of the CLR, also those of the server."""
    return catalogue_type(str(base or own), max_length, precision, scale)


def _without_null(
    indexes: Sequence[_Index], columns: Sequence[ColumnDefinition]
) -> tuple[str, ...]:
    """Return the columns of the first unique key that has no NULL; empty if there is none."""
    fit = {one.name for one in columns if one.not_null and not one.generated}
    return next(
        (one.columns for one in indexes if one.is_plain_unique and set(one.columns) <= fit), ()
    )


class _Index:
    """Index from its rows in `INDEXES`."""

    def __init__(self, table: TableName, rows: Sequence[Sequence[Any]]) -> None:
        (_, _, name, kind, primary, unique, constraint, filter_text, disabled, *_) = rows[0]
        self._table = table
        self.name = str(name)
        self.is_rowstore = int(kind) in _ROWSTORE
        self.is_primary = bool(primary)
        self.is_unique = bool(unique)
        self.is_constraint = bool(constraint) or bool(primary)
        self._filter = str(filter_text or "")
        self.is_whole = not self._filter and not disabled
        self._keys = [row for row in rows if not row[11]]
        self._included = [str(row[9]) for row in rows if row[11]]
        self.columns = tuple(str(row[9]) for row in self._keys)

    @property
    def is_plain_unique(self) -> bool:
        return self.is_unique and self.is_whole and self.is_rowstore

    @property
    def sql(self) -> str:
        """Return the statement that creates it."""
        unique = "UNIQUE " if self.is_unique else ""
        shown = ", ".join(f"{quote(str(row[9]))}{' DESC' if row[10] else ''}" for row in self._keys)
        included = ", ".join(map(quote, self._included))
        more = f" INCLUDE ({included})" if included else ""
        where = f" WHERE {self._filter}" if self._filter else ""
        return (
            f"CREATE {unique}INDEX {quote(self.name)} ON {quote(*self._table)} "
            f"({shown}){more}{where}"
        )

    @property
    def unique_key(self) -> UniqueKey:
        return UniqueKey(
            name=self.name,
            columns=self.columns,
            definition=self.sql,
            is_constraint=self.is_constraint,
            is_whole=self.is_whole,
        )


def _foreign_key(rows: Sequence[Sequence[Any]]) -> ForeignKey:
    _, name, schema, table, _, _, on_delete, on_update = rows[0]
    columns = tuple(str(row[4]) for row in rows)
    targets = tuple(str(row[5]) for row in rows)
    target = TableName(str(schema), str(table))
    actions = [
        f" ON {event} {action}"
        for event, action in (("DELETE", _action(on_delete)), ("UPDATE", _action(on_update)))
        if action != _NO_ACTION
    ]
    return ForeignKey(
        name=str(name),
        columns=columns,
        target=target,
        target_columns=targets,
        definition=(
            f"FOREIGN KEY ({', '.join(map(quote, columns))}) REFERENCES {quote(*target)} "
            f"({', '.join(map(quote, targets))}){''.join(actions)}"
        ),
        on_delete=_action(on_delete),
        on_update=_action(on_update),
    )


def _action(text: str) -> str:
    return str(text).replace("_", " ")
