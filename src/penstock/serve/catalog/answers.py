"""Arguments and answers of the catalogue: the types that its caller sees. No logic.

`Catalog.answer(sql, session)` is for the simple protocol, `Catalog.prepare(sql, oids)` and
`Prepared.run(parameters, session)` for the extended one. Both raise `Refused` with a SQLSTATE.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.codec.postgres.pgwire_server import Refused
from penstock.serve.catalog.publications import Comment, Publication

Cells = tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerColumn:
    """One column of RowDescription.

    Attributes:
        table_oid: its table, or 0.
        number: its number in the table, or 0.
    """

    name: str
    type_oid: int
    type_size: int = -1
    typmod: int = -1
    table_oid: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """NoticeResponse before the answer's end.

    Attributes:
        severity: WARNING or NOTICE.
    """

    severity: str
    sqlstate: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer to one statement.

    Attributes:
        tag: of CommandComplete; empty: EmptyQueryResponse.
        columns: None if there is no result (no RowDescription, no rows).
        rows: texts as the server prints them, None for NULL.
        reports: changed settings, for ParameterStatus.
        forgets: a deallocated prepared statement, `*` for all.
    """

    tag: str
    columns: tuple[AnswerColumn, ...] | None = None
    rows: Sequence[Cells] = ()
    reports: Mapping[str, str] = field(default_factory=dict)
    notices: Sequence[Notice] = ()
    forgets: str = ""


@dataclass(slots=True, kw_only=True)
class Session:
    """One connection as the catalogue sees it. Answers change it.

    Attributes:
        transaction: `I`, `T` or `E`, for ReadyForQuery; the catalogue sets `E` if it refuses a
            statement, the caller if it refuses one itself inside a transaction.
        snapshot: from SET TRANSACTION SNAPSHOT; None outside of a transaction.
        read_time: from yb_read_time; None outside of a transaction.
        carried_out: outcomes of the server's work for functions of the statement.
        settings: set by the client, by name in lower case. The rest belongs to the catalogue.
    """

    user: str
    database: str
    process_id: int = 0
    replication: bool = False
    transaction: str = "I"
    read_only: bool = False
    snapshot: str | None = None
    read_time: str | None = None
    carried_out: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    local_before: dict[str, str | None] = field(default_factory=dict)
    local_keys: set[str] = field(default_factory=set)
    savepoints: list[tuple[str, int]] = field(default_factory=list)
    pending: list[tuple[str, Publication | Comment | None]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRow:
    """One row of pg_replication_slots. Positions are numbers, None: NULL."""

    slot_name: str
    plugin: str
    confirmed_flush_lsn: int | None
    restart_lsn: int | None
    active_pid: int | None = None
    temporary: bool = False
    two_phase: bool = False
    failover: bool = False
    wal_status: str = "reserved"
    safe_wal_size: int | None = None
    invalidation_reason: str | None = None
    inactive_since: str | None = None
    yb_stream_id: str | None = None
    yb_restart_commit_ht: int | None = None
    yb_lsn_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderRow:
    """One row of pg_stat_replication: a client that streams. Times are ISO texts with an offset."""

    pid: int
    usename: str
    application_name: str
    client_addr: str | None
    client_port: int | None
    backend_start: str
    state: str = "streaming"
    sent_lsn: int | None = None
    write_lsn: int | None = None
    flush_lsn: int | None = None
    replay_lsn: int | None = None
    reply_time: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRow:
    """One row of pg_stat_activity: a connection."""

    pid: int
    usename: str
    application_name: str
    client_addr: str | None
    client_port: int | None
    backend_start: str
    state: str = "idle"
    query: str = ""
    backend_type: str = "client backend"


class AsksServer(Refused):
    """A function needs work that the catalogue's thread cannot do.

    Attributes:
        key: the function's name and its arguments. The query is run again once
            `Session.carried_out` has the outcome under it.
    """

    def __init__(self, *key: Any) -> None:
        """Set the function and its arguments, as `key`."""
        super().__init__("0A000", f"{key[0]} is not available here")
        self.key = key


class ServerState(Protocol):
    """State that changes while the server runs, read again for each query that needs it."""

    @abstractmethod
    def slots(self) -> Sequence[SlotRow]:
        """Return all slots."""
        ...

    @abstractmethod
    def senders(self) -> Sequence[SenderRow]:
        """Return all clients that stream."""
        ...

    @abstractmethod
    def connections(self) -> Sequence[ConnectionRow]:
        """Return all connections."""
        ...

    @abstractmethod
    def position(self) -> int:
        """Return the durable end, as an LSN."""
        ...

    @abstractmethod
    def transaction_id(self) -> int:
        """Return the number of the next transaction."""
        ...

    @abstractmethod
    def now_us(self) -> int:
        """Return the time, microseconds since 1970 UTC."""
        ...
