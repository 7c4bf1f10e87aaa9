"""Parsers of the pgoutput messages that are not rows, and of the keepalive.

Pure. Each takes a message's body, without the letter in front, and returns a frozen dataclass, or
raises DecodeError for a body that is too short, too long or otherwise not as described. `streamed`
means that the message came inside a streamed transaction and so has that one's xid. Positions are
LSNs as numbers; times are microseconds since 1970 UTC. `penstock.codec.postgres.pgoutput` decodes
rows, Begin and Commit. Source: PostgreSQL manual, "Logical Replication Message Formats".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock.codec.postgres.pgoutput_outcome import POSTGRES_EPOCH_US, Reason, decode_error

if TYPE_CHECKING:
    from collections.abc import Callable

Buffer = bytes | bytearray | memoryview


class RelationColumn(NamedTuple):
    """A column as a Relation message lists it. flags: bit 0 set when part of the identity."""

    flags: int
    name: str
    type_oid: int
    typmod: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationMessage:
    """R: the shape of the rows that follow. schema: never empty (`pg_catalog` is spelled out)."""

    xid: int | None
    source_id: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeMessage:
    """Y: the name of a user's type. A domain shows its own oid with its base type's name."""

    xid: int | None
    type_oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginMessage:
    """O: the transaction was applied on the server by another replication."""

    position: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateMessage:
    """T: tables truncated together."""

    xid: int | None
    cascade: bool
    restart_identity: bool
    source_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalMessage:
    """M: a message of pg_logical_emit_message(); outside a transaction unless transactional."""

    xid: int | None
    transactional: bool
    position: int
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart:
    """S: a block of an open transaction begins."""

    xid: int
    first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStop:
    """E: the block ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCommit:
    """c: a streamed transaction is committed. position: where its commit record starts."""

    xid: int
    position: int
    end_position: int
    commit_time_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAbort:
    """A: a streamed transaction (subxid equal to xid) or a part of it is rolled back.

    position and abort_time_us are None unless streaming is `parallel`.
    """

    xid: int
    subxid: int
    position: int | None
    abort_time_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedMessage:
    """b, P or p: BeginPrepare, Prepare, StreamPrepare; kind is the letter."""

    kind: str
    position: int
    end_position: int
    prepare_time_us: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPrepared:
    """K: a prepared transaction is committed. position: where its commit record starts."""

    position: int
    end_position: int
    commit_time_us: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPrepared:
    """r: a prepared transaction is rolled back."""

    prepare_end_position: int
    rollback_end_position: int
    prepare_time_us: int
    rollback_time_us: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepalive:
    """k: the server's read position in its log. reply_now: it wants a status at once."""

    position: int
    server_time_us: int
    reply_now: bool


Message = (
    RelationMessage
    | TypeMessage
    | OriginMessage
    | TruncateMessage
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | PreparedMessage
    | CommitPrepared
    | RollbackPrepared
)


class _Reader:
    """Reader of values from the front of a message; it checks each length before it reads."""

    def __init__(self, body: Buffer) -> None:
        self._body = bytes(body)
        self._at = 0

    def _take(self, length: int) -> bytes:
        if length > len(self._body) - self._at:
            raise decode_error(Reason.TRUNCATED, self._at)
        start, self._at = self._at, self._at + length
        return self._body[start : self._at]

    def u8(self) -> int:
        return self._take(1)[0]

    def u16(self) -> int:
        return int.from_bytes(self._take(2))

    def u32(self) -> int:
        return int.from_bytes(self._take(4))

    def i32(self) -> int:
        return int(struct.unpack(">i", self._take(4))[0])

    def u64(self) -> int:
        return int.from_bytes(self._take(8))

    def time_us(self) -> int:
        """Return microseconds since 1970 for PostgreSQL's, which count from 2000."""
        return int(struct.unpack(">q", self._take(8))[0]) + POSTGRES_EPOCH_US

    def xid(self, streamed: bool) -> int | None:
        return self.u32() if streamed else None

    def text(self) -> str:
        start = self._at
        end = self._body.find(b"\0", start)
        if end < 0:
            raise decode_error(Reason.TRUNCATED, start)
        self._at = end + 1
        try:
            return self._body[start:end].decode("utf-8")
        except UnicodeDecodeError as error:
            raise decode_error(Reason.UTF8, start) from error

    def content(self, length: int) -> bytes:
        return self._take(length)

    def remaining(self) -> int:
        return len(self._body) - self._at

    def close(self) -> None:
        """Refuse bytes after the end: they mean that the form was misread."""
        if self.remaining():
            raise decode_error(Reason.TRAILING, self._at)


