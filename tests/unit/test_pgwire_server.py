"""The server's end of the protocol, tested with the client's end and with broken bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.postgres import pgwire, pgwire_server
from penstock.codec.postgres.pgwire_server import (
    CancelRequest,
    EncryptionRequest,
    Refused,
    StandbyStatus,
    Startup,
    frame_at,
    query_text,
    start_packet,
)

LIMIT = 1 << 20
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def body_of(message: bytes, kind: bytes) -> bytes:
    """Return the body of a message that a client takes from its buffer whole."""
    frame = pgwire.frame_at(message, 0, len(message))
    assert frame is not None
    assert (frame.kind, frame.end) == (kind[0], len(message))
    return message[frame.start : frame.end]


@given(settings=st.dictionaries(NAMES, TEXTS, max_size=5), user=NAMES, rest=st.binary(max_size=9))
def test_startup_of_our_own_client(settings: dict[str, str], user: str, rest: bytes) -> None:
    """The packet is read whole, cut at any byte, and with the next message after it."""
    known = {name: value for name, value in settings.items() if not name.startswith("_pq_.")}
    sent = pgwire.startup({**known, "user": user})
    for end in range(len(sent)):
        assert start_packet(sent[:end]) is None
    database = known.get("database") or user
    expected = Startup(parameters={**known, "user": user, "database": database})
    assert start_packet(sent + rest) == (expected, len(sent))


def test_requests_before_the_startup() -> None:
    """Such requests ask for encryption, or for a cancel."""
    assert start_packet(pgwire.SSL_REQUEST) == (EncryptionRequest(kind="tls"), 8)
    gss = struct.pack(">ii", 8, 80877104)
    assert start_packet(gss) == (EncryptionRequest(kind="gss"), 8)
    cancel = pgwire.cancel_request(2**31 - 1, b"abcd")
    expected = CancelRequest(process_id=2**31 - 1, secret_key=b"abcd")
    assert start_packet(cancel) == (expected, len(cancel))
    assert "abcd" not in repr(expected)


def test_a_later_minor_version_is_told_with_the_options() -> None:
    """Clients of protocol 3.2 are told which version we speak."""
    words = b"user\0u\0_pq_.x\0y\0\0"
    packet = struct.pack(">ii", 8 + len(words), 196610) + words
    found = start_packet(packet)
    assert found is not None
    assert found[0] == Startup(
        parameters={"user": "u", "database": "u"}, minor=2, unknown_options=("_pq_.x",)
    )
    assert body_of(pgwire_server.negotiate(["_pq_.x"]), b"v") == bytes(7) + b"\1_pq_.x\0"


@pytest.mark.parametrize(
    ("packet", "sqlstate"),
    [
        (struct.pack(">i", 7), "08P01"),
        (struct.pack(">i", 10_001), "08P01"),
        (struct.pack(">I", 2**32 - 1), "08P01"),
        (struct.pack(">ii", 8, 2 << 16), "0A000"),
        (struct.pack(">ii", 9, 196608) + b"\0", "28000"),
        (struct.pack(">ii", 8, 196608), "08P01"),
        (struct.pack(">ii", 15, 196608) + b"user\0u\0", "08P01"),
        (struct.pack(">ii", 14, 196608) + b"user\0\0", "08P01"),
        (struct.pack(">ii", 16, 196608) + b"user\0\xff\0\0", "22021"),
        (struct.pack(">ii", 12, 80877103) + b"abcd", "08P01"),
        (struct.pack(">ii", 12, 80877102) + b"abcd", "08P01"),
    ],
)
def test_a_broken_start_is_refused(packet: bytes, sqlstate: str) -> None:
    """A bad length is refused at once, before that many bytes arrive."""
    with pytest.raises(Refused) as caught:
        start_packet(packet)
    assert caught.value.sqlstate == sqlstate


@given(st.binary(max_size=200))
def test_any_start_is_read_or_refused(data: bytes) -> None:
    """No other error is raised, and no bytes beyond the given ones are used."""
    for packet in (data, struct.pack(">ii", 8 + len(data), 196608) + data):
        try:
            found = start_packet(packet)
        except Refused:
            continue
        assert found is None or found[1] <= len(packet)


def test_frames_are_cut_and_too_long_ones_refused() -> None:
    """A length above the limit is refused before its bytes arrive."""
    sent = pgwire.query("select 1") + b"X"
    for end in range(len(sent) - 1):
        assert frame_at(sent, 0, end, LIMIT) is None
    frame = frame_at(sent, 0, len(sent), LIMIT)
    assert frame is not None
    assert query_text(sent[frame.start : frame.end]) == "select 1"
    for length in (0, 3, LIMIT + 1, 2**32 - 1):
        with pytest.raises(Refused, match="length"):
            frame_at(b"Q" + struct.pack(">I", length), 0, 5, LIMIT)


@pytest.mark.parametrize("body", [b"", b"select", b"a\0b\0", b"\xff\0"])
def test_a_query_that_is_no_string(body: bytes) -> None:
    """The query has no end, one in the middle, or is not UTF-8."""
    with pytest.raises(Refused):
        query_text(body)


@given(st.binary(max_size=60))
def test_sasl_messages(data: bytes) -> None:
    """Messages of our own client are read; noise is refused."""
    sent = pgwire.sasl_initial_response("SCRAM-SHA-256", data)
    assert pgwire_server.sasl_initial(sent[5:]) == ("SCRAM-SHA-256", data)
    for broken in (sent[5:-1], sent[5:] + b"x", data.replace(b"\0", b"")):
        if broken == sent[5:]:
            continue
        with pytest.raises(Refused):
            pgwire_server.sasl_initial(broken)


def test_standby_status() -> None:
    """The status is as our own client sends it; a hot standby's feedback is ignored."""
    sent = pgwire.standby_status(write=3, flush=2, apply=1, time_us=5, reply_now=True)
    found = pgwire_server.standby_status(sent[5:])
    assert found == StandbyStatus(write=3, flush=2, apply=1, time_us=5, reply_now=True)
    assert pgwire_server.standby_status(b"h" + bytes(24)) is None
    for broken in (b"", b"r", sent[5:-1], sent[5:] + b"\0", b"x" + bytes(33)):
        with pytest.raises(Refused):
            pgwire_server.standby_status(broken)


