"""Statements about other statements: cursors of SQL (DECLARE, FETCH), PREPARE and EXECUTE."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlglot import exp

from penstock.codec.postgres.pgwire_server import Refused
from penstock.model.whole_number import parse_whole
from penstock.serve.catalog.answers import Answer, AnswerColumn
from penstock.serve.catalog.grammar import Statement, make_unsupported, parse_query, type_name
from penstock.serve.catalog.statements import Words
from penstock.serve.row_filter import system_types
from penstock.serve.running import AnswerRows, Rows, Runnable

if TYPE_CHECKING:
    from penstock.serve.session import ClientSession

CURSORS_MAX = 100
_FORWARD_ONLY = ("BACKWARD", "PRIOR", "FIRST", "LAST", "ABSOLUTE", "RELATIVE")


@dataclass(slots=True, kw_only=True)
class SqlCursor:
    """Cursor of SQL.

    Attributes:
        is_held: it outlasts its transaction.
        is_new: the transaction that declared it is still open.
    """

    rows: Rows
    is_binary: bool
    is_held: bool
    is_new: bool = True


class SqlCursors:
    """All cursors of one connection, by name."""

    def __init__(self) -> None:
        self._found: dict[str, SqlCursor] = {}

    def get(self, name: str) -> SqlCursor:
        """Return a cursor. Raises Refused: 34000."""
        found = self._found.get(name)
        if found is None:
            raise Refused("34000", f'cursor "{name}" does not exist')
        return found

    def has(self, name: str) -> bool:
        """Return whether there is such a cursor."""
        return name in self._found

    def add(self, name: str, cursor: SqlCursor) -> None:
        """Add a new cursor."""
        self._found[name] = cursor

    def check_new(self, name: str) -> None:
        """Refuse a name that is in use, and one cursor too many. Raises Refused: 42P03, 53400."""
        if name in self._found:
            raise Refused("42P03", f'cursor "{name}" already exists')
        if len(self._found) >= CURSORS_MAX:
            raise Refused("53400", "too many cursors")

    async def drop(self, name: str) -> None:
        """Close a cursor. Raises Refused: 34000."""
        found = self.get(name)
        del self._found[name]
        await found.rows.close()

    async def transaction_ends(self, *, is_committed: bool) -> None:
        """Close the cursors that end with a transaction."""
        for name, cursor in list(self._found.items()):
            if not cursor.is_held or (cursor.is_new and not is_committed):
                await self.drop(name)
            cursor.is_new = False

    async def close(self) -> None:
        """Close all cursors."""
        for name in list(self._found):
            await self.drop(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done(Runnable):
    """Statement that does something and has no rows; see `running.Runnable`."""

    parameters: tuple[int, ...] = ()
    columns: tuple[AnswerColumn, ...] | None = None
    tag: str
    act: Callable[[Sequence[str | None]], Awaitable[None]]

    async def open(self, session: ClientSession, values: Sequence[str | None]) -> Rows:
        """Run the statement."""
        session.check_not_failed()
        await self.act(values)
        if session.session.transaction == "I":  # it was a transaction of its own
            await session.cursors.transaction_ends(is_committed=True)
        return AnswerRows(session, Answer(tag=self.tag))


def is_own(statement: object) -> bool:
    """Return whether a statement is of this kind."""
    return isinstance(statement, Statement) and statement.words(1)[0] in _MAKERS


async def make_own(
    session: ClientSession, statement: Statement, types: Sequence[int]
) -> Runnable | None:
    """Read a statement of this kind; return None for any other. Raises Refused."""
    make = _MAKERS.get(statement.words(1)[0])
    return None if make is None else await make(session, Words(statement), types)


async def _declare(session: ClientSession, words: Words, types: Sequence[int]) -> Runnable:
    words.need("DECLARE")
    name = words.name()
    is_binary = scrolls = False
    while not words.take("CURSOR"):
        if words.take("BINARY"):
            is_binary = True
        elif words.take("SCROLL"):
            scrolls = True
        elif not (
            words.take("NO", "SCROLL") or words.take("INSENSITIVE") or words.take("ASENSITIVE")
        ):
            raise words.error()
    is_held = words.take("WITH", "HOLD")
    if not is_held:
        words.take("WITHOUT", "HOLD")
    words.need("FOR")
    if scrolls:
        raise make_unsupported("a SCROLL cursor")
    inner = await session.make(words.rest(), types)

    async def declare(values: Sequence[str | None]) -> None:
        if session.session.transaction == "I" and not is_held:
            raise Refused("25P01", "DECLARE CURSOR can only be used in transaction blocks")
        session.cursors.check_new(name)
        rows = await inner.open(session, values)
        if rows.columns is None:
            await rows.close()
            raise Refused("42601", "a cursor is for a query")
        cursor = SqlCursor(rows=rows, is_binary=is_binary, is_held=is_held)
        session.cursors.add(name, cursor)

    return _Done(parameters=inner.parameters, tag="DECLARE CURSOR", act=declare)


async def _fetch(session: ClientSession, words: Words, _: Sequence[int]) -> Runnable:
    is_move = words.take("MOVE")
    if not is_move:
        words.need("FETCH")
    count = _read_count(words)
    if not words.take("FROM"):
        words.take("IN")
    name = words.name()
    words.end()
    cursor = session.cursors.get(name)
    return _Fetch(
        columns=None if is_move else cursor.rows.columns,
        cursor=cursor,
        count=count,
        is_move=is_move,
    )


def _read_count(words: Words) -> int | None:
    """Return the number of wanted rows, None for all. Raises Refused for another direction."""
    if words.peek() in _FORWARD_ONLY and not words.is_last():
        raise make_unsupported(f"FETCH {words.peek()}")
    is_forward = words.take("FORWARD")
    if words.take("ALL"):
        return None
    if not is_forward and words.take("NEXT"):
        return 1
    if words.peek() == "-":
        raise make_unsupported("FETCH backwards")
    count = parse_whole(words.peek())
    if count is None:
        return 1
    words.token()
    if not count:
        raise make_unsupported("FETCH 0")
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fetch(Runnable):
    """FETCH or MOVE, see `running.Runnable`; count is None for all rows."""

    cursor: SqlCursor
    count: int | None
    is_move: bool
    columns: tuple[AnswerColumn, ...] | None = field()
    parameters: tuple[int, ...] = ()

    async def open(self, session: ClientSession, _: Sequence[str | None]) -> Rows:
        session.check_not_failed()
        return _FetchedRows(self)


class _FetchedRows(Rows):
    """Some rows of a cursor."""

    def __init__(self, fetch: _Fetch) -> None:
        self._fetch, self._left, self._done = fetch, fetch.count, 0
        self.set_formats(())

    @property
    def columns(self) -> tuple[AnswerColumn, ...] | None:
        return self._fetch.columns

    @property
    def tag(self) -> str:
        return f"{'MOVE' if self._fetch.is_move else 'FETCH'} {self._done}"

    def set_formats(self, formats: Sequence[int]) -> None:
        """Set the formats; by default a binary cursor's rows are binary."""
        cursor = self._fetch.cursor
        is_binary = cursor.is_binary and not formats
        cursor.rows.set_formats([1] * len(cursor.rows.columns or ()) if is_binary else formats)

    async def send(self, count: int, *, is_silent: bool = False) -> int:
        wanted = count
        if self._left is not None:
            wanted = min(count, self._left) if count else self._left
            if not wanted:
                return 0
        is_silent = is_silent or self._fetch.is_move
        sent = await self._fetch.cursor.rows.send(wanted, is_silent=is_silent)
        self._done += sent
        if self._left is not None:
            self._left -= sent
        return sent

    async def close(self) -> None:
        """Do nothing: the cursor stays."""