def relation_message(body: Buffer, streamed: bool = False) -> RelationMessage:
    """Parse R. An empty schema on the wire means pg_catalog."""
    reader = _Reader(body)
    xid, source_id = reader.xid(streamed), reader.u32()
    schema, name = reader.text() or "pg_catalog", reader.text()
    identity = chr(reader.u8())
    if identity == "c":  # CHANGE, of a dialect: before images hold the key, as with DEFAULT
        identity = "d"
    if identity not in "dnfi":
        raise decode_error(Reason.IDENTITY, len(body) - reader.remaining() - 1)
    columns = tuple(
        RelationColumn(reader.u8(), reader.text(), reader.u32(), reader.i32())
        for _ in range(reader.u16())
    )
    reader.close()
    return RelationMessage(
        xid=xid,
        source_id=source_id,
        schema=schema,
        name=name,
        identity=identity,
        columns=columns,
    )


def type_message(body: Buffer, streamed: bool = False) -> TypeMessage:
    """Parse Y. An empty schema on the wire means pg_catalog."""
    reader = _Reader(body)
    message = TypeMessage(
        xid=reader.xid(streamed),
        type_oid=reader.u32(),
        schema=reader.text() or "pg_catalog",
        name=reader.text(),
    )
    reader.close()
    return message


def origin_message(body: Buffer) -> OriginMessage:
    """Parse O."""
    reader = _Reader(body)
    message = OriginMessage(position=reader.u64(), name=reader.text())
    reader.close()
    return message


def truncate_message(body: Buffer, streamed: bool = False) -> TruncateMessage:
    """Parse T."""
    reader = _Reader(body)
    xid, count, options = reader.xid(streamed), reader.u32(), reader.u8()
    if reader.remaining() != 4 * count:
        # Checked before reading, so that a broken count cannot ask for much memory.
        reason = Reason.TRUNCATED if reader.remaining() < 4 * count else Reason.TRAILING
        raise decode_error(reason, len(body))
    return TruncateMessage(
        xid=xid,
        cascade=bool(options & 1),
        restart_identity=bool(options & 2),
        source_ids=tuple(reader.u32() for _ in range(count)),
    )


def logical_message(body: Buffer, streamed: bool = False) -> LogicalMessage:
    """Parse M."""
    reader = _Reader(body)
    message = LogicalMessage(
        xid=reader.xid(streamed),
        transactional=bool(reader.u8() & 1),
        position=reader.u64(),
        prefix=reader.text(),
        content=reader.content(reader.u32()),
    )
    reader.close()
    return message


def stream_start(body: Buffer) -> StreamStart:
    """Parse S."""
    reader = _Reader(body)
    message = StreamStart(xid=reader.u32(), first=bool(reader.u8()))
    reader.close()
    return message


def stream_stop(body: Buffer) -> StreamStop:
    """Parse E, which says nothing more."""
    _Reader(body).close()
    return StreamStop()


def stream_commit(body: Buffer) -> StreamCommit:
    """Parse c."""
    reader = _Reader(body)
    xid, _ = reader.u32(), reader.u8()
    message = StreamCommit(
        xid=xid,
        position=reader.u64(),
        end_position=reader.u64(),
        commit_time_us=reader.time_us(),
    )
    reader.close()
    return message


