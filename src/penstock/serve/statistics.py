"""Slots, streams and connections as rows of the views that a DBA reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.host.clock import REAL_CLOCK
from penstock.serve.catalog.answers import ConnectionRow, SenderRow, ServerState, SlotRow

if TYPE_CHECKING:
    from penstock.serve.sender import Progress
    from penstock.serve.serving import Serving
    from penstock.serve.slots import Slot


@dataclass(slots=True, kw_only=True)
class Client:
    """Connected client.

    Attributes:
        parameters: of its start-up packet.
        state: its activity, as in pg_stat_activity.
        query: its query, as in pg_stat_activity.
    """

    process_id: int
    secret: bytes
    user: str
    database: str
    application: str
    address: str | None
    port: int | None
    began_us: int
    replication: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)
    state: str = "idle"
    query: str = ""


def time_text(time_us: int) -> str | None:
    """Return a time in microseconds since 1970 UTC as the server prints it; None for 0."""
    if not time_us:
        return None
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(" ").replace("+00:00", "+00")


def slot_row(
    slot: Slot, *, held_bytes: int, keep_bytes: int | None, restart_ht: int | None
) -> SlotRow:
    """Return a row of pg_replication_slots.

    Args:
        slot: the slot.
        held_bytes: size of its segments.
        keep_bytes: the limit, or None.
        restart_ht: of the dialect, or None.
    """
    saved = slot.saved
    status = "lost" if saved.lost else "reserved"
    return SlotRow(
        slot_name=saved.name,
        plugin=saved.plugin,
        confirmed_flush_lsn=saved.lsn,
        restart_lsn=None if saved.lost else saved.lsn,
        active_pid=slot.owner or slot.temporary or None,
        temporary=bool(slot.temporary),
        failover=saved.failover,
        wal_status=status,
        safe_wal_size=None if keep_bytes is None else max(keep_bytes - held_bytes, 0),
        invalidation_reason=saved.lost or None,
        inactive_since=None if slot.owner else time_text(slot.inactive_us),
        yb_stream_id=saved.stream_id or saved.name,
        yb_restart_commit_ht=restart_ht,
        yb_lsn_type=saved.lsn_type,
    )


def sender_row(client: Client, progress: Progress) -> SenderRow:
    """Return a row of pg_stat_replication."""
    return SenderRow(
        pid=client.process_id,
        usename=client.user,
        application_name=client.application,
        client_addr=client.address,
        client_port=client.port,
        backend_start=time_text(client.began_us) or "",
        sent_lsn=progress.sent,
        write_lsn=progress.write or None,
        flush_lsn=progress.flush or None,
        replay_lsn=progress.apply or None,
        reply_time=time_text(progress.reply_us),
    )


def connection_row(client: Client) -> ConnectionRow:
    """Return a row of pg_stat_activity."""
    return ConnectionRow(
        pid=client.process_id,
        usename=client.user,
        application_name=client.application,
        client_addr=client.address,
        client_port=client.port,
        backend_start=time_text(client.began_us) or "",
        state=client.state,
        query=client.query,
        backend_type="walsender" if client.replication else "client backend",
    )


class State(ServerState):
    """State of the server for the catalogue: `answers.ServerState`."""

    def __init__(self, serving: Serving | None = None) -> None:
        """Keep the server. If the catalogue exists first, `of` sets it later."""
        self._known = serving

    def of(self, serving: Serving) -> None:
        """Set the server."""
        self._known = serving

    @property
    def _serving(self) -> Serving:
        assert self._known is not None, "no session asks before the server has begun"
        return self._known

    def slots(self) -> Sequence[SlotRow]:
        """Return all slots."""
        return self._serving.slot_rows()

    def senders(self) -> Sequence[SenderRow]:
        """Return all clients that stream."""
        return self._serving.sender_rows()

    def connections(self) -> Sequence[ConnectionRow]:
        """Return all connections."""
        return self._serving.connection_rows()

    def position(self) -> int:
        """Return the durable end, as an LSN."""
        return self._serving.head.position

    def transaction_id(self) -> int:
        """Return the number of the next transaction."""
        return self._serving.head.end.trx + 1

    def now_us(self) -> int:
        """Return the time, microseconds since 1970 UTC."""
        return REAL_CLOCK.now_us()
