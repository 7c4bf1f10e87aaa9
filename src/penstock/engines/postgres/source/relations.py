"""Shapes of rows in the log, from a pgoutput Relation message or from the catalogue alone.

The message is right about the columns sent and the identity, because it is as old as the rows
that follow it. The catalogue knows the rest (numbers of columns, types below domains, keys of
tables with full identity, values that old rows have) but may have moved on meanwhile: then
existing rows in the new shape are not known, and the table awaits a reload, as after a change of
type that may have computed other values. Not here: reading definitions (`definitions.py`), noticing
changes that send no message (`ddl_watch.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import psycopg
import structlog

from penstock.codec.copy_rows import fit_missing
from penstock.codec.postgres.pgoutput_messages import RelationColumn, RelationMessage
from penstock.codec.postgres.retyping import is_kept_in_place
from penstock.engines.postgres.connect import server_errors
from penstock.engines.postgres.source.assembly import Shapes
from penstock.engines.postgres.source.column_types import TypeBook
from penstock.engines.postgres.source.definitions import definitions_of
from penstock.engines.postgres.source.table_shape import (
    ReloadReason,
    TableShape,
    TableWithoutColumns,
)
from penstock.model import (
    Column,
    ColumnDefinition,
    ComputedColumn,
    Identity,
    Relation,
    TableDefinition,
    TableName,
    UniqueKey,
)


def relation_of(definition: TableDefinition, *, version: int = 1) -> Relation:
    """Return the shape of rows read by COPY: that of the stream, without generated columns."""
    definitions = [column for column in definition.columns if not column.generated]
    columns = tuple(column_of(column) for column in definitions)
    names = [column.name for column in columns]
    identity = [names.index(n) for n in definition.identity_columns if n in names]
    return Relation(
        schema=definition.name.schema,
        name=definition.name.name,
        columns=columns,
        key=key_of(definition.identity, tuple(sorted(identity)), names, definition),
        before=tuple(sorted(identity)),
        identity=definition.identity,
        source_id=definition.source_id,
        version=version,
        unique=UniqueKey.columns_of(definition.unique_keys),
        computed=computed_of(definition),
        types=definition.types,
    )


def computed_of(definition: TableDefinition) -> tuple[ComputedColumn, ...] | None:
    """Return a definition's generated columns; None if it was read without their expressions."""
    generated = [column for column in definition.columns if column.generated]
    if any(column.default is None for column in generated):
        return None
    return tuple(
        ComputedColumn(
            name=column.name,
            source_type=column.type_text,
            expression=column.default or "",
            is_stored=column.generated == "s",
            id=column.id,
        )
        for column in generated
    )


def left_of(
    told: Iterable[ComputedColumn] | None, definition: TableDefinition
) -> tuple[ComputedColumn, ...] | None:
    """Return the generated columns that a definition still has, as it names them; None for None.

    A new one is told when the catalogue is looked at, where the stream certainly has the columns
    that it is computed from; an old one must be gone before these are.
    """
    if told is None:
        return None
    names = {column.id: column.name for column in definition.columns if column.generated}
    return tuple(replace(one, name=names[one.id]) for one in told if one.id in names)


def column_of(column: ColumnDefinition) -> Column:
    """Return a column of a relation as the catalogue defines it."""
    return fit_missing(
        Column(
            name=column.name,
            source_type=column.type_text,
            neutral=column.neutral,
            base_type=column.base_type,
            type_oid=column.type_oid,
            typmod=column.typmod,
            nullable=not column.not_null,
            missing=column.missing,
            id=column.id,
        )
    )


def key_of(
    identity: Identity,
    before: tuple[int, ...],
    names: Sequence[str],
    definition: TableDefinition,
) -> tuple[int, ...]:
    """Return the columns that find a row for a merge; always held by a before image, if one comes.

    With an identity index the before image has that index's columns and perhaps not those of the
    primary key, so that index is the key. With FULL it has all, so the primary key is; without one
    the whole row is the key, which is an empty tuple. It also is where the identity has a generated
    column: the rest of it may be the same in many rows.
    """
    generated = {column.name for column in definition.columns if column.generated}
    if identity in (Identity.DEFAULT, Identity.INDEX) and before:
        return () if generated & set(definition.identity_columns) else before
    primary = definition.key_of_changes
    if not primary or not set(primary) <= set(names):
        return ()
    return tuple(sorted(names.index(name) for name in primary))


