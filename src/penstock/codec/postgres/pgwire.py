"""Encode and parse PostgreSQL's frontend/backend protocol 3, as a client. No I/O.

One function per message builds what a client sends. `frame_at` cuts what a server sends into
frames, and one parser per message reads them. Big-endian throughout. Not here: the pgoutput
messages in XLogData (`pgoutput`), the SCRAM computation (`scram`), sockets (`host`). Source:
PostgreSQL manual, "Message Formats" and "Streaming Replication Protocol".
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.model.errors import PenstockError
from penstock.model.whole_number import parse_whole

PROTOCOL_VERSION = 196608  # 3.0: every server from 7.4 on speaks it
SSL_REQUEST_CODE = 80877103
CANCEL_REQUEST_CODE = 80877102
SSL_REQUEST = struct.pack(">ii", 8, SSL_REQUEST_CODE)
FRAME_HEAD_BYTES = 5  # type byte and i32 length, which counts itself but not the type
FRAME_LENGTH_MAX = 0x40000000 + 64  # a message of the server is at most 1 GiB (MaxAllocSize)
UNIX_TO_POSTGRES_US = 946_684_800_000_000  # 2000-01-01 UTC, in microseconds since 1970

AUTHENTICATION_OK = 0
AUTHENTICATION_CLEARTEXT = 3
AUTHENTICATION_MD5 = 5
AUTHENTICATION_SASL = 10
AUTHENTICATION_SASL_CONTINUE = 11
AUTHENTICATION_SASL_FINAL = 12

_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")
_STATUS = struct.Struct(">cicQQQqB")


class WireError(PenstockError):
    """The server sent bytes that break PostgreSQL's protocol."""

    code = "DC20"
    retry = "backoff"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMessage:
    """An ErrorResponse or NoticeResponse. position: character in the query, from 1; 0 for none."""

    severity: str
    sqlstate: str
    message: str
    detail: str = ""
    hint: str = ""
    position: int = 0


class Frame(NamedTuple):
    """Place of a message in a buffer: its type byte's value, and the span of its body."""

    kind: int
    start: int
    end: int


# -- what a client sends ---------------------------------------------------------------------


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + _I32.pack(len(body) + 4) + body


def _text(value: str) -> bytes:
    data = value.encode()
    if b"\0" in data:
        raise WireError("a NUL byte cannot be sent in a protocol string")
    return data + b"\0"


def startup(parameters: Mapping[str, str]) -> bytes:
    """Return StartupMessage: `user`, `database`, `replication` and server settings by name."""
    pairs = b"".join(_text(name) + _text(value) for name, value in parameters.items())
    body = _I32.pack(PROTOCOL_VERSION) + pairs + b"\0"
    return _I32.pack(len(body) + 4) + body


def cancel_request(process_id: int, secret_key: bytes) -> bytes:
    """Return CancelRequest, which is sent alone on its own connection."""
    body = struct.pack(">ii", CANCEL_REQUEST_CODE, process_id) + secret_key
    return _I32.pack(len(body) + 4) + body


def query(sql: str) -> bytes:
    """Return Query, of the simple protocol: a replication connection accepts no other."""
    return _message(b"Q", _text(sql))


def password(secret: bytes) -> bytes:
    """Return PasswordMessage, for a cleartext or an MD5 answer. secret: without the final NUL."""
    return _message(b"p", secret + b"\0")


def md5_password(user: str, secret: str, salt: bytes) -> bytes:
    """Return the answer to AuthenticationMD5Password, as the body of a PasswordMessage."""
    inner = hashlib.md5(secret.encode() + user.encode(), usedforsecurity=False).hexdigest()
    outer = hashlib.md5(inner.encode() + salt, usedforsecurity=False).hexdigest()
    return b"md5" + outer.encode()


def sasl_initial_response(mechanism: str, data: bytes) -> bytes:
    """Return SASLInitialResponse: the chosen mechanism and the client-first-message."""
    return _message(b"p", _text(mechanism) + _I32.pack(len(data)) + data)


def sasl_response(data: bytes) -> bytes:
    """Return SASLResponse: the client-final-message."""
    return _message(b"p", data)


def copy_data(payload: bytes) -> bytes:
    """Return CopyData."""
    return _message(b"d", payload)


COPY_DONE = _message(b"c", b"")
TERMINATE = _message(b"X", b"")


def standby_status(
    *, write: int, flush: int, apply: int, time_us: int, reply_now: bool = False
) -> bytes:
    """Return a standby status update, as one CopyData.

    write, flush, apply: LSNs; everything before this byte was received, is on disk, was applied.
    Only flush moves a logical slot. time_us: now, in microseconds since 1970 UTC. reply_now:
    request a keepalive at once.
    """
    postgres_us = time_us - UNIX_TO_POSTGRES_US
    return _STATUS.pack(b"d", 38, b"r", write, flush, apply, postgres_us, reply_now)


