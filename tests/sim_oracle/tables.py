"""Tables of the model: versions of their columns, segments, rows with all their versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sim_oracle.columns import Column, Row, Value, parse_column
from sim_oracle.constraints import Constraint, Index, Key, Trigger
from sim_oracle.rowids import RowId, parse_rowid

ROWS_OF_A_BLOCK = 60
FILE = 7
FIRST_BLOCK = 163
EXTENT_BLOCKS = 8


@dataclass(frozen=True, slots=True, eq=False)
class TableVersion:
    """A table as the dictionary has it between two DDL statements.

    Attributes:
        owner: Schema.
        name: Name.
        number: DATA_OBJV#.
        columns: Columns, in order.
        key: Columns of the primary key; may be empty.
        supplemental: Columns that are logged: ALL, PRIMARY KEY, or NONE.
        object_id: DATA_OBJ# of the table.
    """

    owner: str
    name: str
    number: int
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    supplemental: str
    object_id: int

    def column(self, name: str) -> Column:
        """Return a column by name."""
        return next(column for column in self.columns if column.name == name)

    def logged_names(self, changed: Iterable[str] | None) -> tuple[str, ...]:
        """Return the columns of a statement's condition; None is a delete, which has all."""
        names = [column.name for column in self.columns if column.is_logged]
        if self.supplemental == "ALL" or (changed is None and self.supplemental != "NONE"):
            return tuple(names)
        if self.supplemental == "NONE":
            return ()
        wanted = {*self.key, *(changed or ())}
        return tuple(name for name in names if name in wanted)


