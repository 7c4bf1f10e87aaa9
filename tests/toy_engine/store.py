"""The database itself: tables, a log of changes, and notes, in one file of SQLite.

A commit writes one line per change into `changes`; the rows at a position are the result of all
changes before it. So every position is a snapshot, and none is ever lost. A target writes rows and
notes (its progress) in one transaction of SQLite. Not here: anything that penstock asks.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import msgspec

from penstock.host.errors import DatabaseUnknown
from penstock.model import PenstockError, TableName
from penstock.model.position import POSITION_MAX, Position, PositionInvalid

WAIT_S = 30.0
# the lower half of a position is not used: it shows that positions may be that wide
COMMIT_BITS = 64
SCHEMA = """
    create table shapes (schema text, name text, version integer, columns text, key text,
                         primary key (schema, name, version));
    create table changes (number integer primary key autoincrement, commit_number integer,
                          commit_us integer, schema text, name text, version integer, op text,
                          before text, after text);
    create index changes_commit on changes (commit_number);
    create table rows (schema text, name text, key text, row text,
                       primary key (schema, name, key));
    create table notes (kind text, name text, value text, primary key (kind, name));
"""
Row = dict[str, str | None]
Value = TypeVar("Value")


def now_us() -> int:
    """Return the time of the database's clock in microseconds."""
    return time.time_ns() // 1000


def heartbeat_of(pipeline: str) -> TableName:
    """Return the name that a pipeline's heartbeats have in place of a table."""
    return TableName("", pipeline)


class ToyFailed(PenstockError):
    """An error: SQLite refused a statement."""

    code = "TY01"
    retry = "backoff"


@dataclass(frozen=True, slots=True, order=True)
class ToyPosition(Position):
    """A position in the log: everything before the commit of this number, as text `#7`."""

    ordinal: int = field()

    BITS: ClassVar[int] = 128

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit."""
        if not 0 <= self.ordinal <= POSITION_MAX:
            raise PositionInvalid(f"toy position out of range: {self.ordinal}")

    @classmethod
    def before(cls, commit: int) -> Self:
        """Return the position in front of a commit."""
        return cls(commit << COMMIT_BITS)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `#7`; raise PositionInvalid for any other text."""
        if text[:1] != "#" or not text[1:].isdecimal() or not text.isascii():
            raise PositionInvalid(f"not a toy position: {text!r}", hint="Write it like #7.")
        return cls.before(int(text[1:]))

    @property
    def commit(self) -> int:
        """The number of the first commit that is not before the position."""
        return self.ordinal >> COMMIT_BITS

    def __str__(self) -> str:
        """Return the text form, such as `#7`."""
        return f"#{self.commit}"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One version of a table.

    Attributes:
        columns: Name, type and neutral type of each column.
        key: The names of the key's columns; empty without a key.
    """

    table: TableName
    version: int
    columns: tuple[tuple[str, str, str], ...]
    key: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the columns' names."""
        return tuple(name for name, _, _ in self.columns)

    def key_of(self, row: Mapping[str, Any]) -> str:
        """Return what identifies a row; without a key, a new text for each call."""
        return json.dumps([row[name] for name in self.key]) if self.key else secrets.token_hex(8)


@dataclass(frozen=True, kw_only=True)
class Logged:
    """A line of the log.

    Attributes:
        op: insert, update, delete, truncate, shape or heartbeat.
    """

    number: int
    commit: int
    commit_us: int
    table: TableName
    version: int
    op: str
    before: Row | None
    after: Row | None


