"""Relations of captured tables, and the versions of the dictionary by which LogMiner names columns.

A row tells its table by DATA_OBJ# (of the table, or of a partition) and the version of the table's
columns by DATA_OBJV#. A row of the present version is named by LogMiner. A row of an older version
comes as `COL n` with values in internal forms (reference, section 10). The first row of a version
is read by the table's layout at its SCN, which is then kept for the version (`layouts.py`).

Types and keys are those of the table's definition. A column that was once kept as text stays text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
from msgspec import structs

from penstock.codec.oracle.column_images import TableColumns, name_columns
from penstock.codec.oracle.redo_outcome import Defect, Reason, redo_error
from penstock.codec.oracle.sql_redo import Decoder
from penstock.codec.oracle.types import parse_type
from penstock.engines.oracle.source.entries import Entry
from penstock.engines.oracle.source.key_order import TableKey
from penstock.engines.oracle.source.layouts import Columns, Layout, Layouts, with_catalogue
from penstock.engines.oracle.source.relations import relation_of
from penstock.host.errors import StatementInterrupted
from penstock.model import Relation, TableDefinition, TableName


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a table's columns.

    Attributes:
        object: DATA_OBJ#.
        number: DATA_OBJV#.
        relation: Shape of its rows in the log.
        columns: All columns of the table in the order of their internal ids: name and type.
    """

    object: int
    number: int
    relation: Relation
    columns: tuple[tuple[str, str], ...]


