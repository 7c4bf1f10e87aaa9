"""Relations of captured tables, and the versions of the dictionary by which LogMiner names columns.

A row tells its table by DATA_OBJ# (of the table, or of a partition) and the version of the table's
columns by DATA_OBJV#. A row of the present version is named by LogMiner, so its shape is read from
the catalogue when the first such row is decoded, and kept. A row of an older version comes as
`COL n` with values in internal forms, and is decoded by the kept shape (reference, section 10).

Types and keys are those of the table's definition. A column that was once kept as text stays text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from penstock.codec.oracle.column_images import TableColumns, name_columns
from penstock.codec.oracle.redo_outcome import Defect, Reason, redo_error
from penstock.codec.oracle.sql_redo import Decoder
from penstock.codec.oracle.types import parse_type
from penstock.engines.oracle.source.entries import Entry
from penstock.engines.oracle.source.errors import RELOAD, RowsUnlogged
from penstock.engines.oracle.source.key_order import TableKey
from penstock.engines.oracle.source.relations import read_default, relation_of
from penstock.host.errors import StatementInterrupted
from penstock.model import Relation, TableDefinition, TableName

Columns = Sequence[tuple[str, str]]


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
        objects: Table of each DATA_OBJ# as owner and name.
    """

    relations: tuple[Relation, ...] = ()
    versions: tuple[Version, ...] = ()
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
        is_whole: Before images have all columns that the redo has.
        encoding: Of the database's character set, as Python names it.
        relations: The newest relation of each table.
        is_changed: Whether they have to be saved.
    """

    definitions: Callable[[], Sequence[TableDefinition]]
    columns_of: Callable[[TableName], Columns]
    takes: Callable[[TableName], bool] = lambda _: True
    is_whole: bool = False
    encoding: str = "utf-8"
    relations: dict[TableName, Relation] = field(default_factory=dict)
    is_changed: bool = False
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
        self.refresh()

    def state(self) -> KnownShapes:
        """Return what the state file has to remember."""
        return KnownShapes(
            relations=tuple(self.relations.values()),
            versions=tuple(self._versions.values()),
            objects={at: (one.schema, one.name) for at, one in self._objects.items()},
        )

    def refresh(self) -> None:
        """Read the definitions again, after a DDL statement or a request."""
        self._tables = {one.name: one for one in self.definitions() if self.takes(one.name)}
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
        """Return the shapes of all captured tables as they are in the catalogue."""
        return [
            self._number_version(name, relation_of(one, is_whole=self.is_whole), 0)
            for name, one in sorted(self._tables.items())
        ]

    @property
    def has_large(self) -> bool:
        """Return whether a captured table has a large object."""
        return any(
            parse_type(column.base_type or column.type_text).is_large
            for one in self._tables.values()
            for column in one.columns
        )

    def drop(self, table: TableName) -> None:
        """Forget a table that no longer exists; all its rows come before its end."""
        self._tables.pop(table, None)
        self.relations.pop(table, None)
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

    def bind(self, decoder: Decoder, number: int, since: int) -> Relation:
        """Bind a table version to its relation. since: position from which on it may hold.

        Raises StatementInterrupted if the table is not in the catalogue any more.
        """
        version = self._find_version(number, since)
        relation = version.relation
        names = {one.name for one in relation.columns}
        passed = [name for name, _ in version.columns if name not in names]
        decoder.bind(number, relation, passed)
        key = [relation.columns[at].name for at in relation.key]
        self._keys[number] = (
            TableKey.of(key, [one.name for one in relation.columns]) if key else None
        )
        return relation

    def _find_version(self, number: int, since: int) -> Version:
        table, object_, at = self._places[number]
        version = self._versions.get((object_, at))
        if version is not None:
            return version
        definition = self._tables.get(table)
        if definition is None:
            raise StatementInterrupted(
                f"{table} is not in the catalogue, where it was just now",
                hint="Nothing to do: the redo is read again.",
            )
        relation = self._number_version(
            table, relation_of(definition, is_whole=self.is_whole), since
        )
        version = Version(
            object=object_,
            number=at,
            relation=relation,
            columns=tuple((name, text) for name, text in self.columns_of(table)),
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
        _, object_, at = self._places[number]
        self._versions.pop((object_, at), None)
        self._fresh.discard(number)
        self.is_changed = True

    def widen(self, number: int, column: int) -> None:
        """Keep a column of a table version as text from here on; `bind` it again."""
        table, object_, at = self._places[number]
        old = self._versions[(object_, at)].relation
        columns = tuple(
            one.as_text() if place == column else one for place, one in enumerate(old.columns)
        )
        wider = self._number_version(table, replace(old, columns=columns), old.since)
        for key, version in self._versions.items():
            if version.relation == old:
                self._versions[key] = msgspec.structs.replace(version, relation=wider)
        self.is_changed = True

    def name_columns(self, entry: Entry) -> Entry:
        """Return a row of an older version with the names and values of that version.

        Raises DictionaryMismatch if that version is not known.
        """
        table, object_, at = self._places[entry.table]
        version = self._versions.get((object_, at))
        if version is None:
            raise redo_error(Reason.DICTIONARY, 0, entry)  # type: ignore[arg-type]
        known = TableColumns(
            schema=table.schema,
            table=table.name,
            columns=[(name, parse_type(text)) for name, text in version.columns],
            encoding=self.encoding,
        )
        try:
            return entry._replace(text=name_columns(entry.text, known))
        except Defect as defect:
            raise redo_error(
                defect.reason,
                defect.offset,
                entry,  # type: ignore[arg-type]
                relation=version.relation,
            ) from defect

    def _fill_added(self, table: TableName, last: Relation, relation: Relation) -> Relation:
        """Return a shape in which added columns have the value of earlier rows.

        Raises RowsUnlogged for a default that is not a literal: the redo does not have its value.
        """
        before = {one.name: one for one in last.columns}
        definition = self._tables.get(table)
        defaults = {one.name: one.default for one in definition.columns} if definition else {}
        columns = []
        for one in relation.columns:
            known = before.get(one.name)
            if known is not None:
                columns.append(replace(one, missing=known.missing))
                continue
            try:
                columns.append(replace(one, missing=read_default(defaults.get(one.name))))
            except ValueError as error:
                raise RowsUnlogged(
                    f"column {one.name} was added to {table} with a default that is not a literal: "
                    "its values in earlier rows are not in the redo",
                    hint=f"Load the table again. {RELOAD}",
                    table=str(table),
                ) from error
        return replace(relation, columns=tuple(columns))

    def _number_version(self, table: TableName, relation: Relation, since: int) -> Relation:
        last = self.relations.get(table)
        if last is not None:
            relation = self._fill_added(table, last, relation)
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
