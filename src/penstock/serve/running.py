"""What a statement is to a connection: something that can be described, opened, and sends rows.

`Runnable` is a statement that has been read: the catalogue's, one of a table, DECLARE and FETCH,
PREPARE and EXECUTE. The simple and the extended protocol use all of them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.codec.postgres import pgwire_extended as wire
from penstock.codec.postgres.pgwire_server import Refused
from penstock.serve.asked import Prepared
from penstock.serve.catalog.answers import Answer, AnswerColumn

if TYPE_CHECKING:
    from penstock.serve.session import ClientSession

_ROWS_BETWEEN_DRAINS = 200


class Rows(Protocol):
    """The answer to a statement, sent as far as the client wants."""

    @property
    def columns(self) -> tuple[AnswerColumn, ...] | None:
        """Its columns; None where it has no rows."""
        ...

    @property
    def tag(self) -> str:
        """The text of CommandComplete; empty for an empty query."""
        ...

    async def send(self, count: int, *, is_silent: bool = False) -> int:
        """Send so many rows, 0: all; return how many there were. Raises Refused, Gone.

        is_silent: they are passed over. Fewer than the count: the end was reached.
        """
        ...

    def set_formats(self, formats: Sequence[int]) -> None:
        """Send from now on in these formats; none: text."""
        ...

    async def close(self) -> None:
        """Let go of what is held."""
        ...


class Runnable(Protocol):
    """A statement, read and typed."""

    @property
    def parameters(self) -> tuple[int, ...]:
        """Oids of its parameters' types."""
        ...

    @property
    def columns(self) -> tuple[AnswerColumn, ...] | None:
        """Columns of its answer; None where it has no rows."""
        ...

    async def open(self, session: ClientSession, values: Sequence[str | None], /) -> Rows:
        """Begin to answer. values: texts of the parameters. Raises Refused."""
        ...


class AnswerRows:
    """An answer of the catalogue, which is there as a whole."""

    def __init__(self, session: ClientSession, answer: Answer) -> None:
        """answer: whose notices and settings have been told."""
        self._session, self._answer = session, answer
        self._at = 0
        self._formats: Sequence[int] = ()

    @property
    def columns(self) -> tuple[AnswerColumn, ...] | None:
        """See Rows."""
        return self._answer.columns

    @property
    def tag(self) -> str:
        """See Rows."""
        return self._answer.tag

    def set_formats(self, formats: Sequence[int]) -> None:
        """See Rows."""
        self._formats = formats

    async def send(self, count: int, *, is_silent: bool = False) -> int:
        """See Rows."""
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
        """Nothing is held."""


STATEMENTS_MAX = 1000


class PreparedStatements:
    """The prepared statements of one connection, of its protocol and of SQL, by name."""

    def __init__(self) -> None:
        self._found: dict[str, Runnable] = {}

    def check_new(self, name: str) -> None:
        """Refuse a name in use, and one statement too many. Raises Refused: 42P05, 53400."""
        if name and name in self._found:
            raise Refused("42P05", f'prepared statement "{name}" already exists')
        if len(self._found) >= STATEMENTS_MAX:
            raise Refused("53400", "too many prepared statements")

    def add(self, name: str, statement: Runnable) -> None:
        """Take a new one, or another one without a name."""
        self._found[name] = statement

    def get(self, name: str) -> Runnable:
        """Return a statement. Raises Refused: 26000."""
        found = self._found.get(name)
        if found is None:
            shown = f'prepared statement "{name}"' if name else "unnamed prepared statement"
            raise Refused("26000", f"{shown} does not exist")
        return found

    def close(self, name: str) -> None:
        """Forget a statement if there is one."""
        self._found.pop(name, None)

    def forget(self, name: str) -> None:
        """Forget a statement that SQL has deallocated; `*`: all. Raises Refused: 26000."""
        if name == "*":
            self._found.clear()
        elif name:
            self.get(name)
            del self._found[name]


class CatalogPrepared:
    """A statement that the catalogue has read and typed."""

    def __init__(self, prepared: Prepared) -> None:
        """prepared: by the catalogue."""
        self._prepared = prepared

    @property
    def parameters(self) -> tuple[int, ...]:
        """See Runnable."""
        return self._prepared.parameters

    @property
    def columns(self) -> tuple[AnswerColumn, ...] | None:
        """See Runnable."""
        return self._prepared.columns

    async def open(self, session: ClientSession, values: Sequence[str | None]) -> Rows:
        """See Runnable."""
        return await session.run_catalog(self._prepared.run, values, session.session)
