"""Definitions of tables from Oracle's catalogue: columns, keys, indexes and foreign keys.

Columns that the server has added for itself are left out: hidden ones of features, those that are
unused, and that of row archival. Invisible columns of users are kept. Virtual columns are
`generated`: the log has no values of them. Follows sections 1 and 1b.12 of the reference.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.codec.oracle.types import OracleType, catalogue_type
from penstock.engines.oracle.connect import Connection, quote
from penstock.engines.oracle.reading.statements import (
    COLUMNS,
    CONSTRAINTS,
    INDEXES,
    KEY_COLUMNS,
)
from penstock.model import (
    ColumnDefinition,
    ForeignKey,
    Identity,
    TableDefinition,
    TableName,
    UniqueKey,
)

BLOCK_BYTES = 8192  # the usual size: for estimates alone
ROW_ARCHIVAL = "ORA_ARCHIVE_STATE"
# Names of columns that the server adds: SYS_NC00007$, SYS_C00002_26013112:00:00$, SYS_STU..., and
# those of guards and nested tables.
_OWN_COLUMN = re.compile(r"SYS_(?:NC|C|ST|IME|XDBPD|NT)[A-Z0-9_:$]*\Z|ORA_ROW.*|NESTED_TABLE_ID\Z")
_NO_ACTION = "NO ACTION"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A table as `ALL_TABLES` and `ALL_OBJECTS` have it.

    Attributes:
        object_id: OBJECT_ID, which stays for the life of the table.
        kind: why its rows are not rows of a table, as `SPECIAL_TABLES` says; empty if they are.
        iot_type: IOT, IOT_OVERFLOW, IOT_MAPPING or empty.
        row_count: NUM_ROWS of the last statistics; 0 without any.
        block_count: BLOCKS of the last statistics; 0 without any.
    """

    name: TableName
    object_id: int = 0
    kind: str = ""
    is_temporary: bool = False
    iot_type: str = ""
    is_nested: bool = False
    is_secondary: bool = False
    is_partitioned: bool = False
    row_count: int = 0
    block_count: int = 0

    @classmethod
    def of(cls, row: Sequence[Any], kind: str = "") -> TableRow:
        """Return a row of `TABLES`. kind: of the same table in `SPECIAL_TABLES`."""
        owner, name, number, temporary, iot, nested, secondary, parted, rows, blocks = row
        return cls(
            name=TableName(str(owner), str(name)),
            object_id=int(number),
            kind=kind,
            is_temporary=temporary == "Y",
            iot_type=str(iot or ""),
            is_nested=nested == "YES",
            is_secondary=secondary == "Y",
            is_partitioned=parted == "YES",
            row_count=int(rows or 0),
            block_count=int(blocks or 0),
        )

    @property
    def is_index_organized(self) -> bool:
        """Return whether rows are in the index of the key."""
        return self.iot_type == "IOT"


def definitions_of(
    connection: Connection, tables: Mapping[TableName, TableRow]
) -> list[TableDefinition]:
    """Return the definitions of these tables, ordered by name.

    The number of queries depends on that of the owners, not of the tables.
    """
    found: list[TableDefinition] = []
    targets = _Targets(connection)
    for owner in sorted({name.schema for name in tables}):
        columns = _by_table(connection.execute(COLUMNS, owner=owner))
        constraints = _by_table(connection.execute(CONSTRAINTS, owner=owner))
        indexes = _by_table(connection.execute(INDEXES, owner=owner))
        for name in sorted(tables):
            if name.schema == owner:
                rows = (columns[name.name], constraints[name.name], indexes[name.name])
                found.append(_definition(tables[name], *rows, targets))
    return found


def _by_table(rows: Iterable[Sequence[Any]]) -> dict[str, list[Sequence[Any]]]:
    found: dict[str, list[Sequence[Any]]] = defaultdict(list)
    for row in rows:
        found[str(row[0])].append(row)
    return found


