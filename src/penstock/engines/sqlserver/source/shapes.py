"""Relations of captured tables: from their change tables and their definitions, with versions.

A relation has the columns that the change table has: a column that was added to the table later
arrives with a second capture instance (reference, section 6). Types are those of the change table,
keys those of the table's definition. A column that was once kept as text stays text.

Change tables do not have the values that ALTER TABLE gives to existing rows, neither a default nor
a converted value. So columns that were added or got another type are noted as lost, until their
table's rows were read again (`resends.py`). A table without a key awaits that: its rows are found
by all of their values, which the target does not have before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from penstock.codec.sqlserver.columns import SourceColumn
from penstock.codec.sqlserver.types import parse_type
from penstock.engines.sqlserver.source.change_rows import Layout
from penstock.engines.sqlserver.source.instances import CapturedColumn, KnownTable
from penstock.engines.sqlserver.target.type_rules import holds
from penstock.model import Column, ColumnDefinition, Identity, Relation, TableDefinition, UniqueKey

_VALUES_LOST = "ALTER TABLE gave its rows values that are in no change table"


class KnownRelations(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the state file, by object id.

    Attributes:
        relations: The newest relation of each table.
        lost: Columns whose values in older rows the log lacks.
    """

    relations: dict[int, Relation] = {}
    lost: dict[int, tuple[str, ...]] = {}


@dataclass(slots=True)
class Shapes:
    """Newest relations.

    Attributes:
        definitions: Returns the definitions of the captured tables as they are now.
        is_whole: Before images have all columns that change tables have.
        reads_renamed: A renamed table is read again, because no request for its new name comes.
        relations: By the table's object id.
        lost: Columns whose values in older rows the log lacks, by the table's object id.
        is_changed: Whether they have to be saved.
        _reloading: Why tables awaited their rows, until the log is durable with them.
    """

    definitions: Callable[[], Sequence[TableDefinition]]
    is_whole: bool = False
    reads_renamed: bool = False
    relations: dict[int, Relation] = field(default_factory=dict)
    lost: dict[int, tuple[str, ...]] = field(default_factory=dict)
    is_changed: bool = False
    _known: dict[int, TableDefinition] = field(default_factory=dict)
    _reloading: dict[int, str] = field(default_factory=dict)

    def load(self, state: KnownRelations | None) -> None:
        """Take over the relations of a state file."""
        self.relations = dict(state.relations) if state is not None else {}
        self.lost = dict(state.lost) if state is not None else {}

    def state(self) -> KnownRelations:
        """Return what the state file has to remember.

        It is saved before the log is flushed, so a table awaits its rows until they are durable.
        """
        awaiting = {
            source_id: replace(self.relations[source_id], awaits_reload=why)
            for source_id, why in self._reloading.items()
        }
        return KnownRelations(relations=self.relations | awaiting, lost=dict(self.lost))

    def awaits_reload(self, source_id: int) -> bool:
        """Return whether the target leaves a table as it is until its rows are read again."""
        relation = self.relations.get(source_id)
        return relation is not None and bool(relation.awaits_reload)

    def begin_reload(self, source_id: int, relation: Relation, *, since: int) -> Relation:
        """Return the version in which all rows of a table follow. since: LSN of the rows."""
        if relation.awaits_reload:
            self._reloading[source_id] = relation.awaits_reload
            version = relation.version + 1
            relation = replace(relation, awaits_reload="", version=version, since=since)
            self.relations[source_id] = relation
            self.is_changed = True
        return relation

    def end_reload(self, source_id: int, *, is_durable: bool) -> None:
        """Note that the log has the rows, or that the table awaits them still."""
        why = self._reloading.pop(source_id, "")
        if why and not is_durable:
            self.relations[source_id] = replace(self.relations[source_id], awaits_reload=why)
        self.is_changed |= bool(why)

    def forget_lost(self, source_id: int, columns: Collection[str]) -> None:
        """Note that the log has all values of these columns, or that the source has none."""
        left = tuple(one for one in self.lost.pop(source_id, ()) if one not in columns)
        if left:
            self.lost[source_id] = left
        self.is_changed = True

    def forget_definitions(self) -> None:
        """Read definitions again when the next layout is made."""
        self._known = {}

    def layout(
        self, source_id: int, table: KnownTable, columns: Sequence[CapturedColumn], *, since: int
    ) -> Layout | None:
        """Return how a change table is read; None if the table is in no definition.

        Args:
            source_id: Object id of the captured table.
            table: Its name in the log.
            columns: The change table's.
            since: LSN from which on the shape may hold.
        """
        definition = self._definition(source_id)
        if definition is None:
            return None
        last = self.relations.get(source_id)
        texts = {
            (one.name, one.source_type)
            for one in (last.columns if last is not None else ())
            if one.neutral == "string"
        }
        by_name = {one.name: one for one in definition.columns}
        made = [_column(one, by_name.get(one.name), texts) for one in columns]
        relation = relation_of(
            definition, tuple(one for one, _ in made), table=table, is_whole=self.is_whole
        )
        return Layout(
            relation=self._number_version(source_id, relation, since),
            columns=tuple(one for _, one in made),
            ordinals=tuple(one.ordinal for one in columns),
        )

    def widen(self, source_id: int, layout: Layout, indexes: Sequence[int]) -> Layout:
        """Return the layout in which these columns are kept as text."""
        columns = list(layout.columns)
        relation = layout.relation
        for at in indexes:
            columns[at] = columns[at].as_text()
            relation = replace(
                relation,
                columns=tuple(
                    one.as_text() if place == at else one
                    for place, one in enumerate(relation.columns)
                ),
            )
        relation = self._number_version(source_id, relation, relation.since)
        return replace(layout, relation=relation, columns=tuple(columns))

    def _definition(self, source_id: int) -> TableDefinition | None:
        if source_id not in self._known:
            self._known = {one.source_id: one for one in self.definitions()}
        return self._known.get(source_id)

    def _number_version(self, source_id: int, relation: Relation, since: int) -> Relation:
        last = self.relations.get(source_id)
        if last is not None:
            relation = replace(relation, awaits_reload=last.awaits_reload)
        if last is not None and last.same_shape(relation):
            return last
        if last is not None:
            lost = {*self.lost.get(source_id, ()), *_find_lost(last, relation)}
            if self.reads_renamed and last.full_name != relation.full_name:
                lost.update(one.name for one in relation.columns)
            if lost:
                self.lost[source_id] = tuple(sorted(lost))
            if lost and not relation.key:
                relation = replace(relation, awaits_reload=_VALUES_LOST)
        version = 1 if last is None else last.version + 1
        relation = replace(relation, version=version, since=since)
        self.relations[source_id] = relation
        self.is_changed = True
        return relation


