"""Catalogue of the target for the tables that changes are applied to. It is only read.

Names are compared as a catalogue of a case-insensitive database does. Not here: creating and
altering tables (`shapes.py`, `alter.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.codec.sqlserver.types import SqlServerType, catalogue_type, parse_type
from penstock.engines.sqlserver.connect import Connection, quote
from penstock.engines.sqlserver.target.progress import name_work
from penstock.model import TableName
from penstock.ports.target import TargetTableMissing

TABLES = """
    SELECT t.name
      FROM sys.tables AS t
      JOIN sys.schemas AS s ON s.schema_id = t.schema_id
     WHERE s.name = ?
"""
COLUMNS = """
    SELECT t.name, c.name, b.name, y.name, c.max_length, c.[precision], c.[scale],
           c.is_nullable, c.is_identity, c.is_computed, c.generated_always_type,
           c.collation_name, d.name
      FROM sys.tables AS t
      JOIN sys.schemas AS s ON s.schema_id = t.schema_id
      JOIN sys.columns AS c ON c.object_id = t.object_id
      JOIN sys.types AS y ON y.user_type_id = c.user_type_id
      LEFT JOIN sys.types AS b ON b.user_type_id = c.system_type_id
      LEFT JOIN sys.default_constraints AS d ON d.parent_object_id = c.object_id
                                            AND d.parent_column_id = c.column_id
     WHERE s.name = ?
     ORDER BY t.name, c.column_id
"""
INDEXES = """
    SELECT t.name, i.name, i.is_primary_key, i.is_unique, i.is_unique_constraint,
           i.filter_definition, i.is_disabled, c.name, x.is_included_column, x.is_descending_key,
           i.type
      FROM sys.tables AS t
      JOIN sys.schemas AS s ON s.schema_id = t.schema_id
      JOIN sys.indexes AS i ON i.object_id = t.object_id
      JOIN sys.index_columns AS x ON x.object_id = i.object_id AND x.index_id = i.index_id
      JOIN sys.columns AS c ON c.object_id = x.object_id AND c.column_id = x.column_id
     WHERE s.name = ?
     ORDER BY t.name, i.index_id, x.key_ordinal
"""
TRIGGERS = """
    SELECT t.name, r.name
      FROM sys.tables AS t
      JOIN sys.schemas AS s ON s.schema_id = t.schema_id
      JOIN sys.triggers AS r ON r.parent_id = t.object_id
     WHERE s.name = ? AND r.is_disabled = 0
     ORDER BY t.name, r.name
"""
FOREIGN_KEYS = """
    SELECT f.name, cs.name, c.name, ps.name, p.name, f.delete_referential_action_desc,
           f.is_disabled
      FROM sys.foreign_keys AS f
      JOIN sys.tables AS c ON c.object_id = f.parent_object_id
      JOIN sys.schemas AS cs ON cs.schema_id = c.schema_id
      JOIN sys.tables AS p ON p.object_id = f.referenced_object_id
      JOIN sys.schemas AS ps ON ps.schema_id = p.schema_id
     ORDER BY cs.name, c.name, f.name
"""

DOING = "reading the target's tables"
_TEXTS = frozenset(("char", "varchar", "nchar", "nvarchar", "text", "ntext"))
_ROW_VERSION = "rowversion"
_ROWSTORES = (1, 2)  # sys.indexes.type: clustered, nonclustered
_CLUSTERED = (1, 5)  # of rows, of columns


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumn:
    """Column of a target table.

    Attributes:
        kind: Its type.
        collation: Empty unless it is text.
        is_generated: The server gives it its values: computed, rowversion, or of a period.
        default_name: Name of its default's constraint; empty if it has none.
    """

    name: str
    kind: SqlServerType
    not_null: bool
    is_identity: bool = False
    is_generated: bool = False
    collation: str = ""
    default_name: str = ""

    @property
    def type_text(self) -> str:
        """Text of its type in T-SQL."""
        return self.kind.text

    @property
    def is_text(self) -> bool:
        """Return whether its collation compares its values."""
        return self.kind.base in _TEXTS

    @property
    def is_binary(self) -> bool:
        """Return whether its text is compared exactly but for blanks at the end."""
        return "_BIN" in self.collation.upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetIndex:
    """Index of a target table.

    Attributes:
        columns: Key columns, in order.
        included: Columns that it stores besides.
        descending: Those of the key columns that are in descending order.
        where: Condition of the rows that it has, as the server prints it; empty if it has all.
        is_constraint: It belongs to a primary key or a unique constraint.
        is_clustered: The table's rows are stored in its order.
        is_rowstore: It is a B-tree, which these fields describe in full. Others are of XML, of
            places, or by columns.
    """

    name: str
    columns: tuple[str, ...]
    included: tuple[str, ...] = ()
    descending: frozenset[str] = frozenset()
    where: str = ""
    is_primary: bool = False
    is_unique: bool = False
    is_constraint: bool = False
    is_clustered: bool = False
    is_rowstore: bool = True
    is_disabled: bool = False

    def uses(self, column: str) -> bool:
        """Return whether the server refuses to alter the column because of this index."""
        listed = column in self.columns or column in self.included
        return listed or quote(column).lower() in self.where.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetForeignKey:
    """Foreign key between two tables of the target.

    Attributes:
        on_delete: NO_ACTION, CASCADE, SET_NULL or SET_DEFAULT.
        is_enabled: The server checks it.
    """

    name: str
    child: TableName
    parent: TableName
    on_delete: str = "NO_ACTION"
    is_enabled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTable:
    """Target table as the apply statements need to know it.

    Attributes:
        name: As the server spells it.
        triggers: Names of its enabled triggers.
        parents: Enabled foreign keys from it.
        children: Enabled foreign keys to it. One to itself is in both.
        is_referred_to: It has foreign keys to it, enabled or not, so TRUNCATE is refused.
    """

    name: TableName
    columns: tuple[TargetColumn, ...]
    indexes: tuple[TargetIndex, ...] = ()
    triggers: tuple[str, ...] = ()
    parents: tuple[TargetForeignKey, ...] = ()
    children: tuple[TargetForeignKey, ...] = ()
    is_referred_to: bool = False

    def column(self, name: str) -> TargetColumn | None:
        """Return the column of this name, or None."""
        wanted = name.lower()
        return next((column for column in self.columns if column.name.lower() == wanted), None)

    @property
    def sql_name(self) -> str:
        """Return the quoted, qualified name."""
        return quote(*self.name)

    @property
    def primary(self) -> TargetIndex | None:
        """Return the primary key's index, or None."""
        return next((index for index in self.indexes if index.is_primary), None)

    @property
    def identity(self) -> TargetColumn | None:
        """Return the identity column, or None."""
        return next((column for column in self.columns if column.is_identity), None)

    @property
    def has_others_unique(self) -> bool:
        """Return whether it has a unique index besides the primary key."""
        return any(index.is_unique and not index.is_primary for index in self.indexes)


