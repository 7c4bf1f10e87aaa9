"""Handshake with the process that holds a snapshot's sessions.

These servers cannot hand a snapshot to another session, so the process that holds the snapshots
proxies their sessions and passes bytes on (`penstock.engines.mysql.source.session_proxy`). If that
process is on another machine, both use TLS: the client knows the hash of the certificate, which is
created for one point and never used again. The client then sends a token and its request, and
receives the snapshot's name. Address, token and hash are one word: the snapshot's id.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
from dataclasses import dataclass, field
from typing import ClassVar

from penstock.host.listen import ADDRESS_HINT
from penstock.host.retry import Backoff, retrying
from penstock.host.socket import notice_cuts
from penstock.model import PenstockError, Retry
from penstock.model.whole_number import parse_whole
from penstock.ports.bulk import SnapshotUnreachable

CONNECT_TIMEOUT_S = 5.0
CONNECT_TRIES = Backoff(first_s=0.2, longest_s=1.0, attempts=3)
ANSWER_TIMEOUT_S = 600.0  # the proxy answers when a session is free
GREETING_BYTES_MAX = 512
OPEN_SESSION, LOOK = "borrow", "look"
YES, NO = b"yes ", b"no\n"
# For a peer that reads nothing: an executor that waits for its target does so for a while.
USER_TIMEOUT_MS = 300_000


class SnapshotGone(PenstockError):
    """The process that held the sessions of this snapshot is gone, or no longer has any of them."""

    code = "HS40"
    retry: ClassVar[Retry] = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyAddress:
    """Address of a snapshot's session proxy, with what it and its clients authenticate by.

    fingerprint: SHA-256 of its certificate in hex; empty without TLS.
    """

    host: str
    port: int
    token: str = field(repr=False)
    fingerprint: str = ""

    def __str__(self) -> str:
        """Return the address as one word, which a point has as `snapshot_id`."""
        return "/".join((self.place, self.token, *filter(None, [self.fingerprint])))

    @property
    def place(self) -> str:
        """Return `host:port`, for messages."""
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> ProxyAddress:
        """Parse a result of `str`. Raises SnapshotGone for anything else."""
        place, _, proof = text.partition("/")
        token, _, fingerprint = proof.partition("/")
        host, _, port = place.rpartition(":")
        number = parse_whole(port, 65535)
        if not (host and number and token):
            raise _snapshot_gone("it has no address")
        return cls(host=host, port=number, token=token, fingerprint=fingerprint)


def is_alive(snapshot_id: str, snapshot_text: str) -> bool:
    """Return whether sessions are still open, and of the same snapshot."""
    try:
        connected = greet(snapshot_id, LOOK, snapshot_text)
    except (SnapshotGone, SnapshotUnreachable):
        return False
    connected.close()
    return True


def greet(snapshot_id: str, request: str, expected: str) -> socket.socket:
    """Return a connection to the proxy, after the handshake.

    request: OPEN_SESSION or LOOK.

    Raises SnapshotGone if the proxy says so, SnapshotUnreachable if it does not answer.
    """
    address = ProxyAddress.parse(snapshot_id)
    return retrying(
        lambda: _greet(address, request, expected),
        backoff=CONNECT_TRIES,
        may_retry=lambda error: isinstance(error, SnapshotUnreachable),
    )


def _greet(address: ProxyAddress, request: str, expected: str) -> socket.socket:
    try:
        connected = socket.create_connection((address.host, address.port), CONNECT_TIMEOUT_S)
    except OSError as error:
        raise _unreachable(address, str(error.strerror or error)) from error
    try:
        notice_cuts(connected, user_timeout_ms=USER_TIMEOUT_MS)
        if address.fingerprint:
            connected = _encrypt(connected, address)
        connected.settimeout(ANSWER_TIMEOUT_S)
        connected.sendall(f"{address.token} {request}\n".encode())
        answer = _line(connected)
        if not answer:
            raise _unreachable(address, "the connection was closed without an answer")
        if not answer.startswith(YES) or answer[len(YES) :].decode() != expected:
            raise _snapshot_gone(f"{address.place} has no session of it")
    except OSError as error:
        connected.close()
        raise _unreachable(address, str(error)) from error
    except BaseException:
        connected.close()
        raise
    return connected


def _encrypt(connected: socket.socket, address: ProxyAddress) -> socket.socket:
    """Return the connection under TLS with the certificate's owner. Raises as `_greet`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # No authority has signed the certificate: it is compared before anything is sent.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    encrypted = context.wrap_socket(connected)
    found = hashlib.sha256(encrypted.getpeercert(binary_form=True) or b"").hexdigest()
    if not hmac.compare_digest(found, address.fingerprint):
        encrypted.close()
        raise _unreachable(address, "another program answers, with another certificate")
    return encrypted


def _line(connected: socket.socket) -> bytes:
    """Return the bytes before the newline. Reads byte by byte, because nothing after it may be
    consumed.
    """
    line = b""
    while len(line) < GREETING_BYTES_MAX:
        byte = connected.recv(1)
        if not byte or byte == b"\n":
            break
        line += byte
    return line


def _snapshot_gone(why: str) -> SnapshotGone:
    return SnapshotGone(
        f"the snapshot is gone: {why}",
        hint="Start again: unfinished tables are then loaded at a new point.",
    )


def _unreachable(address: ProxyAddress, cause: str) -> SnapshotUnreachable:
    machine = socket.gethostname()
    return SnapshotUnreachable(
        f"{machine} cannot reach the sessions of the snapshot at {address.place}: {cause}",
        hint=ADDRESS_HINT,
        machine=machine,
        address=address.place,
        cause=cause,
    )