def _find_lost(last: Relation, relation: Relation) -> Iterator[str]:
    """Yield the columns in which older rows may have values that no change row has."""
    before = {column.id or column.name: column for column in last.columns}
    for column in relation.columns:
        old = before.get(column.id or column.name)
        if old is None or not holds(column.source_type, old.source_type):
            yield column.name


def _column(
    captured: CapturedColumn, definition: ColumnDefinition | None, texts: set[tuple[str, str]]
) -> tuple[Column, SourceColumn]:
    """Return a column of the relation, and how it is read.

    texts: names and types of the columns that were kept as text before.
    """
    text = captured.kind.text
    alike = definition is not None and _type_of(definition) == captured.kind
    if definition is not None and alike:
        text = definition.type_text
    neutral = "string" if (captured.name, text) in texts else captured.kind.neutral
    column = Column(
        name=captured.name,
        source_type=text,
        neutral=neutral,
        base_type=definition.base_type if definition is not None and alike else "",
        nullable=definition is None or not definition.not_null,
        collation=(definition.collation or "") if definition is not None else "",
        id=definition.id if definition is not None else 0,
    )
    return column, SourceColumn(name=captured.name, kind=captured.kind, neutral=neutral)


def _type_of(definition: ColumnDefinition) -> object:
    return parse_type(definition.base_type or definition.type_text)


def relation_of(
    definition: TableDefinition,
    columns: tuple[Column, ...],
    *,
    table: KnownTable | None = None,
    is_whole: bool = False,
) -> Relation:
    """Return a table's shape in the log.

    Args:
        definition: Of the table; its key finds rows if the log has all of the key's columns.
        columns: Columns of the log.
        table: Name in the log, if it is not the definition's.
        is_whole: Before images have all columns that change tables have.
    """
    names = [one.name for one in columns]
    key = tuple(sorted(names.index(name) for name in definition.row_key if name in names))
    if len(key) != len(definition.row_key):
        key = ()
    told = tuple(
        at
        for at, one in enumerate(columns)
        if not parse_type(one.base_type or one.source_type).is_large
    )
    has_whole = is_whole or not key
    return Relation(
        schema=table.schema if table is not None else definition.name.schema,
        name=table.name if table is not None else definition.name.name,
        columns=columns,
        key=key,
        before=told if has_whole else key,
        identity=Identity.FULL if has_whole else Identity.DEFAULT,
        source_id=definition.source_id,
        unique=UniqueKey.columns_of(definition.unique_keys),
    )