def read_target_tables(
    connection: Connection, names: Iterable[TableName]
) -> dict[TableName, TargetTable]:
    """Read the catalogue for these target tables; those that do not exist are left out."""
    wanted = sorted(set(names))
    found: dict[TableName, TargetTable] = {}
    if not wanted:
        return found
    with name_work(DOING):
        keys = [_foreign_key(row) for row in connection.execute(FOREIGN_KEYS)]
        for schema in sorted({name.schema for name in wanted}):
            present = {str(row[0]).lower(): row[0] for row in connection.execute(TABLES, schema)}
            parts = {
                query: _by_table(connection.execute(query, schema))
                for query in (COLUMNS, INDEXES, TRIGGERS)
            }
            for name in wanted:
                folded = name.name.lower()
                if name.schema == schema and folded in present:
                    own = TableName(schema, present[folded])
                    found[name] = _table(own, folded, parts, keys)
    return found


def require(tables: Mapping[TableName, TargetTable], name: TableName) -> TargetTable:
    """Return the table of this name. Raises TargetTableMissing."""
    if name not in tables:
        raise TargetTableMissing(
            f"the target has no table {name}",
            hint="If it was dropped, load it again: penstock table resync FILE TABLE. Otherwise "
            "create it as the source has it.",
            table=str(name),
        )
    return tables[name]


def same_type(left: str, right: str) -> bool:
    """Return whether two texts are the same type, without their collations."""
    return parse_type(without_collation(left)) == parse_type(without_collation(right))


def without_collation(text: str) -> str:
    """Return a type's text without COLLATE and what follows."""
    return text.upper().partition(" COLLATE ")[0].lower()


def _table(
    name: TableName,
    folded: str,
    parts: Mapping[str, Mapping[str, list[tuple[Any, ...]]]],
    keys: Iterable[TargetForeignKey],
) -> TargetTable:
    keys = list(keys)
    return TargetTable(
        name=name,
        columns=tuple(map(_column, parts[COLUMNS].get(folded, ()))),
        indexes=_indexes(parts[INDEXES].get(folded, ())),
        triggers=tuple(str(row[1]) for row in parts[TRIGGERS].get(folded, ())),
        parents=tuple(key for key in keys if key.child == name and key.is_enabled),
        children=tuple(key for key in keys if key.parent == name and key.is_enabled),
        is_referred_to=any(key.parent == name for key in keys),
    )


def _by_table(rows: Iterable[tuple[Any, ...]]) -> dict[str, list[tuple[Any, ...]]]:
    grouped: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        grouped[str(row[0]).lower()].append(row)
    return grouped


def _column(row: tuple[Any, ...]) -> TargetColumn:
    _, name, base, own, length, precision, scale, nullable, identity, computed, period = row[:11]
    kind = catalogue_type(str(base or own), int(length), int(precision), int(scale))
    return TargetColumn(
        name=str(name),
        kind=kind,
        not_null=not nullable,
        is_identity=bool(identity),
        is_generated=bool(computed) or bool(period) or kind.base == _ROW_VERSION,
        collation=str(row[11] or ""),
        default_name=str(row[12] or ""),
    )


def _indexes(rows: Iterable[tuple[Any, ...]]) -> tuple[TargetIndex, ...]:
    grouped: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows:
        grouped.setdefault(str(row[1]), []).append(row)
    return tuple(
        TargetIndex(
            name=name,
            columns=tuple(str(row[7]) for row in parts if not row[8]),
            included=tuple(str(row[7]) for row in parts if row[8]),
            descending=frozenset(str(row[7]) for row in parts if row[9]),
            where=str(parts[0][5] or ""),
            is_primary=bool(parts[0][2]),
            is_unique=bool(parts[0][3]),
            is_constraint=bool(parts[0][2]) or bool(parts[0][4]),
            is_clustered=parts[0][10] in _CLUSTERED,
            is_rowstore=parts[0][10] in _ROWSTORES,
            is_disabled=bool(parts[0][6]),
        )
        for name, parts in grouped.items()
    )


def _foreign_key(row: tuple[Any, ...]) -> TargetForeignKey:
    name, child_schema, child, parent_schema, parent, action, is_disabled = row
    return TargetForeignKey(
        name=str(name),
        child=TableName(str(child_schema), str(child)),
        parent=TableName(str(parent_schema), str(parent)),
        on_delete=str(action),
        is_enabled=not is_disabled,
    )
