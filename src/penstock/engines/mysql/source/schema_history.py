"""The captured tables along a binlog: what statements do to them, what their rows look like.

Column names and types come from the binlog itself where it has them (full metadata), otherwise from
the catalogue, and only where that is certainly right at this place (`live_tables.py`). What row
events do not show (values converted, a partition dropped) stops the extraction by name.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog

from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.codec.mysql.binlog_query import Query
from penstock.codec.mysql.binlog_tables import ShapeMismatch, TableMap, check_relation
from penstock.codec.mysql.retyping import keeps_values
from penstock.engines.mysql.source.catalog import OWN_SCHEMA, SYSTEM_SCHEMAS
from penstock.engines.mysql.source.ddl_losses import Limit
from penstock.engines.mysql.source.ddl_text import Doing, Effect
from penstock.engines.mysql.source.relations import (
    charsets_of,
    fits,
    merged_relation,
    relation_of_definition,
    with_whole_before,
)
from penstock.engines.mysql.source.table_notes import AddedNote, AllNotes, LimitNote, TableNotes
from penstock.engines.mysql.source.unsupported import (
    LOAD_AGAIN,
    RowsChangedUnseen,
    StatementLogged,
    TableMoved,
)
from penstock.model import DROP_TABLE, Column, MarkerKind, Relation, TableDefinition, TableName

logger = structlog.get_logger()
Mark = tuple[MarkerKind, list[TableName], dict[str, Any]]  # a marker: kind, tables, data
_GHOST = re.compile(r"_+(?P<table>.+?)(?:_\d{8,14})?_(?:gho|ghc|del|new|old)\d*")
_CRASH_SAFE = frozenset(("innodb", "ndbcluster", "rocksdb"))
_REPLACING = re.compile(r"_+(?P<table>.+?)_(?:gho|new)\d*")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlace:
    """Where the stream is. since: the open transaction's position. behind: of the last event."""

    since: int
    behind: BinlogPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a TABLE_MAP's rows are; relation None: not captured. charsets: per column."""

    relation: Relation | None
    charsets: tuple[str | None, ...] = ()


class Catalogue(Protocol):
    """The server's catalogue; see `live_tables.LiveTables`."""

    def read(self, name: TableName) -> TableDefinition | None:
        """A table's definition now; None when there is none."""
        ...

    def read_at(self, name: TableName, behind: BinlogPosition) -> TableDefinition | None:
        """A table's definition as it was at a place of the stream; None when not known."""
        ...


