"""Write pgoutput messages that are not rows, and the frames around all messages.

Pure. Positions are LSNs as numbers; times are microseconds since 1970 UTC. A message that may be
inside a streamed transaction takes the `xid` it belongs to, None outside one.
`penstock.codec.postgres.pgoutput_messages` reads these messages;
`penstock.codec.postgres.pgoutput_encode` writes rows. Source: PostgreSQL manual, "Streaming
Replication Protocol" and "Logical Replication Message Formats".
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from penstock.codec.postgres.pgoutput_outcome import POSTGRES_EPOCH_US
from penstock.codec.postgres.pgtypes import wire_type
from penstock.model import Identity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.model import Relation

_FRAME = struct.Struct(">cIcQQq")
_FRAME_HEAD_BYTES = 4 + 25  # what the length counts in front of the message
_KEEPALIVE = struct.Struct(">cIcQqB")
_KEEPALIVE_LENGTH = 4 + 18
_IS_KEY = 1
_CASCADE, _RESTART_IDENTITY = 1, 2


def xlog_data(message: bytes, position: int, time_us: int) -> bytes:
    """Return a pgoutput message in XLogData in CopyData. time_us: time of sending."""
    length = _FRAME_HEAD_BYTES + len(message)
    sent = time_us - POSTGRES_EPOCH_US
    return _FRAME.pack(b"d", length, b"w", position, position, sent) + message


def keepalive(position: int, time_us: int, *, reply_now: bool = False) -> bytes:
    """Return a keepalive in CopyData.

    position: the client may report it as flushed, so everything before it must have been sent.
    """
    sent = time_us - POSTGRES_EPOCH_US
    return _KEEPALIVE.pack(b"d", _KEEPALIVE_LENGTH, b"k", position, sent, reply_now)


def begin(position: int, time_us: int, xid: int) -> bytes:
    """Return B. position, time_us: those of the commit that ends the transaction."""
    return struct.pack(">cQqI", b"B", position, time_us - POSTGRES_EPOCH_US, xid)


def commit(position: int, end_position: int, time_us: int) -> bytes:
    """Return C. position: that of its Begin. end_position: where a subscriber restarts."""
    return struct.pack(">cBQQq", b"C", 0, position, end_position, time_us - POSTGRES_EPOCH_US)


def relation(
    shape: Relation, source_id: int, *, xid: int | None = None, identity: str = ""
) -> bytes:
    """Return R: the shape of the rows that follow with this oid.

    identity: letter of its replica identity; empty for the relation's own. The types are
    PostgreSQL's own; a user's type is announced as text.
    """
    named = range(len(shape.columns)) if shape.identity is Identity.FULL else shape.before
    parts = [
        b"R" + _xid(xid) + struct.pack(">I", source_id),
        _text(shape.schema) + _text(shape.name) + (identity or shape.identity.value).encode(),
        struct.pack(">H", len(shape.columns)),
    ]
    for index, column in enumerate(shape.columns):
        flags = _IS_KEY if index in named else 0
        type_oid, typmod = wire_type(column)
        parts.append(bytes((flags,)) + _text(column.name) + struct.pack(">Ii", type_oid, typmod))
    return b"".join(parts)


def truncate(
    source_ids: Sequence[int],
    *,
    cascade: bool = False,
    restart_identity: bool = False,
    xid: int | None = None,
) -> bytes:
    """Return T: these tables were truncated together."""
    options = _CASCADE * cascade | _RESTART_IDENTITY * restart_identity
    head = struct.pack(">IB", len(source_ids), options)
    return b"T" + _xid(xid) + head + struct.pack(f">{len(source_ids)}I", *source_ids)


def logical(
    prefix: str, content: bytes, position: int, *, transactional: bool, xid: int | None = None
) -> bytes:
    """Return M: a message that a user of the source wrote into the log."""
    head = struct.pack(">BQ", transactional, position)
    return b"M" + _xid(xid) + head + _text(prefix) + struct.pack(">I", len(content)) + content


def _xid(xid: int | None) -> bytes:
    return b"" if xid is None else struct.pack(">I", xid)


def _text(value: str) -> bytes:
    encoded = value.encode()
    if b"\0" in encoded:
        raise ValueError(f"a name holds a zero byte: {value!r}")
    return encoded + b"\0"