@given(
    columns=st.lists(st.tuples(TEXTS, st.integers(0, 2**32 - 1)), max_size=5),
    values=st.lists(st.none() | TEXTS, max_size=5),
)
def test_rows_are_read_by_our_own_client(
    columns: list[tuple[str, int]], values: list[str | None]
) -> None:
    """The client reads names and values, and distinguishes NULL from the empty text."""
    described = pgwire_server.row_description(columns)
    assert pgwire.row_description(body_of(described, b"T")) == [name for name, _ in columns]
    assert pgwire.data_row(body_of(pgwire_server.data_row(values), b"D")) == values


def test_other_messages_are_read_by_our_own_client() -> None:
    """A client gets these messages from its first byte until it streams."""
    offered = pgwire_server.sasl_mechanisms(["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"])
    code, data = pgwire.authentication(body_of(offered, b"R"))
    assert code == pgwire.AUTHENTICATION_SASL
    assert pgwire.sasl_mechanisms(data) == ["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"]
    for message, expected in (
        (pgwire_server.sasl_continue(b"x"), (pgwire.AUTHENTICATION_SASL_CONTINUE, b"x")),
        (pgwire_server.sasl_final(b"y"), (pgwire.AUTHENTICATION_SASL_FINAL, b"y")),
        (pgwire_server.AUTHENTICATED, (pgwire.AUTHENTICATION_OK, b"")),
    ):
        assert pgwire.authentication(body_of(message, b"R")) == expected
    status = pgwire_server.parameter_status("TimeZone", "UTC")
    assert pgwire.parameter_status(body_of(status, b"S")) == ("TimeZone", "UTC")
    key = pgwire_server.backend_key(7, b"abcd")
    assert pgwire.backend_key(body_of(key, b"K")) == (7, b"abcd")
    assert pgwire.command_tag(body_of(pgwire_server.command_complete("COPY 0"), b"C")) == "COPY 0"
    assert pgwire_server.ready("T") == b"Z\0\0\0\x05T"
    assert pgwire_server.COPY_BOTH == b"W\0\0\0\x07\0\0\0"


def test_an_error_keeps_its_form_whatever_text_is_in_it() -> None:
    """A zero byte in a client's own words does not end a field early."""
    refused = Refused("42704", "no slot a\0b\ud800", hint="look")
    sent = pgwire_server.error_response(refused, severity="FATAL")
    found = pgwire.server_message(body_of(sent, b"E"))
    assert found == pgwire.ServerMessage(
        severity="FATAL", sqlstate="42704", message="no slot a?b?", hint="look"
    )