class SchemaHistory:
    """Notes on every table that is or was captured. Used by the thread that decodes."""

    def __init__(
        self,
        live: Catalogue,
        notes: AllNotes | None,
        *,
        tables: Sequence[TableDefinition],
        begin: int,
        takes: Callable[[TableName], bool],
        is_present: bool = True,
        fold: bool = False,
        is_whole: bool = False,
    ) -> None:
        """Go on with notes, or begin. changed: there is something that is not stored yet.

        tables: what the configuration captures, as the catalogue has it at position `begin`; used
        only without notes: later tables are captured from their CREATE on. is_present: these
        definitions are right at `begin`; else they are later ones and only their names are used.
        takes: whether the configuration captures a name. fold: the server folds names' case.
        is_whole: before images hold all columns, also of tables with a key.
        """
        self.changed = notes is None
        self._live = live
        self._takes = takes
        self._fold = fold
        self._is_whole = is_whole
        self._notes: dict[TableName, TableNotes] = {}
        for one in notes.tables if notes is not None else ():
            self._notes[one.table] = one
        self._passed: set[TableName] = set()
        self._asked: deque[tuple[TableName, bool]] = deque()
        # What is true at a place was made so before it.
        since = max(begin - 1, 0)
        for definition in tables if notes is None else ():
            one = TableNotes(schema=definition.name.schema, name=definition.name.name)
            one.captured[since] = True
            one.definitions[since] = definition if is_present else None
            self._notes[definition.name] = one

    # -- tables added and removed while the stream goes on -----------------------------------

    @property
    def is_asked(self) -> bool:
        """Whether there is a request that the decoding thread has not carried out yet."""
        return bool(self._asked)

    def ask(self, name: TableName, *, captured: bool) -> None:
        """From any thread: begin or end the capture of a table."""
        self._asked.append((name, captured))

    def take_asked(self) -> bool:
        """Between two transactions: carry out requests; returns whether bindings are outdated."""
        is_changed = False
        while self._asked:
            name, captured = self._asked[0]
            name = self.folded(*name)
            old = self._notes.get(name)
            if (old is not None and old.is_captured) != captured:
                # Wherever the stream goes back to: its rows are copied at a later point.
                self._notes[name] = TableNotes(
                    schema=name.schema,
                    name=name.name,
                    captured={0: captured},
                    version=old.version if old is not None else 0,
                )
                self._passed.discard(name)
                self.changed = is_changed = True
            self._asked.popleft()  # only now: whoever asked waits for this
        return is_changed

    def notes(self) -> AllNotes:
        """Everything, to be stored."""
        return AllNotes(tables=list(self._notes.values()))

    def rewind(self, position: int) -> None:
        """The stream goes on at position: what comes later has not happened yet."""
        self.changed = True
        for notes in self._notes.values():
            notes.forget_ahead(position)
            if not notes.captured:
                # It was first seen later than here; the version stays, so that it is not used
                # twice.
                notes.captured[0] = False

    def forget_behind(self, position: int) -> None:
        """The stream will never begin before position again."""
        for notes in self._notes.values():
            notes.forget_behind(position)

    def folded(self, schema: str, name: str) -> TableName:
        """A name as the notes have it."""
        return TableName(schema.lower(), name.lower()) if self._fold else TableName(schema, name)

    # -- rows --------------------------------------------------------------------------------

    def resolve(self, table: TableMap, place: StreamPlace, *, is_mariadb: bool) -> Bound:
        """What rows of a TABLE_MAP are from here on.

        Raises ShapeMismatch, TypeRefused, RowsChangedUnseen, and what the catalogue does.
        """
        name = self.folded(table.schema, table.name)
        notes = self._notes.get(name)
        if notes is None or not notes.is_captured:
            self._pass_over(name)
            return Bound(relation=None)
        definition = notes.definition
        if definition is None or not fits(table, definition):
            definition = self._live.read_at(name, place.behind)
            if definition is not None and fits(table, definition):
                notes.definitions[place.since] = definition
                self.changed = True
            else:
                relation = merged_relation(
                    table, [notes.definition, self._live.read(name)], is_mariadb=is_mariadb
                )
                return Bound(relation=self._settled(notes, relation, place))
        relation = relation_of_definition(definition)
        charsets = charsets_of(definition)
        check_relation(table, relation, charsets)
        return Bound(relation=self._settled(notes, relation, place), charsets=charsets)

    def _pass_over(self, name: TableName) -> None:
        if name not in self._passed and self._wants(name):
            logger.warning(
                "table is not captured: it had rows before it was named", table=str(name)
            )
        self._passed.add(name)

    def widen(self, relation: Relation, column: int, place: StreamPlace) -> Relation:
        """The version of relation in which one column is kept as text; remembered."""
        notes = self._notes[TableName(relation.schema, relation.name)]
        wider = replace(relation.with_text_column(column), version=notes.version + 1)
        self.changed = True
        notes.version = wider.version
        notes.relations[place.since] = wider
        return wider

    def _settled(self, notes: TableNotes, relation: Relation, place: StreamPlace) -> Relation:
        """The version of a relation, new only when the shape is."""
        if self._is_whole:
            relation = with_whole_before(relation)
        last = notes.relation
        if last is not None:
            began_anew = any(since > notes.settled for since in notes.fresh)
            before = {} if began_anew else _columns_before(notes, last, relation)
            relation = _continued(relation, before)
            if relation.same_shape(last):
                return last
            if not began_anew:
                relation = self._explained(notes, before, relation)
        relation = replace(relation, version=notes.version + 1)
        self.changed = True
        notes.version = relation.version
        notes.relations[place.since] = relation
        return relation

    def _explained(
        self, notes: TableNotes, before: Mapping[str, Column], relation: Relation
    ) -> Relation:
        """A new shape of a table with rows: the existing rows' values in it must be known."""
        added = notes.added_since(notes.settled)
        names = notes.names_since(notes.settled)
        strict = not any(since > notes.settled for since in notes.loose)
        columns = []
        for column in relation.columns:
            old = before.get(column.name)
            if old is None:
                note = added.get(names.get(column.name, column.name))
                columns.append(replace(column, missing=_value_of(note, relation, column.name)))
                continue
            if not keeps_values(
                old.base_type or old.source_type,
                column.base_type or column.source_type,
                strict=strict,
            ):
                raise _unseen(
                    notes.table,
                    f"column {column.name} became {column.source_type}, it was {old.source_type}",
                )
            if old.nullable and not column.nullable and not strict:
                raise _unseen(notes.table, f"column {column.name} became not null")
            columns.append(column)
        return replace(relation, columns=tuple(columns))

    def version_of(self, name: TableName) -> int | None:
        """The version that a captured table's rows have; None: the table is not captured."""
        notes = self._notes.get(name)
        return notes.version if notes is not None and notes.is_captured else None

    def read_again(self, definition: TableDefinition, place: StreamPlace) -> Relation:
        """The relation of a captured table whose definition holds at a place.

        Raises RowsChangedUnseen.
        """
        notes = self._notes[definition.name]
        notes.definitions[place.since] = definition
        self.changed = True
        return self._settled(notes, relation_of_definition(definition), place)

    # -- statements --------------------------------------------------------------------------

    def concerns(self, effects: Iterable[Effect]) -> bool:
        """Whether they concern a captured table, or one that is about to become or replace one."""
        return any(
            one.table is None
            or one.table.name == ""
            or self._is_noted(one.table)
            or (one.to is not None and self._is_noted(one.to))
            for one in effects
        )

    def _is_noted(self, name: TableName) -> bool:
        return name in self._notes or self._wants(name) or self._ghost_of(name) is not None

    def _wants(self, name: TableName) -> bool:
        own = name.schema in (OWN_SCHEMA, *SYSTEM_SCHEMAS)
        return not own and self._ghost_of(name) is None and self._takes(name)

    def _ghost_of(self, name: TableName) -> TableNotes | None:
        """The captured table that an online schema change tool works on under this name."""
        of = ghost_of(name)
        notes = self._notes.get(of) if of is not None else None
        return notes if notes is not None and notes.is_captured else None

    def apply(self, effects: Sequence[Effect], query: Query, place: StreamPlace) -> list[Mark]:
        """Note what a statement did; returns what the log is to say: emptied and dropped tables.

        Raises RowsChangedUnseen, TableMoved, StatementLogged.
        """
        self.changed = True
        emptied: list[TableName] = []
        dropped: list[TableName] = []
        renames: list[tuple[TableName, TableName]] = []
        for effect in effects:
            if effect.doing is Doing.RENAMED and effect.table is not None and effect.to is not None:
                renames.append((effect.table, effect.to))
            elif effect.doing in (Doing.WRITTEN, Doing.UNKNOWN):
                self._written(effect, query, place)
            elif effect.table is not None and effect.doing is Doing.DROPPED:
                dropped += self._dropped(effect.table, place.since)
            elif effect.table is not None:
                emptied += self._applied(effect, effect.table, place, query.is_strict)
        if renames:
            self._renamed(renames, place)
        truncate = {"cascade": False, "restart_identity": True}
        marks: list[Mark] = [
            (MarkerKind.TRUNCATE, emptied, truncate),
            (MarkerKind.DDL, dropped, DROP_TABLE),
        ]
        return [mark for mark in marks if mark[1]]

    def _applied(
        self, effect: Effect, table: TableName, place: StreamPlace, is_strict: bool
    ) -> list[TableName]:
        since = place.since
        if effect.doing is Doing.CREATED:
            return self._created(table, since, effect.if_absent)
        if effect.doing is Doing.ALTERED:
            self._altered(effect, table, since, is_strict)
            return []
        notes = self._notes.get(table)
        if notes is None:
            return []
        if not notes.is_captured:
            if effect.doing is Doing.CHANGED_UNSEEN:
                _add_limits(notes, since, [Limit(what=effect.what)])
            return []
        if effect.doing is Doing.CHANGED_UNSEEN:
            raise _unseen(table, f"a statement did: {effect.what}")
        if effect.doing is Doing.REPAIRED:
            self._repaired(notes)
        return [table] if effect.doing is Doing.EMPTIED else []

    def _altered(self, effect: Effect, table: TableName, since: int, is_strict: bool) -> None:
        notes = self._notes.get(table)
        if notes is None and self._ghost_of(table) is not None:
            notes = self._notes[table] = TableNotes(schema=table.schema, name=table.name)
            notes.captured[since] = False
        if notes is None:
            return
        notes.definitions[since] = None
        if not is_strict:
            notes.loose.append(since)
        notes.added[since] = [
            AddedNote(name=one.name, value=one.value, unclear=one.unclear) for one in effect.added
        ]
        if effect.columns:
            notes.columns[since] = list(effect.columns)
        _add_limits(notes, since, effect.limits)

    def _repaired(self, notes: TableNotes) -> None:
        """REPAIR does nothing to engines that survive a crash; others may be without rows now."""
        definition = notes.definition or self._live.read(notes.table)
        engine = definition.engine if definition is not None else ""
        if engine.lower() not in _CRASH_SAFE:
            raise _unseen(notes.table, f"repair table, of engine {engine or 'unknown'}")

    def _created(self, table: TableName, since: int, if_absent: bool) -> list[TableName]:
        notes = self._notes.get(table)
        if notes is not None and notes.is_captured:
            if if_absent and notes.is_there:
                return []
        elif not self._wants(table):
            if notes is not None:
                notes.added.clear()
                notes.columns.clear()
                notes.loose.clear()
                notes.limits.clear()
            return []
        is_known = notes is not None and notes.is_captured
        if notes is None:
            notes = self._notes[table] = TableNotes(schema=table.schema, name=table.name)
            self._passed.discard(table)
        notes.captured[since], notes.there[since] = True, True
        notes.definitions[since] = None
        notes.fresh.append(since)
        logger.info("captured table was made", table=str(table))
        return [table] if is_known else []

    def _dropped(self, dropped: TableName, since: int) -> list[TableName]:
        """Note it; returns the captured tables that are gone with it."""
        gone = []
        for name, notes in self._notes.items():
            is_it = name == dropped or (dropped.name == "" and name.schema == dropped.schema)
            if is_it and notes.is_captured and notes.is_there:
                notes.there[since] = False
                notes.definitions[since] = None
                logger.warning("captured table was dropped", table=str(name))
                gone.append(name)
        return gone

    def _written(self, effect: Effect, query: Query, place: StreamPlace) -> None:
        """A statement as text, or one not understood: tables that it names may have changed."""
        for name, notes in self._notes.items():
            said = {f"{name.schema}.{name.name}"}
            if query.schema == name.schema:
                said.add(name.name)
            is_any = effect.doing is Doing.WRITTEN and not effect.names
            if not notes.is_captured or not (is_any or said & effect.names):
                continue
            if effect.doing is Doing.UNKNOWN:
                notes.definitions[place.since] = None
                notes.loose.append(place.since)
                continue
            what = (
                "may have been changed by a function whose call"
                if is_any
                else "was changed by a statement that"
            )
            raise StatementLogged(
                f"{name} {what} is logged as text, not as rows",
                hint="Set binlog_format = 'ROW' for all sessions. " + LOAD_AGAIN,
                table=str(name),
            )

    def _renamed(self, renames: Sequence[tuple[TableName, TableName]], place: StreamPlace) -> None:
        """Tables change their names from left to right; then each captured name is looked at."""
        held: dict[TableName, TableName | None] = {}
        for old, new in renames:
            held[new] = held.pop(old, old) if old in held else old
            held[old] = None
        for name, now in held.items():
            notes = self._notes.get(name)
            if notes is None or not notes.is_captured:
                if now is not None and now != name:
                    self._pass_over(name)
                continue
            if now == name:
                continue
            if now is not None and self._replaces(now, name):
                self._swapped(notes, self._notes.get(now), place.since)
                continue
            raise _moved(name, now, next((to for to, it in held.items() if it == name), None))

    def _replaces(self, now: TableName, name: TableName) -> bool:
        """Whether an online schema change tool made this table to replace that one."""
        match = _REPLACING.fullmatch(now.name)
        return match is not None and (now.schema, match["table"]) == name

    def _swapped(self, notes: TableNotes, ghost: TableNotes | None, since: int) -> None:
        """The ghost has the same rows in another shape; its history is the table's from now on.

        These tools copy with INSERT IGNORE: values are cut to fit, however strict the session.
        """
        notes.definitions[since] = None
        notes.loose.append(since)
        if ghost is not None:
            notes.added[since] = [one for at in sorted(ghost.added) for one in ghost.added[at]]
            key = _key_of(notes)
            for limit in (one for at in sorted(ghost.limits) for one in ghost.limits[at]):
                if not key or not key <= {column.lower() for column in limit.columns}:
                    raise _unseen(
                        notes.table,
                        f"it was replaced by a copy with {limit.what}, and rows that this refused "
                        "were left out (insert ignore)",
                    )
        logger.info("captured table was replaced by its altered copy", table=str(notes.table))

    def introduced(self, names: Iterable[TableName], place: StreamPlace) -> list[Relation]:
        """Relations of captured tables without any so far, as they are before a statement."""
        shown = []
        for name in sorted(names):
            notes = self._notes.get(name)
            if notes is None or not notes.is_captured or notes.relation is not None:
                continue
            if notes.definition is not None:
                relation = relation_of_definition(notes.definition)
                shown.append(self._settled(notes, relation, place))
        return shown

    def refreshed(self, name: TableName, place: StreamPlace) -> Relation | None:
        """The relation that a table has behind a statement, when that is already known.

        None where it is not known, or not new: its rows will show it.
        """
        notes = self._notes.get(name)
        if notes is None or not notes.is_captured or not notes.is_there:
            return None
        definition = self._live.read_at(name, place.behind)
        if definition is None:
            return None
        notes.definitions[place.since] = definition
        before = notes.version
        relation = self._settled(notes, relation_of_definition(definition), place)
        return relation if notes.version != before else None


