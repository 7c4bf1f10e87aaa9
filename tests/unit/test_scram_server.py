"""Log-ins with our own client, with the published example, and with clients that cheat."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.twins.examples import examples
from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.postgres.scram import ScramClient, ScramServer, Verifier

PASSWORD = "päss wörd"
QUICK = {"salt": b"0123456789abcdef", "iterations": 2}
KEPT = Verifier.of(PASSWORD, **QUICK)  # type: ignore[arg-type]
BINDING = b"hash of a certificate"


def log_in(client: ScramClient, server: ScramServer) -> None:
    """Do the whole exchange; both sides are convinced at its end."""
    plus = client.mechanism.endswith("PLUS")
    client.verify(server.finish(client.final(server.challenge(client.first(), plus=plus))))


def test_the_published_example() -> None:
    """The challenge and the signature are those of RFC 7677, section 3."""
    verifier = Verifier.of("pencil", salt=base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))
    server = ScramServer(verifier, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert server.challenge(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert server.finish(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@examples(0.5)
@given(password=st.text(max_size=20), other=st.text(max_size=20))
def test_who_knows_the_password_is_let_in(password: str, other: str) -> None:
    """The verifier is restored from its text form; another password is refused."""
    password, other = (text.encode(errors="replace").decode() for text in (password, other))
    kept = Verifier.parse(Verifier.of(password, iterations=2).text())
    log_in(ScramClient(password), ScramServer(kept))
    if Verifier.of(other, salt=kept.salt, iterations=2) != kept:
        with pytest.raises(Refused) as caught:
            log_in(ScramClient(other), ScramServer(kept))
        assert caught.value.sqlstate == "28P01"


def test_channel_binding() -> None:
    """A client that binds to another certificate, or was told that we offer none, is refused."""
    log_in(ScramClient(PASSWORD, binding=BINDING), ScramServer(KEPT, binding=BINDING))
    log_in(ScramClient(PASSWORD, over_tls=True), ScramServer(KEPT))
    log_in(ScramClient(PASSWORD), ScramServer(KEPT, binding=BINDING))
    for client, server in (
        (ScramClient(PASSWORD, binding=b"of another"), ScramServer(KEPT, binding=BINDING)),
        (ScramClient(PASSWORD, over_tls=True), ScramServer(KEPT, binding=BINDING)),
        (ScramClient(PASSWORD, binding=BINDING), ScramServer(KEPT)),
    ):
        with pytest.raises(Refused, match="channel binding"):
            log_in(client, server)


def test_the_mechanism_and_the_message_must_agree() -> None:
    """A client that chose -PLUS has to bind."""
    for plus, client in ((True, ScramClient(PASSWORD)), (False, ScramClient("", binding=BINDING))):
        with pytest.raises(Refused, match="channel binding"):
            ScramServer(KEPT, binding=BINDING).challenge(client.first(), plus=plus)


def test_an_answer_is_good_for_one_exchange() -> None:
    """An intercepted answer opens no other connection, nor the same one again."""
    client, server = ScramClient(PASSWORD), ScramServer(KEPT)
    final = client.final(server.challenge(client.first()))
    other = ScramServer(KEPT)
    other.challenge(client.first())
    with pytest.raises(Refused, match="nonce"):
        other.finish(final)
    server.finish(final)
    with pytest.raises(Refused):
        server.finish(final)
    with pytest.raises(Refused):
        ScramServer(KEPT).finish(final)


def test_an_unknown_user_cannot_be_told_from_a_known_one() -> None:
    """The salt is the same each time, and no password fits."""
    one, other = (Verifier.unknown("nobody", b"secret") for _ in range(2))
    assert one.salt == other.salt != Verifier.unknown("unknown", b"secret").salt
    assert (len(one.salt), one.iterations) == (16, Verifier.of("").iterations)
    with pytest.raises(Refused, match="password authentication failed"):
        log_in(ScramClient(PASSWORD), ScramServer(one))


@given(data=st.binary(max_size=80), at=st.integers(0, 200), cut=st.integers(0, 3))
def test_broken_messages_are_refused(data: bytes, at: int, cut: int) -> None:
    """Noise, and good messages with changed bytes, are refused, and never let a client in."""
    for server in (ScramServer(KEPT), ScramServer(KEPT, binding=BINDING)):
        with pytest.raises(Refused):
            server.finish(data)
    client, server = ScramClient(PASSWORD), ScramServer(KEPT)
    final = client.final(server.challenge(client.first()))
    at = at % (len(final) - 5)  # the last letter of the proof has bits without a meaning
    broken = final[:at] + data[:3] + final[at + cut :]
    if broken != final:
        with pytest.raises(Refused):
            server.finish(broken)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "md5abc",
        KEPT.text() + "x",
        KEPT.text().replace("$2:", "$0:"),
        KEPT.text().replace("$2:", "$99999999:"),
        KEPT.text()[:-5],
        KEPT.text().replace("SHA-256", "SHA-1"),
    ],
)
def test_a_broken_verifier_is_told_without_showing_it(text: str) -> None:
    """The verifier's keys are secrets, also in an error."""
    with pytest.raises(ValueError, match="verifier") as caught:
        Verifier.parse(text)
    assert base64.b64encode(KEPT.salt).decode() not in str(caught.value)
    assert "Verifier(...)" in repr(KEPT)