class KnownShapes(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the state file.

    Attributes:
        relations: The newest relation of each table.
        versions: All known versions.
        layouts: Columns of the tables between their DDL statements.
        objects: Table of each DATA_OBJ# as owner and name.
    """

    relations: tuple[Relation, ...] = ()
    versions: tuple[Version, ...] = ()
    layouts: tuple[Layout, ...] = ()
    objects: dict[int, tuple[str, str]] = {}

    @property
    def tables(self) -> frozenset[TableName]:
        """Return the captured tables."""
        return frozenset(TableName(*one) for one in self.objects.values())


@dataclass(slots=True)
class Shapes:
    """Shapes of the captured tables.

    Attributes:
        definitions: Returns the definitions of the captured tables as they are now.
        columns_of: Returns all columns of a table as they are now, hidden ones too, in the order of
            their internal ids.
        takes: Whether a table is captured.
        read_scn: Returns the database's present SCN.
        is_whole: Before images have all columns that the redo has.
        encoding: Of the database's character set, as Python names it.
        relations: The newest relation of each table.
        is_changed: Whether they have to be saved.
    """

    definitions: Callable[[], Sequence[TableDefinition]]
    columns_of: Callable[[TableName], Columns]
    takes: Callable[[TableName], bool] = lambda _: True
    read_scn: Callable[[], int] = lambda: 0
    is_whole: bool = False
    encoding: str = "utf-8"
    relations: dict[TableName, Relation] = field(default_factory=dict)
    is_changed: bool = False
    _layouts: Layouts = field(default_factory=Layouts)
    _versions: dict[tuple[int, int], Version] = field(default_factory=dict)
    _objects: dict[int, TableName] = field(default_factory=dict)
    _tables: dict[TableName, TableDefinition] = field(default_factory=dict)
    _numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    _places: list[tuple[TableName, int, int]] = field(default_factory=list)
    _keys: dict[int, TableKey | None] = field(default_factory=dict)
    _fresh: set[int] = field(default_factory=set)

    # ------------------------------------------------------------------ state

    def load(self, state: KnownShapes | None) -> None:
        """Take over a state file, and read the definitions."""
        if state is not None:
            self.relations = {TableName(one.schema, one.name): one for one in state.relations}
            self._versions = {(one.object, one.number): one for one in state.versions}
            self._objects = {at: TableName(*one) for at, one in state.objects.items()}
            self._layouts.load(state.layouts)
        self.refresh()

    def state(self) -> KnownShapes:
        """Return what the state file has to remember."""
        return KnownShapes(
            relations=tuple(self.relations.values()),
            versions=tuple(self._versions.values()),
            layouts=self._layouts.state(),
            objects={at: (one.schema, one.name) for at, one in self._objects.items()},
        )

    def refresh(self) -> None:
        """Read the definitions again, after a DDL statement or a request.

        Raises RowsUnlogged if a new column has values in earlier rows that are not known.
        """
        before = self.read_scn()
        self._tables = {one.name: one for one in self.definitions() if self.takes(one.name)}
        new = [one for name, one in self._tables.items() if self._layouts.present(name) is None]
        read = [(one, tuple(self.columns_of(one.name))) for one in new]
        after = self.read_scn() if new else before
        for definition, columns in read:
            self._layouts.learn(
                definition,
                relation_of(definition, is_whole=self.is_whole),
                columns,
                self.relations.get(definition.name),
                between=(before, after),
            )
        self._note_layouts()
        left = {one for one in self._objects.values() if not self.takes(one)}
        if left:
            self._objects = {at: one for at, one in self._objects.items() if one not in left}
            self.is_changed = True

    def note_objects(self, objects: Mapping[int, TableName]) -> None:
        """Note tables and partitions of the catalogue, by DATA_OBJ#."""
        for at, table in objects.items():
            if table in self._tables and self._objects.get(at) != table:
                self._objects[at] = table
                self.is_changed = True

    @property
    def tables(self) -> Sequence[TableName]:
        """Return the captured tables, in order."""
        return sorted(self._tables)

    @property
    def objects(self) -> Sequence[int]:
        """Return DATA_OBJ# of the captured tables and their partitions, in order."""
        return sorted(self._objects)

    def table_at(self, object_: int, owner: str, name: str) -> TableName:
        """Return the table of a DDL row: by its object, else by its name."""
        return self._objects.get(object_) or TableName(owner, name)

    def is_captured(self, table: TableName) -> bool:
        """Return whether a table is in the log."""
        return table in self._tables or table in self._objects.values()

    def present_relations(self) -> Sequence[Relation]:
        """Return the shapes of all captured tables after the last statement that was given."""
        return [self.present_relation(name) for name in self.tables]

    def present_relation(self, table: TableName) -> Relation:
        """Return the shape of a captured table after the last statement that was given."""
        return self._number_version(table, self._present_shape(table), self._begin_of(table))

    def _begin_of(self, table: TableName) -> int:
        """Return the position from which a table has its present shape; 0 if it is not known."""
        layout = self._layouts.present(table)
        return 0 if layout is None else layout.position

    def _present_shape(self, table: TableName) -> Relation:
        """Return the shape after the last statement, with all that the catalogue knows of it."""
        definition = self._tables[table]
        found = relation_of(definition, is_whole=self.is_whole)
        layout = self._layouts.present(table)
        return found if layout is None else with_catalogue(layout.relation, found)

    def alter(self, table: TableName, text: str, position: int) -> None:
        """Note a DDL statement of a captured table that was committed at a position.

        Raises the errors of `Layouts.alter`.
        """
        self._layouts.alter(table, text, position >> 64, position)
        self._note_layouts()

    def prune(self, position: int) -> None:
        """Forget layouts of rows that are in the log up to a position."""
        self._layouts.prune(position >> 64)
        self._note_layouts()

    def _note_layouts(self) -> None:
        self.is_changed |= self._layouts.is_changed
        self._layouts.is_changed = False

    @property
    def has_large(self) -> bool:
        """Return whether a captured table has a large object, or a text that may be one."""
        return any(
            parse_type(column.base_type or column.type_text).may_be_large
            for one in self._tables.values()
            for column in one.columns
        )

    def drop(self, table: TableName) -> None:
        """Forget a table that no longer exists; all its rows come before its end."""
        self._tables.pop(table, None)
        self.relations.pop(table, None)
        self._layouts.forget(table)
        self._objects = {at: one for at, one in self._objects.items() if one != table}
        self._versions = {
            key: one for key, one in self._versions.items() if key[0] in self._objects
        }
        self.is_changed = True

    # ------------------------------------------------------------------ numbers of table versions

    def number_of(self, owner: str, name: str, object_: int, version: int) -> int:
        """Return the number of a table version for the decoder; -1 if the table is not captured."""
        known = self._objects.get(object_)
        if known is None:
            table = TableName(owner, name)
            if table not in self._tables:
                return -1
            self._objects[object_] = known = table  # of a new table or partition
            self.is_changed = True
        key = object_, version
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._places)
            self._places.append((known, object_, version))
        return number

    def table_of(self, number: int) -> TableName:
        """Return the table of a number."""
        return self._places[number][0]

    def key_of(self, number: int) -> TableKey | None:
        """Return the key of a table version; None without one, or before `bind`."""
        return self._keys.get(number)

    # ------------------------------------------------------------------ decoding

    def bind(self, decoder: Decoder, entry: Entry, since: int) -> Relation:
        """Bind the table version of a row to its relation. since: position where it may begin.

        Raises StatementInterrupted if the table is not in the catalogue any more, and RowsUnlogged
        if its columns are not known.
        """
        number = entry.table
        version = self._find_version(entry, since)
        relation = version.relation
        names = {one.name for one in relation.columns}
        passed = [name for name, _ in version.columns if name not in names]
        decoder.bind(number, relation, passed)
        key = [relation.columns[at].name for at in relation.key]
        self._keys[number] = (
            TableKey.of(key, [one.name for one in relation.columns]) if key else None
        )
        return relation

    def _find_version(self, entry: Entry, since: int) -> Version:
        table, object_, at = self._places[entry.table]
        version = self._versions.get((object_, at))
        if version is not None:
            return version
        present = self._layouts.present(table)
        layout = self._layouts.at(table, entry.scn) or present
        if layout is not None and (layout is not present or table not in self._tables):
            since = layout.position or since
            return self._keep_version(entry.table, layout.relation, layout.columns, since)
        if table not in self._tables or present is None:
            self._layouts.check_clear(table)
            raise StatementInterrupted(
                f"{table} is not in the catalogue, where it was just now",
                hint="Nothing to do: the redo is read again.",
            )
        shape, since = self._present_shape(table), present.position or since
        return self._keep_version(entry.table, shape, present.columns, since)

    def _keep_version(
        self, number: int, relation: Relation, columns: Columns, since: int
    ) -> Version:
        table, object_, at = self._places[number]
        version = Version(
            object=object_,
            number=at,
            relation=self._number_version(table, relation, since),
            columns=tuple(columns),
        )
        self._versions[(object_, at)] = version
        self._fresh.add(number)
        self.is_changed = True
        return version

    def is_fresh(self, number: int) -> bool:
        """Return whether this process read the shape of a table version from the catalogue."""
        return number in self._fresh

    def forget_version(self, number: int) -> None:
        """Forget the shape of a table version, whose rows do not fit it."""
        table, object_, at = self._places[number]
        self._versions.pop((object_, at), None)
        self._layouts.forget(table)
        self._fresh.discard(number)
        self.is_changed = True

    def widen(self, number: int, column: int) -> None:
        """Keep a column of a table version as text from here on; `bind` it again."""
        table, object_, at = self._places[number]
        old = self._versions[(object_, at)].relation
        self._reshape(table, old, old.with_text_column(column), old.since)

    def reshape(self, table: TableName, relation: Relation, since: int) -> Relation:
        """Return the present shape of a table, in which these columns are text from here on."""
        return self._reshape(table, self.relations[table], relation, since)

    def _reshape(self, table: TableName, old: Relation, new: Relation, since: int) -> Relation:
        wider = self._number_version(table, new, since)
        for key, version in self._versions.items():
            if version.relation == old:
                self._versions[key] = structs.replace(version, relation=wider)
        self.is_changed = True
        return wider

    def name_columns(self, entry: Entry, read_large: Callable[[str], str]) -> Entry:
        """Return a row of an older version with the names and values of that version.

        Args:
            entry: The row.
            read_large: Returns the literal of a large object, by its column.

        Raises DictionaryMismatch if that version is not known.
        """
        table, object_, at = self._places[entry.table]
        version = self._versions.get((object_, at))
        if version is None:
            layout = self._layouts.at(table, entry.scn)
            if layout is None:
                raise redo_error(Reason.DICTIONARY, 0, entry)
            version = self._keep_version(
                entry.table, layout.relation, layout.columns, layout.position
            )
        known = TableColumns(
            schema=table.schema,
            table=table.name,
            columns=[(name, parse_type(text)) for name, text in version.columns],
            encoding=self.encoding,
            read_large=read_large,
        )
        try:
            return structs.replace(entry, text=name_columns(entry.text, known))
        except Defect as defect:
            raise redo_error(
                defect.reason,
                defect.offset,
                entry,
                relation=version.relation,
            ) from defect

    def _number_version(self, table: TableName, relation: Relation, since: int) -> Relation:
        last = self.relations.get(table)
        if last is not None:
            texts = {(one.name, one.source_type) for one in last.columns if one.neutral == "string"}
            relation = replace(
                relation,
                columns=tuple(
                    one.as_text() if (one.name, one.source_type) in texts else one
                    for one in relation.columns
                ),
            )
            if last.same_shape(relation):
                return last
        version = 1 if last is None else last.version + 1
        relation = replace(relation, version=version, since=since)
        self.relations[table] = relation
        self.is_changed = True
        return relation