def dropped_definitions(
    tables: Iterable[TableDefinition], shapes: Sequence[TableShape], known: Sequence[Relation]
) -> list[TableDefinition]:
    """Return the definitions of followed tables that are no longer captured under their names.

    The server still sends what was committed before they were dropped or renamed.

    Args:
        tables: those that are captured.
        shapes: the followed tables as they were seen last.
        known: as for the resolver.
    """
    there = {table.source_id for table in tables}
    relations = {relation.source_id: relation for relation in known}
    return [
        definition_of(relations[shape.source_id])
        if shape.source_id in relations
        else shape.definition()
        for shape in shapes
        if shape.source_id not in there
    ]


def definition_of(relation: Relation) -> TableDefinition:
    """Return a table's definition as far as the log has it: enough to read changes of a dropped
    table.
    """
    return TableDefinition(
        name=TableName(relation.schema, relation.name),
        source_id=relation.source_id,
        columns=tuple(
            ColumnDefinition(
                name=column.name,
                type_text=column.source_type,
                type_oid=column.type_oid,
                typmod=column.typmod,
                not_null=not column.nullable,
                missing=column.missing,
                base_type=column.base_type,
                neutral=column.neutral,
                id=column.id,
            )
            for column in relation.columns
        ),
        primary_key=tuple(relation.columns[i].name for i in relation.key),
        identity=relation.identity,
        identity_columns=tuple(relation.columns[i].name for i in relation.before),
        types=relation.types,
        is_partitioned=bool(relation.before),  # other tables' messages mark these columns
    )


class CatalogShapes(Shapes):
    """The `Shapes` of a pipeline. `keep` may be called from two threads."""

    def __init__(
        self, resolver: RelationResolver, *, save: Callable[[Sequence[Relation]], None]
    ) -> None:
        """Take the resolver and what keeps all relations durably."""
        self._resolver = resolver
        self._save = save
        self._saved = resolver.relations()
        self._keeping = threading.Lock()

    def resolve(self, message: RelationMessage) -> Relation | None:
        with server_errors(f"reading the definition of {message.schema}.{message.name}"):
            return self._resolver.resolve(message)

    def widen(self, relation: Relation, column: int) -> Relation:
        return self._resolver.widen(relation, column)

    def keep(self) -> None:
        """Make new versions durable. Called before their rows are emitted."""
        with self._keeping:
            relations = self._resolver.relations()
            if relations != self._saved:
                self._save(relations)
                self._saved = relations


logger = structlog.get_logger()

PRIMARY_KEY = """
    select array(select a.attname
                   from unnest(i.indkey::int2[]) with ordinality as k(attnum, place)
                   join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = k.attnum
                  where k.place <= i.indnkeyatts
                  order by k.place)::text[]
      from pg_index as i
     where i.indrelid = %(id)s::bigint::oid
       and i.indisprimary
       and i.indimmediate
       and i.indisvalid
"""


_TOUCHED_COLUMNS = """
    select attrelid::bigint, json_object_agg(attnum, xmin::text)
      from pg_attribute
     where attrelid = any(%s::bigint[]::oid[])
       and attnum > 0
       and not attisdropped
       and attgenerated = ''
     group by attrelid
"""