def stream_abort(body: Buffer) -> StreamAbort:
    """Parse A; the position and time are there only with streaming `parallel`."""
    reader = _Reader(body)
    xid, subxid = reader.u32(), reader.u32()
    parallel = reader.remaining() > 0
    message = StreamAbort(
        xid=xid,
        subxid=subxid,
        position=reader.u64() if parallel else None,
        abort_time_us=reader.time_us() if parallel else None,
    )
    reader.close()
    return message


def _read_prepared(kind: str, body: Buffer, flags: bool) -> PreparedMessage:
    reader = _Reader(body)
    if flags:
        reader.u8()
    message = PreparedMessage(
        kind=kind,
        position=reader.u64(),
        end_position=reader.u64(),
        prepare_time_us=reader.time_us(),
        xid=reader.u32(),
        gid=reader.text(),
    )
    reader.close()
    return message


def begin_prepare(body: Buffer) -> PreparedMessage:
    """Parse b."""
    return _read_prepared("b", body, flags=False)


def prepare(body: Buffer) -> PreparedMessage:
    """Parse P."""
    return _read_prepared("P", body, flags=True)


def stream_prepare(body: Buffer) -> PreparedMessage:
    """Parse p."""
    return _read_prepared("p", body, flags=True)


def commit_prepared(body: Buffer) -> CommitPrepared:
    """Parse K."""
    reader = _Reader(body)
    reader.u8()
    message = CommitPrepared(
        position=reader.u64(),
        end_position=reader.u64(),
        commit_time_us=reader.time_us(),
        xid=reader.u32(),
        gid=reader.text(),
    )
    reader.close()
    return message


def rollback_prepared(body: Buffer) -> RollbackPrepared:
    """Parse r."""
    reader = _Reader(body)
    reader.u8()
    message = RollbackPrepared(
        prepare_end_position=reader.u64(),
        rollback_end_position=reader.u64(),
        prepare_time_us=reader.time_us(),
        rollback_time_us=reader.time_us(),
        xid=reader.u32(),
        gid=reader.text(),
    )
    reader.close()
    return message


def keepalive(payload: Buffer) -> Keepalive:
    """Parse a keepalive in CopyData, with the letter `k` in front."""
    reader = _Reader(payload)
    if reader.u8() != ord("k"):
        raise decode_error(Reason.COPY_DATA, 0)
    message = Keepalive(
        position=reader.u64(), server_time_us=reader.time_us(), reply_now=bool(reader.u8())
    )
    reader.close()
    return message


_PLAIN: dict[int, Callable[[Buffer], Message]] = {
    ord("O"): origin_message,
    ord("S"): stream_start,
    ord("E"): stream_stop,
    ord("c"): stream_commit,
    ord("A"): stream_abort,
    ord("b"): begin_prepare,
    ord("P"): prepare,
    ord("K"): commit_prepared,
    ord("r"): rollback_prepared,
    ord("p"): stream_prepare,
}
_IN_STREAM: dict[int, Callable[[Buffer, bool], Message]] = {
    ord("R"): relation_message,
    ord("Y"): type_message,
    ord("T"): truncate_message,
    ord("M"): logical_message,
}
MESSAGE_KINDS = frozenset((*_PLAIN, *_IN_STREAM))


def parse_message(message: Buffer, streamed: bool = False) -> Message:
    """Parse any message of this module, with the letter in front.

    message: bytes that `Decoder.message` spans after Stop.MESSAGE. Raises DecodeError, whose offset
    counts from after the letter.
    """
    if not message:
        raise decode_error(Reason.UNKNOWN_MESSAGE, 0)
    kind = message[0]
    if kind in _IN_STREAM:
        return _IN_STREAM[kind](message[1:], streamed)
    if kind not in _PLAIN:
        raise decode_error(Reason.UNKNOWN_MESSAGE, 0)
    return _PLAIN[kind](message[1:])
