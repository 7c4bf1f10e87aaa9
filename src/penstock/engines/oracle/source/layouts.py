"""Columns of captured tables between their DDL statements, along the redo.

LogMiner names the columns of a row by the present dictionary. A row of an earlier version comes as
`COL n`, so the columns of then have to be known. They are read from the catalogue once, and each
statement of the redo is applied to them (`ddl_columns.py`). A statement that is not understood
ends what is known; the catalogue is read again, which tells the columns after its last statement.

Columns get identities here, because those of Oracle's catalogue change when a column is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from penstock.codec.oracle.types import explain_refusal, parse_type
from penstock.engines.oracle.reading.catalog import TableNotCapturable
from penstock.engines.oracle.source.ddl_columns import ColumnState, alter_columns
from penstock.engines.oracle.source.errors import RELOAD, RowsUnlogged
from penstock.engines.oracle.source.relations import read_default
from penstock.model import Column, Relation, TableDefinition, TableName

Columns = Sequence[tuple[str, str]]


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of a table between two statements.

    Attributes:
        relation: Shape of its rows. The columns have their identities.
        columns: All columns in the order of their internal ids, hidden ones too: name and type.
        read_scn: SCN before the catalogue was read, or of the statement from which it follows.
        since: SCN from which on the table has these columns for certain.
        until: SCN of the statement that ended it; 0 for the last one.
        position: Of the statement that it follows from; 0 if it was read from the catalogue.
        last_id: The highest identity of the table so far.
    """

    relation: Relation
    columns: tuple[tuple[str, str], ...]
    read_scn: int = 0
    since: int = 0
    until: int = 0
    position: int = 0
    last_id: int = 0

    def holds_at(self, scn: int) -> bool:
        """Return whether rows of an SCN have these columns for certain."""
        return self.since <= scn and (not self.until or scn < self.until)


@dataclass(slots=True)
class Layouts:
    """Layouts of all captured tables.

    Attributes:
        is_changed: Whether they have to be saved.
    """

    is_changed: bool = False
    _tables: dict[TableName, list[Layout]] = field(default_factory=dict)
    _unclear: dict[TableName, tuple[str, int]] = field(default_factory=dict)
    """Statements that were not understood, and their positions."""

    def load(self, layouts: Sequence[Layout]) -> None:
        """Take over what the state file remembers."""
        self._tables = {}
        for one in layouts:
            name = TableName(one.relation.schema, one.relation.name)
            self._tables.setdefault(name, []).append(one)

    def state(self) -> tuple[Layout, ...]:
        """Return what the state file has to remember."""
        return tuple(one for listed in self._tables.values() for one in listed)

    def present(self, table: TableName) -> Layout | None:
        """Return the layout after the last statement that was given; None if it is not known."""
        listed = self._tables.get(table)
        return listed[-1] if listed and not listed[-1].until else None

    def at(self, table: TableName, scn: int) -> Layout | None:
        """Return the layout of rows of an SCN; None if it is not known."""
        listed = self._tables.get(table, ())
        return next((one for one in reversed(listed) if one.holds_at(scn)), None)

    def forget(self, table: TableName) -> None:
        """Forget a table that was dropped, or whose rows do not fit."""
        self.is_changed |= self._tables.pop(table, None) is not None
        self._unclear.pop(table, None)

    def prune(self, scn: int) -> None:
        """Forget layouts that ended before all rows that still come."""
        for table, listed in self._tables.items():
            left = [one for one in listed if not one.until or one.until > scn]
            if len(left) < len(listed):
                self._tables[table] = left
                self.is_changed = True

    # ------------------------------------------------------------------ the catalogue

    def learn(
        self,
        definition: TableDefinition,
        relation: Relation,
        columns: Columns,
        last: Relation | None,
        *,
        between: tuple[int, int],
    ) -> None:
        """Note a table without a known present layout, as the catalogue has it.

        Args:
            definition: Of the table.
            relation: Its shape, whose columns have no identities yet.
            columns: All columns in the order of their internal ids.
            last: The shape that the log had last; None for a new table.
            between: SCNs before and after the catalogue was read.

        Raises RowsUnlogged if earlier rows have values in it that are not known.
        """
        table = definition.name
        ended = self._tables.get(table, [])
        known = {one.name: one for one in last.columns} if last is not None else {}
        last_id = max([0, *(one.last_id for one in ended), *(one.id for one in known.values())])
        if known.keys() != {one.name for one in relation.columns}:
            self.check_clear(table)
        _, position = self._unclear.pop(table, ("", 0))
        defaults = {one.name: one.default for one in definition.columns}
        found = []
        for one in relation.columns:
            old = known.get(one.name)
            if old is not None and old.id:
                found.append(replace(one, id=old.id, missing=old.missing, names=old.names))
                continue
            last_id += 1
            missing = None if last is None else _read_missing(table, one.name, defaults[one.name])
            found.append(replace(one, id=last_id, missing=missing if old is None else old.missing))
        layout = Layout(
            relation=replace(relation, columns=tuple(found)),
            columns=tuple(columns),
            read_scn=between[0],
            since=between[1],
            position=position,
            last_id=last_id,
        )
        self._tables[table] = [*ended, layout]
        self.is_changed = True

    def check_clear(self, table: TableName) -> None:
        """Raise RowsUnlogged if the last statement of a table was not understood."""
        text, position = self._unclear.get(table, ("", 0))
        if text:
            raise RowsUnlogged(
                f"a statement at SCN {position >> 64} changed columns of {table} in a way that is "
                f"not understood: {text[:80]!r}",
                hint=f"Load the table again. {RELOAD}",
                table=str(table),
            )

    # ------------------------------------------------------------------ statements

    def alter(self, table: TableName, text: str, scn: int, position: int) -> None:
        """Apply a statement of the redo to the present layout of a table.

        Raises RowsUnlogged if earlier rows have values in a new column that are not known, and
        TableNotCapturable if the log does not show values of its type.
        """
        listed = self._tables.get(table, [])
        present = self.present(table)
        if present is None or scn <= present.read_scn:
            return  # the catalogue had it already
        self.is_changed = True
        if scn <= present.since:
            self._tables[table] = listed[:-1]  # the catalogue may have had it or not
            return
        after = self._apply(present, text, scn, position)
        ended = msgspec.structs.replace(present, until=scn)
        self._tables[table] = [*listed[:-1], ended, *([after] if after is not None else [])]
        if after is None:
            self._unclear[table] = text, position

    def _apply(self, before: Layout, text: str, scn: int, position: int) -> Layout | None:
        ids = {one.name: one.id for one in before.relation.columns}
        states = [ColumnState(name, kind, ids.get(name, 0)) for name, kind in before.columns]
        found = alter_columns(text, states, last_id=before.last_id)
        if found is None:
            return None
        relation = before.relation
        table = TableName(relation.schema, relation.name)
        known = {one.id: one for one in relation.columns}
        columns: list[Column] = []
        for state in found:
            if state.is_added:
                _check_shown(table, state, scn)
                columns.append(_add_column(table, state, position))
            elif state.id:
                _check_shown(table, state, scn)
                columns.append(_follow(known[state.id], state, position))
        return msgspec.structs.replace(
            before,
            relation=with_columns(relation, columns),
            columns=tuple((one.name, one.type) for one in found),
            read_scn=scn,
            since=scn,
            position=position,
            last_id=max([before.last_id, *(one.id for one in found)]),
        )