class RelationResolver:
    """Turns Relation messages into relations, and numbers their versions.

    known: the last version of each table that the log has (state/relations.json): numbering goes
    on from there, and columns that had to become exact text stay so. shapes: the followed tables
    as they were seen last; a table that changed since is read again. One resolver serves one log;
    `connection`, which no other code may use, may be replaced after a reconnect, followed by
    `forget()`. Messages are resolved in the stream's thread, which runs ahead of the extractor's,
    where definitions are adopted: a lock protects both.

    Attributes:
        reloads: whether a table that awaits a reload gets one; if not, a message that the catalogue
            cannot explain is taken as it is.
    """

    reloads = True

    def __init__(
        self,
        connection: psycopg.Connection,
        tables: Iterable[TableDefinition],
        *,
        known: Iterable[Relation] = (),
        shapes: Iterable[TableShape] = (),
    ) -> None:
        self.connection = connection
        self._book = TypeBook()
        self._definitions = {table.source_id: table for table in tables}
        self._names = {table.name for table in self._definitions.values()}
        # Why the bulk load's rows of a table without a relation in the log are not the source's.
        self._outdated: dict[int, ReloadReason] = {}
        self._begin_with(shapes)
        known = list(known)
        self._current = {TableName(r.schema, r.name): r for r in known}
        # What the log had when we began; the definitions may be newer than that.
        self._begun = {relation.source_id: relation for relation in known}
        # The highest number that a column of each table is known to have had.
        self._highest: dict[int, int] = {}
        for table in self._definitions.values():
            self._note_numbers(table.source_id, table.columns)
        for relation in known:
            self._note_numbers(relation.source_id, relation.columns)
        self._messages: dict[int, tuple[RelationMessage, Relation | None]] = {}
        self._is_unsure = False  # whether definitions may be older than the connection
        self._lock = threading.RLock()

    def _begin_with(self, shapes: Iterable[TableShape]) -> None:
        """Note which tables were created again or rewritten since they were seen last."""
        seen = {shape.name: shape for shape in shapes}
        moved: dict[int, TableShape] = {}
        for source_id, table in self._definitions.items():
            shape = seen.get(table.name)
            if shape is None:
                continue
            if shape.source_id != source_id:
                self._outdated[source_id] = ReloadReason.MADE_ANEW
            elif shape.file != table.file:
                moved[source_id] = shape
        for source_id in self._with_touched_columns(moved):
            table = self._definitions[source_id]
            self._outdated[source_id] = ReloadReason.REWRITTEN
            self._definitions[source_id] = replace(table, file=moved[source_id].file)

    def _with_touched_columns(self, moved: Mapping[int, TableShape]) -> Iterator[int]:
        """Yield the tables whose new file may have other values: ALTER TABLE touches columns, and
        TRUNCATE, VACUUM FULL and CLUSTER do not.
        """
        if not moved:
            return
        found = self.connection.execute(_TOUCHED_COLUMNS, [list(moved)]).fetchall()
        for source_id, columns in found:
            known = {str(one.number): one.xid for one in moved[source_id].attributes}
            if any(known.get(number) != xid for number, xid in columns.items()):
                yield source_id

    def is_captured(self, source_id: int) -> bool:
        """Return whether rows of this table are written to the log; false for partitions of a
        captured root.
        """
        return source_id in self._definitions

    def definition(self, source_id: int) -> TableDefinition | None:
        """Return the current definition at this place of the stream; None for a foreign oid."""
        return self._definitions.get(source_id)

    def current(self, source_id: int) -> Relation | None:
        """Return the last relation of a captured table; None before its first."""
        definition = self._definitions.get(source_id)
        return self._current.get(definition.name) if definition is not None else None

    def relations(self) -> tuple[Relation, ...]:
        """Return the last version of every table, to be stored and passed again as `known`."""
        with self._lock:
            return tuple(self._current.values())

    def forget(self) -> None:
        """Begin a new epoch: messages are repeated after a reconnect, and types are read again."""
        with self._lock:
            self._messages.clear()
            self._book.forget()
            self._is_unsure = True

    def resolve(self, message: RelationMessage) -> Relation | None:
        """Return the relation that a message means; the same object again when nothing changed.

        None for a table that is not captured, such as a partition whose rows come under its root.
        A table recreated under a captured name is captured. Asks the catalogue only about columns
        that are not known with this type. Raises TableWithoutColumns, and psycopg's errors when
        the connection is lost: the message may then be resolved again.
        """
        with self._lock:
            plain = replace(message, xid=None)
            cached = self._messages.get(message.source_id)
            if cached is not None and cached[0] == plain and self._key_holds(message):
                return self._look_again(cached[1], plain)
            relation = self._resolve_new(plain, is_first=cached is None and not self._is_unsure)
            self._messages[message.source_id] = (plain, relation)
            return relation

    def _look_again(self, relation: Relation | None, message: RelationMessage) -> Relation | None:
        """Find out why the server repeats a message that says nothing new.

        A unique key or a NOT NULL may have been dropped: rows that violate it may follow. One that
        was added since is not used yet: rows may still violate it. Or a column was dropped and
        added again with the same type: its earlier values are void.
        """
        if relation is None or not (relation.unique or self.reloads):
            return relation
        live = self._read(message.source_id)
        found = _loosen(relation, live)
        if (
            live is not None
            and self.reloads
            and not found.awaits_reload
            and _is_remade(found, live)
        ):
            found = replace(found, awaits_reload=str(ReloadReason.COLUMN_REMADE))
        if found == relation:
            return relation
        settled = self._settle(found)
        self._messages[message.source_id] = (message, settled)
        return settled

    def _resolve_new(self, message: RelationMessage, *, is_first: bool) -> Relation | None:
        """Return the relation of a message that differs from the known one; None if it is not
        captured.

        is_first: whether it is the table's first message. Its definition was read at the start.
        """
        definition = self._definitions.get(message.source_id)
        last = self._current.get(definition.name) if definition is not None else None
        live, is_gone = None, False
        if (
            definition is None
            or last is None
            or (self.reloads and not is_first)
            or _unknown(message.columns, definition)
            or not _has_columns(message, last)
        ):
            live = self._read(message.source_id)
            is_gone = live is None
        if definition is None:
            if live is None or live.name not in self._names:
                return None
            self._replace_incarnation(live)
            self._definitions[live.source_id] = definition = live
        if not message.columns:
            raise TableWithoutColumns(definition.name)
        relation = self._build(message, definition, live)
        if is_gone:
            relation = _loosen(relation, None)
        if self.reloads:
            relation = self._explain(message, relation, definition, live)
        if live is None and not is_gone and _is_strict(relation):
            # The definition is older than the message.
            relation = _loosen(relation, self._read(message.source_id))
        if not self._key_holds(message):
            # Only the whole row is a key both before and after the primary key changed.
            relation = replace(relation, key=())
        return self._settle(relation)

    def _explain(
        self,
        message: RelationMessage,
        relation: Relation,
        definition: TableDefinition,
        live: TableDefinition | None,
    ) -> Relation:
        """Give columns their attribute numbers at the server, or note that these are not known."""
        last = self._current.get(definition.name)
        outdated = self._why_outdated(relation, last)
        if outdated is not None:
            return replace(relation, awaits_reload=str(outdated))
        known = _columns_by_place(message, last, live)
        if known is not None:
            relation = replace(relation, columns=known)
            ids = {column.name: column.id for column in known}
        elif last is not None and _has_columns(message, last):
            if _is_remade(last, live or definition):
                return replace(relation, awaits_reload=str(ReloadReason.COLUMN_REMADE))
            ids = {column.name: column.id for column in last.columns}
        else:
            found = live if last is not None else _first_with(message, (definition, live))
            is_sure = found is None or not self._has_unseen_columns(found)
            if found is not None:
                self._note_numbers(found.source_id, found.columns)
            if found is None or not is_sure or not _has_columns(message, relation_of(found)):
                awaits = str(ReloadReason.CATALOGUE_AHEAD)
                return replace(_without_doubtful_ids(relation), awaits_reload=awaits)
            ids = {column.name: column.id for column in found.columns}
        columns = tuple(_facts_of(relation.columns, ids, (definition, live), last))
        base = last if last is not None else relation_of(definition)
        before = {column.id: column for column in base.columns}
        is_recast = any(
            column.id in before
            and not is_kept_in_place(
                column.base_type or column.source_type,
                before[column.id].base_type or before[column.id].source_type,
            )
            for column in columns
        )
        new = {column.id for column in columns if column.id not in before}
        is_rewritten = is_recast or _is_filled(new, definition, live)
        why = str(ReloadReason.REWRITTEN) if is_rewritten else ""
        return replace(relation, columns=columns, awaits_reload=why)

    def _why_outdated(self, relation: Relation, last: Relation | None) -> ReloadReason | None:
        """Return why rows before a relation belong to another table, or have values that the table
        lacks.

        The log may have no relation for such rows, which the bulk load has copied.
        """
        if last is None:
            return self._outdated.get(relation.source_id)
        return ReloadReason.MADE_ANEW if last.source_id != relation.source_id else None

    def _note_numbers(self, source_id: int, columns: Iterable[Column | ColumnDefinition]) -> None:
        """Note numbers of columns that a table has, or had."""
        numbers = [column.id for column in columns]
        self._highest[source_id] = max([self._highest.get(source_id, 0), *numbers])

    def _has_unseen_columns(self, live: TableDefinition) -> bool:
        """Return whether a table got and lost columns since it was last looked at.

        A message may be about such a column, although a later one has its name and type.
        """
        numbers = {column.id for column in live.columns}
        new = range(self._highest.get(live.source_id, 0) + 1, max(numbers, default=0))
        return not numbers.issuperset(new)

    def awaiting(self) -> dict[TableName, str]:
        """Return the captured tables that must be read again, each with the reason."""
        with self._lock:
            names = {definition.name for definition in self._definitions.values()}
            return {
                name: relation.awaits_reload
                for name, relation in self._current.items()
                if relation.awaits_reload and name in names
            }

    def _key_holds(self, message: RelationMessage) -> bool:
        """Return whether the key from the catalogue is still the table's key.

        With identity FULL, and if no column is marked, the message does not show that. Rows that
        are equal in a key dropped meanwhile must not be taken for one row. The server repeats the
        message after that.
        """
        definition = self._definitions.get(message.source_id)
        if definition is None or not definition.key_of_changes:
            return True
        if message.identity != Identity.FULL and any(c.flags & 1 for c in message.columns):
            return True
        return self._primary_key(message.source_id) == definition.key_of_changes

    def _read(self, source_id: int) -> TableDefinition | None:
        """Return a table's present definition from the catalogue. Dialects override the query."""
        found = definitions_of(self.connection, [source_id], book=self._book, shape_only=True)
        return found.get(source_id)

    def _primary_key(self, source_id: int) -> tuple[str, ...] | None:
        """Return a table's present primary key; None if the table does not exist."""
        row = self.connection.execute(PRIMARY_KEY, {"id": source_id}).fetchone()
        return tuple(row[0]) if row is not None else None

    def adopt(self, definition: TableDefinition) -> Relation | None:
        """Take over a definition that the catalogue had where the stream is now.

        Returns the table's new relation, to be written although no row has used it yet; None when
        the log has this shape already or the stream has sent a later one.
        """
        with self._lock:
            return self._adopt(definition)

    def _adopt(self, definition: TableDefinition) -> Relation | None:
        self._replace_incarnation(definition)
        self._note_numbers(definition.source_id, definition.columns)
        before = self._definitions.get(definition.source_id)
        base = self._begun.pop(definition.source_id, None)
        if before is not None:
            self._names.discard(before.name)
            base = base or relation_of(before)
        self._names.add(definition.name)
        self._definitions[definition.source_id] = definition
        self._messages.pop(definition.source_id, None)
        last = self._current.get(definition.name)
        relation = self._with_computed(relation_of(definition), definition)
        if last is not None and _is_same(last, relation) and last.computed == relation.computed:
            return None
        if last is not None and base is not None and not _is_same(last, base):
            # The last message is newer than what we had: perhaps newer than this one.
            live = self._read(definition.source_id)
            if live is None:
                return None
            if not _is_same(relation_of(live), relation):
                # Generated columns that are new here may have other names in the last message's
                # shape: the look that finds that shape tells them.
                computed = _leave_out_names(last.columns, left_of(last.computed, live))
                is_told = last.source_id != live.source_id or computed == last.computed
                return None if is_told else self._settle(replace(last, computed=computed))
        outdated = self._why_outdated(relation, last)
        if outdated is not None:
            relation = replace(relation, awaits_reload=str(outdated))
        return self._settle(relation)

    def capture(self, definition: TableDefinition) -> Relation | None:
        """Capture rows of one more table from the stream's present place on.

        Returns the relation of the server's last message about the table, if there was one, because
        rows may follow without another message.
        """
        with self._lock:
            self._replace_incarnation(definition)
            self._definitions[definition.source_id] = definition
            self._names.add(definition.name)
            known = self._messages.pop(definition.source_id, None)
            return None if known is None else self.resolve(known[0])

    def release(self, name: TableName) -> list[int]:
        """Stop capturing rows of a table from the stream's present place on; return its oids."""
        with self._lock:
            self._names.discard(name)
            ids = [id_ for id_, one in self._definitions.items() if one.name == name]
            for id_ in ids:
                del self._definitions[id_]
                if id_ in self._messages:  # the server does not repeat it when it is captured again
                    self._messages[id_] = (self._messages[id_][0], None)
            return ids

    def reshape(self, definition: TableDefinition) -> Relation:
        """Return the relation for reading the whole table at the stream's present place.

        Earlier versions do not count: all rows follow, in the shape of the definition.
        """
        with self._lock:
            self._replace_incarnation(definition)
            self._definitions[definition.source_id] = definition
            self._names.add(definition.name)
            self._note_numbers(definition.source_id, definition.columns)
            self._messages.pop(definition.source_id, None)
            relation = self._with_computed(relation_of(definition), definition)
            return self._settle(relation, is_whole_table=True)

    def widen(self, relation: Relation, column: int) -> Relation:
        """Return a new version of relation in which one column is kept as exact text, and remember
        it.
        """
        with self._lock:
            name = TableName(relation.schema, relation.name)
            last = self._current.get(name, relation)
            if last.columns == relation.with_text_column(column).columns:
                return last  # widened already, and bound before that
            wider = replace(relation.with_text_column(column), version=last.version + 1)
            self._current[name] = wider
            for source_id, (message, bound) in self._messages.items():
                if bound is relation:
                    self._messages[source_id] = (message, wider)
        logger.info(
            "column kept as exact text from now on",
            table=relation.full_name,
            column=relation.columns[column].name,
        )
        return wider

    def _with_computed(self, relation: Relation, definition: TableDefinition) -> Relation:
        """Return the relation with the generated columns that were told, if it has none itself."""
        if computed_of(definition) is not None:
            return relation
        last = self._current.get(definition.name)
        told = last.computed if last and last.source_id == definition.source_id else None
        return replace(relation, computed=left_of(told, definition))

    def _replace_incarnation(self, definition: TableDefinition) -> None:
        for oid, old in list(self._definitions.items()):
            if old.name == definition.name and oid != definition.source_id:
                del self._definitions[oid]
                self._messages.pop(oid, None)
                self._outdated[definition.source_id] = ReloadReason.MADE_ANEW

    def _build(
        self,
        message: RelationMessage,
        definition: TableDefinition,
        live: TableDefinition | None,
    ) -> Relation:
        notes: list[str] = []
        columns = tuple(self._columns(message.columns, (definition, live), notes))
        names = [column.name for column in columns]
        identity = Identity(message.identity)
        before = tuple(i for i, c in enumerate(message.columns) if c.flags & 1)
        if not before and definition.is_partitioned:
            # Updates and deletes come with what the partitions' identities hold, nevertheless.
            primary = definition.key_of_changes
            chosen = primary if primary and set(primary) <= set(names) else names
            before = tuple(i for i, name in enumerate(names) if name in chosen)
        # The name by which the table is captured, also while the stream has another one: renames
        # are handled by ddl_watch.
        name = definition.name
        for note in notes:
            logger.warning("catalogue has moved on", table=str(name), note=note)
        return Relation(
            schema=name.schema,
            name=name.name,
            columns=columns,
            key=key_of(identity, before, names, definition),
            before=before,
            identity=identity,
            source_id=message.source_id,
            unique=_told_keys(definition, live, last=self._current.get(name)),
            computed=_leave_out_names(message.columns, self._told_computed(definition, live)),
            types=(live or definition).types,
            notes=tuple(notes),
        )

    def _told_computed(
        self, definition: TableDefinition, live: TableDefinition | None
    ) -> tuple[ComputedColumn, ...] | None:
        last = self._current.get(definition.name)
        if last is not None and last.source_id == definition.source_id:
            return last.computed if live is None else left_of(last.computed, live)
        return left_of(computed_of(definition), live or definition)

    def _columns(
        self,
        wanted: Sequence[RelationColumn],
        sources: Sequence[TableDefinition | None],
        notes: list[str],
    ) -> Iterable[Column]:
        by_name = [{c.name: c for c in source.columns} for source in sources if source is not None]
        if any(_match(column, by_name) is None for column in wanted):
            self._book.learn(self.connection, {(c.type_oid, c.typmod) for c in wanted})
        for column in wanted:
            found = _match(column, by_name)
            if found is not None:
                yield column_of(found)
                continue
            kind = self._book.get(column.type_oid, column.typmod)
            notes.append(
                f"column {column.name} is no longer in the catalogue as it was sent"
                + ("" if kind.known else f", nor is its type {column.type_oid}")
            )
            yield Column(
                name=column.name,
                source_type=kind.type_text,
                neutral=kind.neutral,
                base_type=kind.base_type,
                type_oid=column.type_oid,
                typmod=column.typmod,
            )

    def _settle(self, relation: Relation, *, is_whole_table: bool = False) -> Relation:
        """Compare a relation with the last known version, number it, and remember it.

        is_whole_table: all rows of the table follow, so unknown facts about earlier rows do not
        matter.
        """
        name = TableName(relation.schema, relation.name)
        last = self._current.get(name)
        if last is None:
            settled = replace(relation, version=1)
        else:
            columns = relation.columns
            if last.source_id == relation.source_id:
                columns = tuple(_continue_column(column, last) for column in columns)
            awaits = relation.awaits_reload or last.awaits_reload
            settled = replace(
                relation,
                unique=relation.unique if relation.unique is not None else last.unique,
                columns=columns,
                version=last.version + 1,
                awaits_reload="" if is_whole_table else awaits,
            )
            if settled.same_shape(last):
                settled = last
        self._current[name] = settled
        return settled


