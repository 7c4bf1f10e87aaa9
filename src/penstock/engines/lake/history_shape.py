"""Histories of lake tables: their columns, and how these follow the columns of their tables.

A history has all changes of one table, one row each, and nothing in it is ever changed. It has
columns of the change first, then each column that its table ever had: a column that the table drops
stays, one that it renames is renamed, and one whose type cannot hold the new values gets another
beside it, named by its type. Pure. Not here: writing of changes (`history_writer.py`), commits
(`history.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from penstock.engines.lake.format import Change, ChangeKind, LakeColumn, LakeTable, Snapshot
from penstock.engines.lake.shape import apply_change
from penstock.model import Op, TableName

HISTORY_SUFFIX = "_history"
OPERATIONS: Mapping[int, str] = {op: op.name.lower() for op in Op}
READ = "read"
"""Operation of a row that its table had already when it was copied."""

TRUNCATE = "truncate"
"""Operation of a row after which the table is empty."""

_HEAD = (
    ("gsn", "int64"),
    ("step", "int32"),
    ("trx", "int64"),
    ("commit_time", "timestamptz"),
    ("op", "string"),
    ("absent", "string"),
)
HEAD_COUNT = len(_HEAD)
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)\Z")
_WIDER = {("int32", "int64"), ("float32", "float64")}
_OF = "history_of"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRecord:
    """Record of a history, kept in its commits.

    Attributes:
        history_of: The lake's name of its table.
        log_id: The log whose changes it has.
        sign: Beginning of the names of the change's columns: so many underscores that no column of
            the table began with it.
        copy: The copy of the table whose rows are in it; None before any.
        sources: By the identity of a column of the table the name of the column here.
        emptied: Transaction and row change of the newest TRUNCATE in it.
        event: Row change and step of the newest row that is not a row change.
    """

    history_of: TableName
    log_id: str
    sign: str = "_"
    copy: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    emptied: tuple[int, int] = (0, 0)
    event: tuple[int, int] = (0, 0)


def encode_history(record: HistoryRecord) -> str:
    """Return a record as text."""
    return json.dumps(msgspec.to_builtins(record), separators=(",", ":"))


def decode_history(text: str) -> HistoryRecord | None:
    """Return the record in a text; None if it is not of a history."""
    if not is_history(text):
        return None
    return msgspec.convert(json.loads(text), type=HistoryRecord)


def is_history(text: str) -> bool:
    """Return whether a table's record is that of a history."""
    return text.startswith(f'{{"{_OF}":')


def history_name(table: TableName) -> TableName:
    """Return the name of a table's history."""
    return TableName(table.schema, table.name + HISTORY_SUFFIX)


def choose_sign(columns: Sequence[LakeColumn]) -> str:
    """Return one underscore, or as many as no column of a table begins with."""
    names = {column.name.lower() for column in columns}
    sign = "_"
    while any(sign + name in names for name, _ in _HEAD):
        sign += "_"
    return sign


