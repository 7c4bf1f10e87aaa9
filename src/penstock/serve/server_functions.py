"""Functions of SQL that act on the server: slots, other connections, snapshots, a slot's changes.

The catalogue evaluates calls in a thread of its own; work for the event loop is requested
(`answers.AsksServer`) and done here, and then the query is run again.

pg_logical_slot_get_changes() and its three sisters return whole transactions, until the caller's
limit or ours is reached. Changes that are got are confirmed, durably, before the answer, as at a
server; changes that are peeked at are not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.codec.postgres.lsn import Lsn
from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.postgres.replication_commands import check_slot_name
from penstock.serve.blocks import find_place
from penstock.serve.catalog.publications import everything
from penstock.serve.encode import Block
from penstock.serve.forms import (
    PLUGINS_BINARY,
    PgOutput,
    StreamOptions,
    check_plugin,
    stream_options,
)
from penstock.serve.slots import Slot
from penstock.serve.source_log import SegmentGone

if TYPE_CHECKING:
    from penstock.serve.session import ClientSession


async def carry_out(session: ClientSession, function: str, *arguments: Any) -> Any:
    """Run a function that acts on the server; return the result for its answer. Raises Refused."""
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


CHANGES_BYTES_MAX = 4 << 20
_FRAME_HEAD, _WAL_HEAD = 5, 25
_BEGIN = b"B"


class Change(NamedTuple):
    """Message with the END of its transaction."""

    lsn: int
    end: int
    data: bytes


@dataclass(slots=True)
class _Split:
    """Divides blocks into messages.

    Attributes:
        end: END of the transaction that continues in the next block.
    """

    known: dict[int, bytes] = field(default_factory=dict)
    end: int = 0

    def changes(self, block: Block, after: int) -> Iterator[Change]:
        """Yield the changes of a block after an LSN, each shape before the rows that need it."""
        starts = dict(zip(block.offsets.tolist(), block.ends.tolist(), strict=True))
        shapes = list(block.shapes)
        at, data = 0, block.data
        while at < len(data):
            self.end = starts.get(at, self.end)
            length = int.from_bytes(data[at + 1 : at + _FRAME_HEAD])
            body = data[at + _FRAME_HEAD : at + 1 + length]
            lsn = int.from_bytes(body[1:9])
            while shapes and shapes[0].offset <= at:
                shape = shapes.pop(0)
                if self.end > after and self.known.get(shape.table) != shape.message:
                    self.known[shape.table] = shape.message
                    yield Change(lsn, self.end, shape.message)
            if self.end > after and body[:1] == b"w":
                yield Change(lsn, self.end, body[_WAL_HEAD:])
            at += 1 + length


async def read_changes(
    session: ClientSession,
    name: str,
    upto: int | None,
    count: int | None,
    given: Sequence[str],
    *,
    is_binary: bool,
    confirms: bool,
) -> list[list[Any]]:
    """Return rows of LSN, transaction's number and text. Raises Refused.

    Args:
        session: the session.
        name: of the slot.
        upto: no transaction that ends after it.
        count: no more transactions after this many rows.
        given: names and values of the plugin's options.
        is_binary: return bytes.
        confirms: confirm the changes.
    """
    serving = session.serving
    slot = serving.slots.own(name, session.process_id)
    try:
        options = _options(slot, given, is_binary=is_binary)
        found, end = await _read(session, slot, options, upto, count or 0)
        xids = await _xids(session, slot, options, found, end)
        if confirms:
            serving.slots.confirm(slot, end)
            await serving.slots.save()
    except SegmentGone as error:
        serving.slots.lose(slot, "wal_removed")
        raise Refused("55000", f'replication slot "{name}" has lost what it needs') from error
    finally:
        serving.slots.disown(slot)
    if confirms:
        await serving.release()
    return [[one.lsn, xids.get(one.end, 0), _show(one.data, is_binary)] for one in found]


def _show(data: bytes, is_binary: bool) -> str:
    return "\\x" + data.hex() if is_binary else data.decode()


def _options(slot: Slot, given: Sequence[str], *, is_binary: bool) -> StreamOptions:
    saved = slot.saved
    if saved.lost:
        raise Refused(
            "55000",
            f'can no longer get changes from replication slot "{saved.name}"',
            hint="It has lost what it needs. Drop it, and let the client copy again.",
        )
    if saved.is_hybrid:
        raise Refused("0A000", "changes of a slot of HYBRID_TIME are streamed only")
    if len(given) % 2:
        raise Refused("0A000", "array must have even number of elements")
    if not is_binary and saved.plugin in PLUGINS_BINARY:
        raise Refused(
            "0A000",
            f'logical decoding output plugin "{saved.plugin}" produces binary output, but the '
            "function expects textual data",
            hint="Call the function with _binary_ in its name.",
        )
    pairs = list(zip(given[::2], given[1::2], strict=True))
    names = [one for one, _ in pairs]
    repeated = {one for one in names if names.count(one) > 1}
    return stream_options(saved.plugin, dict(pairs), repeated=repeated)


async def _read(
    session: ClientSession, slot: Slot, options: StreamOptions, upto: int | None, count: int
) -> tuple[list[Change], int]:
    """Return changes, and the LSN up to which they are complete."""
    serving = session.serving
    start = slot.saved.confirmed
    head = await serving.look()
    last = head.position if upto is None else max(start, min(upto, head.position))
    place = await serving.in_thread(find_place, serving.log, start)
    found: list[Change] = []
    split, size = _Split(), 0
    while True:
        views, borders = serving.views_at(options, place, start)
        made = await serving.blocks.next(place, views, head, borders, start)
        session.check_cancelled()
        if made is None:
            return found, last
        place = made.behind
        if made.block is None:
            continue
        some: list[Change] = await serving.in_thread(list, split.changes(made.block, start))
        for one in some:
            if one.end > last:
                return found, found[-1].end if found and upto is None else last
            is_next = not found or one.end != found[-1].end
            is_full = (count and len(found) >= count) or size > CHANGES_BYTES_MAX
            if is_next and is_full:
                return found, found[-1].end
            found.append(one)
            size += len(one.data)
            if size > 2 * CHANGES_BYTES_MAX:
                raise Refused(
                    "54000",
                    "a transaction is too large to be answered as rows",
                    hint="Stream it with START_REPLICATION.",
                )


async def _xids(
    session: ClientSession, slot: Slot, options: StreamOptions, found: Sequence[Change], end: int
) -> dict[int, int]:
    """Return each transaction's xid as pgoutput sends it, keyed by the LSN of the transaction's
    end.
    """
    if isinstance(options.form, PgOutput):
        return _list_begun(found)
    serving, start = session.serving, slot.saved.confirmed
    # A text may lack the number; in the other form it is always at the same place.
    views = serving.views([everything(options.form.actions)], PgOutput(messages=True))
    head = await serving.look()
    place = await serving.in_thread(find_place, serving.log, start)
    xids: dict[int, int] = {}
    split = _Split()
    while place.counted.position < end:
        made = await serving.blocks.next(place, views, head, frozenset(), start)
        if made is None:
            break
        place = made.behind
        if made.block is not None:
            xids |= _list_begun(await serving.in_thread(list, split.changes(made.block, start)))
    return xids


def _list_begun(found: Sequence[Change]) -> dict[int, int]:
    return {one.end: int.from_bytes(one.data[17:21]) for one in found if one.data[:1] == _BEGIN}
