"""Compute SCRAM-SHA-256 and SCRAM-SHA-256-PLUS, the client's and the server's side. No I/O.

A client uses one `ScramClient` per login: `first()`, then `final(server_first)`, then
`verify(server_final)`. The server is authenticated only after the last one has returned.

A server keeps only a `Verifier` of a password, in PostgreSQL's text form: it can check a client,
but cannot be used to log in. It uses one `ScramServer` per login: `challenge(client_first)`, then
`finish(client_final)`. The client is authenticated only after the latter has returned.

Source: RFC 5802, 7677, 5929 (tls-server-end-point), 4013 (SASLprep); PostgreSQL manual, "SASL
Authentication".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import stringprep
import unicodedata
from dataclasses import dataclass
from typing import Self

from penstock.codec.postgres.pgwire_server import Refused
from penstock.model.errors import PenstockError
from penstock.model.whole_number import parse_whole

SCRAM = "SCRAM-SHA-256"
SCRAM_PLUS = "SCRAM-SHA-256-PLUS"
_ITERATIONS_MAX = 10_000_000  # the other side may not make us compute for minutes
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


ITERATIONS = 4096  # as PostgreSQL's default
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
        """Return the secret as text, as pg_authid of PostgreSQL has it."""
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


# Object identifiers of signature algorithms, DER contents, with the hash that binds the channel:
# MD5 and SHA-1 are raised to SHA-256. What is not here (Ed25519, RSA-PSS) has no binding.
_RSA = bytes.fromhex("2a864886f70d0101")
_ECDSA = bytes.fromhex("2a8648ce3d04")
_SIGNATURE_HASH = {
    _RSA + b"\x04": "sha256",
    _RSA + b"\x05": "sha256",
    _RSA + b"\x0b": "sha256",
    _RSA + b"\x0c": "sha384",
    _RSA + b"\x0d": "sha512",
    _RSA + b"\x0e": "sha224",
    _ECDSA + b"\x01": "sha256",
    _ECDSA + b"\x03\x01": "sha224",
    _ECDSA + b"\x03\x02": "sha256",
    _ECDSA + b"\x03\x03": "sha384",
    _ECDSA + b"\x03\x04": "sha512",
}


def channel_binding(certificate: bytes) -> bytes | None:
    """Return the hash of a server's certificate, given as DER.

    Returns None for a signature without a hash of its own, such as Ed25519, or with an unknown one.
    SCRAM is then used without the binding.
    """
    try:
        outer, _ = _element(certificate, 0)
        _, after_body = _element(certificate, outer.start)
        algorithm, _ = _element(certificate, after_body)
        identifier, _ = _element(certificate, algorithm.start)
    except IndexError:
        return None
    name = _SIGNATURE_HASH.get(certificate[identifier])
    return hashlib.new(name, certificate).digest() if name is not None else None


def _element(data: bytes, offset: int) -> tuple[slice, int]:
    """Return the contents of the DER element at offset, and where the next one starts."""
    length = data[offset + 1]
    start = offset + 2
    if length >= 0x80:
        size = length & 0x7F
        length = int.from_bytes(data[start : start + size])
        start += size
    if start + length > len(data):
        raise IndexError(offset)
    return slice(start, start + length), start + length
