"""What an assembler is given and what it reports: limits, counters, marks of what was given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.codec.mysql.gtids import GtidSet, MariaGtids
from penstock.engines.mysql.source.client import Gtids
from penstock.engines.mysql.source.prepared import Prepared
from penstock.engines.mysql.source.unsupported import LOAD_AGAIN, StreamUnexpected


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a run is cut. row_count: rows, also inside a transaction. byte_count: their bytes."""

    row_count: int = 20_000
    byte_count: int = 32 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class Counted:
    """What has gone through, for display."""

    row_count: int = 0
    transaction_count: int = 0
    byte_count: int = 0
    ignored_row_count: int = 0
    skipped_transaction_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMark:
    """What holds at an end that was given out. position: the log's; base and shift: of its file.

    gtids: all transactions before it, as text. prepared: what is prepared there.
    """

    position: int
    base: str
    shift: int
    gtids: str
    prepared: tuple[Prepared, ...]


def note_gtids(known: Gtids, pieces: Iterable[str]) -> None:
    """Add the ids of transactions that ended, as `Decoder.take_gtids` gives them."""
    for piece in pieces:
        if isinstance(known, MariaGtids):
            known.update(MariaGtids.parse(piece))
        else:
            known.update(GtidSet.parse(piece))


def check_between(position: int, begin: int, end: int, what: str) -> None:
    """Check that a position is not inside the transaction from begin to end. Raises."""
    if begin < position < end:
        place = BinlogPosition(position)
        raise StreamUnexpected(
            f"{what} inside a transaction of the server, at offset {place.offset} of file "
            f"{place.number}",
            hint="The server's binlog is not the one that the log was filled from: " + LOAD_AGAIN,
        )
