"""Functions of SQL that act on the server: slots, other connections, snapshots.

The catalogue evaluates calls in a thread of its own; work for the event loop is requested
(`answers.AsksServer`) and done here, and then the query is run again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.codec.postgres.lsn import Lsn
from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.postgres.replication_commands import check_slot_name
from penstock.serve.changes import read_changes
from penstock.serve.options import check_plugin

if TYPE_CHECKING:
    from penstock.serve.session import ClientSession


async def carry_out(session: ClientSession, function: str, *arguments: Any) -> Any:
    """Do the work of a function; return the outcome for its answer. Raises Refused."""
    return await _FUNCTIONS[function](session, *arguments)


async def _create_slot(
    session: ClientSession, name: str, plugin: str, temporary: int, two_phase: int, failover: int
) -> list[Any]:
    serving = session.serving
    check_slot_name(name)
    check_plugin(plugin, dialect=serving.settings.dialect)
    if two_phase:
        raise Refused("0A000", "two_phase is not served")
    slot, _ = await serving.create_slot(
        name,
        plugin,
        failover=bool(failover),
        temporary=session.process_id if temporary else 0,
    )
    return [name, slot.saved.lsn]


async def _drop_slot(session: ClientSession, name: str) -> str:
    await session.serving.drop_slot(name, session.process_id)
    return ""


async def _advance_slot(session: ClientSession, name: str, wanted: int) -> list[Any]:
    serving = session.serving
    if not wanted:
        raise Refused("XX000", "invalid target WAL LSN")
    slot = serving.slots.own(name, session.process_id)
    try:
        if slot.saved.is_hybrid:
            raise Refused("0A000", "a slot of HYBRID_TIME is advanced by its client")
        head = await serving.look()
        end = min(wanted, head.position)
        if end < slot.saved.confirmed:
            raise Refused(
                "55000",
                f"cannot advance replication slot to {Lsn(end)}, minimum is "
                f"{Lsn(slot.saved.confirmed)}",
            )
        serving.slots.confirm(slot, end)
        await serving.slots.save()
    finally:
        serving.slots.disown(slot)
    await serving.release()
    return [name, end]


async def _terminate(session: ClientSession, process_id: int) -> int:
    return int(session.serving.signal(process_id, terminates=True))


async def _cancel(session: ClientSession, process_id: int) -> int:
    return int(session.serving.signal(process_id, terminates=False))


async def _export_snapshot(session: ClientSession) -> str:
    return await session.snapshots.export_own(session.serving.look)


async def _changes(
    session: ClientSession,
    name: str,
    upto: int | None,
    count: int | None,
    options: Sequence[str],
    is_binary: bool,
    confirms: bool,
) -> list[list[Any]]:
    return await read_changes(
        session, name, upto, count, options, is_binary=is_binary, confirms=confirms
    )


_FUNCTIONS: dict[str, Callable[..., Awaitable[Any]]] = {
    "pg_create_logical_replication_slot": _create_slot,
    "pg_drop_replication_slot": _drop_slot,
    "pg_replication_slot_advance": _advance_slot,
    "pg_terminate_backend": _terminate,
    "pg_cancel_backend": _cancel,
    "pg_export_snapshot": _export_snapshot,
    "changes of a slot": _changes,
}
