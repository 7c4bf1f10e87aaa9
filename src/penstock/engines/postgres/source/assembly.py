"""Parts of an assembler: shapes, limits, counters, errors."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol

from penstock.codec.postgres.pgoutput_messages import RelationMessage
from penstock.model import PenstockError, Relation
from penstock.ports.source import StreamCounted


class StreamUnexpected(PenstockError):
    """The server sent a message that does not belong to the stream that we asked for."""

    code = "PG71"
    retry = "operator"


class PublicationLost(PenstockError):
    """The publication went away while we were reading: rows may be missing."""

    code = "PG72"
    retry = "operator"


class Shapes(Protocol):
    """Relations in the log; asked from the thread that decodes."""

    @abstractmethod
    def resolve(self, message: RelationMessage) -> Relation | None:
        """Return the relation version for a Relation message; None: the table is not captured.

        The same shape gives the same version, also in a later connection.
        """
        ...

    @abstractmethod
    def widen(self, relation: Relation, column: int) -> Relation:
        """Return the version of relation in which one column is kept as text; remembered."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a run.

    Attributes:
        row_count: rows that make a run, also inside a transaction.
        byte_count: the same in bytes of the messages; the last row is added on top.
    """

    row_count: int = 20_000
    byte_count: int = 32 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class Counted(StreamCounted):
    """Counters for display. Positions are LSNs."""

    row_count: int = 0
    transaction_count: int = 0
    byte_count: int = 0
    ignored_row_count: int = 0
    ignored_message_count: int = 0
    skipped_transaction_count: int = 0
    received_position: int = 0
    server_time_us: int = 0
