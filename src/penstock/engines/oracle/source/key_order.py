"""Order of updates that change keys, where one statement moves several rows.

Oracle checks keys at the end of a statement, so `update T set ID = ID + 1` moves a row to a key
that another row still has. A reader that finds rows by their keys would lose one of them. So of
consecutive updates of keys in one table, a row leaves its key before another row gets it. Keys that
are exchanged in a circle become a delete and an insert, for which all columns must be known. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec import structs

from penstock.codec.oracle.mined_rows import Operation
from penstock.codec.oracle.redo_outcome import Defect
from penstock.codec.oracle.statements import UNTOLD, Statement, ValueKind, scan_statement
from penstock.engines.oracle.source.entries import MISMATCH, UNREADABLE, Entry
from penstock.engines.oracle.source.errors import RELOAD, KeysSwapped

Key = tuple[bytes, ...]
_UPDATE = int(Operation.UPDATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKey:
    """Key of a table, as its statements name it.

    Attributes:
        names: Columns of the key.
        columns: All columns of the log.
        marks: Text that a column has in SET and in WHERE.
    """

    names: tuple[str, ...]
    columns: tuple[str, ...]
    marks: tuple[str, ...]

    @classmethod
    def of(cls, names: Sequence[str], columns: Sequence[str]) -> TableKey:
        """Return the key with its marks."""
        return cls(
            names=tuple(names), columns=tuple(columns), marks=tuple(f'"{one}"' for one in names)
        )

    def may_move(self, entry: Entry) -> bool:
        """Return whether an update may change the key: its column is named twice."""
        if entry.code != _UPDATE:
            return False
        for mark in self.marks:  # noqa: SIM110 - most rows are asked: faster than a generator
            if entry.text.count(mark) > 1:
                return True
        return False


@dataclass(slots=True, eq=False)
class _Move:
    """An update that changes the key."""

    entry: Entry
    old: Key
    new: Key


def order_moves(
    entries: Iterable[Entry], key_of: Callable[[int], TableKey | None]
) -> Iterator[Entry]:
    """Yield the changes of a transaction in an order in which no key is taken twice.

    key_of: returns the key of a table version; None without a key. Raises KeysSwapped.
    """
    pending = _Pending(key_of)
    for entry in entries:
        key = key_of(entry.table)
        if key is None or not (pending.moves or key.may_move(entry)):
            yield entry
        elif pending.moves and entry.table != pending.table:
            yield entry  # of another table, as a trigger writes it
        else:
            yield from pending.add(entry, key)
    yield from pending.flush()


class _Pending:
    """Consecutive moves in one table, which wait for the last one of their statement."""

    def __init__(self, key_of: Callable[[int], TableKey | None]) -> None:
        self.moves: list[_Move] = []
        self.table = -1
        self._key_of = key_of
        self._rows: set[str] = set()
        self._keys: set[Key] = set()

    def add(self, entry: Entry, key: TableKey) -> Iterator[Entry]:
        """Take a change of the table; yield what need not wait any longer."""
        keys = _find_keys(entry, key)
        if keys is None:
            yield from self.flush()
            yield entry
            return
        old, new = keys
        if old is not None and new is not None and old != new:
            if entry.row_id in self._rows:
                yield from self.flush()
            self.moves.append(_Move(entry, old, new))
            self.table = entry.table
            self._rows.add(entry.row_id)
            self._keys |= {old, new}
            return
        if old in self._keys or new in self._keys:
            yield from self.flush()
        yield entry

    def flush(self) -> Iterator[Entry]:
        """Yield the moves in an order in which no key is taken twice."""
        moves, self.moves = self.moves, []
        self._rows, self._keys = set(), set()
        yield from _sort(moves, self._key_of)


def _find_keys(entry: Entry, key: TableKey) -> tuple[Key | None, Key | None] | None:
    """Return a change's key before and after it, None for none; None if it cannot be read."""
    if entry.code & (MISMATCH | UNREADABLE):
        return None
    text = entry.text.encode()
    try:
        statement = scan_statement(text)
    except Defect:
        return None  # the decoder refuses it with its place
    images: list[Key | None] = []
    old = {cell.name: cell for cell in statement.old}
    merged = {**old, **{cell.name: cell for cell in statement.new}}
    for cells, has in (
        (old, entry.code != Operation.INSERT),
        (merged, entry.code != Operation.DELETE),
    ):
        if not has:
            images.append(None)
            continue
        found = [cells.get(one.encode()) for one in key.names]
        if None in found:
            return None  # the decoder refuses it
        images.append(
            tuple(text[one.value.start : one.value.end] for one in found if one is not None)
        )
    return images[0], images[1]


def _sort(moves: list[_Move], key_of: Callable[[int], TableKey | None]) -> Iterator[Entry]:
    if len(moves) < 2:
        yield from (one.entry for one in moves)
        return
    by_old = {one.old: one for one in moves}
    done: set[Key] = set()
    inserts: list[Entry] = []
    for first in moves:
        path: list[_Move] = []
        move: _Move | None = first
        while move is not None and move.old not in done:
            done.add(move.old)
            path.append(move)
            move = by_old.get(move.new)
        if move is not None and move is first and len(path) > 1:
            # A circle: the last row of the path would get the key that the first one still has.
            last = path.pop()
            key = key_of(last.entry.table)
            assert key is not None, "its key moved"
            yield structs.replace(last.entry, code=Operation.DELETE, text=_delete_text(last))
            inserts.append(
                structs.replace(last.entry, code=Operation.INSERT, text=_insert_text(last, key))
            )
        yield from (one.entry for one in reversed(path))
    yield from inserts


def _name_table(statement: Statement) -> str:
    return f'"{statement.owner.decode()}"."{statement.table.decode()}"'


def _delete_text(move: _Move) -> str:
    text = move.entry.text.encode()
    statement = scan_statement(text)
    return f"delete from {_name_table(statement)} where {text[statement.where :].decode()}"


def _insert_text(move: _Move, key: TableKey) -> str:
    text = move.entry.text.encode()
    statement = scan_statement(text)
    cells = {cell.name.decode(): cell.value for cell in (*statement.old, *statement.new)}
    lacking = [one for one in key.columns if one not in cells or cells[one].kind in UNTOLD]
    if lacking:
        raise KeysSwapped(
            f"one statement exchanged keys of {_name_table(statement)} at SCN "
            f"{move.entry.scn}, and the redo lacks the column {lacking[0]}",
            hint="Run ALTER TABLE OWNER.TABLE ADD SUPPLEMENTAL LOG DATA (ALL) COLUMNS. " + RELOAD,
        )
    values = ",".join(
        "NULL"
        if cells[one].kind is ValueKind.NULL
        else text[cells[one].start : cells[one].end].decode()
        for one in key.columns
    )
    names = ",".join(f'"{one}"' for one in key.columns)
    return f"insert into {_name_table(statement)}({names}) values ({values})"
