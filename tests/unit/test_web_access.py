"""Access to the web interface."""

from __future__ import annotations

import socket

import pytest

from harness.faults.turned_clock import Hands
from penstock.host.listen import is_loopback
from penstock.web.access import (
    SESSION_S,
    SESSIONS_MAX,
    Access,
    Hosts,
    TokenTooShort,
    host_name,
    same_origin,
)

TOKEN = "a token that is hard to guess"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("192.168.1.4", False),
        ("localhost.evil.example", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    """An address that only this machine reaches needs no token."""
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost:8765", "localhost"),
        ("LocalHost", "localhost"),
        ("[::1]:80", "::1"),
        ("a.example.:1", "a.example"),
        ("", ""),
        ("[::1", ""),
        ("127.0.0.1:80@evil.example", "evil.example"),
    ],
)
def test_host_names(header: str, name: str) -> None:
    """A header's name is found whatever surrounds it, and nonsense has none."""
    assert host_name(header) == name


@pytest.mark.parametrize(
    ("listening", "header", "taken"),
    [
        ("127.0.0.1", "127.0.0.1:8765", True),
        ("127.0.0.1", "localhost:8765", True),
        ("127.0.0.1", "[::1]:8765", True),
        ("127.0.0.1", "evil.example:8765", False),
        ("127.0.0.1", "192.168.0.9:8765", False),
        ("127.0.0.1", "evil-localhost:8765", False),
        ("127.0.0.1", "evil.localhost:8765", False),
        ("127.0.0.1", "evil-cdc.example", False),
        ("127.0.0.1", "evil.cdc.example", False),
        ("127.0.0.1", "cdc.example.evil.example", False),
        ("0.0.0.0", "evil-" + socket.gethostname(), False),
        ("127.0.0.1", "", False),
        ("0.0.0.0", "192.168.0.9:8765", True),
        ("0.0.0.0", "evil.example", False),
        ("0.0.0.0", socket.gethostname(), True),
        ("0.0.0.0", "cdc.example", True),
    ],
)
def test_a_foreign_name_in_the_host_header_is_refused(
    listening: str, header: str, taken: bool
) -> None:
    """A name that an attacker's DNS points at us is not ours, which prevents rebinding."""
    assert Hosts(listening, ["CDC.example"]).takes(header) is taken


def test_a_short_token_is_refused() -> None:
    """A token that can be guessed protects nothing."""
    with pytest.raises(TokenTooShort, match="5 characters"):
        Access("12345")


def test_the_token_lets_in_as_a_bearer_and_through_a_session() -> None:
    """Programs send it with each request, browsers once."""
    access = Access(TOKEN)
    assert access.lets_in({"authorization": f"Bearer {TOKEN}"}, "")
    assert not access.lets_in({"authorization": "Bearer " + TOKEN[:-1]}, "")
    assert not access.lets_in({"authorization": f"Basic {TOKEN}"}, "")
    assert not access.lets_in({}, "")
    session = access.begin_session()
    assert access.lets_in({}, session)
    assert not access.lets_in({}, session + "x")
    assert not access.lets_in({}, TOKEN)
    access.end_session(session)
    assert not access.lets_in({}, session)


def test_sessions_end_by_themselves_and_are_not_kept_without_limit() -> None:
    """Sessions last half a day; the thousand and first replaces the oldest."""
    hands = Hands()
    access = Access(TOKEN, clock=hands)
    first = access.begin_session()
    hands.now_s += SESSION_S - 1
    assert access.in_session(first)
    hands.now_s += 2
    assert not access.in_session(first)
    kept = access.begin_session()
    for _ in range(SESSIONS_MAX - 1):
        access.begin_session()
    assert access.in_session(kept)
    access.begin_session()
    assert not access.in_session(kept)


def test_a_forms_secret_belongs_to_one_session_and_one_server() -> None:
    """A secret on one visitor's page is useless with another's cookie."""
    access = Access(TOKEN)
    one, other = access.begin_session(), access.begin_session()
    assert access.right_form(one, access.form_secret(one))
    assert not access.right_form(other, access.form_secret(one))
    assert not access.right_form(one, "")
    assert not access.right_form(one, "ä")
    assert not Access(TOKEN).right_form(one, access.form_secret(one))
    open_to_all = Access(None)
    assert open_to_all.right_form("", open_to_all.form_secret(""))


@pytest.mark.parametrize(
    ("headers", "ours"),
    [
        ({}, True),
        ({"origin": "http://h:1", "host": "h:1"}, True),
        ({"origin": "http://h:2", "host": "h:1"}, False),
        ({"origin": "null", "host": "h:1"}, False),
        ({"origin": "http://[", "host": "h:1"}, False),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site", "origin": "http://h:1", "host": "h:1"}, False),
    ],
)
def test_where_a_form_was_sent_from(headers: dict[str, str], ours: bool) -> None:
    """A browser tells which page sent it; another site's is refused."""
    assert same_origin(headers) is ours
