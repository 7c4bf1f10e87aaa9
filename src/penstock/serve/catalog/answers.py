"""What the catalogue is asked with and answers with: the types its caller sees. No logic.

`Catalog.answer(sql, session)` for the simple protocol, `Catalog.prepare(sql, oids)` and
`Prepared.run(parameters, session)` for the extended one. Both raise `Refused` with a SQLSTATE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.codec.postgres.pgwire_server import Refused
from penstock.serve.catalog.publications import Comment, Publication

Cells = tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerColumn:
    """One column, as RowDescription says it. table_oid, number: where it comes from, else 0."""

    name: str
    type_oid: int
    type_size: int = -1
    typmod: int = -1
    table_oid: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A NoticeResponse that goes before the answer's end. severity: WARNING, NOTICE."""

    severity: str
    sqlstate: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one statement.

    columns: None where there is no result (no RowDescription, no rows). rows: texts as the server
    prints them, None for NULL. tag: of CommandComplete; empty: EmptyQueryResponse. reports: what a
    ParameterStatus tells the client: settings that have changed. forgets: a prepared statement that
    is no more, `*` for all.
    """

    tag: str
    columns: tuple[AnswerColumn, ...] | None = None
    rows: Sequence[Cells] = ()
    reports: Mapping[str, str] = field(default_factory=dict)
    notices: Sequence[Notice] = ()
    forgets: str = ""


@dataclass(slots=True, kw_only=True)
class Session:
    """One connection, as the catalogue sees it. Changed by what is answered.

    transaction: `I`, `T` or `E`, for ReadyForQuery; the caller sets `E` when a statement inside a
    transaction is refused by itself, the catalogue when it refuses. settings: those that the client
    has set, by name in small letters. snapshot: given to SET TRANSACTION SNAPSHOT; read_time: to
    yb_read_time; both None outside of a transaction. carried_out: outcomes of what functions of
    the statement have asked of the server. The rest is the catalogue's own.
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
    """One row of pg_stat_activity: who is connected."""

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
    """A function needs something done that the catalogue's thread cannot do.

    Attributes:
        key: The function's name and its arguments. The query is asked again once
            `Session.carried_out` has the outcome under it.
    """

    def __init__(self, *key: Any) -> None:
        """key: see above."""
        super().__init__("0A000", f"{key[0]} is not available here")
        self.key = key


class ServerState(Protocol):
    """What changes while the server runs, asked again for each query that needs it."""

    def slots(self) -> Sequence[SlotRow]:
        """All slots."""
        ...

    def senders(self) -> Sequence[SenderRow]:
        """All clients that stream."""
        ...

    def connections(self) -> Sequence[ConnectionRow]:
        """All connections."""
        ...

    def position(self) -> int:
        """The end of what is durable, as an LSN."""
        ...

    def transaction_id(self) -> int:
        """The number of the next transaction."""
        ...

    def now_us(self) -> int:
        """The time, microseconds since 1970 UTC."""
        ...
