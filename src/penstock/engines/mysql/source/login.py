"""Get a replica's connection: PyMySQL logs in, then penstock takes its socket."""

from __future__ import annotations

import hashlib
import secrets
import ssl
import uuid
from io import BufferedReader

from penstock.engines.mysql.connect import Connection
from penstock.host.socket import Wire

SERVER_ID_MAX = 2**32 - 1
# Above the ids that administrators give to servers by hand.
SERVER_ID_MIN = 2**31
_NAMESPACE = uuid.UUID("5e4a9e5f-1f9b-4f0b-9c53-0e0f6f6a2d11")


def server_id_for(task: str) -> int:
    """Return a server id for a task, the same every time: 2**31 to 2**32 - 1.

    Two readers with one id end each other's connections, so `task` names the pipeline and what
    distinguishes it from a copy, such as its directory.
    """
    digest = hashlib.blake2b(task.encode(), digest_size=8).digest()
    return SERVER_ID_MIN + int.from_bytes(digest, "little") % (SERVER_ID_MAX - SERVER_ID_MIN + 1)


def probe_server_id() -> int:
    """Return a server id for a short look at the binlog; a stream's own id would end that
    stream.
    """
    return SERVER_ID_MIN + secrets.randbelow(SERVER_ID_MAX - SERVER_ID_MIN + 1)


def replica_uuid_for(task: str) -> str:
    """Return a uuid for a task, the same every time, by which MySQL knows a replica."""
    return str(uuid.uuid5(_NAMESPACE, task))


def take_over(connection: Connection, place: str) -> tuple[Wire, bytes]:
    """Take the socket from a connection that waits for nothing; the connection then counts as
    closed.

    place: names the server in messages. Returns the wire, and the bytes that PyMySQL had read
    ahead: they precede those of the wire.
    """
    connected, reader = connection._sock, connection._rfile
    connected.setblocking(False)
    ahead = _read_ahead(reader)
    connection._sock = connection._rfile = None
    connection._closed = True
    reader.close()  # its file object, not the socket
    return Wire(connected, place), ahead


def _read_ahead(reader: BufferedReader) -> bytes:
    """Return the bytes that a buffered reader on a non-blocking socket holds or gets without
    waiting.
    """
    gathered = b""
    while True:
        try:
            size = len(reader.peek())
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return gathered
        if not size:
            return gathered
        gathered += reader.read(size)
