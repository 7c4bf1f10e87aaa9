"""Values of large objects, from the rows by which LogMiner shows the writes to them.

Rows of one statement and one column are a group. A group's value is whole if its writes follow each
other from the first character on, and nothing else can be in the object: the row was inserted by
this transaction with an empty one, or the writes follow a trim to nothing, or end with a trim to
their length. Any other value is read from the table as of the commit. Each value becomes an update
of its column, after the insert of its row.

An extended VARCHAR2, NVARCHAR2 or RAW (of more than 4,000 bytes) is such a group, too. The form of
its data is not public, so its value is always read from the table.

Follows the reference, sections 8, 1a O2 and 1b.16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from msgspec import structs

from penstock.codec.oracle.lob_statements import (
    LobSelect,
    LobStatement,
    LobTrim,
    LobWrite,
    bytes_literal,
    parse_lob_statement,
    parse_long_string,
    text_literal,
)
from penstock.codec.oracle.mined_rows import Operation
from penstock.codec.oracle.redo_outcome import Defect, Reason, redo_error
from penstock.engines.oracle.source.entries import MISMATCH, OPERATION, UNDO, Entry, Transaction
from penstock.engines.oracle.source.kept_rows import LOBS, LONG_STRINGS, PLACEHOLDER

_CHANGES = frozenset((Operation.INSERT, Operation.DELETE, Operation.UPDATE))


T = TypeVar("T")


class Gone(Enum):
    """Answer of a reader of values: the row does not exist then."""

    GONE = "gone"


LobValue = str | bytes | None | Gone
ReadLob = Callable[[Entry, str], LobValue]
"""Returns the value of a column as of the commit, from an entry with its table and row id."""


@dataclass(slots=True, eq=False)
class Group:
    """Rows of one statement for one column.

    Attributes:
        select: Column and row.
        row_id: Row id of the row.
        count: Number of its rows.
        length: Characters or bytes that follow each other from the first one on; -1 if they do not.
        is_based: Whether nothing else can be in the object: its first row says so.
        is_closed: Whether a trim to the length ended it.
        is_vague: Whether rows may be of another statement.
        follows_insert: Whether the insert of its row comes after it (BasicFile).
        is_decided: Whether it is known whether it survives.
        is_undone: Whether undo rows reverse it.
        is_unborn: Whether they reverse the insert of its row too.
        has_undo: Whether undo rows of its own may reverse it.
        parts: Data so far.
        left: Rows that still come.
    """

    select: LobSelect
    row_id: str
    count: int = 0
    length: int = 0
    is_based: bool = False
    is_closed: bool = False
    is_vague: bool = False
    follows_insert: bool = False
    is_decided: bool = False
    is_undone: bool = False
    is_unborn: bool = False
    has_undo: bool = True
    parts: list[str | bytes] = field(default_factory=list)
    left: int = 0

    def continues(self, action: LobStatement) -> bool:
        """Return whether an action may be of the same statement."""
        if self.is_closed:
            return False
        if isinstance(action, LobWrite):
            return action.offset == self.length + 1
        return isinstance(action, LobTrim) and action.length > 0

    def add(self, action: LobStatement) -> None:
        """Count an action."""
        self.count += 1
        if isinstance(action, LobWrite):
            is_next = action.offset == self.length + 1
            is_counted = isinstance(action.data, bytes) == (action.locator == "loc_b")
            self.length = self.length + action.amount if is_next and is_counted else -1
        elif isinstance(action, LobTrim) and action.length == 0 and self.count == 1:
            self.is_based = True
        elif isinstance(action, LobTrim):
            self.is_closed = True
            self.is_based |= action.length == self.length
            self.length = self.length if action.length == self.length else -1
        else:
            self.length = -1

    @property
    def is_whole(self) -> bool:
        """Return whether the rows have the whole value."""
        return self.is_based and self.length >= 0

    def literal(self) -> str:
        """Return the value's literal, once all rows came."""
        if self.select.locator == "loc_b":
            return bytes_literal(b"".join(one for one in self.parts if isinstance(one, bytes)))
        return text_literal("".join(one for one in self.parts if isinstance(one, str)))


