"""Changes of a slot as rows: pg_logical_slot_get_changes() and its three sisters.

They return whole transactions, until the caller's limit or ours is reached. Changes that are got
are confirmed, durably, before the answer, as at a server; changes that are peeked at are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.codec.postgres.pgwire_server import Refused
from penstock.serve.blocks import find_place
from penstock.serve.catalog.publications import everything
from penstock.serve.encode import Block
from penstock.serve.forms import PgOutput
from penstock.serve.options import PLUGINS_BINARY, StreamOptions, stream_options
from penstock.serve.slots import Slot
from penstock.serve.source_log import SegmentGone

if TYPE_CHECKING:
    from penstock.serve.session import ClientSession

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
    """Return the numbers of transactions by their END, as pgoutput sends them."""
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