def _match(
    column: RelationColumn, sources: Sequence[dict[str, ColumnDefinition]]
) -> ColumnDefinition | None:
    for source in sources:
        found = source.get(column.name)
        if found and (found.type_oid, found.typmod) == (column.type_oid, column.typmod):
            return found
    return None


def _leave_out_names(
    columns: Iterable[Column | RelationColumn], computed: tuple[ComputedColumn, ...] | None
) -> tuple[ComputedColumn, ...] | None:
    """Return the generated columns whose names these columns do not have; None for None.

    If these columns have such a name, the catalogue is ahead of them. A later look then reports the
    generated column.
    """
    names = {column.name for column in columns}
    return computed and tuple(one for one in computed if one.name not in names)


def _is_remade(relation: Relation, now: TableDefinition) -> bool:
    """Return whether a column's name belongs to another column now."""
    if relation.source_id != now.source_id:
        return False
    ids = {column.name: column.id for column in now.columns}
    return any(c.id and ids.get(c.name, c.id) != c.id for c in relation.columns)


def _is_filled(
    new: Collection[int], definition: TableDefinition, live: TableDefinition | None
) -> bool:
    """Return whether a rewrite may have given existing rows values of these new columns.

    The catalogue keeps the value of existing rows only until a rewrite. A rewrite by TRUNCATE looks
    the same, so the table is then read again without need.
    """
    if live is None or not definition.file or live.file == definition.file:
        return False
    return any(
        column.is_filled and column.missing is None for column in live.columns if column.id in new
    )