class Labels:
    """Groups of a transaction's rows, found by reading it once in order."""

    def __init__(self, transaction: Transaction) -> None:
        """Find the groups. Raises RedoBroken for a row of unknown form."""
        self.by_frame: list[dict[int, Group]] = []
        self._current: dict[str, dict[str, Group]] = {}
        self._empty: dict[str, set[str]] = {}  # row ids of inserts, and columns written since
        self._select: LobSelect | None = None
        self._string: Group | None = None
        self._is_marked = False
        self._row_id = PLACEHOLDER  # of the last row that only marks a statement
        for entries in transaction.frames():
            labels: dict[int, Group] = {}
            for at, entry in enumerate(entries):
                operation = entry.code & OPERATION
                if operation in LOBS:
                    group = self._label(entry, operation)
                    if group is not None:
                        labels[at] = group
                elif operation in LONG_STRINGS:
                    labels[at] = self._label_string(entry, operation)
                elif operation in _CHANGES:
                    self._change(entry, operation)
            self.by_frame.append(labels)

    def _change(self, entry: Entry, operation: int) -> None:
        row_id = entry.row_id
        before = self._current.pop(row_id, None)
        if entry.code & UNDO:
            return
        if operation != Operation.INSERT:
            self._empty.pop(row_id, None)
            return
        written = set()
        for column, group in (before or {}).items():
            # Storage out of the row is written first, and is empty before.
            group.follows_insert = True
            group.is_based = True
            written.add(column)
        self._empty[row_id] = written

    def _label(self, entry: Entry, operation: int) -> Group | None:
        """Return the group of a row; None for one that opens an object."""
        if operation == Operation.SEL_LOB_LOCATOR and not entry.text:
            self._is_marked, self._row_id = True, entry.row_id
            return None
        row_id = entry.row_id if entry.row_id != PLACEHOLDER else self._row_id
        action = _parse(entry, parse_lob_statement)
        if isinstance(action, LobSelect):
            self._select = action
            self._current.get(row_id, {}).pop(action.column, None)
            return None
        select = action.select or self._select
        if select is None:
            raise redo_error(Reason.LOB, 0, entry)
        columns = self._current.setdefault(row_id, {})
        group = columns.get(select.column)
        is_marked, self._is_marked = self._is_marked, False
        if group is None or not group.continues(action):
            group = columns[select.column] = Group(select, row_id)
            written = self._empty.get(row_id)
            if written is not None and select.column not in written:
                group.is_based = True
                written.add(select.column)
        else:
            group.is_vague |= is_marked
        group.add(action)
        return group

    def _label_string(self, entry: Entry, operation: int) -> Group:
        """Return the group of a row of an extended text."""
        group = self._string
        if operation == Operation.LONG_STRING_BEGIN:
            select = _parse(entry, parse_long_string)
            group = Group(select, entry.row_id, length=-1, has_undo=False)
        if group is None:
            raise redo_error(Reason.LOB, 0, entry)
        group.count += 1
        self._string = None if operation == Operation.LONG_STRING_END else group
        return group


def _parse(entry: Entry, parse: Callable[[str], T]) -> T:
    try:
        return parse(entry.text)
    except Defect as defect:
        raise redo_error(defect.reason, defect.offset, entry) from defect


class LobAssembler:
    """Converter of one transaction's surviving rows: each large object becomes an update."""

    def __init__(self, read: ReadLob) -> None:
        """Keep the argument."""
        self._read = read
        self._waiting: dict[str, list[tuple[Entry, Group]]] = {}

    def convert(
        self, entries: list[Entry], mask: bytearray, labels: Mapping[int, Group]
    ) -> Iterator[Entry]:
        """Yield the changes of one part of the transaction.

        Raises RedoBroken, LobLost.
        """
        for at, entry in enumerate(entries):
            group = labels.get(at)
            if group is None:
                if mask[at]:
                    yield entry
                    for later, waiting in self._waiting.pop(entry.row_id, ()):
                        yield from self._finish(later, waiting)
                continue
            group.left = (group.left or group.count) - 1
            self._collect(entry, group)
            if group.left:
                continue
            if group.follows_insert and not group.is_undone:
                self._waiting.setdefault(group.row_id, []).append((entry, group))
            else:
                yield from self._finish(entry, group)

    def _collect(self, entry: Entry, group: Group) -> None:
        if group.is_undone or not group.is_whole:
            return
        action = _parse(entry, parse_lob_statement)
        if isinstance(action, LobWrite):
            group.parts.append(action.data)

    def _finish(self, entry: Entry, group: Group) -> Iterator[Entry]:
        """Yield the update for a group whose rows have all come."""
        if group.is_unborn or (group.is_undone and not group.is_vague):
            return
        if group.is_whole and not group.is_undone:
            literal = group.literal()
        else:
            if group.row_id == PLACEHOLDER:
                raise redo_error(Reason.LOB, 0, entry)
            value = self._read(structs.replace(entry, row_id=group.row_id), group.select.column)
            if isinstance(value, Gone):
                return  # the transaction deleted the row later
            literal = literal_of(value)
        group.parts = []
        text = group.select.update_text(literal)
        code = Operation.UPDATE | (MISMATCH if group.select.is_generic else 0)
        yield structs.replace(entry, text=text, code=code)


def literal_of(value: str | bytes | None) -> str:
    """Return a value's literal, as LogMiner prints one."""
    if value is None:
        return "NULL"
    return bytes_literal(value) if isinstance(value, bytes) else text_literal(value)