# -- what a server sends ---------------------------------------------------------------------


def frame_at(buffer: bytes | bytearray | memoryview, offset: int, end: int) -> Frame | None:
    """Return the message that starts at offset; None until it is all in buffer[:end].

    Raises WireError for a length that no message can have.
    """
    if end - offset < FRAME_HEAD_BYTES:
        return None
    length = _I32.unpack_from(buffer, offset + 1)[0]
    if not 4 <= length <= FRAME_LENGTH_MAX:
        raise WireError(f"message of type {buffer[offset]} has impossible length {length}")
    stop = offset + 1 + length
    if stop > end:
        return None
    return Frame(buffer[offset], offset + FRAME_HEAD_BYTES, stop)


def _string(body: bytes, offset: int, what: str) -> tuple[str, int]:
    stop = body.find(b"\0", offset)
    if stop < 0:
        raise WireError(f"unterminated string in {what}")
    return body[offset:stop].decode(errors="replace"), stop + 1


def _number(layout: struct.Struct, body: bytes, offset: int, what: str) -> int:
    try:
        return int(layout.unpack_from(body, offset)[0])
    except struct.error as error:
        raise WireError(f"{what} is cut short at byte {offset} of {len(body)}") from error


def server_message(body: bytes) -> ServerMessage:
    """Read an ErrorResponse or NoticeResponse; unknown fields are ignored."""
    fields: dict[str, str] = {}
    offset = 0
    while offset < len(body) and body[offset] != 0:
        letter = chr(body[offset])
        fields[letter], offset = _string(body, offset + 1, "an error message")
    position = fields.get("P", "")
    return ServerMessage(
        severity=fields.get("V") or fields.get("S", ""),
        sqlstate=fields.get("C", ""),
        message=fields.get("M", ""),
        detail=fields.get("D", ""),
        hint=fields.get("H", ""),
        position=parse_whole(position, otherwise=0),
    )


def authentication(body: bytes) -> tuple[int, bytes]:
    """Read an Authentication message: its code and what follows it."""
    return _number(_I32, body, 0, "an authentication request"), body[4:]


def sasl_mechanisms(data: bytes) -> list[str]:
    """Return the mechanisms of AuthenticationSASL, in the server's order."""
    names: list[str] = []
    offset = 0
    while offset < len(data) and data[offset] != 0:
        name, offset = _string(data, offset, "the list of SASL mechanisms")
        names.append(name)
    return names


def parameter_status(body: bytes) -> tuple[str, str]:
    """Read a ParameterStatus: name and value."""
    name, offset = _string(body, 0, "a parameter status")
    value, _ = _string(body, offset, "a parameter status")
    return name, value


def backend_key(body: bytes) -> tuple[int, bytes]:
    """Read BackendKeyData: process id and secret key."""
    return _number(_I32, body, 0, "backend key data"), body[4:]


def command_tag(body: bytes) -> str:
    """Read a CommandComplete: its tag, like `SELECT 3`."""
    return _string(body, 0, "a command tag")[0]


def row_description(body: bytes) -> list[str]:
    """Read a RowDescription: the columns' names."""
    count = _number(_I16, body, 0, "a row description")
    names: list[str] = []
    offset = 2
    for _ in range(count):
        name, offset = _string(body, offset, "a row description")
        names.append(name)
        offset += 18  # table oid, attribute, type oid, length, modifier, format
    if offset > len(body):
        raise WireError("a row description is cut short")
    return names


def data_row(body: bytes) -> list[str | None]:
    """Read a DataRow in text format; None is NULL."""
    count = _number(_I16, body, 0, "a data row")
    values: list[str | None] = []
    offset = 2
    for _ in range(count):
        length = _number(_I32, body, offset, "a data row")
        offset += 4
        if length < 0:
            values.append(None)
            continue
        if offset + length > len(body):
            raise WireError("a data row is cut short")
        try:
            values.append(body[offset : offset + length].decode())
        except UnicodeDecodeError as error:
            raise WireError("a data row holds text that is not UTF-8") from error
        offset += length
    return values


# -- replication commands --------------------------------------------------------------------


def quoted_string(text: str) -> str:
    """Return a string literal of the replication grammar, which has no backslash escapes."""
    return "'" + text.replace("'", "''") + "'"


def quoted_name(name: str) -> str:
    """Return an identifier, always in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def start_replication(slot: str, position: str, options: Sequence[tuple[str, str]]) -> str:
    """Return START_REPLICATION for a logical slot. position: an LSN's text. options: in order."""
    words = ", ".join(f"{quoted_name(name)} {quoted_string(value)}" for name, value in options)
    return f"START_REPLICATION SLOT {quoted_name(slot)} LOGICAL {position} ({words})"