def _unknown(wanted: Sequence[RelationColumn], definition: TableDefinition) -> bool:
    known = {(column.name, column.type_oid, column.typmod) for column in definition.columns}
    return any((c.name, c.type_oid, c.typmod) not in known for c in wanted)


def _has_columns(message: RelationMessage, relation: Relation) -> bool:
    """Return whether a message has exactly a relation's columns, in their order."""
    sent = [(c.name, c.type_oid, c.typmod) for c in message.columns]
    return message.source_id == relation.source_id and sent == [
        (c.name, c.type_oid, c.typmod) for c in relation.columns
    ]


def _columns_by_place(
    message: RelationMessage, last: Relation | None, live: TableDefinition | None
) -> tuple[Column, ...] | None:
    """Return a message's columns if the catalogue is ahead and their number leaves no doubt.

    The server sends columns in the order of their numbers (attnum) and never uses a number again.
    So between two shapes of which one has all numbers of the other, a count of columns means one
    set of numbers, whatever the columns are called. Returns None if there is any doubt.

    Args:
        message: the columns as they are sent.
        last: the relation before it.
        live: the table as the catalogue has it now.
    """
    if last is None or live is None or last.source_id != live.source_id:
        return None
    numbers = _numbers_of(
        len(message.columns),
        [column.id for column in last.columns],
        [column.id for column in live.columns if not column.generated],
        frozenset(column.id for column in live.columns),
    )
    if numbers is None:
        return None
    before = {column.id: column for column in last.columns}
    now = {column.id: column_of(column) for column in live.columns}
    found = []
    for number, sent in zip(numbers, message.columns, strict=True):
        both = (now.get(number), before.get(number))
        same = [c for c in both if c and (c.type_oid, c.typmod) == (sent.type_oid, sent.typmod)]
        if not same:
            return None
        nullable = any(column.nullable for column in both if column)  # in one of the two shapes
        found.append(replace(same[0], name=sent.name, nullable=nullable))
    return tuple(found)