class _Targets:
    """Columns of keys to which foreign keys refer, read once for each owner."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._keys: dict[str, dict[str, tuple[TableName, list[str]]]] = {}

    def find(self, owner: str, constraint: str) -> tuple[TableName, tuple[str, ...]] | None:
        """Return table and columns of a key; None if the user may not see it."""
        if owner not in self._keys:
            keys: dict[str, tuple[TableName, list[str]]] = {}
            for key, table, column in self._connection.execute(KEY_COLUMNS, owner=owner):
                entry = keys.setdefault(str(key), (TableName(owner, str(table)), []))
                entry[1].append(str(column))
            self._keys[owner] = keys
        found = self._keys[owner].get(constraint)
        return None if found is None else (found[0], tuple(found[1]))


def _definition(
    table: TableRow,
    columns: Sequence[Sequence[Any]],
    constraints: Sequence[Sequence[Any]],
    indexes: Sequence[Sequence[Any]],
    targets: _Targets,
) -> TableDefinition:
    made = tuple(column_of(row) for row in columns if is_of_user(row))
    stored = tuple(column.name for column in made if not column.generated)
    keys = [_Key(rows) for rows in _group(constraints)]
    primary = next((key.columns for key in keys if key.kind == "P" and key.holds), ())
    unique = [
        *(key for key in keys if key.kind == "U" or (key.kind == "P" and not key.holds)),
        *_unique_indexes(table.name, indexes, {key.columns for key in keys}),
    ]
    fit = {one.name for one in made if one.not_null and not one.generated}
    stand_in = primary or next(
        (key.columns for key in unique if key.holds and set(key.columns) <= fit), ()
    )
    return TableDefinition(
        name=table.name,
        source_id=table.object_id,
        columns=made,
        primary_key=primary,
        identity=(Identity.DEFAULT if primary else Identity.INDEX if stand_in else Identity.FULL),
        identity_columns=stand_in or stored,
        unique_keys=tuple(key.unique_key for key in unique),
        indexes=tuple(_plain_indexes(table.name, indexes)),
        foreign_keys=tuple(_foreign_keys(constraints, targets)),
        size_bytes=table.block_count * BLOCK_BYTES,
        row_estimate=table.row_count,
    )


def is_of_user(row: Sequence[Any]) -> bool:
    """Return whether a row of `COLUMNS` is a column that a user has declared."""
    name, hidden, generated_by_user = str(row[1]), row[10], row[12]
    if name == ROW_ARCHIVAL:
        return False
    return hidden != "YES" or (generated_by_user == "YES" and not _OWN_COLUMN.match(name))


def type_of(row: Sequence[Any]) -> OracleType:
    """Return the type of a row of `COLUMNS`."""
    return catalogue_type(
        str(row[2]),
        int(row[3] or 0),
        None if row[4] is None else int(row[4]),
        None if row[5] is None else int(row[5]),
        characters=int(row[8] or 0),
        is_in_characters=row[9] == "C",
    )


def column_of(row: Sequence[Any]) -> ColumnDefinition:
    """Return a row of `COLUMNS` as a column."""
    kind = type_of(row)
    is_virtual, is_identity = row[11] == "YES", row[13] == "YES"
    default = None if row[14] is None else str(row[14]).strip()
    return ColumnDefinition(
        name=str(row[1]),
        type_text=kind.text,
        type_oid=0,
        typmod=-1,
        not_null=row[6] == "N",
        default=None if is_identity else default or None,
        generated="v" if is_virtual else "",
        identity_kind="d" if is_identity else "",
        neutral=kind.neutral,
        is_invisible=row[10] == "YES",
        # The server's numbers change when a column is dropped: they identify nothing.
        id=int(row[7]) if is_virtual else 0,
        is_filled=is_identity or (default is not None and not is_virtual),
    )


def _group(rows: Sequence[Sequence[Any]]) -> list[list[Sequence[Any]]]:
    """Return rows in groups of the same second column."""
    groups: dict[str, list[Sequence[Any]]] = {}
    for row in rows:
        groups.setdefault(str(row[1]), []).append(row)
    return list(groups.values())


class _Key:
    """Key of a table from rows of `CONSTRAINTS`.

    Attributes:
        kind: P, U or R.
        holds: it is enabled, and all rows have been checked.
    """

    def __init__(self, rows: Sequence[Sequence[Any]]) -> None:
        _, name, self.kind, status, validated, *_ = rows[0]
        self.name = str(name)
        self.holds = status == "ENABLED" and validated == "VALIDATED"
        self.columns = tuple(str(row[8]) for row in rows)

    @property
    def unique_key(self) -> UniqueKey:
        """Return the key in the terms of all engines."""
        listed = ", ".join(map(quote, self.columns))
        return UniqueKey(
            name=self.name,
            columns=self.columns,
            definition=f"UNIQUE ({listed})",
            is_constraint=True,
            is_whole=self.holds,
        )


class _IndexKey(_Key):
    """Unique index that no constraint has."""

    def __init__(self, table: TableName, rows: Sequence[Sequence[Any]]) -> None:
        self.kind, self.name, self.holds = "U", str(rows[0][1]), True
        self.columns = tuple(str(row[3]) for row in rows)
        self._sql = _index_sql(table, rows)

    @property
    def unique_key(self) -> UniqueKey:
        """Return the key in the terms of all engines."""
        return UniqueKey(
            name=self.name, columns=self.columns, definition=self._sql, is_constraint=False
        )


def _unique_indexes(
    table: TableName, indexes: Sequence[Sequence[Any]], known: set[tuple[str, ...]]
) -> list[_IndexKey]:
    unique = [_IndexKey(table, rows) for rows in _group(indexes) if rows[0][2] == "UNIQUE"]
    return [one for one in unique if one.columns not in known and not _is_computed(one.columns)]


def _plain_indexes(table: TableName, indexes: Sequence[Sequence[Any]]) -> Iterable[str]:
    for rows in _group(indexes):
        columns = tuple(str(row[3]) for row in rows)
        if rows[0][2] == "UNIQUE":
            continue
        if _is_computed(columns):
            yield f"{rows[0][1]}: an index over expressions, or in descending order"
        else:
            yield _index_sql(table, rows)


def _is_computed(columns: Sequence[str]) -> bool:
    """Return whether an index has an expression, whose column the server has named."""
    return any(_OWN_COLUMN.match(one) for one in columns)


def _index_sql(table: TableName, rows: Sequence[Sequence[Any]]) -> str:
    unique = "UNIQUE " if rows[0][2] == "UNIQUE" else ""
    listed = ", ".join(f"{quote(str(row[3]))}{' DESC' if row[4] == 'DESC' else ''}" for row in rows)
    return f"CREATE {unique}INDEX {quote(str(rows[0][1]))} ON {quote(*table)} ({listed})"


def _foreign_keys(constraints: Sequence[Sequence[Any]], targets: _Targets) -> Iterable[ForeignKey]:
    for rows in _group(constraints):
        key = _Key(rows)
        if key.kind != "R" or rows[0][3] != "ENABLED":
            continue
        found = targets.find(str(rows[0][5]), str(rows[0][6]))
        if found is None:
            continue
        target, columns = found
        action = str(rows[0][7] or _NO_ACTION)
        more = "" if action == _NO_ACTION else f" ON DELETE {action}"
        yield ForeignKey(
            name=key.name,
            columns=key.columns,
            target=target,
            target_columns=columns,
            definition=(
                f"FOREIGN KEY ({', '.join(map(quote, key.columns))}) REFERENCES {quote(*target)} "
                f"({', '.join(map(quote, columns))}){more}"
            ),
            on_delete=action,
            on_update=_NO_ACTION,
        )
