"""Interface between a session and the catalogue: SQL in, answers out. No logic."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from penstock.serve.catalog.answers import Answer, AnswerColumn, Session


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
