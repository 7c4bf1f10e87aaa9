"""Compute a certificate's hash, which binds SCRAM to a TLS channel, for both sides (RFC 5929)."""

from __future__ import annotations

import hashlib

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
