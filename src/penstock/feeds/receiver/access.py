"""Permission to post: by signed tokens, by one token, or for every sender.

Signed tokens (JWT) are checked against the public keys in the staging database. They name the
target schemas that their bearer may post to, and have an id by which they are revoked.
Source: RFC 7519; the claims are those of Replicator.
"""

from __future__ import annotations

import hashlib
import hmac
import warnings
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt import InsecureKeyLengthWarning, PyJWS, PyJWTError

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError
from penstock.ports.feeds import Group, Keys

CLAIMS = ("https://github.com/cockroachdb/replicator", "https://github.com/cockroachdb/cdc-sink")
_TOKEN_BYTES_MAX = 16_384
_RSA_ALGORITHMS = ("RS256", "RS384", "RS512")
_CURVE_ALGORITHMS = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_SIGNATURES = PyJWS()
PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey

# The size of an RSA key is the operator's choice: no warning in the middle of a request.
warnings.filterwarnings("ignore", category=InsecureKeyLengthWarning)


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
        """Return whether the token is right. The time taken does not depend on how much of it is
        wrong.
        """
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
    if isinstance(found, ec.EllipticCurvePublicKey) and found.curve.name in _CURVE_ALGORITHMS:
        return found
    raise _broken("it is neither RSA nor of the curves P-256, P-384 and P-521")


def _broken(reason: str) -> PublicKeyBroken:
    return PublicKeyBroken(
        f"a public key in jwt_public_keys cannot be used: {reason}",
        hint="Look at them: SELECT id, public_key FROM jwt_public_keys WHERE active; and update "
        "the broken one with active = false.",
    )


class _Payload(msgspec.Struct):
    """Content of a token; times in seconds since 1970 UTC."""

    jti: Annotated[str, msgspec.Meta(min_length=1)]
    exp: float | None = None
    nbf: float | None = None
    iat: float | None = None
    replicator: Any = msgspec.field(default=None, name=CLAIMS[0])
    cdc_sink: Any = msgspec.field(default=None, name=CLAIMS[1])


def claims_of(token: str, keys: Iterable[PublicKey], *, now_s: float) -> Claims | None:
    """Return a token's claims, if one of the keys has signed it and it is valid now, or None."""
    if len(token) > _TOKEN_BYTES_MAX or not token.isascii():
        return None
    signed = _verify_signature(token, keys)
    try:
        payload = None if signed is None else msgspec.json.decode(signed, type=_Payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if payload is None else _claims(payload, now_s)


def _verify_signature(token: str, keys: Iterable[PublicKey]) -> bytes | None:
    """Return the payload if one of the keys has signed it, or None."""
    for key in keys:
        try:
            signed: bytes = _SIGNATURES.decode(token, key, _algorithms(key))
        except PyJWTError:  # of another key, or of none
            continue
        return signed
    return None


def _algorithms(key: PublicKey) -> tuple[str, ...]:
    """Return the algorithms for a key, so that the token cannot choose one of another kind."""
    if isinstance(key, rsa.RSAPublicKey):
        return _RSA_ALGORITHMS
    return (_CURVE_ALGORITHMS[key.curve.name],)


def _claims(payload: _Payload, now_s: float) -> Claims | None:
    if payload.exp is not None and now_s >= payload.exp:
        return None
    if any(begins_s is not None and now_s < begins_s for begins_s in (payload.nbf, payload.iat)):
        return None
    schemas = tuple(
        tuple(schema)
        for claim in (payload.replicator, payload.cdc_sink)
        for schema in _schemas(claim)
        if isinstance(schema, list) and all(isinstance(part, str) for part in schema)
    )
    return Claims(id=payload.jti, schemas=schemas) if schemas else None


def _schemas(claim: object) -> list[Any]:
    found = claim.get("schemas") if isinstance(claim, dict) else None
    return found if isinstance(found, list) else []


def _covers(allowed: tuple[str, ...], group: Group) -> bool:
    return len(allowed) == len(group) and all(
        one == "*" or one.lower() == part.lower() for one, part in zip(allowed, group, strict=True)
    )


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
