"""SCRAM with the published example, and its reaction to a dishonest server."""

from __future__ import annotations

import base64

import pytest

from penstock.codec.postgres.scram import ScramClient, ScramError, saslprep

# From RFC 7677, section 3; PostgreSQL sends an empty user name, so the example is checked through a
# client whose first message is set to the example's.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def _client() -> ScramClient:
    client = ScramClient("pencil", nonce=NONCE)
    client._first_bare = f"n=user,r={NONCE}"
    return client


def test_the_published_example_gives_the_published_proof() -> None:
    """The proof for the password and challenge of RFC 7677 is the one printed there."""
    client = _client()
    final = client.final(SERVER_FIRST)
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    client.verify(SERVER_FINAL)


def test_a_server_that_does_not_know_the_password_is_not_believed() -> None:
    """The server's signature is checked, which detects another server at the address."""
    client = _client()
    client.final(SERVER_FIRST)
    wrong = b"v=" + base64.b64encode(bytes(32))
    with pytest.raises(ScramError, match="could not prove"):
        client.verify(wrong)


def test_verify_before_final_is_refused() -> None:
    """A server that skips the exchange has proven nothing."""
    with pytest.raises(ScramError):
        _client().verify(SERVER_FINAL)


@pytest.mark.parametrize(
    "challenge",
    [
        b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=***,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=0",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=99999999999",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=x",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=,i=4096",
        b"\xff\xfe",
        b"",
    ],
)
def test_broken_challenges_are_one_typed_error(challenge: bytes) -> None:
    """Whatever challenge a server sends, the answer is a proof or a ScramError."""
    with pytest.raises(ScramError):
        _client().final(challenge)


def test_error_of_the_server_is_reported() -> None:
    """The user sees the reason in e=."""
    client = _client()
    client.final(SERVER_FIRST)
    with pytest.raises(ScramError, match="invalid-proof"):
        client.verify(b"e=invalid-proof")


def test_header_tells_what_is_known_of_channel_binding() -> None:
    """The header is `p=` with a binding, `y` over TLS without the offer, `n` without TLS."""
    assert ScramClient("x", nonce="n").first() == b"n,,n=,r=n"
    assert ScramClient("x", nonce="n", over_tls=True).first() == b"y,,n=,r=n"
    bound = ScramClient("x", nonce="n", binding=b"hash")
    assert bound.first() == b"p=tls-server-end-point,,n=,r=n"
    assert bound.mechanism == "SCRAM-SHA-256-PLUS"
    final = bound.final(b"r=nm,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1")
    channel = base64.b64encode(b"p=tls-server-end-point,,hash")
    assert final.startswith(b"c=" + channel + b",r=nm,p=")


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("I\u00adX", b"IX"),  # RFC 4013 section 3
        ("user", b"user"),
        ("USER", b"USER"),
        ("\u00aa", b"a"),
        ("\u2168", b"IX"),
        ("a\u00a0b", b"a b"),
        ("\u0007", b"\x07"),  # prohibited: used unchanged, as the server does
        ("\u0627\u0031", "\u06271".encode()),  # breaks the rule for right-to-left text
        ("", b""),
        ("пароль", "пароль".encode()),
    ],
)
def test_saslprep(text: str, prepared: bytes) -> None:
    """The examples are those of RFC 4013; text that cannot be prepared is used unchanged."""
    assert saslprep(text) == prepared