def _check_shown(table: TableName, state: ColumnState, scn: int) -> None:
    """Raise TableNotCapturable for a column whose values the log does not show."""
    kind = parse_type(state.type)
    reason = explain_refusal(kind)
    if reason:
        raise TableNotCapturable(
            f"{table} cannot be captured since a statement at SCN {scn}: it has a column that the "
            f"log does not show: {state.name} {kind.text}: {reason}",
            hint=f"Run `penstock table remove FILE {table}` to continue without the table.",
            table=str(table),
            column=state.name,
            scn=scn,
        )


def _add_column(table: TableName, state: ColumnState, position: int) -> Column:
    """Return a column that a statement added. Raises RowsUnlogged."""
    return Column(
        name=state.name,
        source_type=state.type,
        neutral=parse_type(state.type).neutral,
        missing=_read_missing(table, state.name, state.default),
        id=state.id,
        names=((position, state.name),),
    )


def _follow(column: Column, state: ColumnState, position: int) -> Column:
    """Return a column with the name and type that it has after a statement."""
    if parse_type(column.base_type or column.source_type).text != parse_type(state.type).text:
        kind = parse_type(state.type)
        column = replace(column, source_type=kind.text, neutral=kind.neutral, base_type="")
    if column.name == state.name:
        return column
    names = column.names or ((0, column.name),)
    return replace(column, name=state.name, names=(*names, (position, state.name)))


def _read_missing(table: TableName, name: str, default: str | None) -> str | None:
    """Return the value of an added column in earlier rows. Raises RowsUnlogged."""
    try:
        return read_default(default)
    except ValueError as error:
        raise RowsUnlogged(
            f"column {name} was added to {table} with a default that is not a literal: "
            "its values in earlier rows are not in the redo",
            hint=f"Load the table again. {RELOAD}",
            table=str(table),
        ) from error


def with_columns(relation: Relation, columns: Sequence[Column]) -> Relation:
    """Return a shape with other columns; its keys are those columns that are still there."""
    places = {one.id: at for at, one in enumerate(columns)}
    ids = [one.id for one in relation.columns]
    names = {one.name: columns[places[one.id]].name for one in relation.columns if one.id in places}

    def move(given: Sequence[int]) -> tuple[int, ...]:
        return tuple(places[ids[at]] for at in given if ids[at] in places)

    key = move(relation.key)
    if len(key) < len(relation.key):
        key = ()
    has_whole = not key or len(relation.before) > len(relation.key)
    logged = [
        at
        for at, one in enumerate(columns)
        if not parse_type(one.base_type or one.source_type).is_large
    ]
    unique = relation.unique
    if unique is not None:
        left = (one for one in unique if all(name in names for name in one))
        unique = tuple(tuple(names[name] for name in one) for one in left)
    return replace(
        relation,
        columns=tuple(columns),
        key=key,
        before=tuple(logged) if has_whole else key,
        unique=unique,
    )


def with_catalogue(relation: Relation, found: Relation) -> Relation:
    """Return a shape with what the catalogue adds, if both have the same columns."""
    pairs = list(zip(relation.columns, found.columns, strict=False))
    is_same = len(relation.columns) == len(found.columns) and all(
        mine.name == theirs.name
        and parse_type(mine.base_type or mine.source_type).base
        == parse_type(theirs.base_type or theirs.source_type).base
        for mine, theirs in pairs
    )
    if not is_same:
        return relation
    columns = tuple(
        replace(theirs, id=mine.id, missing=mine.missing, names=mine.names)
        for mine, theirs in pairs
    )
    return replace(found, columns=columns)
