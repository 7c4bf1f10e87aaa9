"""Track the captured tables along a binlog: the effects of statements, and the shape of their rows.

Column names and types come from the binlog itself if it has them (full metadata), otherwise from
the catalogue, and only if that is certainly right at this place (`live_tables.py`). Identities of
columns follow the statements (`known_columns.py`). If neither rows nor statements show what
existing rows are now (values converted, a partition dropped), the table awaits a reload.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import structlog

from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.codec.mysql.binlog_query import Query
from penstock.codec.mysql.binlog_tables import ShapeMismatch, TableMap, check_relation
from penstock.engines.mysql.source.catalog import OWN_SCHEMA, SYSTEM_SCHEMAS
from penstock.engines.mysql.source.ddl_text import Doing, Effect, Limit
from penstock.engines.mysql.source.known_columns import (
    KnownColumns,
    alter_columns,
    identify,
    number_by_name,
    number_columns,
)
from penstock.engines.mysql.source.relations import (
    charsets_of,
    fits,
    merged_relation,
    relation_of_definition,
    with_whole_before,
)
from penstock.engines.mysql.source.stored_values import ValueUnknown
from penstock.engines.mysql.source.stream_place import Bound, Catalogue, StreamPlace
from penstock.engines.mysql.source.table_notes import AllNotes, AlterNote, TableNotes, in_order
from penstock.engines.mysql.source.unsupported import (
    LOAD_AGAIN,
    RowsChangedUnseen,
    StatementLogged,
    TableMoved,
)
from penstock.model import DROP_TABLE, MarkerKind, Relation, TableDefinition, TableName
from penstock.model.patterns import as_pattern

logger = structlog.get_logger()
Mark = tuple[MarkerKind, list[TableName], dict[str, Any]]  # a marker: kind, tables, data
_GHOST = re.compile(r"_+(?P<table>.+?)(?:_\d{8,14})?_(?:gho|ghc|del|new|old)\d*")
_ALTERED = "it was altered while the log began"
_CRASH_SAFE = frozenset(("innodb", "ndbcluster", "rocksdb"))
_REPLACING = re.compile(r"_+(?P<table>.+?)_(?:gho|new)\d*")


class SchemaHistory:
    """Notes on every table that is or was captured. Used by the decoding thread."""

    def __init__(
        self,
        live: Catalogue,
        notes: AllNotes | None,
        *,
        tables: Sequence[TableDefinition],
        begin: int,
        takes: Callable[[TableName], bool],
        takes_renamed: Callable[[TableName], bool] = lambda _: True,
        is_present: bool = True,
        altered: Collection[TableName] = (),
        fold: bool = False,
        is_whole: bool = False,
    ) -> None:
        """Continue with notes, or begin. changed: some notes are not stored yet.

        tables: the tables that the configuration captures, as the catalogue has them at position
        `begin`; used only without notes: later tables are captured from their CREATE on.
        is_present: these definitions are right at `begin`; else they are later ones and only their
        names are used. altered: tables that were altered between `begin` and the catalogue: they
        are read again. takes: whether the configuration captures a name at once. takes_renamed:
        whether it captures a table that gets this name, at once or on request. fold: the server
        folds names' case. is_whole: before images hold all columns, also for tables with a key.
        """
        self.changed = notes is None
        self._live = live
        self._takes, self._takes_renamed = takes, takes_renamed
        self._fold = fold
        self._is_whole = is_whole
        self._notes: dict[TableName, TableNotes] = {}
        for one in notes.tables if notes is not None else ():
            self._notes[one.table] = one
        self._passed: set[TableName] = set()
        self._awaiting: dict[TableName, str] = {}
        self._asked: deque[tuple[TableName, bool]] = deque()
        # The state at a place results from transactions before it.
        since = max(begin - 1, 0)
        for definition in tables if notes is None else ():
            one = TableNotes(schema=definition.name.schema, name=definition.name.name)
            one.captured[since] = True
            is_altered = definition.name in altered
            one.definitions[since] = definition if is_present and not is_altered else None
            if is_present:
                names = [column.name for column in definition.columns]
                known = number_columns(names, last_id=0)
                one.note_columns(since, known.with_doubt(_ALTERED) if is_altered else known)
            self._notes[definition.name] = one
        self._find_awaiting()

    # -- tables added and removed during the stream ------------------------------------------

    @property
    def is_asked(self) -> bool:
        """Return whether a request waits for the decoding thread."""
        return bool(self._asked)

    def ask(self, name: TableName, *, captured: bool) -> None:
        """Begin or end the capture of a table; any thread may call it."""
        self._asked.append((name, captured))

    def take_asked(self, here: BinlogPosition | None = None) -> bool:
        """Carry out requests between two transactions; return whether bindings are outdated.

        here: the stream's position; None before the stream has begun.
        """
        is_changed = False
        while self._asked:
            name, captured = self._asked[0]
            name = self.fold(*name)
            old = self._notes.get(name)
            if (old is not None and old.is_captured) != captured:
                # It holds wherever the stream goes back to: its rows are copied at a later point.
                self._notes[name] = TableNotes(
                    schema=name.schema,
                    name=name.name,
                    captured={0: captured},
                    version=old.version if old is not None else 0,
                    last_id=old.last_id if old is not None else 0,
                )
                if captured and here is not None:
                    self._learn(self._notes[name], here)
                self._passed.discard(name)
                self._awaiting.pop(name, None)
                self.changed = is_changed = True
            self._asked.popleft()  # only now: the requester waits for this
        return is_changed

    def _learn(self, notes: TableNotes, here: BinlogPosition) -> None:
        """Note a table's columns from the stream's place on: later statements may rename them."""
        definition = self._live.read_at(notes.table, here)
        notes.definitions[0] = definition
        later = definition or self._live.read(notes.table)
        if later is None:
            return
        names = [column.name for column in later.columns]
        known = number_columns(names, last_id=notes.last_id)
        self._note_columns(
            notes, 0, known if definition is not None else known.with_doubt(_ALTERED)
        )

    def notes(self) -> AllNotes:
        """Return all notes, to be stored."""
        return AllNotes(tables=list(self._notes.values()))

    def rewind(self, position: int) -> None:
        """Forget everything after position, where the stream continues: it has not happened yet."""
        self.changed = True
        for notes in self._notes.values():
            notes.forget_ahead(position)
            if not notes.captured:
                # It was first seen later than here; the version stays, so that it is not used
                # twice.
                notes.captured[0] = False
        self._find_awaiting()

    def forget_behind(self, position: int) -> None:
        """Forget old notes: the stream will never begin before position again."""
        for notes in self._notes.values():
            notes.forget_behind(position)

    def fold(self, schema: str, name: str) -> TableName:
        """Return a name as the notes have it."""
        return TableName(schema.lower(), name.lower()) if self._fold else TableName(schema, name)

    # -- rows --------------------------------------------------------------------------------

    def resolve(self, table: TableMap, place: StreamPlace, *, is_mariadb: bool) -> Bound:
        """Return the relation that rows of a TABLE_MAP have from here on.

        Raises ShapeMismatch, TypeRefused, RowsChangedUnseen, and the errors of the catalogue.
        """
        name = self.fold(table.schema, table.name)
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
                hints = [notes.definition, self._live.read(name)]
                try:
                    relation = merged_relation(
                        table, hints, is_mariadb=is_mariadb, last=notes.relation
                    )
                except ShapeMismatch as error:
                    if notes.known_columns is None:
                        raise
                    # Its rows are read again as a whole: until then none can be decoded.
                    self._doubt(notes, place.since, error.message)
                    return Bound(relation=None)
                return Bound(relation=self._settle(notes, relation, place))
        relation = relation_of_definition(definition)
        charsets = charsets_of(definition)
        check_relation(table, relation, charsets)
        return Bound(relation=self._settle(notes, relation, place), charsets=charsets)

    def _pass_over(self, name: TableName) -> None:
        if name not in self._passed and self._wants(name):
            logger.warning(
                "table is not captured: it had rows before it was named", table=str(name)
            )
        self._passed.add(name)

    def widen(self, relation: Relation, column: int, place: StreamPlace) -> Relation:
        """Return a new version of relation in which one column is kept as text, and note it."""
        notes = self._notes[TableName(relation.schema, relation.name)]
        wider = replace(
            relation.with_text_column(column), version=notes.version + 1, since=place.since
        )
        self.changed = True
        notes.version = wider.version
        notes.relations[place.since] = wider
        return wider

    def _settle(
        self,
        notes: TableNotes,
        relation: Relation,
        place: StreamPlace,
        *,
        is_whole_table: bool = False,
    ) -> Relation:
        """Return the version of a relation, a new one only if the shape is new.

        is_whole_table: all rows of the table follow, even if earlier ones were not known.
        """
        if self._is_whole:
            relation = with_whole_before(relation)
        last, known = notes.relation, notes.known_columns
        if any(since > notes.relation_since for since in notes.fresh):
            known, relation = number_by_name(
                relation, last, last_id=notes.last_id, since=max(notes.fresh)
            )
        elif is_whole_table and known is not None and known.doubt:
            known, relation = number_by_name(
                relation, known, last_id=notes.last_id, since=place.since
            )
        elif known is None:
            names = [column.name for column in relation.columns]
            known = number_columns(names, last_id=notes.last_id)
            known, relation = identify(known, relation, None, last_id=notes.last_id)
        else:
            known, relation = identify(known, relation, last, last_id=notes.last_id)
        if known != notes.known_columns:
            self.changed = True
            self._note_columns(notes, place.since, known)
        if last is not None and relation.same_shape(last):
            return last
        relation = replace(relation, version=notes.version + 1, since=place.since)
        self.changed = True
        notes.version = relation.version
        notes.relations[place.since] = relation
        return relation

    def _doubt(self, notes: TableNotes, since: int, why: str) -> None:
        """Note that existing rows of a captured table are no longer known."""
        known = notes.known_columns
        if known is None or known.doubt:
            return
        logger.info("captured table will be read again", table=str(notes.table), reason=why)
        self._note_columns(notes, since, known.with_doubt(why))
        self.changed = True

    def _note_columns(self, notes: TableNotes, since: int, known: KnownColumns | None) -> None:
        notes.note_columns(since, known)
        if notes.doubt:
            self._awaiting[notes.table] = notes.doubt
        else:
            self._awaiting.pop(notes.table, None)

    def _find_awaiting(self) -> None:
        self._awaiting = {name: notes.doubt for name, notes in self._notes.items() if notes.doubt}

    def awaiting(self) -> dict[TableName, str]:
        """Return the tables that have to be read again, with the reason. Any thread may call it."""
        return dict(self._awaiting)

    def version_of(self, name: TableName) -> int | None:
        """Return the version of a captured table's rows; None if the table is not captured."""
        notes = self._notes.get(name)
        return notes.version if notes is not None and notes.is_captured else None

    def read_again(self, definition: TableDefinition, place: StreamPlace) -> Relation:
        """Return the relation of a captured table whose definition holds at a place.

        Raises RowsChangedUnseen.
        """
        notes = self._notes[definition.name]
        notes.definitions[place.since] = definition
        self.changed = True
        relation = relation_of_definition(definition)
        return self._settle(notes, relation, place, is_whole_table=True)

    # -- statements --------------------------------------------------------------------------

    def concerns(self, effects: Iterable[Effect]) -> bool:
        """Return whether effects concern a captured table, or a table that is about to become or
        replace one.
        """
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
        """Return the captured table on which an online schema change tool works under this name."""
        of = ghost_of(name)
        notes = self._notes.get(of) if of is not None else None
        return notes if notes is not None and notes.is_captured else None

    def apply(self, effects: Sequence[Effect], query: Query, place: StreamPlace) -> list[Mark]:
        """Note a statement's effects; return the markers for emptied and dropped tables.

        Raises RowsChangedUnseen, TableMoved, StatementLogged, and the errors of queries to the
        server.
        """
        self.changed = True
        emptied: list[TableName] = []
        dropped: list[TableName] = []
        renames: list[tuple[TableName, TableName]] = []
        # A stream that begins further back brings statements again that are noted already.
        noted = {name for name, notes in self._notes.items() if notes.knows(place.since)}
        for effect in effects:
            if effect.doing is Doing.RENAMED and effect.table is not None and effect.to is not None:
                renames.append((effect.table, effect.to))
            elif effect.doing in (Doing.WRITTEN, Doing.UNKNOWN):
                self._handle_text(effect, query, place)
            elif effect.table is not None and effect.doing is Doing.DROPPED:
                dropped += self._drop(effect.table, place.since)
            elif effect.table is not None and effect.doing is Doing.ALTERED:
                self._alter(effect, query, place.since, is_noted=effect.table in noted)
            elif effect.table is not None:
                emptied += self._apply(effect, effect.table, place)
        dropped += self._rename(renames, place)
        truncate = {"cascade": False, "restart_identity": True}
        marks: list[Mark] = [
            (MarkerKind.TRUNCATE, emptied, truncate),
            (MarkerKind.DDL, dropped, DROP_TABLE),
        ]
        return [mark for mark in marks if mark[1]]

    def _apply(self, effect: Effect, table: TableName, place: StreamPlace) -> list[TableName]:
        since = place.since
        if effect.doing is Doing.CREATED:
            return self._create(table, since, effect.if_absent)
        notes = self._notes.get(table)
        if notes is None:
            return []
        if not notes.is_captured:
            if effect.doing in (Doing.CHANGED_UNSEEN, Doing.CASCADES):
                notes.add_limits(since, [Limit(what=effect.what)])
            return []
        if effect.doing is Doing.CASCADES:
            raise _unseen(table, f"a statement did: {effect.what}")
        if effect.doing is Doing.CHANGED_UNSEEN:
            self._doubt(notes, since, f"a statement did: {effect.what}")
        if effect.doing is Doing.REPAIRED:
            self._repair(notes, since)
        return [table] if effect.doing is Doing.EMPTIED else []

    def _alter(self, effect: Effect, query: Query, since: int, *, is_noted: bool) -> None:
        table = effect.table
        assert table is not None, "an ALTER names its table"
        notes = self._notes.get(table)
        if notes is None and self._ghost_of(table) is not None:
            notes = self._notes[table] = TableNotes(schema=table.schema, name=table.name)
            notes.captured[since] = False
        if notes is None:
            return
        notes.definitions[since] = None
        notes.add_limits(since, effect.limits)
        if is_noted:
            return
        if not notes.is_captured:
            values = self._values(effect, table, query)
            notes.altered.setdefault(since, []).append(AlterNote(effect=effect, values=values))
        elif notes.known_columns is not None:
            values = self._values(effect, table, query)
            lost = notes.find_unique_keys(effect.dropped_keys)
            known = alter_columns(
                notes.known_columns, effect, values, last_id=notes.last_id, since=since
            )
            is_loose = known.is_loose or not query.is_strict
            known = replace(known, is_loose=is_loose, lost_keys=(*known.lost_keys, *lost))
            self._note_columns(notes, since, known)

    def _values(self, effect: Effect, table: TableName, query: Query) -> dict[str, str | None]:
        """Return the values that existing rows got in added columns, if the server returns them."""
        values: dict[str, str | None] = {}
        for added in effect.added:
            if added.unclear:
                continue
            try:
                values[added.name] = self._live.added_value(table, added, query)
            except ValueUnknown as error:
                logger.info(
                    "value of an added column is not known",
                    table=str(table),
                    column=added.name,
                    reason=str(error),
                )
        return values

    def _repair(self, notes: TableNotes, since: int) -> None:
        """Note that tables may have lost rows by REPAIR, unless their engine survives a crash."""
        definition = notes.definition or self._live.read(notes.table)
        engine = definition.engine if definition is not None else ""
        if engine.lower() not in _CRASH_SAFE:
            self._doubt(notes, since, f"repair table, of engine {engine or 'unknown'}")

    def _create(self, table: TableName, since: int, if_absent: bool) -> list[TableName]:
        notes = self._notes.get(table)
        if notes is not None and notes.is_captured:
            if if_absent and notes.is_there:
                return []
        elif not self._wants(table):
            if notes is not None:
                notes.altered.clear()
                notes.limits.clear()
            return []
        is_known = notes is not None and notes.is_captured
        if notes is None:
            notes = self._notes[table] = TableNotes(schema=table.schema, name=table.name)
            self._passed.discard(table)
        notes.captured[since], notes.there[since] = True, True
        notes.definitions[since] = None
        self._note_columns(notes, since, None)
        notes.fresh.append(since)
        logger.info("captured table was created", table=str(table))
        return [table] if is_known else []

    def _drop(self, dropped: TableName, since: int) -> list[TableName]:
        """Note a dropped table; return the captured tables that were dropped with it."""
        gone = []
        for name, notes in self._notes.items():
            is_it = name == dropped or (dropped.name == "" and name.schema == dropped.schema)
            if is_it and notes.is_captured and notes.is_there:
                notes.there[since] = False
                notes.definitions[since] = None
                self._awaiting.pop(name, None)
                logger.warning("captured table was dropped", table=str(name))
                gone.append(name)
        return gone

    def _handle_text(self, effect: Effect, query: Query, place: StreamPlace) -> None:
        """Note that the tables named in a statement may have changed: it is logged as text, or not
        understood.
        """
        for name, notes in self._notes.items():
            said = {f"{name.schema}.{name.name}"}
            if query.schema == name.schema:
                said.add(name.name)
            is_any = effect.doing is Doing.WRITTEN and not effect.names
            if not notes.is_captured or not (is_any or said & effect.names):
                continue
            if effect.doing is Doing.UNKNOWN:
                notes.definitions[place.since] = None
                self._doubt(notes, place.since, f"a statement is not understood: {query.text[:80]}")
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

    def _rename(
        self, renames: Sequence[tuple[TableName, TableName]], place: StreamPlace
    ) -> list[TableName]:
        """Change tables' names from left to right; then check each captured name.

        Returns the captured names that no table has any more.
        """
        dropped: list[TableName] = []
        held: dict[TableName, TableName | None] = {}
        for old, new in renames:
            held[new] = held.pop(old, old) if old in held else old
            held[old] = None
        for name, now in held.items():
            notes = self._notes.get(name)
            if notes is None or not notes.is_captured:
                if now is None or now == name:
                    continue
                if self._wants(name):
                    self._replace_rows(name, f"it was {now}", place)
                else:
                    self._pass_over(name)
                continue
            if now == name:
                continue
            if now is not None and self._replaces(now, name):
                self._swap(notes, self._notes.get(now), place.since)
                continue
            if now is not None:
                self._replace_rows(name, f"it is what {now} was", place)
                continue
            if self._is_still_there(name, place):
                continue  # a temporary table of that name was renamed (MariaDB logs that)
            to = next(to for to, it in held.items() if it == name)
            if not self._takes_renamed(to):
                raise _table_moved(name, to)
            dropped += self._drop(name, place.since)
        return dropped

    def _replace_rows(self, name: TableName, why: str, place: StreamPlace) -> None:
        """Note that a captured name now belongs to another table's rows, so they are read again."""
        notes = self._notes.get(name)
        if notes is None:
            notes = self._notes[name] = TableNotes(schema=name.schema, name=name.name)
            self._passed.discard(name)
        since = place.since
        notes.captured[since], notes.there[since] = True, True
        notes.definitions[since] = definition = self._live.read_at(name, place.behind)
        known = notes.known_columns
        if known is None:
            later = definition or self._live.read(name)
            names = [column.name for column in later.columns] if later is not None else []
            known = number_columns(names, last_id=notes.last_id)
        self._note_columns(notes, since, known.with_doubt(why))
        logger.info("captured table will be read again", table=str(name), reason=why)

    def _is_still_there(self, name: TableName, place: StreamPlace) -> bool:
        """Return whether the table exists after a statement, and no later one has created it."""
        return self._live.read_at(name, place.behind) is not None

    def _replaces(self, now: TableName, name: TableName) -> bool:
        """Return whether an online schema change tool created this table to replace that one."""
        match = _REPLACING.fullmatch(now.name)
        return match is not None and (now.schema, match["table"]) == name

    def _swap(self, notes: TableNotes, ghost: TableNotes | None, since: int) -> None:
        """Continue the table with its ghost's history: the ghost has the same rows in another
        shape.

        These tools copy with INSERT IGNORE: values are cut to fit, even in a strict session.
        """
        notes.definitions[since] = None
        known = notes.known_columns
        if known is None:
            return
        known = replace(known, is_loose=True)
        for note in in_order(ghost.altered) if ghost is not None else ():
            lost = notes.find_unique_keys(note.effect.dropped_keys)
            known = alter_columns(
                known, note.effect, note.values, last_id=notes.last_id, since=since
            )
            known = replace(known, lost_keys=(*known.lost_keys, *lost))
            self._note_columns(notes, since, known)
        key = notes.key_names()
        for limit in in_order(ghost.limits) if ghost is not None else ():
            if not key or not key <= {column.lower() for column in limit.columns}:
                known = known.with_doubt(
                    f"it was replaced by a copy with {limit.what}, and rows that this refused were "
                    "left out (insert ignore)"
                )
        self._note_columns(notes, since, known)
        logger.info("captured table was replaced by its altered copy", table=str(notes.table))

    def introduce(self, names: Iterable[TableName], place: StreamPlace) -> list[Relation]:
        """Return relations of captured tables that had none, as they are before a statement."""
        shown = []
        for name in sorted(names):
            notes = self._notes.get(name)
            if notes is None or not notes.is_captured or notes.relation is not None:
                continue
            if notes.definition is not None:
                relation = relation_of_definition(notes.definition)
                shown.append(self._settle(notes, relation, place))
        return shown

    def refresh(self, name: TableName, place: StreamPlace) -> Relation | None:
        """Return the relation that a table has after a statement, if it is known already and new.

        Returns None otherwise: the table's rows will show it.
        """
        notes = self._notes.get(name)
        if notes is None or not notes.is_captured or not notes.is_there:
            return None
        definition = self._live.read_at(name, place.behind)
        if definition is None:
            return None
        notes.definitions[place.since] = definition
        before = notes.version
        relation = self._settle(notes, relation_of_definition(definition), place)
        return relation if notes.version != before else None


def ghost_of(name: TableName) -> TableName | None:
    """Return the table on which an online schema change tool would work under this name."""
    match = _GHOST.fullmatch(name.name)
    return TableName(name.schema, match["table"]) if match else None


def _unseen(table: TableName, what: str) -> RowsChangedUnseen:
    return RowsChangedUnseen(
        f"rows of {table} changed, and the binlog does not say how: {what}",
        hint=LOAD_AGAIN,
        table=str(table),
    )


def _table_moved(name: TableName, to: TableName) -> TableMoved:
    return TableMoved(
        f"captured table {name} was renamed to {to}, which is not captured from this place on",
        hint="Rename it back and start again; or have its new name captured ([source] tables with "
        f"'{as_pattern(to)}', newTables = \"add\") and start again: its rows are copied as those "
        "of a new table, and the old one stays in the target as it is.",
        table=str(name),
    )


__all__ = ["Bound", "SchemaHistory", "ShapeMismatch", "StreamPlace"]
