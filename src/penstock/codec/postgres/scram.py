"""Compute SCRAM-SHA-256 and SCRAM-SHA-256-PLUS, the client's side. No I/O.

Use one `ScramClient` per login: `first()`, then `final(server_first)`, then `verify(server_final)`.
The server is authenticated only after the last one has returned. Source: RFC 5802, 7677, 5929
(tls-server-end-point), 4013 (SASLprep).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import stringprep
import unicodedata

from penstock.model.errors import PenstockError
from penstock.model.whole_number import parse_whole

SCRAM = "SCRAM-SHA-256"
SCRAM_PLUS = "SCRAM-SHA-256-PLUS"
_ITERATIONS_MAX = 10_000_000  # a server may not make us compute for minutes
_PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


class ScramError(PenstockError):
    """The server's part of the SCRAM exchange is broken, or shows that it is another server."""

    code = "DC21"
    retry = "operator"


def saslprep(text: str) -> bytes:
    """Return the password prepared by RFC 4013; unchanged if that is impossible.

    PostgreSQL does the same on both sides: a password that the profile does not allow is used byte
    by byte.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char
        for char in text
        if not stringprep.in_table_b1(char)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not prepared or not _is_allowed(prepared):
        return text.encode()
    return prepared.encode()


def _is_allowed(text: str) -> bool:
    if any(stringprep.in_table_a1(char) for char in text):
        return False
    if any(prohibits(char) for char in text for prohibits in _PROHIBITED):
        return False
    if not any(stringprep.in_table_d1(char) for char in text):
        return True
    # Right-to-left text: no left-to-right letter inside, and both ends are right-to-left.
    if any(stringprep.in_table_d2(char) for char in text):
        return False
    return stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])


class ScramClient:
    """One exchange.

    binding: hash of the server's certificate, for SCRAM-SHA-256-PLUS; None otherwise. over_tls: the
    connection is encrypted but the server does not offer -PLUS. The exchange contains this, so that
    the removal of the offer by another party is detected.
    """

    def __init__(
        self,
        secret: str,
        *,
        binding: bytes | None = None,
        over_tls: bool = False,
        nonce: str | None = None,
    ) -> None:
        self._secret = saslprep(secret)
        self._nonce = nonce or base64.b64encode(secrets.token_bytes(18)).decode()
        if binding is not None:
            self._header = b"p=tls-server-end-point,,"
        else:
            self._header = b"y,," if over_tls else b"n,,"
        self._binding = binding or b""
        self._first_bare = f"n=,r={self._nonce}"
        self._server_signature: bytes | None = None

    @property
    def mechanism(self) -> str:
        """Name of the mechanism in the protocol."""
        return SCRAM_PLUS if self._header.startswith(b"p=") else SCRAM

    def first(self) -> bytes:
        """Return the client-first-message."""
        return self._header + self._first_bare.encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the client-final-message, with the proof. Raises ScramError for a broken
        challenge.
        """
        fields = _fields(server_first)
        nonce = fields.get("r", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the server's nonce does not continue ours")
        salt = _decode(fields.get("s", ""), "salt")
        text = fields.get("i", "")
        iterations = parse_whole(text, _ITERATIONS_MAX, otherwise=0)
        if not iterations or not salt:
            raise ScramError("the server's SCRAM challenge has no usable salt or iteration count")
        salted = hashlib.pbkdf2_hmac("sha256", self._secret, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        server_key = hmac.digest(salted, b"Server Key", "sha256")
        channel = base64.b64encode(self._header + self._binding).decode()
        without_proof = f"c={channel},r={nonce}"
        signed = b",".join((self._first_bare.encode(), server_first, without_proof.encode()))
        signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = hmac.digest(server_key, signed, "sha256")
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Check that the server knows the password too. Raises ScramError if not."""
        fields = _fields(server_final)
        if "e" in fields:
            raise ScramError(f"the server refused the SCRAM exchange: {fields['e']}")
        given = _decode(fields.get("v", ""), "signature")
        if self._server_signature is None or not hmac.compare_digest(given, self._server_signature):
            raise ScramError(
                "the server could not prove that it knows the password",
                hint="Another server may answer at this address: check host, port and TLS.",
            )


def _fields(message: bytes) -> dict[str, str]:
    try:
        parts = message.decode().split(",")
    except UnicodeDecodeError as error:
        raise ScramError("a SCRAM message is not UTF-8") from error
    return {part[0]: part[2:] for part in parts if len(part) >= 2 and part[1] == "="}


def _decode(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ScramError(f"the {what} in a SCRAM message is not base64") from error
