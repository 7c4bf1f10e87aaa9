"""Results of decoding pgoutput: the stops and the error, shared by the twin and the kernel.

Both report an error as (reason, offset, column), and the exception is created here, so messages
cannot differ between them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from penstock.codec.errors import DecodeError

if TYPE_CHECKING:
    from penstock.model.relation import Relation

# PostgreSQL builds a message in one allocation of at most 1 GiB; more is a broken length.
FRAME_LENGTH_MAX_BYTES = 2**30 + 64
# Text of one batch stays far below the 2 GiB that 32-bit string offsets reach, even when one more
# row of the greatest size follows.
BYTE_LIMIT_DEFAULT = 256 * 2**20
BYTE_LIMIT_MAX = 2**31 - 1 - FRAME_LENGTH_MAX_BYTES
# PostgreSQL counts microseconds from 2000-01-01, we from 1970-01-01.
POSTGRES_EPOCH_US = 946_684_800_000_000


class Stop(IntEnum):
    """Reason why `Decoder.feed` returned."""

    MORE = 0  # the rest of the block is not a whole frame
    LIMIT = 1  # before a row, when enough rows or bytes are buffered; may be mid-transaction
    COMMIT = 2  # just behind a Commit, when enough rows or bytes are buffered
    KEEPALIVE = 3  # behind a keepalive; `message` spans it
    MESSAGE = 4  # behind a pgoutput message that Python handles; `message` spans it
    WIDEN = 5  # before a row with a value that its neutral type cannot hold; see `widen`
    OTHER_FRAME = 6  # before a wire frame that is not CopyData; `message` spans its payload


class Reason(IntEnum):
    """Defect of the bytes. The kernel has the same numbers."""

    FRAME_LENGTH = 1
    COPY_DATA = 2
    MESSAGE_LENGTH = 3
    UNKNOWN_MESSAGE = 4
    TRUNCATED = 5
    TRAILING = 6
    NO_TRANSACTION = 7
    NESTED_BEGIN = 8
    COMMIT_MISMATCH = 9
    COMMIT_TIME = 10
    UNBOUND = 11
    COLUMN_COUNT = 12
    TUPLE_KIND = 13
    CELL_KIND = 14
    UNCHANGED = 15
    VALUE = 16
    UTF8 = 17
    COPY_FIELDS = 18
    COPY_ESCAPE = 19
    LINE_LENGTH = 20
    IDENTITY = 21


_PHRASES: dict[Reason, str] = {
    Reason.FRAME_LENGTH: "wire frame with an impossible length",
    Reason.COPY_DATA: "copy data that is neither a log record nor a keepalive",
    Reason.MESSAGE_LENGTH: "begin or commit message of a wrong length",
    Reason.UNKNOWN_MESSAGE: "unknown or misplaced replication message",
    Reason.TRUNCATED: "row message ends early",
    Reason.TRAILING: "bytes after the end of a row message",
    Reason.NO_TRANSACTION: "row or commit outside a transaction",
    Reason.NESTED_BEGIN: "begin inside a transaction",
    Reason.COMMIT_MISMATCH: "commit names another position than its begin",
    Reason.COMMIT_TIME: "commit time out of range",
    Reason.UNBOUND: "row of a relation that was not announced",
    Reason.COLUMN_COUNT: "row with another number of columns than its relation",
    Reason.TUPLE_KIND: "unexpected kind of row image",
    Reason.CELL_KIND: "unexpected kind of value (binary format was not asked for)",
    Reason.UNCHANGED: "value marked unchanged where all values must be sent",
    Reason.VALUE: "malformed value",
    Reason.UTF8: "text that is not UTF-8",
    Reason.COPY_FIELDS: "copy line with another number of fields than its relation has columns",
    Reason.COPY_ESCAPE: "unknown escape in a copy line",
    Reason.LINE_LENGTH: "copy line longer than any PostgreSQL sends",
    Reason.IDENTITY: "unknown replica identity in a relation message",
}


_HINT = (
    "Check that the server is PostgreSQL 14 to 18 and that nothing between changes the stream, "
    "then run `penstock doctor`."
)
_HINT_UTF8 = (
    "Show the database's encoding with `select pg_encoding_to_char(encoding) from pg_database "
    "where datname = current_database()`; a SQL_ASCII database may hold any bytes."
)


def decode_error(
    reason: int,
    offset: int,
    *,
    relation: Relation | None = None,
    column: int = -1,
    source_id: int = 0,
) -> DecodeError:
    """Return the error for a reason.

    offset: byte in the block. relation, column: place in the table, if known; column < 0 for none.
    source_id: oid of an unbound relation.
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
    elif source_id:
        place = f" (oid {source_id})"
        fields["source_id"] = source_id
    return DecodeError(
        f"{_PHRASES[Reason(reason)]}{place} at byte {offset} of the block",
        hint=_HINT_UTF8 if reason == Reason.UTF8 else _HINT,
        **fields,
    )
