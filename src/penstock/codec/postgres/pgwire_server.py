"""Read a client's messages of PostgreSQL's protocol 3 and write a server's. No I/O.

The other end of `penstock.codec.postgres.pgwire`. `start_packet` cuts the client's bytes until the
client has identified itself, `frame_at` from then on. Both refuse a bad length as soon as they see
it, so no buffer grows for one. A client's errors raise `Refused`, which becomes an ErrorResponse.
Source: PostgreSQL manual, "Message Formats" and "Streaming Replication Protocol".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.codec.postgres.pgwire import (
    AUTHENTICATION_OK,
    AUTHENTICATION_SASL,
    AUTHENTICATION_SASL_CONTINUE,
    AUTHENTICATION_SASL_FINAL,
    CANCEL_REQUEST_CODE,
    FRAME_HEAD_BYTES,
    PROTOCOL_VERSION,
    SSL_REQUEST_CODE,
    UNIX_TO_POSTGRES_US,
    Frame,
)

GSS_REQUEST_CODE = 80877104
START_BYTES_MAX = 10_000  # as PostgreSQL's MAX_STARTUP_PACKET_LENGTH
_START_HEAD = struct.Struct(">ii")
_CANCEL_BYTES = 16
_STATUS = struct.Struct(">cQQQqB")
_MAJOR_SHIFT = 16
_PROTOCOL_VIOLATION = "08P01"
_TEXT_FORMAT = 0


class Refused(Exception):
    """A client's request cannot be fulfilled. The client gets the SQLSTATE."""

    def __init__(self, sqlstate: str, message: str, *, hint: str = "") -> None:
        """Keep the SQLSTATE: five characters, see the manual's appendix A."""
        super().__init__(message)
        self.sqlstate, self.message, self.hint = sqlstate, message, hint