def head_columns(sign: str) -> tuple[LakeColumn, ...]:
    """Return the columns of the change, as a new history has them."""
    return tuple(LakeColumn(name=sign + name, type=kind) for name, kind in _HEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryShape:
    """Shape of a history.

    Attributes:
        columns: As in `Snapshot`; also next_field_id.
        sources: See `HistoryRecord`.
        changes: Changes that lead to it.
    """

    columns: tuple[LakeColumn, ...]
    next_field_id: int
    sources: Mapping[str, str]
    changes: tuple[Change, ...] = ()

    @classmethod
    def of(cls, snapshot: Snapshot, record: HistoryRecord) -> HistoryShape:
        """Return the shape of a version of a history."""
        return cls(
            columns=snapshot.columns,
            next_field_id=snapshot.next_field_id,
            sources=record.sources,
        )

    def name_of(self, column: LakeColumn) -> str:
        """Return the name here of a column of the table, which the shape was planned for."""
        return self.sources[_identity(column)]


def plan_history(
    table: LakeTable, snapshot: Snapshot, shape: HistoryShape, columns: Sequence[LakeColumn]
) -> HistoryShape:
    """Return the shape that holds these columns of the table, too.

    Args:
        table: The history.
        snapshot: Its newest version.
        shape: Its shape, of which an earlier batch may plan a part.
        columns: The table's columns.
    """
    planning = _Planning(table, snapshot, shape, columns)
    for column in columns:
        planning.place(column)
    return planning.shape()


def _identity(column: LakeColumn) -> str:
    """Return what a column of a table keeps when it is renamed."""
    return f"#{column.field_id}" if column.field_id else f"@{column.file_name}"


class _Planning:
    """One plan while it is made."""

    def __init__(
        self,
        table: LakeTable,
        snapshot: Snapshot,
        shape: HistoryShape,
        columns: Sequence[LakeColumn],
    ) -> None:
        self._table = table
        self._snapshot = snapshot
        self._columns = list(shape.columns)
        self._next_field_id = shape.next_field_id
        self._sources = dict(shape.sources)
        self._names = {column.name.lower() for column in columns}
        self._changes: list[Change] = []

    def shape(self) -> HistoryShape:
        """Return the planned shape."""
        return HistoryShape(
            columns=tuple(self._columns),
            next_field_id=self._next_field_id,
            sources=self._sources,
            changes=tuple(self._changes),
        )

    def place(self, column: LakeColumn) -> None:
        """Find or plan the place of a column of the table."""
        here = self._find(self._take_source(column))
        if here is not None and self._holds(here, column.type):
            here = self._rename(here, column.name)
        if here is None or here.name != column.name:
            here = self._by_name(column)
        self._sources[_identity(column)] = self._widen(here, column.type).name

    def _take_source(self, column: LakeColumn) -> str:
        """Return the name under which the column is known; empty if it is not.

        Columns of Delta tables have ids only since one of them was renamed.
        """
        known = self._sources.get(_identity(column))
        if known is None and column.field_id:
            known = self._sources.pop(f"@{column.file_name}", None)
        return known or ""

    def _find(self, name: str) -> LakeColumn | None:
        """Return a column of the table's here, by its name in any case."""
        columns = self._columns[HEAD_COUNT:]
        return next((one for one in columns if one.name.lower() == name.lower()), None)

    def _holds(self, here: LakeColumn, kind: str) -> bool:
        """Return whether a column holds values of a type, now or once it is widened."""
        if _fits(here.type, kind):
            return True
        change = Change(kind=ChangeKind.WIDEN, name=here.name, column=replace(here, type=kind))
        return not self._refuse(change)

    def _rename(self, here: LakeColumn, name: str) -> LakeColumn:
        """Rename a column as the table's was, unless another one has the name or it cannot be."""
        if here.name == name or self._is_taken(name):
            return here
        renamed = replace(here, name=name, physical=here.file_name)
        change = Change(kind=ChangeKind.RENAME, name=here.name, column=renamed)
        if self._refuse(change):
            return here
        self._make(change)
        return renamed

    def _by_name(self, column: LakeColumn) -> LakeColumn:
        """Return the column of this name, or a new one."""
        name = column.name
        suffix = "_" + re.sub(r"\W+", "_", column.type).strip("_")
        while True:
            here = self._find(name)
            if here is None and not self._is_taken(name):
                return self._add(name, column.type)
            if here is not None and self._holds(here, column.type):
                return here
            name, suffix = name + suffix, suffix if name == column.name else "_"
            while name.lower() in self._names:
                name += "_"

    def _is_taken(self, name: str) -> bool:
        return any(one.name.lower() == name.lower() for one in self._columns)

    def _widen(self, here: LakeColumn, kind: str) -> LakeColumn:
        if _fits(here.type, kind):
            return here
        wider = replace(here, type=kind)
        self._make(Change(kind=ChangeKind.WIDEN, name=here.name, column=wider))
        return wider

    def _add(self, name: str, kind: str) -> LakeColumn:
        added = self._table.plan_column(name, kind, field_id=self._next_field_id, initial=None)
        self._make(Change(kind=ChangeKind.ADD, name=name, column=added))
        if self._next_field_id:
            self._next_field_id += 1
        return added

    def _refuse(self, change: Change) -> str:
        snapshot = replace(self._snapshot, columns=tuple(self._columns))
        return self._table.refuse_change(change, snapshot)

    def _make(self, change: Change) -> None:
        self._columns = list(apply_change(self._columns, change))
        self._changes.append(change)


def _fits(kind: str, other: str) -> bool:
    """Return whether a type has all values of another one."""
    if kind == other or (other, kind) in _WIDER:
        return True
    wide, narrow = _DECIMAL.match(kind), _DECIMAL.match(other)
    if wide is None or narrow is None:
        return False
    digits, scale = int(wide[1]), int(wide[2])
    return scale >= int(narrow[2]) and digits - scale >= int(narrow[1]) - int(narrow[2])