def _add_limits(notes: TableNotes, since: int, limits: Sequence[Limit]) -> None:
    """Only for working tables: in others an invalid row is refused with an error."""
    if limits and not notes.is_captured:
        said = [LimitNote(what=one.what, columns=one.columns) for one in limits]
        notes.limits[since] = notes.limits.get(since, []) + said


def _key_of(notes: TableNotes) -> set[str]:
    """The columns that identify a captured table's rows, in lower case; empty when not known."""
    if notes.relation is not None:
        names = [notes.relation.columns[index].name for index in notes.relation.key]
    else:
        last = [one for one in notes.definitions.values() if one is not None][-1:]
        names = [name for one in last for name in one.primary_key]
    return {name.lower() for name in names}


def ghost_of(name: TableName) -> TableName | None:
    """The table on which an online schema change tool would work under this name."""
    match = _GHOST.fullmatch(name.name)
    return TableName(name.schema, match["table"]) if match else None


def _columns_before(notes: TableNotes, last: Relation, relation: Relation) -> dict[str, Column]:
    """By the name now, the columns of the last version that are still there.

    Raises RowsChangedUnseen where a name went from one column to another: whoever has seen only the
    last version would mistake one for the other.
    """
    before = {column.name: column for column in last.columns}
    known = {name.lower(): column for name, column in before.items()}
    now = {column.name.lower() for column in relation.columns}
    for new, name in notes.names_since(notes.settled).items():
        old = known.get(name.lower())
        if old is None or new.lower() not in now or old.name == new:
            continue  # added behind the last version, gone since, or what it was called before
        taken = name.lower() != new.lower() and (new.lower() in known or name.lower() in now)
        if taken:
            what = f"column {old.name} was renamed to {new}, and a column has or had the other name"
            raise _unseen(notes.table, what)
        before[new] = before.pop(old.name)
    return before


