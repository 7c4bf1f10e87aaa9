"""Typed errors of MySQL connections, and SQL text, tested without a server."""

from __future__ import annotations

import pickle
import ssl

import pymysql
import pytest

from penstock.engines.mysql import connect as m
from penstock.host.errors import (
    ConnectFailed,
    ConnectionLost,
    DatabaseRefused,
    DatabaseUnknown,
    LoginRefused,
    PrivilegeMissing,
    ServerBusy,
    ServerUnreachable,
    StatementFailed,
    StatementInterrupted,
    TlsFailed,
)
from penstock.model import PenstockError

URL = "mysql://u:topsecret@h:1/d"


@pytest.mark.parametrize(
    ("error", "kind", "retry"),
    [
        (pymysql.err.OperationalError(1045, "Access denied for 'u'"), LoginRefused, False),
        (pymysql.err.OperationalError(1130, "Host is not allowed"), LoginRefused, False),
        (pymysql.err.OperationalError(1044, "Access denied to database"), DatabaseRefused, False),
        (pymysql.err.OperationalError(1049, "Unknown database"), DatabaseUnknown, False),
        (pymysql.err.OperationalError(1040, "Too many connections"), ServerBusy, True),
        (pymysql.err.OperationalError(2003, "Can't connect"), ServerUnreachable, True),
        (pymysql.err.OperationalError(2013, "Lost connection"), ServerUnreachable, True),
        (pymysql.err.OperationalError(2026, "SSL is required"), TlsFailed, False),
        (pymysql.err.OperationalError(3159, "secure transport"), TlsFailed, False),
        (ssl.SSLError(1, "bad"), TlsFailed, False),
        (RuntimeError("'cryptography' package is required"), LoginRefused, False),
        (pymysql.err.OperationalError(9999, "something new"), ConnectFailed, True),
    ],
)
def test_why_a_connection_failed(error: Exception, kind: type[PenstockError], retry: bool) -> None:
    """The number decides; the message names the place, the hint what to do."""
    typed = m.connect_error(URL, error)
    assert type(typed) is kind
    assert typed.hint
    assert "u:***@h:1" in typed.message
    assert m.safe_to_retry(typed) is retry


def test_a_certificate_that_is_not_trusted_is_distinguished_from_a_closed_port() -> None:
    """PyMySQL gives both the number 2003; their causes differ."""
    error = pymysql.err.OperationalError(2003, "Can't connect")
    error.original_exception = ssl.SSLCertVerificationError(1, "unknown authority")
    assert isinstance(m.connect_error(URL, error), TlsFailed)


@pytest.mark.parametrize("who", ["'u'@'%'", "`u`@`%`"])
def test_a_missing_right_to_a_database_is_no_wrong_password(who: str) -> None:
    """The hint is the GRANT, for the account as the server names it."""
    said = pymysql.err.OperationalError(1044, f"Access denied for user {who} to database 'd'")
    error = m.connect_error(URL, said)
    assert isinstance(error, DatabaseRefused)
    assert "grant select on `d`.* to 'u'@'%';" in error.hint
    assert "password" not in error.hint


def test_passwords_are_scrubbed() -> None:
    """A password that the server repeats is scrubbed too."""
    error = m.connect_error(URL, pymysql.err.OperationalError(1045, "denied with topsecret"))
    assert "topsecret" not in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert again.as_dict() == error.as_dict()


@pytest.mark.parametrize(
    ("number", "kind", "retry"),
    [
        (1205, StatementInterrupted, True),
        (1213, StatementInterrupted, True),
        (1412, StatementInterrupted, True),
        (1317, StatementInterrupted, True),
        (2006, ConnectionLost, True),
        (2013, ConnectionLost, True),
        (1927, ConnectionLost, True),
        (4031, ConnectionLost, True),
        (1142, PrivilegeMissing, False),
        (1227, PrivilegeMissing, False),
        (1062, StatementFailed, False),
        (1290, StatementFailed, False),
        (1064, StatementFailed, False),
    ],
)
def test_what_may_be_tried_again(number: int, kind: type[PenstockError], retry: bool) -> None:
    """The layer that knows the server decides whether a retry can help."""
    error = pymysql.err.OperationalError(number, "said")
    assert m.safe_to_retry(error) is retry
    with pytest.raises(kind) as caught, m.server_errors("reading"):
        raise error
    assert m.safe_to_retry(caught.value) is retry
    assert caught.value.message == "reading: said"
    assert caught.value.fields["errno"] == number


def test_a_connection_closed_before_is_lost() -> None:
    """PyMySQL raises number 0 without a text."""
    with pytest.raises(ConnectionLost, match="the connection was closed"), m.server_errors("x"):
        raise pymysql.err.InterfaceError(0, "")


def test_names_are_quoted() -> None:
    """Backticks are doubled; no other character is special inside them."""
    assert m.quote("a`b", 'c"d') == '`a``b`.`c"d`'
    for wrong in ("", "a\0b"):
        with pytest.raises(ValueError, match="not an identifier"):
            m.quote(wrong)


def test_a_closed_port_is_unreachable() -> None:
    """The error names the place and what to try."""
    with pytest.raises(ServerUnreachable) as caught:
        m.connect("mysql://u:topsecret@127.0.0.1:1/d", application_name="test")
    assert "127.0.0.1:1" in caught.value.message
    assert "topsecret" not in repr(caught.value.as_dict())
