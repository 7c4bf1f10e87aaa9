"""Permission to post: by signed tokens, by one token, or for every sender.

Signed tokens (JWT) are checked against the public keys in the staging database. They name the
target schemas that their bearer may post to, and have an id by which they are revoked.
Source: RFC 7519; the claims are those of document 001's implementation.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError
from penstock.ports.staging import Group, Keys

CLAIMS = ("https://github.com/cockroachdb/replicator", "https://github.com/cockroachdb/cdc-sink")
_TOKEN_BYTES_MAX = 16_384
_HASHES: dict[str, hashes.HashAlgorithm] = {
    "256": hashes.SHA256(),
    "384": hashes.SHA384(),
    "512": hashes.SHA512(),
}
_CURVES = {"256": "secp256r1", "384": "secp384r1", "512": "secp521r1"}
PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey


class PublicKeyBroken(PenstockError):
    """A row of jwt_public_keys is not a public key that can sign tokens."""

    code = "ST10"


class Access(Protocol):
    """Check of requests."""

    @abstractmethod
    def allows(self, token: str, group: Group | None, /) -> bool:
        """Return whether a token's bearer may post to a schema; None: may see our own pages."""
        ...

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return facts for our page of diagnostics."""
        ...


class Everybody(Access):
    """Check for authentication = "off"."""

    def allows(self, _token: str, _group: Group | None, /) -> bool:
        """Return True."""
        return True

    def describe(self) -> dict[str, Any]:
        return {"authentication": "off"}


class OneToken(Access):
    """Check for authentication = "token": its bearer may post to every schema."""

    def __init__(self, token: str) -> None:
        self._digest = _digest(token)

    def allows(self, token: str, _group: Group | None, /) -> bool:
        """Return whether the token is right, in the same time for every wrong one."""
        return hmac.compare_digest(self._digest, _digest(token))

    def describe(self) -> dict[str, Any]:
        return {"authentication": "token"}


class SignedTokens(Access):
    """Check for authentication = "jwt". Any thread may ask while another one reloads."""

    def __init__(self, clock: Clock = REAL_CLOCK) -> None:
        self._clock = clock
        self._keys: tuple[PublicKey, ...] = ()
        self._revoked: frozenset[str] = frozenset()
        self.loaded_us = 0

    def load(self, keys: Keys) -> None:
        """Use these keys from now on.

        Raises:
            PublicKeyBroken: Some cannot be used. The others and the revoked tokens are in force.
        """
        usable: list[PublicKey] = []
        broken: list[PublicKeyBroken] = []
        for pem in keys.public:
            try:
                usable.append(public_key(pem))
            except PublicKeyBroken as error:
                broken.append(error)
        self._keys, self._revoked = tuple(usable), keys.revoked
        self.loaded_us = self._clock.now_us()
        if broken:
            raise broken[0]

    def allows(self, token: str, group: Group | None, /) -> bool:
        claims = claims_of(token, self._keys, now_s=self._clock.now_us() / 1e6)
        if claims is None or claims.id in self._revoked:
            return False
        return group is None or any(_covers(one, group) for one in claims.schemas)

    def describe(self) -> dict[str, Any]:
        return {
            "authentication": "jwt",
            "public_keys": len(self._keys),
            "revoked": len(self._revoked),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Content of a valid token."""

    id: str
    schemas: tuple[tuple[str, ...], ...]


def public_key(pem: str) -> PublicKey:
    """Return a key of the table jwt_public_keys. Raises PublicKeyBroken."""
    try:
        found = load_pem_public_key(pem.encode())
    except Exception as error:  # the library has many classes
        raise _broken("it is not a public key in PEM") from error
    if isinstance(found, rsa.RSAPublicKey):
        return found
    if isinstance(found, ec.EllipticCurvePublicKey) and found.curve.name in _CURVES.values():
        return found
    raise _broken("it is neither RSA nor of the curves P-256, P-384 and P-521")


def _broken(reason: str) -> PublicKeyBroken:
    return PublicKeyBroken(
        f"a public key in jwt_public_keys cannot be used: {reason}",
        hint="Look at them: SELECT id, public_key FROM jwt_public_keys WHERE active; and update "
        "the broken one with active = false.",
    )


def claims_of(token: str, keys: Iterable[PublicKey], *, now_s: float) -> Claims | None:
    """Return a token's claims, if one of the keys has signed it and it is valid now, or None."""
    head, _, signed = token.rpartition(".")
    parts = head.split(".")
    if len(parts) != 2 or len(token) > _TOKEN_BYTES_MAX or not token.isascii():
        return None
    header, payload, signature = _json(parts[0]), _json(parts[1]), _bytes(signed)
    if header is None or payload is None or signature is None or "crit" in header:
        return None
    verify = _verifier(header.get("alg"))
    if verify is None or not any(verify(key, signature, head.encode()) for key in keys):
        return None
    return _claims(payload, now_s)


def _claims(payload: dict[str, Any], now_s: float) -> Claims | None:
    times = {name: payload.get(name) for name in ("exp", "nbf", "iat")}
    for name, at_s in times.items():
        if at_s is None:
            continue
        if isinstance(at_s, bool) or not isinstance(at_s, int | float):
            return None
        if now_s >= at_s if name == "exp" else now_s < at_s:
            return None
    token_id = payload.get("jti")
    if not isinstance(token_id, str) or not token_id:
        return None
    schemas = tuple(
        tuple(schema)
        for claim in CLAIMS
        for schema in _schemas(payload.get(claim))
        if isinstance(schema, list) and all(isinstance(part, str) for part in schema)
    )
    return Claims(id=token_id, schemas=schemas) if schemas else None


def _schemas(claim: object) -> list[Any]:
    found = claim.get("schemas") if isinstance(claim, dict) else None
    return found if isinstance(found, list) else []


def _covers(allowed: tuple[str, ...], group: Group) -> bool:
    return len(allowed) == len(group) and all(
        one == "*" or one.lower() == part.lower() for one, part in zip(allowed, group, strict=True)
    )


def _verifier(algorithm: object) -> Callable[[PublicKey, bytes, bytes], bool] | None:
    if not isinstance(algorithm, str) or algorithm[:2] not in ("ES", "RS"):
        return None
    bits = algorithm[2:]
    if bits not in _HASHES:
        return None

    def verify(key: PublicKey, signature: bytes, signed: bytes) -> bool:
        try:
            if isinstance(key, rsa.RSAPublicKey):
                if algorithm[0] != "R":
                    return False
                key.verify(signature, signed, padding.PKCS1v15(), _HASHES[bits])
                return True
            size = (key.curve.key_size + 7) // 8
            if algorithm[0] != "E" or key.curve.name != _CURVES[bits] or len(signature) != 2 * size:
                return False
            r, s = (int.from_bytes(part, "big") for part in (signature[:size], signature[size:]))
            key.verify(encode_dss_signature(r, s), signed, ec.ECDSA(_HASHES[bits]))
        except InvalidSignature:
            return False
        return True

    return verify


def _bytes(text: str) -> bytes | None:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None


def _json(text: str) -> dict[str, Any] | None:
    data = _bytes(text)
    try:
        found = None if data is None else msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
