"""Messages of PostgreSQL's pgoutput, version 1, as far as capture needs them.

Source: PostgreSQL documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sim_sqlserver.decode import Cursor

Row = list[bytes | None]
UNCHANGED = object()


@dataclass(slots=True)
class Change:
    """Change of a row.

    Attributes:
        place: LSN of PostgreSQL.
        kind: I, U or D.
    """

    place: int
    kind: str
    table: int
    columns: list[str]
    old: Row
    new: Row


@dataclass(slots=True)
class Note:
    """Message that the simulator wrote into the log."""

    place: int
    prefix: str
    content: str


@dataclass(slots=True)
class Transaction:
    """A committed transaction.

    Attributes:
        place: LSN of its commit record.
        time_us: Commit time, microseconds since 2000-01-01 UTC.
    """

    xid: int
    place: int
    time_us: int
    parts: list[Change | Note] = field(default_factory=list)


class Parser:
    """Reads messages; relations are remembered."""

    def __init__(self) -> None:
        self._relations: dict[int, list[str]] = {}
        self._transaction: Transaction | None = None

    def read(self, place: int, data: bytes) -> Transaction | None:
        """Read a message; return a transaction that is complete with it."""
        cursor = Cursor(data)
        kind = chr(cursor.byte())
        if kind == "B":
            final, time_us = _number(cursor, 8), _number(cursor, 8)
            self._transaction = Transaction(_number(cursor, 4), final, time_us)
        elif kind == "C":
            done = self._transaction
            self._transaction = None
            return done
        elif kind == "R":
            self._relation(cursor)
        elif kind in "IUD":
            self._change(place, kind, cursor)
        elif kind == "M":
            self._message(cursor)
        return None

    def _relation(self, cursor: Cursor) -> None:
        number = _number(cursor, 4)
        _text(cursor)
        _text(cursor)
        cursor.byte()
        names = []
        for _ in range(_number(cursor, 2)):
            cursor.byte()
            names.append(_text(cursor))
            cursor.take(8)
        self._relations[number] = names

    def _change(self, place: int, kind: str, cursor: Cursor) -> None:
        assert self._transaction is not None
        number = _number(cursor, 4)
        columns = self._relations[number]
        old: Row = []
        new: Row = []
        while not cursor.is_done:
            mark = chr(cursor.byte())
            row = _tuple(cursor, old)
            if mark == "N":
                new = row
            else:
                old = row
        self._transaction.parts.append(Change(place, kind, number, columns, old, new))

    def _message(self, cursor: Cursor) -> None:
        cursor.byte()
        place = _number(cursor, 8)
        prefix = _text(cursor)
        content = cursor.take(_number(cursor, 4)).decode()
        if self._transaction is not None:
            self._transaction.parts.append(Note(place, prefix, content))


def _number(cursor: Cursor, size: int) -> int:
    return int.from_bytes(cursor.take(size), "big")


def _text(cursor: Cursor) -> str:
    end = cursor.data.index(b"\0", cursor.at)
    text = cursor.data[cursor.at : end].decode()
    cursor.at = end + 1
    return text


def _tuple(cursor: Cursor, old: Row) -> Row:
    row: Row = []
    for place in range(_number(cursor, 2)):
        kind = chr(cursor.byte())
        if kind == "n":
            row.append(None)
        elif kind == "u":
            row.append(old[place] if place < len(old) else None)
        else:
            row.append(cursor.take(_number(cursor, 4)))
    return row
