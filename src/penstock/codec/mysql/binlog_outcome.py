"""Results of decoding a binlog: the stops and the errors, shared by the twin and the kernel.

Both report an error as (reason, offset, column), and the exception is created here, so messages
cannot differ between them. Not here: the decoding (`binlog`, `_binlog.pyx`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from penstock.codec.errors import DecodeError

if TYPE_CHECKING:
    from penstock.model.relation import Relation

__all__ = ["BYTE_LIMIT_DEFAULT", "BinlogBroken", "DecodeError", "Reason", "Stop", "binlog_error"]

# max_allowed_packet is at most 1 GiB; an event has a head and a table's bitmaps besides.
EVENT_LENGTH_MAX_BYTES = 2**30 + 2**20
# As for pgoutput: text of one batch stays far below the 2 GiB that 32-bit offsets reach.
BYTE_LIMIT_DEFAULT = 256 * 2**20
BYTE_LIMIT_MAX = 2**30
# Text that one row may become, when a conversion makes it longer than it was stored.
TEXT_LENGTH_MAX_BYTES = 2**30

FILE_NUMBER_MAX = 2**24 - 1
OFFSET_BITS = 40
# Of events that a server leaves out in one file, as they are in our GTID set already. More than
# that cannot be distinguished from a step back, because an event has only the lower 32 bits of its
# place.
GAP_MAX_BYTES = 2**31 - 1


class Stop(IntEnum):
    """Reason why `Decoder.feed` returned. Numbers as for pgoutput; heartbeats (3) do
    not stop it.
    """

    MORE = 0  # the rest of the block is not a whole packet
    LIMIT = 1  # before a row, when enough rows or bytes are buffered; may be mid-transaction
    COMMIT = 2  # just behind the end of a transaction, when enough rows or bytes are buffered
    MESSAGE = 4  # behind an event that Python handles; `message` has its bytes
    WIDEN = 5  # before a row with a value that its neutral type cannot hold; see `widen`
    OTHER_FRAME = 6  # before a packet that is not an event: EOF or ERR; `message` is its payload


class Reason(IntEnum):
    """Defect of the bytes. The kernel has the same numbers."""

    PACKET = 1
    EVENT_LENGTH = 2
    CHECKSUM = 3
    UNKNOWN_EVENT = 4
    NO_FORMAT = 5
    FORMAT = 6
    FILE_NAME = 7
    MAGIC = 8
    NO_TRANSACTION = 9
    NESTED_BEGIN = 10
    EVENT_BODY = 11
    UNBOUND = 12
    COLUMN_COUNT = 13
    TRUNCATED = 14
    VALUE = 15
    TEXT = 16
    DEFAULTED = 17
    BEFORE = 18
    TOO_LONG = 19
    PAYLOAD = 20
    ENCRYPTED = 21
    PLACE = 22


_PHRASES: dict[Reason, str] = {
    Reason.PACKET: "packet that is neither an event nor the end of the stream",
    Reason.EVENT_LENGTH: "event with an impossible length",
    Reason.CHECKSUM: "event whose checksum does not match its bytes",
    Reason.UNKNOWN_EVENT: "event of an unknown or obsolete type",
    Reason.NO_FORMAT: "event before any format description",
    Reason.FORMAT: "format description that is not understood",
    Reason.FILE_NAME: "rotate event without a numbered file name",
    Reason.MAGIC: "file that does not begin like a binlog",
    Reason.NO_TRANSACTION: "row or commit outside a transaction",
    Reason.NESTED_BEGIN: "transaction begins inside a transaction",
    Reason.EVENT_BODY: "event of a known type with a malformed body",
    Reason.UNBOUND: "row of a table that was not announced",
    Reason.COLUMN_COUNT: "row with another number of columns than its table",
    Reason.TRUNCATED: "row ends early",
    Reason.VALUE: "malformed value",
    Reason.TEXT: "text that its character set does not have",
    Reason.DEFAULTED: "inserted row without all columns (binlog_row_image is not FULL)",
    Reason.BEFORE: "row without the old values that identify it",
    Reason.TOO_LONG: "row whose text is too long to keep",
    Reason.PAYLOAD: "compressed event that cannot be decompressed",
    Reason.ENCRYPTED: "encrypted binlog file",
    Reason.PLACE: "event that ends before the one in front of it",
}

_HINT = (
    "Check that the server is MySQL 5.7 to 9 or MariaDB 10.5 to 11 and that nothing between "
    "changes the stream, then run `penstock doctor`."
)
_HINT_IMAGE = (
    "Run `set global binlog_row_image = 'FULL'`, reconnect the sessions that write, and load the "
    "table again."
)
_HINTS: dict[Reason, str] = {
    Reason.TEXT: "Find the rows with `select * from TABLE where COLUMN <> convert(convert(COLUMN "
    "using utf8mb4) using CHARSET)` and correct them, then load the table again.",
    Reason.DEFAULTED: _HINT_IMAGE,
    Reason.BEFORE: _HINT_IMAGE,
    Reason.ENCRYPTED: "Read the binlog from the server, which decrypts it, not from its files.",
    Reason.CHECKSUM: "Run `penstock extract` again, which reads from the last position; if it "
    "stops at the same place, the server's file is damaged.",
}


class BinlogBroken(DecodeError):
    """Bytes from the server that MySQL and MariaDB do not write; nothing is skipped.

    `offset` is a place in the block (or in the event, if it came in several packets or compressed)
    that was given. `fields` also has `reason`, and `table`, `column` or `table_id` if known. It
    never holds row values.
    """

    code = "DC60"
    retry = "operator"


def binlog_error(
    reason: int,
    offset: int,
    *,
    relation: Relation | None = None,
    column: int = -1,
    table_id: int = 0,
) -> BinlogBroken:
    """Return the error for a reason.

    offset: byte in the block. relation, column: place in the table, if known; column < 0 for none.
    table_id: id of a table that is not bound.
    """
    place = ""
    fields: dict[str, object] = {"offset": offset, "reason": Reason(reason).name.lower()}
    if relation is not None:
        place = f" in {relation.full_name}"
        fields["table"] = relation.full_name
        if column >= 0:
            shape = relation.columns[column]
            place += f" column {shape.name} ({shape.source_type} as {shape.neutral})"
            fields["column"] = shape.name
    elif table_id:
        place = f" (table id {table_id})"
        fields["table_id"] = table_id
    return BinlogBroken(
        f"{_PHRASES[Reason(reason)]}{place} at byte {offset} of the block",
        hint=_HINTS.get(Reason(reason), _HINT),
        **fields,
    )
