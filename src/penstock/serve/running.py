"""Statements of a connection: they can be described, opened, and send rows.

`Runnable` is a statement that has been read: the catalogue's, one of a table, DECLARE and FETCH,
PREPARE and EXECUTE. The simple and the extended protocol use all of them in the same way.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from penstock.codec.postgres import pgwire_extended as wire
from penstock.codec.postgres.pgwire_server import Refused
from penstock.serve.catalog.answers import Answer, AnswerColumn, Session

if TYPE_CHECKING:
    from penstock.serve.session import ClientSession


class Prepared(Protocol):
    """Statement of the extended protocol, read and typed."""

    parameters: tuple[int, ...]
    """Oids of its parameters' types."""
    columns: tuple[AnswerColumn, ...] | None
    """Columns of its result; None if it has none."""

    @abstractmethod
    def run(self, values: Sequence[str | None], session: Session) -> Answer:
        """Return the answer for these texts of the parameters. Raises Refused."""
        ...


class Answers(Protocol):
    """Catalogue. One thread at a time uses it, not always the same."""

    @abstractmethod
    def split(self, sql: str) -> Sequence[Any]:
        """Return the statements of a simple query. Raises Refused."""
        ...

    @abstractmethod
    def answer(self, statement: Any, session: Session) -> Answer:
        """Return the answer to one of the statements. Raises Refused."""
        ...

    @abstractmethod
    def prepare(self, sql: str, types: Sequence[int], session: Session) -> Prepared:
        """Read one statement. Raises Refused.

        Args:
            sql: the statement.
            types: oids that the client gives, 0 if unknown.
            session: the session.
        """
        ...


_ROWS_BETWEEN_DRAINS = 200


class Rows(Protocol):
    """Answer to a statement, sent as far as the client wants."""

    @property
    @abstractmethod
    def columns(self) -> tuple[AnswerColumn, ...] | None:
        """Columns of the answer; None if it has no rows."""
        ...

    @property
    @abstractmethod
    def tag(self) -> str:
        """Text of CommandComplete; empty for an empty query."""
        ...

    @abstractmethod
    async def send(self, count: int, *, is_silent: bool = False) -> int:
        """Send `count` rows, 0: all; return their number. Raises Refused, Gone.

        Fewer than the count means that the end was reached. With is_silent rows are skipped.
        """
        ...

    @abstractmethod
    def set_formats(self, formats: Sequence[int]) -> None:
        """Send from now on in these formats; by default as text."""
        ...

    @abstractmethod
    async def close(self) -> None:
        """Release everything that is held."""
        ...


class Runnable(Protocol):
    """Statement, read and typed."""

    __slots__ = ()

    @property
    @abstractmethod
    def parameters(self) -> tuple[int, ...]:
        """Oids of its parameters' types."""
        ...

    @property
    @abstractmethod
    def columns(self) -> tuple[AnswerColumn, ...] | None:
        """Columns of its answer; None if it has no rows."""
        ...

    @abstractmethod
    async def open(self, session: ClientSession, values: Sequence[str | None], /) -> Rows:
        """Begin the answer for these texts of the parameters. Raises Refused."""
        ...


class AnswerRows(Rows):
    """Complete answer of the catalogue."""

    def __init__(self, session: ClientSession, answer: Answer) -> None:
        """Set the answer, whose notices and settings have been sent."""
        self._session, self._answer = session, answer
        self._at = 0
        self._formats: Sequence[int] = ()

    @property
    def columns(self) -> tuple[AnswerColumn, ...] | None:
        return self._answer.columns

    @property
    def tag(self) -> str:
        return self._answer.tag

    def set_formats(self, formats: Sequence[int]) -> None:
        self._formats = formats

    async def send(self, count: int, *, is_silent: bool = False) -> int:
        answer, session = self._answer, self._session
        columns = answer.columns or ()
        formats = list(self._formats) or [wire.TEXT] * len(columns)
        end = min(self._at + count, len(answer.rows)) if count else len(answer.rows)
        first, self._at = self._at, end
        if not is_silent:
            for number, row in enumerate(answer.rows[first:end], 1):
                session.write(wire.data_row(row, columns, formats))
                if number % _ROWS_BETWEEN_DRAINS == 0:
                    await session.drain()
        return end - first

    async def close(self) -> None:
        """Do nothing."""


STATEMENTS_MAX = 1000


class PreparedStatements:
    """Prepared statements of one connection, of its protocol and of SQL, by name."""

    def __init__(self) -> None:
        self._found: dict[str, Runnable] = {}

    def check_new(self, name: str) -> None:
        """Refuse a name in use, and one statement too many. Raises Refused: 42P05, 53400."""
        if name and name in self._found:
            raise Refused("42P05", f'prepared statement "{name}" already exists')
        if len(self._found) >= STATEMENTS_MAX:
            raise Refused("53400", "too many prepared statements")

    def add(self, name: str, statement: Runnable) -> None:
        """Add a new statement, or replace the one without a name."""
        self._found[name] = statement

    def get(self, name: str) -> Runnable:
        """Return a statement. Raises Refused: 26000."""
        found = self._found.get(name)
        if found is None:
            shown = f'prepared statement "{name}"' if name else "unnamed prepared statement"
            raise Refused("26000", f"{shown} does not exist")
        return found

    def close(self, name: str) -> None:
        """Forget a statement if it exists."""
        self._found.pop(name, None)

    def forget(self, name: str) -> None:
        """Forget a statement that SQL deallocated; `*`: all. Raises Refused: 26000."""
        if name == "*":
            self._found.clear()
        elif name:
            self.get(name)
            del self._found[name]


class CatalogPrepared(Runnable):
    """Statement that the catalogue has read and typed."""

    def __init__(self, prepared: Prepared) -> None:
        """Set the catalogue's statement."""
        self._prepared = prepared

    @property
    def parameters(self) -> tuple[int, ...]:
        return self._prepared.parameters

    @property
    def columns(self) -> tuple[AnswerColumn, ...] | None:
        return self._prepared.columns

    async def open(self, session: ClientSession, values: Sequence[str | None]) -> Rows:
        return await session.run_catalog(self._prepared.run, values, session.session)