def _facts_of(
    columns: Iterable[Column],
    ids: Mapping[str, int],
    definitions: Iterable[TableDefinition | None],
    last: Relation | None,
) -> Iterator[Column]:
    """Yield columns by number with what is known of them; a name may be another column's by now.

    Args:
        columns: as they are sent.
        ids: their numbers by name; 0 if a number is not known. Such a column stays as it is.
        definitions: of the table; the first that has a column of a number and type counts.
        last: the relation before, which counts after those.
    """
    known: dict[tuple[int, int, int], Column] = {}
    loose: set[int] = set()
    relations = [relation_of(one) for one in definitions if one is not None]
    for relation in [*relations, *([last] if last is not None else [])]:
        for column in relation.columns:
            if column.id:
                known.setdefault((column.id, column.type_oid, column.typmod), column)
        loose.update(column.id for column in relation.columns if column.id and column.nullable)
    for column in columns:
        number = ids[column.name]
        found = known.get((number, column.type_oid, column.typmod), column)
        yield replace(
            found, name=column.name, id=number, nullable=found.nullable or number in loose
        )


def _is_strict(relation: Relation) -> bool:
    """Return whether a relation has rules that its rows may break if they were dropped."""
    return bool(relation.unique) or any(not column.nullable for column in relation.columns)


