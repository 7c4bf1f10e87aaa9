"""Catalogue of the target for the tables that changes are applied to. It is only read.

Names are compared as they are: they are written in quotes. Not here: creating and altering tables
(`shapes.py`, `alter.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.codec.oracle.types import OracleType, catalogue_type, parse_type
from penstock.engines.oracle.connect import Connection, quote
from penstock.engines.oracle.target.progress import name_work
from penstock.model import TableName
from penstock.ports.target import TargetTableMissing

TABLES = "SELECT table_name FROM all_tables WHERE owner = :owner"
COLUMNS = """
    SELECT table_name, column_name, data_type, data_length, data_precision, data_scale, nullable,
           char_length, char_used, virtual_column, identity_column
      FROM all_tab_cols
     WHERE owner = :owner AND hidden_column = 'NO'
     ORDER BY table_name, internal_column_id
"""
CONSTRAINTS = """
    SELECT c.table_name, c.constraint_name, c.constraint_type, c.status, c.index_name,
           k.column_name
      FROM all_constraints c
      JOIN all_cons_columns k ON k.owner = c.owner AND k.constraint_name = c.constraint_name
     WHERE c.owner = :owner AND c.constraint_type IN ('P', 'U')
     ORDER BY c.table_name, c.constraint_name, k.position
"""
INDEXES = """
    SELECT i.table_name, i.owner, i.index_name, i.uniqueness, i.index_type, k.column_name, k.descend
      FROM all_indexes i
      JOIN all_ind_columns k ON k.index_owner = i.owner AND k.index_name = i.index_name
     WHERE i.table_owner = :owner
     ORDER BY i.table_name, i.index_name, k.column_position
"""
TRIGGERS = """
    SELECT table_name, owner, trigger_name
      FROM all_triggers
     WHERE table_owner = :owner AND status = 'ENABLED'
     ORDER BY table_name, owner, trigger_name
"""
FOREIGN_KEYS = """
    SELECT f.constraint_name, f.owner, f.table_name, p.owner, p.table_name, f.delete_rule,
           f.status, f.deferrable
      FROM all_constraints f
      JOIN all_constraints p ON p.owner = f.r_owner AND p.constraint_name = f.r_constraint_name
     WHERE f.constraint_type = 'R' AND (f.owner = :owner OR p.owner = :owner)
     ORDER BY f.owner, f.table_name, f.constraint_name
"""
DEFAULTS = """
    SELECT table_name, column_name, data_default
      FROM all_tab_cols
     WHERE owner = :owner AND hidden_column = 'NO' AND nullable = 'N'