# -- what a client sends ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """Start of a session: the user and the requested settings.

    Attributes:
        parameters: `user`, `database`, settings, by name.
        unknown_options: names that begin with `_pq_.`, which the server answers as unknown.
        minor: the requested minor version.
    """

    parameters: dict[str, str]
    minor: int = 0
    unknown_options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionRequest:
    """Request for an encrypted connection; kind is `tls` or `gss`."""

    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest:
    """Request to abort the command of another connection."""

    process_id: int
    secret_key: bytes = field(repr=False)


class StandbyStatus(NamedTuple):
    """Progress of a client, as LSNs. Everything up to flush can be discarded. reply_now: it wants
    an answer.
    """

    write: int
    flush: int
    apply: int
    time_us: int
    reply_now: bool


StartPacket = Startup | EncryptionRequest | CancelRequest


def start_packet(buffer: bytes | bytearray) -> tuple[StartPacket, int] | None:
    """Return the packet without a letter at the buffer's beginning and its length.

    Returns None until it is complete. Raises Refused.
    """
    if len(buffer) < 4:
        return None
    length = int.from_bytes(buffer[:4])
    if not _START_HEAD.size <= length <= START_BYTES_MAX:
        raise Refused(_PROTOCOL_VIOLATION, "invalid length of startup packet")
    if len(buffer) < length:
        return None
    code = _START_HEAD.unpack_from(buffer)[1]
    body = bytes(buffer[_START_HEAD.size : length])
    if code in (SSL_REQUEST_CODE, GSS_REQUEST_CODE):
        if body:
            raise Refused(_PROTOCOL_VIOLATION, "invalid length of startup packet")
        return EncryptionRequest(kind="tls" if code == SSL_REQUEST_CODE else "gss"), length
    if code == CANCEL_REQUEST_CODE:
        if length < _CANCEL_BYTES:
            raise Refused(_PROTOCOL_VIOLATION, "invalid length of cancel request")
        return CancelRequest(process_id=int.from_bytes(body[:4]), secret_key=body[4:]), length
    if code >> _MAJOR_SHIFT != PROTOCOL_VERSION >> _MAJOR_SHIFT:
        raise Refused(
            "0A000",
            f"unsupported frontend protocol {code >> _MAJOR_SHIFT}.{code & 0xFFFF}: "
            "server supports 3.0",
        )
    return _startup(body, code & 0xFFFF), length


def _startup(body: bytes, minor: int) -> Startup:
    *words, last, rest = [b"", *body.split(b"\0")]
    # Each word ends with a zero byte, and so does the list.
    if last or rest or len(words) % 2 == 0:
        raise Refused(
            _PROTOCOL_VIOLATION, "invalid startup packet layout: expected terminator as last byte"
        )
    try:
        texts = [word.decode() for word in words[1:]]
    except UnicodeDecodeError:
        raise Refused("22021", "invalid byte sequence in startup packet") from None
    pairs = dict(zip(texts[::2], texts[1::2], strict=True))
    options = tuple(name for name in pairs if name.startswith("_pq_."))
    parameters = {name: value for name, value in pairs.items() if name not in options}
    if not parameters.get("user"):
        raise Refused("28000", "no PostgreSQL user name specified in startup packet")
    parameters["database"] = parameters.get("database") or parameters["user"]
    return Startup(parameters=parameters, minor=minor, unknown_options=options)


def frame_at(
    buffer: bytes | bytearray | memoryview, offset: int, end: int, length_max: int
) -> Frame | None:
    """Return the message that starts at offset; None until it is all in buffer[:end].

    length_max: limit of a message, its own length counted. Raises Refused.
    """
    if end - offset < FRAME_HEAD_BYTES:
        return None
    length = int.from_bytes(buffer[offset + 1 : offset + FRAME_HEAD_BYTES])
    if not 4 <= length <= length_max:
        raise Refused(_PROTOCOL_VIOLATION, "invalid message length")
    stop = offset + 1 + length
    return None if stop > end else Frame(buffer[offset], offset + FRAME_HEAD_BYTES, stop)


def query_text(body: bytes) -> str:
    """Return the SQL of a Query. Raises Refused."""
    if not body or body.find(b"\0") != len(body) - 1:
        raise Refused(_PROTOCOL_VIOLATION, "invalid string in message")
    try:
        return body[:-1].decode()
    except UnicodeDecodeError:
        raise Refused("22021", "invalid byte sequence for encoding UTF8") from None


def sasl_initial(body: bytes) -> tuple[str, bytes]:
    """Return the mechanism and the client's first message of a SASLInitialResponse. Raises
    Refused.
    """
    name, zero, rest = body.partition(b"\0")
    length = int.from_bytes(rest[:4], signed=True)
    if not zero or len(rest) < 4 or length != len(rest) - 4:
        raise Refused(_PROTOCOL_VIOLATION, "malformed SASL message")
    return name.decode(errors="replace"), rest[4:]


def standby_status(payload: bytes) -> StandbyStatus | None:
    """Return the status in a CopyData; None for a hot standby's feedback, which is not used.

    Raises Refused.
    """
    if payload[:1] == b"h":
        return None
    if payload[:1] != b"r" or len(payload) != _STATUS.size:
        raise Refused(_PROTOCOL_VIOLATION, "unexpected message in replication stream")
    _, write, flush, apply, time, reply = _STATUS.unpack(payload)
    return StandbyStatus(write, flush, apply, time + UNIX_TO_POSTGRES_US, bool(reply))


# -- what a server sends ---------------------------------------------------------------------


def message(kind: bytes, body: bytes = b"") -> bytes:
    """Return any message: letter, length, body."""
    return kind + struct.pack(">i", len(body) + 4) + body


def _text(value: str) -> bytes:
    # A zero byte ends a string, whatever a name or a client's own text holds.
    return value.replace("\0", "?").encode(errors="replace") + b"\0"


AUTHENTICATED = message(b"R", struct.pack(">i", AUTHENTICATION_OK))
COPY_DONE = message(b"c")
EMPTY_QUERY = message(b"I")
NO_ENCRYPTION, ENCRYPTION = b"N", b"S"  # the answers to an EncryptionRequest, without a frame
# To START_REPLICATION: both ways, text, no columns.
COPY_BOTH = message(b"W", struct.pack(">bh", _TEXT_FORMAT, 0))


def sasl_mechanisms(names: Sequence[str]) -> bytes:
    """Return AuthenticationSASL: the mechanisms, the best first."""
    listed = b"".join(map(_text, names)) + b"\0"
    return message(b"R", struct.pack(">i", AUTHENTICATION_SASL) + listed)


def sasl_continue(data: bytes) -> bytes:
    """Return AuthenticationSASLContinue."""
    return message(b"R", struct.pack(">i", AUTHENTICATION_SASL_CONTINUE) + data)


def sasl_final(data: bytes) -> bytes:
    """Return AuthenticationSASLFinal."""
    return message(b"R", struct.pack(">i", AUTHENTICATION_SASL_FINAL) + data)


def negotiate(options: Sequence[str]) -> bytes:
    """Return NegotiateProtocolVersion: we speak 3.0, and know none of these options."""
    listed = b"".join(map(_text, options))
    return message(b"v", struct.pack(">ii", PROTOCOL_VERSION & 0xFFFF, len(options)) + listed)


def parameter_status(name: str, value: str) -> bytes:
    """Return ParameterStatus."""
    return message(b"S", _text(name) + _text(value))


def backend_key(process_id: int, secret_key: bytes) -> bytes:
    """Return BackendKeyData. secret_key: four bytes in protocol 3.0."""
    return message(b"K", struct.pack(">I", process_id) + secret_key)


def ready(state: str = "I") -> bytes:
    """Return ReadyForQuery. state: `I` idle, `T` in a transaction, `E` in a failed one."""
    return message(b"Z", state.encode())


def row_description(columns: Sequence[tuple[str, int]]) -> bytes:
    """Return RowDescription. columns: name and type oid of each; values are sent as text."""
    parts = [struct.pack(">H", len(columns))]
    for name, type_oid in columns:
        parts.append(_text(name) + struct.pack(">IhIhih", 0, 0, type_oid, -1, -1, _TEXT_FORMAT))
    return message(b"T", b"".join(parts))


def data_row(values: Sequence[str | None]) -> bytes:
    """Return DataRow, in text format; None is NULL."""
    parts = [struct.pack(">H", len(values))]
    for value in values:
        if value is None:
            parts.append(struct.pack(">i", -1))
        else:
            data = value.encode()
            parts.append(struct.pack(">i", len(data)) + data)
    return message(b"D", b"".join(parts))


def command_complete(tag: str) -> bytes:
    """Return CommandComplete."""
    return message(b"C", _text(tag))


def error_response(refused: Refused, *, severity: str = "ERROR") -> bytes:
    """Return ErrorResponse. severity: FATAL if the connection ends with it."""
    fields = {
        "S": severity,
        "V": severity,
        "C": refused.sqlstate,
        "M": refused.message,
        "H": refused.hint,
    }
    body = b"".join(key.encode() + _text(value) for key, value in fields.items() if value)
    return message(b"E", body + b"\0")