async def _close(session: ClientSession, words: Words, _: Sequence[int]) -> Runnable:
    words.need("CLOSE")
    name = None if words.take("ALL") else words.name()
    words.end()

    async def close(_values: Sequence[str | None]) -> None:
        if name is None:
            await session.cursors.close()
        else:
            await session.cursors.drop(name)

    return _Done(tag="CLOSE CURSOR" if name is not None else "CLOSE CURSOR ALL", act=close)


async def _prepare(session: ClientSession, words: Words, _: Sequence[int]) -> Runnable:
    words.need("PREPARE")
    if words.take("TRANSACTION"):
        raise make_unsupported("prepared transactions")
    name = words.name()
    kinds: list[str] = []
    if words.peek() == "(":
        kinds = words.take_parentheses().split(",")
    words.need("AS")
    rest = words.rest()

    async def prepare(_values: Sequence[str | None]) -> None:
        given = await session.ask(_type_oids, kinds)
        session.statements.check_new(name)
        session.statements.add(name, await session.make(rest, given))

    return _Done(tag="PREPARE", act=prepare)


def _type_oids(kinds: Sequence[str]) -> list[int]:

    found = []
    for kind in kinds:
        if kind.strip().lower() == "unknown":
            found.append(0)
            continue
        tree = parse_query(f"select null::{kind}").expressions[0]
        if not isinstance(tree, exp.Cast):
            raise Refused("42601", f'syntax error at or near "{kind.strip()}"')
        schema, name, _ = type_name(tree.args["to"])
        found.append(system_types().find_oid(name, schema))
    return found


async def _execute(session: ClientSession, words: Words, _: Sequence[int]) -> Runnable:
    words.need("EXECUTE")
    name = words.name()
    values: list[str | None] = []
    if words.peek() == "(":
        values = await session.ask(_constants, words.take_parentheses())
    words.end()
    inner = session.statements.get(name)
    if len(values) != len(inner.parameters):
        raise Refused(
            "42601",
            f'wrong number of parameters for prepared statement "{name}"',
        )
    return _Execute(inner=inner, values=tuple(values), columns=inner.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Execute(Runnable):
    """EXECUTE, see `running.Runnable`."""

    inner: Runnable
    values: tuple[str | None, ...]
    columns: tuple[AnswerColumn, ...] | None = field()
    parameters: tuple[int, ...] = ()

    async def open(self, session: ClientSession, _: Sequence[str | None]) -> Rows:
        return await self.inner.open(session, self.values)


def _constants(text: str) -> list[str | None]:
    """Return the texts of constants between commas. Raises Refused: 0A000 for anything else."""
    found: list[str | None] = []
    for node in parse_query(f"select {text}").expressions:
        while isinstance(node, exp.Paren | exp.Cast):
            node = node.this
        sign = ""
        if isinstance(node, exp.Neg):
            sign, node = "-", node.this
        if isinstance(node, exp.Literal | exp.ByteString | exp.RawString):
            found.append(f"{sign}{node.this}")
        elif isinstance(node, exp.Boolean):
            found.append("t" if node.this else "f")
        elif isinstance(node, exp.Null):
            found.append(None)
        else:
            raise make_unsupported("EXECUTE with a value that is not a constant")
    return found


_MAKERS: dict[
    str,
    Callable[[ClientSession, Words, Sequence[int]], Awaitable[Runnable]],
] = {
    "DECLARE": _declare,
    "FETCH": _fetch,
    "MOVE": _fetch,
    "CLOSE": _close,
    "PREPARE": _prepare,
    "EXECUTE": _execute,
}