def _continued(relation: Relation, before: Mapping[str, Column]) -> Relation:
    """What earlier versions know of columns that are still there: text forms, old rows' values."""
    columns = []
    for column in relation.columns:
        old = before.get(column.name)
        if old is not None:
            names = old.was if old.name == column.name else (old.name, *old.was)
            column = replace(column, missing=old.missing, was=names)
            if old.neutral == "string" and old.source_type == column.source_type:
                column = column.as_text()
        columns.append(column)
    return replace(relation, columns=tuple(columns))


def _value_of(note: AddedNote | None, relation: Relation, column: str) -> str | None:
    if note is None:
        raise _unseen(
            TableName(relation.schema, relation.name),
            f"column {column} is there, and no statement in the binlog added it",
        )
    if note.unclear:
        raise _unseen(
            TableName(relation.schema, relation.name),
            f"column {column} was added, and {note.unclear}",
        )
    return note.value


def _unseen(table: TableName, what: str) -> RowsChangedUnseen:
    return RowsChangedUnseen(
        f"rows of {table} changed, and the binlog does not say how: {what}",
        hint=LOAD_AGAIN,
        table=str(table),
    )


def _moved(name: TableName, now: TableName | None, to: TableName | None) -> TableMoved:
    what = f"is what {now} was" if now is not None else f"was renamed to {to}"
    return TableMoved(
        f"captured table {name} {what}: its rows are not those that the log knows",
        hint=f"Rename it back, or: {LOAD_AGAIN}",
        table=str(name),
    )


__all__ = ["Bound", "SchemaHistory", "ShapeMismatch", "StreamPlace"]
