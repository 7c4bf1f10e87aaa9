"""Signed tokens, as posters of changefeeds have them."""

from __future__ import annotations

import base64
import json
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from penstock.feeds.receiver.access import CLAIMS

CURVES = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}
HASHES = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}
GRANTED = {"jti": "one", CLAIMS[0]: {"schemas": [["shop", "public"]]}}
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def encode_base64(data: bytes) -> str:
    """Return Base64 for URLs."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(key: Any, algorithm: str, claims: dict[str, Any], **header: Any) -> str:
    """Return a signed token."""
    head = encode_base64(json.dumps({"alg": algorithm, "typ": "JWT", **header}).encode())
    signed = f"{head}.{encode_base64(json.dumps(claims).encode())}"
    digest = HASHES.get(algorithm[2:], hashes.SHA256())
    if isinstance(key, rsa.RSAPrivateKey):
        signature = key.sign(signed.encode(), padding.PKCS1v15(), digest)
    else:
        size = (key.curve.key_size + 7) // 8
        r, s = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(digest)))
        signature = r.to_bytes(size, "big") + s.to_bytes(size, "big")
    return f"{signed}.{encode_base64(signature)}"


def pem(key: Any) -> str:
    """Return the public half."""
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