def _loosen(relation: Relation, live: TableDefinition | None) -> Relation:
    """Return a relation without the unique keys and NOT NULLs that its table has no more.

    live: None if the table is gone. It is not known then which keys its rows had; without any, no
    row is refused.
    """
    if live is None:
        return replace(relation, unique=())
    unique = relation.unique
    if unique:
        there = {frozenset(key) for key in UniqueKey.columns_of(live.unique_keys)}
        unique = tuple(key for key in unique if frozenset(key) in there)
    loose = {column.id for column in live.columns if not column.not_null}
    columns = tuple(
        replace(column, nullable=column.nullable or column.id in loose)
        for column in relation.columns
    )
    return replace(relation, unique=unique, columns=columns)


def _numbers_of(
    count: int, last: Sequence[int], live: Sequence[int], all_live: frozenset[int]
) -> Sequence[int] | None:
    """Return the numbers of so many columns between two shapes; None if several sets are possible.

    Args:
        count: of columns.
        last: numbers of the earlier shape, without generated columns.
        live: those of the later one.
        all_live: those of the later one and of its generated columns.
    """
    if not all(last) or list(last) != sorted(set(last)) or not last:
        return None
    highest = max(last)
    if not all_live.issuperset(range(highest + 1, max(all_live, default=0) + 1)):
        return None  # one came and went in between
    come, gone = sorted(set(live) - set(last)), set(last) - set(live)
    if (come and gone) or any(number < highest for number in come):
        return None
    if not gone and 0 <= count - len(last) <= len(come):
        return [*last, *come[: count - len(last)]]
    if gone and count in (len(last), len(live)):
        return last if count == len(last) else sorted(live)
    return None