@dataclass(slots=True, eq=False)
class Segment:
    """The rows of a table or of one of its partitions.

    Attributes:
        partition: Name; None for the segment of a table without partitions.
        object_id: DATA_OBJ#, which stays.
        data_object_id: DATA_OBJD#, which TRUNCATE and MOVE change.
    """

    partition: str | None
    object_id: int
    data_object_id: int
    next_row: int = 0
    free: list[str] = field(default_factory=list)

    def new_row_id(self, reuse: bool) -> str:
        """Return the row id for a new row: a freed one, or the next."""
        if reuse and self.free:
            return self.free.pop()
        block, row = divmod(self.next_row, ROWS_OF_A_BLOCK)
        self.next_row += 1
        return str(RowId(self.data_object_id, FILE, FIRST_BLOCK + block, row))

    @property
    def blocks(self) -> int:
        """Return how many blocks have rows."""
        return -(-self.next_row // ROWS_OF_A_BLOCK)


class Table:
    """A table with its current rows, uncommitted ones too, and its committed versions.

    Attributes:
        container: PDB that has it.
        version: Its columns now.
        first_scn: SCN of its last DDL: earlier SCNs cannot be read.
        segments: By name of the partition, or None.
        partition_by: Column whose value chooses the partition.
        rows: Current rows by row id.
        keys: Row ids by primary key, uncommitted ones too.
        locks: Open transaction that changed a row, by row id.
        key_locks: Open transaction that freed a key, by key.
        is_temporary: Whether it is a global temporary table.
        is_logging: Whether direct loads write redo.
        is_dropped: Whether it was dropped.
        is_index_organized: Whether rows are in the key's index.
        lob_layout: `locator` (12c to 21c) or `block` (23ai).
        lob_storage: SECUREFILE or BASICFILE.
        lob_inline: Characters or bytes of a LOB that is stored in the row.
        lob_chunk: Characters or bytes of one write.
        key_name: Name of the primary key's constraint.
        constraints: Unique constraints, foreign keys and checks by name.
        indexes: Indexes other than those of constraints, by name.
        triggers: Triggers by name.
        table_locks: Mode of LOCK TABLE by transaction.
        referring: Tables with foreign keys to this one.
        identity_next: Next number of its identity column.
        analyzed_rows: NUM_ROWS; None before statistics were gathered.
    """

    def __init__(
        self,
        container: str,
        version: TableVersion,
        *,
        partitions: dict[str, int] | None = None,
        partition_by: str | None = None,
        first_scn: int = 0,
        **flags: Any,
    ) -> None:
        self.container = container
        self.version = version
        self.first_scn = first_scn
        names: dict[str | None, int] = {}
        names.update((partitions or {}).items())
        names = names or {None: version.object_id}
        self.segments = {name: Segment(name, number, number) for name, number in names.items()}
        self.partition_by = partition_by
        self.rows: dict[str, Row] = {}
        self.keys: dict[tuple[Value, ...], str] = {}
        self.locks: dict[str, Any] = {}
        self.key_locks: dict[tuple[Value, ...], Any] = {}
        self.history: dict[str, list[tuple[int, Row | None]]] = {}
        self.is_temporary: bool = flags.pop("is_temporary", False)
        self.is_logging: bool = flags.pop("is_logging", True)
        self.is_index_organized: bool = flags.pop("is_index_organized", False)
        self.lob_layout: str = flags.pop("lob_layout", "locator")
        self.lob_inline: int = flags.pop("lob_inline", 1000)
        self.lob_chunk: int = flags.pop("lob_chunk", 1000)
        self.lob_storage: str = flags.pop("lob_storage", "SECUREFILE")
        self.is_dropped = False
        self.key_name = f"{version.name}_PK"
        self.constraints: dict[str, Constraint] = {}
        self.indexes: dict[str, Index] = {}
        self.triggers: dict[str, Trigger] = {}
        self.table_locks: dict[Any, str] = {}
        self.referring: list[Table] = []
        self.identity_next = 1
        self.analyzed_rows: int | None = None
        self._found: dict[str, dict[Key, set[str]]] = {}
        assert not flags, flags

    @property
    def name(self) -> str:
        """Return the table's name."""
        return self.version.name

    def key_of(self, row: Row) -> tuple[Value, ...] | None:
        """Return the primary key of a row; None if the table has none."""
        if not self.version.key:
            return None
        return tuple(row.get(name) for name in self.version.key)

    def segment_of(self, row: Row) -> Segment:
        """Return the segment in which a row belongs."""
        if self.partition_by is None:
            return next(iter(self.segments.values()))
        names = list(self.segments)
        value = row.get(self.partition_by)
        place = sum(str(value).encode()) if value is not None else 0
        return self.segments[names[place % len(names)]]

    def segment_at(self, row_id: str) -> Segment:
        """Return the segment that has a row id."""
        number = parse_rowid(row_id).object
        return next(one for one in self.segments.values() if one.data_object_id == number)

    def put(self, row_id: str, row: Row) -> None:
        """Store a current row."""
        key = self.key_of(row)
        if key is not None:
            self.keys[key] = row_id
        self.rows[row_id] = row
        for constraint in self.constraints.values():
            found = constraint.key_of(row)
            if found is not None:
                self._found[constraint.name].setdefault(found, set()).add(row_id)

    def take(self, row_id: str) -> Row:
        """Remove a current row and return it."""
        row = self.rows.pop(row_id)
        key = self.key_of(row)
        if key is not None and self.keys.get(key) == row_id:
            del self.keys[key]
        for constraint in self.constraints.values():
            found = constraint.key_of(row)
            if found is not None:
                self._found[constraint.name].get(found, set()).discard(row_id)
        return row

    def add_constraint(self, constraint: Constraint) -> None:
        """Add a constraint, which is not checked here."""
        self.constraints[constraint.name] = constraint
        if constraint.parent is not None and self not in constraint.parent.referring:
            constraint.parent.referring.append(self)
        self.index_rows()

    def index_rows(self) -> None:
        """Find the keys of all current rows again, after rows or columns were replaced."""
        self.keys = {}
        self._found = {name: {} for name in self.constraints}
        for row_id, row in list(self.rows.items()):
            self.put(row_id, row)

    def find(self, constraint: str, key: Key) -> set[str]:
        """Return the current rows with a key of a constraint."""
        return self._found[constraint].get(key, set())

    def find_rows(self, columns: tuple[str, ...], key: Key) -> set[str]:
        """Return the current rows with values of the key or of a unique constraint."""
        if columns == self.version.key:
            row_id = self.keys.get(key)
            return set() if row_id is None else {row_id}
        for constraint in self.constraints.values():
            if constraint.kind == "U" and constraint.columns == columns:
                return self.find(constraint.name, key)
        return {
            row_id
            for row_id, row in self.rows.items()
            if tuple(row.get(name) for name in columns) == key
        }

    def children(self) -> Iterator[tuple[Table, Constraint]]:
        """Yield the foreign keys that refer to this table, with their tables."""
        for table in self.referring:
            if not table.is_dropped:
                for constraint in table.constraints.values():
                    if constraint.parent is self:
                        yield table, constraint

    def record_version(self, row_id: str, scn: int, row: Row | None) -> None:
        """Store what a commit made of a row."""
        versions = self.history.setdefault(row_id, [])
        if versions and versions[-1][0] == scn:
            versions.pop()
        versions.append((scn, row))

    def at(self, scn: int) -> Iterator[tuple[str, Row]]:
        """Yield the rows that were committed at an SCN, with their row ids."""
        for row_id, versions in self.history.items():
            row: Row | None = None
            for version_scn, content in versions:
                if version_scn > scn:
                    break
                row = content
            if row is not None:
                yield row_id, row

    def visible(self, scn: int, transaction: Any) -> Iterator[tuple[str, Row]]:
        """Yield the rows that a transaction sees: committed ones, and its own changes."""
        own = {row_id for row_id, one in self.locks.items() if one is transaction}
        for row_id, row in self.at(scn):
            if row_id not in own:
                yield row_id, row
        for row_id, row in self.rows.items():
            if row_id in own:
                yield row_id, row


def make_version(
    owner: str,
    name: str,
    columns: dict[str, str],
    *,
    key: Iterable[str],
    supplemental: str,
    object_id: int,
) -> TableVersion:
    """Return the first version of a table from declarations by column."""
    names = tuple(key)
    made = tuple(
        parse_column(column, declaration, is_nullable=column not in names)
        for column, declaration in columns.items()
    )
    return TableVersion(owner, name, 1, made, names, supplemental, object_id)
