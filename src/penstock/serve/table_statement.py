"""Query for a table's rows as a statement: typed, with parameters, opened as a cursor.

A cursor sends rows to a client: they are read in threads, and written as the client takes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from penstock.codec.postgres.pgtypes import wire_type
from penstock.codec.postgres.pgwire_extended import PARAMETERS_MAX
from penstock.codec.postgres.pgwire_server import Refused, message
from penstock.codec.postgres.row_messages import COPY_HEADER, COPY_TRAILER
from penstock.model import PenstockError, Relation, TableName
from penstock.model.whole_number import parse_whole
from penstock.serve.catalog.answers import AnswerColumn
from penstock.serve.catalog.grammar import Statement, name_of, parse_query, split, type_name
from penstock.serve.catalog.types import INT8, NAME, TEXT, VARCHAR, Types
from penstock.serve.row_filter import system_types
from penstock.serve.running import Rows, Runnable
from penstock.serve.snapshots import Snapshot
from penstock.serve.table_query import TableQuery, read_copy, read_select
from penstock.serve.table_rows import Shown, TableRows, shown_columns
from penstock.serve.wire import Gone

if TYPE_CHECKING:
    from penstock.serve.session import ClientSession

_BESIDE = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatement(Runnable):
    """SELECT or COPY of one table, see `running.Runnable`.

    Attributes:
        types: names of the types that the client gave for parameters; empty if none.
    """

    table: TableName
    statement: Statement
    parameters: tuple[int, ...] = field()
    types: tuple[str, ...]
    columns: tuple[AnswerColumn, ...] | None = field()

    async def open(self, session: ClientSession, values: Sequence[str | None]) -> Cursor:
        """Begin to read. Raises Refused."""
        query = await session.ask(_read, self.statement, values, self.types)
        cursor = await Cursor.open(session, self.table, query)
        if cursor.columns != self.columns:
            await cursor.close()
            raise Refused("0A000", "cached plan must not change result type")
        return cursor


def table_statement(
    session: ClientSession,
    table: TableName,
    statement: Statement,
    given: Sequence[int],
) -> TableStatement:
    """Read a SELECT or COPY of a table. Raises Refused.

    Blocking: for the catalogue's thread. The client gives types of parameters, 0 for unknown.
    """
    serving = session.serving
    relation = serving.shape_of(table)
    if relation is None:
        raise Refused("55000", f"the shape of table {table} is not known yet")
    count = max([*_parameters(statement), len(given)], default=0)
    types = [*given, *[0] * (count - len(given))]
    names = system_types()
    said = tuple(names.name(oid) if oid else "" for oid in types)
    query = _read(statement, [None] * count, said)
    columns = None
    if query.copy is None:
        shown = shown_columns(relation, query, serving.head.engine, serving.settings.choices)
        columns = tuple(map(answer_column, shown))
    inferred = _infer(statement, relation, names) if 0 in types else {}
    return TableStatement(
        table=table,
        statement=statement,
        parameters=tuple(oid or inferred.get(number, TEXT) for number, oid in enumerate(types, 1)),
        types=said,
        columns=columns,
    )


def _read(statement: Statement, values: Sequence[str | None], types: Sequence[str]) -> TableQuery:
    """Read a statement with constants in place of its parameters. Raises Refused."""
    if values:
        (statement,) = split(_fill(statement, values, types))
    is_copy = statement.words(1) == ("COPY",)
    return read_copy(statement) if is_copy else read_select(statement)


def _parameters(statement: Statement) -> dict[int, list[tuple[int, int]]]:
    """Return the places of each parameter in the text, by number. Raises Refused: 42P02."""
    found: dict[int, list[tuple[int, int]]] = {}
    start = statement.tokens[0].start
    for sign, number in zip(statement.tokens, statement.tokens[1:], strict=False):
        if sign.token_type is not TokenType.PARAMETER or number.start != sign.end + 1:
            continue
        named = parse_whole(number.text, PARAMETERS_MAX)
        if not named:
            raise Refused("42P02", f"there is no parameter ${number.text[:20]}")
        place = (sign.start - start, number.end + 1 - start)
        found.setdefault(named, []).append(place)
    return found


def _fill(statement: Statement, values: Sequence[str | None], types: Sequence[str]) -> str:
    places = sorted(
        (start, end, number)
        for number, found in _parameters(statement).items()
        for start, end in found
    )
    parts, at = [], 0
    for start, end, number in places:
        parts.append(statement.text[at:start])
        parts.append(_constant(values[number - 1], types[number - 1]))
        at = end
    return "".join((*parts, statement.text[at:]))


def _constant(value: str | None, kind: str) -> str:
    if value is None:
        return "NULL"
    text = "'" + value.replace("'", "''") + "'"
    return f"{text}::{kind}" if kind else text


def _infer(statement: Statement, relation: Relation, names: Types) -> dict[int, int]:
    """Return the types that follow from the places of parameters, by number."""
    if statement.words(1) == ("COPY",):
        return {}
    columns = {column.name: wire_type(column)[0] for column in relation.columns}
    found: dict[int, int] = {}
    for node in parse_query(statement.text).find_all(exp.Parameter):
        parent = node.parent
        while isinstance(parent, exp.Paren | exp.Neg):
            parent = parent.parent
        oid = TEXT
        if isinstance(parent, exp.Limit | exp.Offset | exp.Fetch):
            oid = INT8
        elif isinstance(parent, exp.Cast):
            schema, name, _ = type_name(parent.args["to"])
            oid = names.find_oid(name, schema)
        elif isinstance(parent, (*_BESIDE, exp.Between, exp.In)):
            sides = (parent.this, parent.args.get("expression"))
            named = [side for side in sides if isinstance(side, exp.Column)]
            oid = columns.get(name_of(named[0].this), TEXT) if named else TEXT
            oid = TEXT if oid in (VARCHAR, NAME) else oid
        found.setdefault(parse_whole(str(node.this.this), PARAMETERS_MAX, otherwise=0), oid)
    return found


ROWS_PER_BLOCK = 4096


def lookup(query: TableQuery) -> Statement:
    """Return a query that finds the table as the catalogue finds tables."""
    names = [name for name in (query.schema, query.name) if name]
    quoted = ".".join('"' + name.replace('"', '""') + '"' for name in names)
    (found,) = split(f"SELECT 1 FROM {quoted}")
    return found


class Cursor(Rows):
    """Rows of one table, sent piece by piece; for a COPY with its header and end."""

    def __init__(
        self, session: ClientSession, snapshot: Snapshot, rows: TableRows, query: TableQuery
    ) -> None:
        """Keep the arguments. Not for callers, which use open()."""
        self._session, self._snapshot, self._rows, self._query = session, snapshot, rows, query
        self._count = 0
        self._is_begun = self._is_closed = False

    @classmethod
    async def open(cls, session: ClientSession, table: TableName, query: TableQuery) -> Cursor:
        """Begin to read a table at the session's snapshot. Raises Refused."""
        session.check_not_failed()
        serving = session.serving
        snapshot = await session.snapshots.reading(serving.look)
        try:
            with tell_errors():
                rows = await serving.in_thread(
                    TableRows,
                    snapshot.state,
                    table,
                    query,
                    serving.head.engine,
                    serving.settings.choices,
                )
        except BaseException:
            await session.snapshots.release(snapshot)
            raise
        return cls(session, snapshot, rows, query)

    @property
    def columns(self) -> tuple[AnswerColumn, ...] | None:
        """Return the columns; None for a COPY, which describes itself."""
        if self._query.copy is not None:
            return None
        return tuple(map(answer_column, self._rows.columns))

    @property
    def tag(self) -> str:
        """Text of CommandComplete, with the number of sent rows."""
        return f"{'SELECT' if self._query.copy is None else 'COPY'} {self._count}"

    def set_formats(self, formats: Sequence[int]) -> None:
        """Send from now on in these formats; by default as text."""
        if self._query.copy is None:
            self._rows.set_formats(formats)

    async def send(self, count: int, *, is_silent: bool = False) -> int:
        """Send `count` rows, 0: all; return their number. Raises Refused, Gone."""
        session, done = self._session, 0
        if self._query.copy is not None:
            count = 0  # a COPY is sent at once
        with session.working(), tell_errors():
            self._begin()
            while not count or done < count:
                wanted = min(count - done, ROWS_PER_BLOCK) if count else ROWS_PER_BLOCK
                data, sent = await session.serving.in_thread(self._rows.block, wanted)
                session.check_cancelled()
                if not sent:
                    self._end()
                    break
                if not is_silent:
                    session.write(data)
                done += sent
                await session.drain()
        self._count += done
        return done

    def _begin(self) -> None:
        copy = self._query.copy
        if self._is_begun or copy is None:
            return
        self._is_begun = True
        form = int(copy.is_binary)
        count = len(self._rows.columns)
        body = bytes([form]) + count.to_bytes(2, "big") + form.to_bytes(2, "big") * count
        self._session.write(message(b"H", body))
        head = message(b"d", COPY_HEADER) if copy.is_binary else self._rows.header()
        if head:
            self._session.write(head)

    def _end(self) -> None:
        copy = self._query.copy
        if copy is None:
            return
        if copy.is_binary:
            self._session.write(message(b"d", COPY_TRAILER))
        self._session.write(message(b"c", b""))

    async def close(self) -> None:
        """Release the snapshot."""
        if not self._is_closed:
            self._is_closed = True
            await self._session.serving.in_thread(self._rows.close)
            await self._session.snapshots.release(self._snapshot)


@contextmanager
def tell_errors() -> Iterator[None]:
    """Turn errors of the base and the log into refusals for the client."""
    try:
        yield
    except (Refused, Gone):
        raise
    except PenstockError as error:
        raise Refused("55000", error.message, hint=error.hint) from error


def answer_column(one: Shown) -> AnswerColumn:
    """Return a column as in RowDescription."""
    return AnswerColumn(name=one.name, type_oid=one.type_oid, typmod=one.typmod, number=one.number)
