"""What a session needs of the catalogue: SQL in, answers out. No logic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from penstock.serve.catalog.answers import Answer, AnswerColumn, Session


class Prepared(Protocol):
    """A statement of the extended protocol, read and typed."""

    parameters: tuple[int, ...]
    """Oids of its parameters' types."""
    columns: tuple[AnswerColumn, ...] | None
    """Of its result; None where there is none."""

    def run(self, values: Sequence[str | None], session: Session) -> Answer:
        """Its answer. values: texts of the parameters. Raises Refused."""
        ...


class Answers(Protocol):
    """The catalogue. For one thread at a time, not always the same."""

    def split(self, sql: str) -> Sequence[Any]:
        """The statements of a simple query. Raises Refused."""
        ...

    def answer(self, statement: Any, session: Session) -> Answer:
        """The answer to one of them. Raises Refused."""
        ...

    def prepare(self, sql: str, types: Sequence[int], session: Session) -> Prepared:
        """One statement. types: oids that the client gives, 0 for not known. Raises Refused."""
        ...