"""

DOING = "reading the target's tables"
_TEXTS = frozenset(("CHAR", "VARCHAR2", "NCHAR", "NVARCHAR2"))
_LARGE = frozenset(("CLOB", "NCLOB", "BLOB", "LONG", "LONG RAW"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumn:
    """Column of a target table.

    Attributes:
        kind: Its type.
        is_generated: The server gives it its values: it is virtual.
        is_identity: The server numbers it; a value that is given is taken if it is `BY DEFAULT`.
    """

    name: str
    kind: OracleType
    not_null: bool
    is_generated: bool = False
    is_identity: bool = False

    @property
    def type_text(self) -> str:
        """Text of its type in SQL; lengths have their unit."""
        if self.kind.base in ("CHAR", "VARCHAR2"):
            unit = "CHAR" if self.kind.is_in_characters else "BYTE"
            return f"{self.kind.base}({self.kind.length} {unit})"
        return self.kind.text

    @property
    def is_text(self) -> bool:
        """Return whether it is text that can be compared."""
        return self.kind.base in _TEXTS

    @property
    def is_large(self) -> bool:
        """Return whether it is a LOB or a LONG, which cannot be compared."""
        return self.kind.base in _LARGE


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetIndex:
    """Index or key of a target table.

    Attributes:
        owner: Schema of the index.
        columns: Key columns, in order; an expression has a name of the server's.
        descending: Those that are in descending order.
        is_constraint: It is a primary key or a unique constraint, of this name.
        is_plain: It is a B-tree of columns, which these fields describe in full.
    """

    name: str
    columns: tuple[str, ...]
    owner: str = ""
    descending: frozenset[str] = frozenset()
    is_primary: bool = False
    is_unique: bool = False
    is_constraint: bool = False
    is_plain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetForeignKey:
    """Foreign key between two tables of the target.

    Attributes:
        on_delete: NO ACTION, CASCADE or SET NULL.
        is_deferrable: Its check can wait until the end of the transaction.
    """

    name: str
    child: TableName
    parent: TableName
    on_delete: str = "NO ACTION"
    is_deferrable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTable:
    """Target table as the apply statements need to know it.

    Attributes:
        triggers: Names of its enabled triggers, each with its owner.
        parents: Enabled foreign keys from it.
        children: Enabled foreign keys to it. One to itself is in both.
    """

    name: TableName
    columns: tuple[TargetColumn, ...]
    indexes: tuple[TargetIndex, ...] = ()
    triggers: tuple[tuple[str, str], ...] = ()
    parents: tuple[TargetForeignKey, ...] = ()
    children: tuple[TargetForeignKey, ...] = ()

    def column(self, name: str) -> TargetColumn | None:
        """Return the column of this name, or None."""
        return next((column for column in self.columns if column.name == name), None)

    @property
    def sql_name(self) -> str:
        """Return the quoted, qualified name."""
        return quote(*self.name)

    @property
    def primary(self) -> TargetIndex | None:
        """Return the primary key, or None."""
        return next((index for index in self.indexes if index.is_primary), None)


def read_target_tables(
    connection: Connection, names: Iterable[TableName]
) -> dict[TableName, TargetTable]:
    """Read the catalogue for these target tables; those that do not exist are left out."""
    wanted = sorted(set(names))
    found: dict[TableName, TargetTable] = {}
    with name_work(DOING):
        for schema in sorted({name.schema for name in wanted}):
            present = {str(row[0]) for row in connection.execute(TABLES, owner=schema)}
            parts = {
                query: _by_table(connection.execute(query, owner=schema))
                for query in (COLUMNS, CONSTRAINTS, INDEXES, TRIGGERS)
            }
            keys = [
                key
                for row in connection.execute(FOREIGN_KEYS, owner=schema)
                if (key := _foreign_key(row)) is not None
            ]
            for name in wanted:
                if name.schema == schema and name.name in present:
                    found[name] = _table(name, parts, keys)
    return found


def columns_with_default(connection: Connection, name: TableName) -> set[str]:
    """Return the columns of a table that are NOT NULL and can be left out of an INSERT."""
    with name_work(DOING):
        rows = connection.execute(DEFAULTS, owner=name.schema)
    return {str(column) for table, column, text in rows if table == name.name and text is not None}


def require(tables: Mapping[TableName, TargetTable], name: TableName) -> TargetTable:
    """Return the table of this name. Raises TargetTableMissing."""
    if name not in tables:
        raise TargetTableMissing(
            f"the target has no table {name}",
            hint="If it was dropped, load it again: penstock table resync FILE TABLE. Otherwise "
            "create it as the source has it, with its names in quotes.",
            table=str(name),
        )
    return tables[name]


def same_type(left: str, right: str) -> bool:
    """Return whether two texts are the same type."""
    return parse_type(left) == parse_type(right)


Parts = Mapping[str, Mapping[str, list[tuple[Any, ...]]]]


def _table(name: TableName, parts: Parts, keys: Iterable[TargetForeignKey]) -> TargetTable:
    keys = list(keys)
    return TargetTable(
        name=name,
        columns=tuple(map(_column, parts[COLUMNS].get(name.name, ()))),
        indexes=_indexes(parts[CONSTRAINTS].get(name.name, ()), parts[INDEXES].get(name.name, ())),
        triggers=tuple((str(row[1]), str(row[2])) for row in parts[TRIGGERS].get(name.name, ())),
        parents=tuple(key for key in keys if key.child == name),
        children=tuple(key for key in keys if key.parent == name),
    )


def _by_table(rows: Iterable[tuple[Any, ...]]) -> dict[str, list[tuple[Any, ...]]]:
    grouped: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        grouped[str(row[0])].append(row)
    return grouped


def _column(row: tuple[Any, ...]) -> TargetColumn:
    _, name, base, length, precision, scale, nullable, characters, unit, virtual, identity = row
    return TargetColumn(
        name=str(name),
        kind=catalogue_type(
            str(base),
            int(length or 0),
            None if precision is None else int(precision),
            None if scale is None else int(scale),
            characters=int(characters or 0),
            is_in_characters=unit == "C",
        ),
        not_null=nullable == "N",
        is_generated=virtual == "YES",
        is_identity=identity == "YES",
    )


def _indexes(
    constraints: Iterable[tuple[Any, ...]], indexes: Iterable[tuple[Any, ...]]
) -> tuple[TargetIndex, ...]:
    """Return keys and indexes; the index of a constraint is not listed again."""
    keys: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in constraints:
        if row[3] == "ENABLED":
            keys[str(row[1])].append(row)
    others: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    used = {str(rows[0][4]) for rows in keys.values()}
    for row in indexes:
        if str(row[2]) not in used:
            others[str(row[2])].append(row)
    found = [
        TargetIndex(
            name=name,
            columns=tuple(str(row[5]) for row in rows),
            is_primary=rows[0][2] == "P",
            is_unique=True,
            is_constraint=True,
        )
        for name, rows in keys.items()
    ]
    return (
        *found,
        *(
            TargetIndex(
                name=name,
                owner=str(rows[0][1]),
                columns=tuple(str(row[5]) for row in rows),
                descending=frozenset(str(row[5]) for row in rows if row[6] == "DESC"),
                is_unique=rows[0][3] == "UNIQUE",
                is_plain=rows[0][4] == "NORMAL",
            )
            for name, rows in others.items()
        ),
    )


def _foreign_key(row: tuple[Any, ...]) -> TargetForeignKey | None:
    """Return an enabled foreign key; None for a disabled one."""
    name, owner, table, parent_owner, parent, action, status, deferrable = row
    if status != "ENABLED":
        return None
    return TargetForeignKey(
        name=str(name),
        child=TableName(str(owner), str(table)),
        parent=TableName(str(parent_owner), str(parent)),
        on_delete=str(action or "NO ACTION"),
        is_deferrable=deferrable == "DEFERRABLE",
    )