class Store:
    """A connection to the file, used by one thread at a time."""

    def __init__(self, url: str) -> None:
        """Connect; raise DatabaseUnknown if the file does not exist."""
        path = Path(url.removeprefix("toy://"))
        if not path.is_file():
            raise DatabaseUnknown(f"there is no toy database {path}", hint="Make it.")
        self.path = path
        self.is_closed = False
        self._sql = sqlite3.connect(
            path, timeout=WAIT_S, isolation_level=None, check_same_thread=False
        )

    @classmethod
    def create(cls, path: Path) -> Store:
        """Create an empty database."""
        with sqlite3.connect(path) as made:
            made.executescript("pragma journal_mode = wal;" + SCHEMA)
        made.close()
        store = cls(f"toy://{path}")
        store.put("identity", "", str(time.time_ns()))
        return store

    @property
    def url(self) -> str:
        """The URL that names the database in a pipeline file."""
        return f"toy://{self.path}"

    def close(self) -> None:
        """Close the connection."""
        self._sql.close()
        self.is_closed = True

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows; raise ToyFailed if it fails."""
        try:
            return self._sql.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise ToyFailed(f"{error}: {sql.strip()[:60]}") from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a transaction, which commits everything or nothing; one at a time may write."""
        self.run("begin immediate")
        try:
            yield
        except BaseException:
            self.run("rollback")
            raise
        self.run("commit")

    # -- tables and the log ------------------------------------------------------------------

    def shapes(self) -> dict[TableName, Shape]:
        """Return the present version of every table."""
        found = self.run("select * from shapes order by schema, name, version")
        shapes = [
            Shape(
                table=TableName(schema, name),
                version=version,
                columns=tuple(tuple(one) for one in json.loads(columns)),
                key=tuple(json.loads(key)),
            )
            for schema, name, version, columns, key in found
        ]
        return {shape.table: shape for shape in shapes}

    def shape_at(self, table: TableName, version: int) -> Shape:
        """Return one version of a table."""
        [(columns, key)] = self.run(
            "select columns, key from shapes where schema = ? and name = ? and version = ?",
            *table,
            version,
        )
        listed = tuple(tuple(one) for one in json.loads(columns))
        return Shape(table=table, version=version, columns=listed, key=tuple(json.loads(key)))

    def put_shape(self, shape: Shape) -> None:
        """Store a version of a table."""
        columns, key = json.dumps(shape.columns), json.dumps(shape.key)
        values = (*shape.table, shape.version, columns, key)
        self.run("insert or replace into shapes values (?, ?, ?, ?, ?)", *values)

    def commit(self, *changes: tuple[str, TableName, Row | None, Row | None]) -> int:
        """Commit a user's transaction and return the commit's number.

        Args:
            changes: Operation, table, row before and row after of each change.
        """
        with self.transaction():
            number = self.last_commit() + 1
            versions = {name: shape.version for name, shape in self.shapes().items()}
            commit_us = now_us()
            for op, table, before, after in changes:
                texts = [None if one is None else json.dumps(one) for one in (before, after)]
                self.run(
                    "insert into changes values (null, ?, ?, ?, ?, ?, ?, ?, ?)",
                    *(number, commit_us, *table, versions.get(table, 0), op, *texts),
                )
        return number

    def beat(self, pipeline: str, sent_us: int) -> None:
        """Commit a pipeline's heartbeat."""
        self.commit(("heartbeat", heartbeat_of(pipeline), None, {"sent_us": str(sent_us)}))

    def make_table(self, shape: Shape) -> None:
        """Create a table, or its next version."""
        self.put_shape(shape)
        self.commit(("shape", shape.table, None, None))

    def last_commit(self) -> int:
        """Return the number of the last commit, or 0 before the first."""
        return int(self.run("select coalesce(max(commit_number), 0) from changes")[0][0])

    def end(self) -> ToyPosition:
        """Return the position at which the log ends."""
        return ToyPosition.before(self.last_commit() + 1)

    def log(self, *, commit: int, number: int = 0, limit: int = -1) -> list[Logged]:
        """Return lines from a commit on that are after a line's number."""
        found = self.run(
            "select * from changes where commit_number >= ? and number > ? order by number limit ?",
            *(commit, number, limit),
        )
        return [
            Logged(
                number=row[0],
                commit=row[1],
                commit_us=row[2],
                table=TableName(row[3], row[4]),
                version=row[5],
                op=row[6],
                before=json.loads(row[7] or "null"),
                after=json.loads(row[8] or "null"),
            )
            for row in found
        ]

    def rows_at(self, position: ToyPosition, table: TableName) -> list[Row]:
        """Return a table's rows at a position, computed from the changes before it."""
        shape, rows = self.shapes()[table], dict[str, Row]()
        for line in self.log(commit=0):
            if line.commit >= position.commit or line.table != table:
                continue
            if line.op == "truncate":
                rows.clear()
            if line.before is not None:
                rows.pop(shape.key_of(line.before))
            if line.after is not None:
                rows[shape.key_of(line.after)] = line.after
        return [{name: row.get(name) for name in shape.names} for row in rows.values()]

    # -- as a target -------------------------------------------------------------------------

    def rows(self, table: TableName) -> list[Row]:
        """Return the rows that a pipeline has loaded."""
        found = self.run("select row from rows where schema = ? and name = ?", *table)
        return [json.loads(row) for (row,) in found]

    def find(self, shape: Shape, row: Row) -> tuple[str, Row]:
        """Return the key and the present values of the row that a change is about.

        Both are empty if there is none. In a table without a key it is one of the equal rows.
        """
        column = "key" if shape.key else "row"
        wanted = shape.key_of(row) if shape.key else json.dumps(row)
        where = f"schema = ? and name = ? and {column} = ? limit 1"
        found = self.run(f"select key, row from rows where {where}", *shape.table, wanted)
        return (found[0][0], json.loads(found[0][1])) if found else ("", {})

    def put_row(self, table: TableName, key: str, row: Row) -> None:
        """Insert or replace a row."""
        self.run("insert or replace into rows values (?, ?, ?, ?)", *table, key, json.dumps(row))

    def drop_row(self, table: TableName, key: str) -> None:
        """Delete a row."""
        self.run("delete from rows where schema = ? and name = ? and key = ?", *table, key)

    def empty(self, table: TableName) -> None:
        """Delete all rows of a table."""
        self.run("delete from rows where schema = ? and name = ?", *table)

    # -- notes: all that penstock keeps here -------------------------------------------------

    def put(self, kind: str, name: str, value: Any) -> None:
        """Insert or replace a note."""
        text = msgspec.json.encode(value).decode()
        self.run("insert or replace into notes values (?, ?, ?)", kind, name, text)

    def get(self, kind: str, name: str, as_type: type[Value]) -> Value | None:
        """Return a note, or None if there is none."""
        found = self.run("select value from notes where kind = ? and name = ?", kind, name)
        return msgspec.json.decode(found[0][0], type=as_type) if found else None

    def all(self, kind: str, as_type: type[Value]) -> dict[str, Value]:
        """Return all notes of a kind, keyed by name."""
        found = self.run("select name, value from notes where kind = ? order by name", kind)
        return {name: msgspec.json.decode(value, type=as_type) for name, value in found}

    def forget(self, kind: str, names: Sequence[str]) -> None:
        """Delete notes."""
        for name in names:
            self.run("delete from notes where kind = ? and name = ?", kind, name)
