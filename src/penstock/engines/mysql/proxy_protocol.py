"""The handshake with the process that holds a snapshot's sessions.

These servers cannot hand a snapshot to another session, so the process that holds the snapshots
proxies their sessions, and passes bytes on (`penstock.engines.mysql.source.session_proxy`). A
client sends a token and its request, and is sent the snapshot's name.
"""

from __future__ import annotations

import socket
from typing import ClassVar

from penstock.model import PenstockError, Retry

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 600.0  # the proxy answers when a session is free
GREETING_BYTES_MAX = 512
OPEN_SESSION, LOOK = "borrow", "look"
YES = b"yes "


class SnapshotGone(PenstockError):
    """The process that held the sessions of this snapshot is gone."""

    code = "HS40"
    retry: ClassVar[Retry] = "operator"


def address_text(host: str, port: int, token: str) -> str:
    """Where a snapshot's session proxy is, as one word: what `snapshot_id` of a point holds."""
    return f"{host}:{port}/{token}"


def is_alive(snapshot_id: str, snapshot_text: str) -> bool:
    """Whether sessions of this snapshot are still open, and it is the same snapshot."""
    try:
        connected = greeted(snapshot_id, LOOK, snapshot_text)
    except SnapshotGone:
        return False
    connected.close()
    return True


def greeted(snapshot_id: str, request: str, expected: str) -> socket.socket:
    """A connection to the proxy, after the handshake.

    request: OPEN_SESSION or LOOK.

    Raises SnapshotGone.
    """
    place, _, token = snapshot_id.rpartition("/")
    host, _, port = place.rpartition(":")
    try:
        connected = socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S)
    except (OSError, ValueError) as error:
        raise _gone(f"nobody answers at {place or 'no address'}") from error
    try:
        connected.settimeout(ANSWER_TIMEOUT_S)
        connected.sendall(f"{token} {request}\n".encode())
        answer = _line(connected)
        if not answer.startswith(YES) or answer[len(YES) :].decode() != expected:
            raise _gone(f"{place} has no session of it")
    except OSError as error:
        connected.close()
        raise _gone(f"{place} did not answer: {error}") from error
    except BaseException:
        connected.close()
        raise
    return connected


def _line(connected: socket.socket) -> bytes:
    """What comes before the first newline; bytewise, because nothing behind it may be consumed."""
    line = b""
    while len(line) < GREETING_BYTES_MAX:
        byte = connected.recv(1)
        if not byte or byte == b"\n":
            break
        line += byte
    return line


def _gone(why: str) -> SnapshotGone:
    return SnapshotGone(
        f"the snapshot is gone: {why}",
        hint="Start again: unfinished tables are then loaded at a new point.",
    )
