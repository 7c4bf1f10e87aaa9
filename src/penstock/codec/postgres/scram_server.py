"""Compute SCRAM-SHA-256 and SCRAM-SHA-256-PLUS, the server's side. No I/O.

Only a `Verifier` of a password is kept, in PostgreSQL's text form: it can check a client, but
cannot be used to log in. Use one `ScramServer` per login: `challenge(client_first)`, then
`finish(client_final)`. The client is authenticated only after the latter has returned. Source: RFC
5802, 7677, 5929 (tls-server-end-point); PostgreSQL manual, "SASL Authentication".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Self

from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.postgres.scram import SCRAM, saslprep

ITERATIONS = 4096  # as PostgreSQL's default
_ITERATIONS_MAX = 10_000_000
_SALT_BYTES = 16
_KEY_BYTES = 32
_FORM = re.compile(rf"{SCRAM}\$([0-9]{{1,8}}):([^$:]+)\$([^$:]+):([^$:]+)")
_FIRST = re.compile(
    rb"(?P<header>(?P<binding>[ny]|p=[A-Za-z0-9.-]+),,)"
    rb"(?P<bare>n=[^,]*,r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,.*)?)",
    re.DOTALL,
)
_FINAL = re.compile(
    rb"(?P<unproven>c=(?P<channel>[^,]+),r=(?P<nonce>[^,]+)(?:,.*)?),p=(?P<proof>[^,]+)", re.DOTALL
)
_BINDING = b"p=tls-server-end-point"
_PROTOCOL_VIOLATION, _INVALID_PASSWORD = "08P01", "28P01"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """Server's knowledge of a password. Its keys do not show in its repr."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, password: str, *, salt: bytes = b"", iterations: int = ITERATIONS) -> Self:
        """Return the verifier of a password; an empty salt is replaced by a random one."""
        salt = salt or secrets.token_bytes(_SALT_BYTES)
        salted = hashlib.pbkdf2_hmac("sha256", saslprep(password), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        return cls(
            iterations=iterations,
            salt=salt,
            stored_key=hashlib.sha256(client_key).digest(),
            server_key=hmac.digest(salted, b"Server Key", "sha256"),
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the verifier of a text form. Raises ValueError, which does not show the text."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise ValueError("not a SCRAM-SHA-256 verifier")
        try:
            salt, stored_key, server_key = (
                base64.b64decode(part, validate=True) for part in match.groups()[1:]
            )
        except binascii.Error:
            raise ValueError("a SCRAM-SHA-256 verifier with a part that is not base64") from None
        iterations = int(match[1])
        if not 1 <= iterations <= _ITERATIONS_MAX:
            raise ValueError("a SCRAM-SHA-256 verifier with an impossible iteration count")
        if not salt or len(stored_key) != _KEY_BYTES or len(server_key) != _KEY_BYTES:
            raise ValueError("a SCRAM-SHA-256 verifier with a key or salt of a wrong length")
        return cls(iterations=iterations, salt=salt, stored_key=stored_key, server_key=server_key)

    @classmethod
    def unknown(cls, user: str, secret: bytes) -> Self:
        """Return a verifier for an unknown user. No password fits, and the answer looks like any
        other.

        `secret` belongs to this server, so a name gets the same salt each time.
        """
        return cls(
            iterations=ITERATIONS,
            salt=hmac.digest(secret, user.encode(), "sha256")[:_SALT_BYTES],
            stored_key=secrets.token_bytes(_KEY_BYTES),
            server_key=secrets.token_bytes(_KEY_BYTES),
        )

    def text(self) -> str:
        """Text form, as in PostgreSQL's pg_authid."""
        return (
            f"{SCRAM}${self.iterations}:{_base64(self.salt)}"
            f"${_base64(self.stored_key)}:{_base64(self.server_key)}"
        )

    def __repr__(self) -> str:
        return "Verifier(...)"


class ScramServer:
    """One exchange. binding: the hash of our certificate if -PLUS is offered; None otherwise."""

    def __init__(
        self, verifier: Verifier, *, binding: bytes | None = None, nonce: str | None = None
    ) -> None:
        self._verifier = verifier
        self._binding = binding
        self._nonce = nonce or _base64(secrets.token_bytes(18))
        self._channel = b""
        self._said = b""

    def challenge(self, client_first: bytes, *, plus: bool = False) -> bytes:
        """Return the server-first-message. plus: the client chose SCRAM-SHA-256-PLUS. Raises
        Refused.
        """
        match = _FIRST.fullmatch(client_first)
        if match is None:
            raise Refused(_PROTOCOL_VIOLATION, "malformed SCRAM message")
        if plus != match["binding"].startswith(b"p=") or (
            plus and (self._binding is None or match["binding"] != _BINDING)
        ):
            raise Refused(_PROTOCOL_VIOLATION, "unsupported SCRAM channel binding")
        if match["binding"] == b"y" and self._binding is not None:
            # The client could have bound, and was told that we could not: a man in the middle.
            raise Refused(_PROTOCOL_VIOLATION, "SCRAM channel binding negotiation error")
        self._channel = match["header"] + ((self._binding or b"") if plus else b"")
        self._nonce = match["nonce"].decode() + self._nonce
        verifier = self._verifier
        answer = f"r={self._nonce},s={_base64(verifier.salt)},i={verifier.iterations}".encode()
        self._said = match["bare"] + b"," + answer
        return answer

    def finish(self, client_final: bytes) -> bytes:
        """Return the server-final-message for a client that knows the password. Raises Refused."""
        match = _FINAL.fullmatch(client_final)
        if match is None or not self._said:
            raise Refused(_PROTOCOL_VIOLATION, "malformed SCRAM message")
        try:
            channel = base64.b64decode(match["channel"], validate=True)
            proof = base64.b64decode(match["proof"], validate=True)
        except binascii.Error:
            raise Refused(_PROTOCOL_VIOLATION, "malformed SCRAM message") from None
        if not hmac.compare_digest(channel, self._channel):
            raise Refused(_PROTOCOL_VIOLATION, "SCRAM channel binding check failed")
        if not hmac.compare_digest(match["nonce"], self._nonce.encode()):
            raise Refused(_PROTOCOL_VIOLATION, "SCRAM nonce does not match")
        said = self._said + b"," + match["unproven"]
        self._said = b""  # an exchange is finished once
        signature = hmac.digest(self._verifier.stored_key, said, "sha256")
        if len(proof) != _KEY_BYTES:
            raise Refused(_PROTOCOL_VIOLATION, "malformed SCRAM message")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), self._verifier.stored_key):
            raise Refused(_INVALID_PASSWORD, "password authentication failed")
        return b"v=" + _base64(hmac.digest(self._verifier.server_key, said, "sha256")).encode()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