def _without_doubtful_ids(relation: Relation) -> Relation:
    """Return a relation without its columns' numbers if they cannot be right together."""
    ids = [column.id for column in relation.columns if column.id]
    if ids == sorted(set(ids)):
        return relation
    columns = tuple(replace(column, id=0) for column in relation.columns)
    return replace(relation, columns=columns)


def _told_keys(
    definition: TableDefinition, live: TableDefinition | None, *, last: Relation | None
) -> tuple[tuple[str, ...], ...] | None:
    """Return the unique keys that hold; None if unknown. Missing one of them loses nothing."""
    told = UniqueKey.columns_of((live or definition).unique_keys)
    if live is not None or last is None or last.unique is None:
        return told
    there = {frozenset(key) for key in told}
    return tuple(key for key in last.unique if frozenset(key) in there)


def _first_with(
    message: RelationMessage, found: Iterable[TableDefinition | None]
) -> TableDefinition | None:
    """Return the first definition that has exactly a message's columns."""
    return next(
        (one for one in found if one is not None and _has_columns(message, relation_of(one))), None
    )


def _is_same(left: Relation, right: Relation) -> bool:
    """Return whether two relations have the same columns, with NULL or not, and the same key."""

    def facts(relation: Relation) -> tuple[object, ...]:
        names = [(c.name, c.type_oid, c.typmod, c.id, c.nullable) for c in relation.columns]
        return relation.source_id, names, relation.key, relation.before, relation.identity

    return facts(left) == facts(right)


def _continue_column(column: Column, last: Relation) -> Column:
    """Return a column with two remembered facts: its value in old rows, and whether it became text.

    The catalogue forgets the value when the table is rewritten.
    """
    before = next(
        (c for c in last.columns if c.id == column.id and (c.id or c.name == column.name)), None
    )
    if before is None or (before.type_oid, before.typmod) != (column.type_oid, column.typmod):
        return column
    became_text = before.neutral == "string" and column.neutral != "string"
    return replace(
        column, missing=before.missing, neutral="string" if became_text else column.neutral
    )
