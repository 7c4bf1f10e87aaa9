"""Identifiers, literals, masking and the naming of errors, without a server."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import psycopg
import pytest

from penstock.engines.postgres import connect as c
from penstock.engines.postgres.target.chunk import TARGET_SETTINGS
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
    UrlInvalid,
    mask,
)
from penstock.model import PenstockError


def test_identifiers_are_quoted_whatever_they_hold() -> None:
    """Mixed case, dots, quotes and non-ASCII names stay one identifier each."""
    assert c.quote("s", "t") == '"s"."t"'
    assert c.quote('a"b') == '"a""b"'
    assert c.quote("a.b", "Größe") == '"a.b"."Größe"'


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_what_no_catalogue_holds_is_no_identifier(name: str) -> None:
    """An empty or cut name would change the meaning of a statement."""
    with pytest.raises(ValueError, match="identifier"):
        c.quote(name)


def test_literals_survive_quotes_and_backslashes() -> None:
    """A backslash is doubled in an escape string, so the result does not depend on the setting."""
    assert c.literal("it's") == "'it''s'"
    assert c.literal("a\\'b") == "E'a\\\\''b'"
    with pytest.raises(ValueError, match="zero byte"):
        c.literal("\0")


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("postgresql://u:secret@h:5432/d", "postgresql://u:***@h:5432/d"),
        ("postgresql://u:se@cr:et@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("postgresql://h/d?user=u&password=secret&x=1", "postgresql://h/d?user=u&password=***&x=1"),
        ("postgresql://u:p/w@h/d?sslpassword=s", "postgresql://u:***@h/d?sslpassword=***"),
        ("host=h password='se cret' user=u", "host=h password=*** user=u"),
        ("postgresql://u:${X}@h/d", "postgresql://u:***@h/d"),
    ],
)
def test_masked_urls_hold_no_secret(url: str, masked: str) -> None:
    """Passwords are hidden, even in a URL that is wrong."""
    assert mask(url) == masked


def test_another_database_of_the_same_server() -> None:
    """Only the database's name changes."""
    assert c.with_database("postgresql://u:p@h:1/a?x=1", "b c") == "postgresql://u:p@h:1/b%20c?x=1"
    assert c.with_database("postgresql://u:p@h", "b") == "postgresql://u:p@h/b"


def test_a_session_has_time_limits_for_the_network_and_none_for_statements() -> None:
    """A vanished server is noticed; a long copy and an idle snapshot are not cut off."""
    found = c.session_parameters(
        "postgresql://u@h/d", application_name="x", settings=c.EXACT_TEXT_SETTINGS
    )
    assert found["connect_timeout"] == 10
    assert (found["keepalives"], found["keepalives_idle"]) == (1, 30)
    assert (found["keepalives_interval"], found["keepalives_count"]) == (10, 3)
    assert found["tcp_user_timeout"] == 300_000
    assert found["client_encoding"] == "UTF8"
    options = str(found["options"])
    for name in (
        "statement_timeout",
        "lock_timeout",
        "idle_in_transaction_session_timeout",
        "idle_session_timeout",
    ):
        assert f"-c {name}=0" in options
    assert "-c extra_float_digits=3" in options
    assert "-c bytea_output=hex" in options
    assert "-c row_security=off" in options


def test_a_reader_may_keep_a_server_waiting_for_longer_than_a_writer() -> None:
    """A server's timeout counts rows that the reader does not take like unacknowledged rows."""
    patient, short = (int(one["tcp_user_timeout"]) for one in (c.SERVER_KEEPALIVE, TARGET_SETTINGS))
    assert short < 60_000 < 2 * 60_000 < patient
    seconds = [int(TARGET_SETTINGS[f"tcp_keepalives_{name}"]) for name in ("interval", "count")]
    assert int(TARGET_SETTINGS["tcp_keepalives_idle"]) + seconds[0] * seconds[1] < 60


def test_a_session_keeps_what_its_url_says() -> None:
    """The URL's network limits win; settings on which text depends are penstock's."""
    found = c.session_parameters(
        "postgresql://u@h/d?connect_timeout=3&keepalives_idle=7&options=-c%20DateStyle%3DGerman",
        application_name="x",
        settings={"DateStyle": "ISO, YMD"},
    )
    assert (found["connect_timeout"], found["keepalives_idle"]) == ("3", "7")
    assert found["options"] == "-c DateStyle=German -c DateStyle=ISO,\\ YMD"
    assert found["application_name"] == "x"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('FATAL:  password authentication failed for user "u"', LoginRefused),
        (
            'FATAL:  no pg_hba.conf entry for host "1.2.3.4", user "u", database "d", '
            "no encryption",
            LoginRefused,
        ),
        ('FATAL:  role "u" does not exist', LoginRefused),
        ('FATAL:  database "d" does not exist', DatabaseUnknown),
        ("connection refused\n\tIs the server running on that host", ServerUnreachable),
        ("connection timeout expired", ServerUnreachable),
        ("failed to resolve host 'nowhere': [Errno -2]", ServerUnreachable),
        ("SSL error: certificate verify failed", TlsFailed),
        ('server certificate for "x" does not match host name "y"', TlsFailed),
        ("server does not support SSL, but SSL was required", TlsFailed),
        ("FATAL:  the database system is starting up", ServerBusy),
        ("FATAL:  sorry, too many clients already", ServerBusy),
        ('FATAL:  permission denied for database "d"', DatabaseRefused),
        ("FATAL:  das war nichts", ConnectFailed),
    ],
)
def test_each_reason_has_its_own_error(text: str, kind: type[ConnectFailed]) -> None:
    """A wrong password, a wrong name and a stopped server are told apart."""
    error = c.connect_error("postgresql://u:secret@h/d", text)
    assert type(error) is kind
    assert "secret" not in error.message
    assert error.hint


def test_a_password_repeated_by_the_server_is_hidden() -> None:
    """Messages of the library are scrubbed too."""
    error = c.connect_error("postgresql://u:s%40crt@h/d", "bad s@crt given")
    assert "s@crt" not in error.message


@pytest.mark.parametrize("url", ["mysql://h/d", "h", "", "postgresql://u:pw@h:port/d%zz"])
def test_a_url_of_something_else_is_refused(url: str) -> None:
    """A URL that cannot be read is not tried."""
    with pytest.raises(UrlInvalid) as caught:
        c.connect(url, application_name="test")
    assert "pw" not in str(caught.value)


def test_a_closed_port_is_unreachable() -> None:
    """The error names the place and what to try."""
    with pytest.raises(ServerUnreachable) as caught:
        c.connect("postgresql://u:topsecret@127.0.0.1:1/d", application_name="test")
    assert "127.0.0.1" in caught.value.message
    assert "topsecret" not in repr(caught.value.as_dict())
    assert c.safe_to_retry(caught.value)


def test_errors_cross_processes() -> None:
    """Spark workers send errors to the driver by pickle."""
    error = c.connect_error("postgresql://u:p@h/d", "connection refused")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert again.as_dict() == error.as_dict()


@pytest.mark.parametrize(
    ("error", "retry", "kind"),
    [
        (psycopg.errors.DeadlockDetected("x"), True, StatementInterrupted),
        (psycopg.errors.SerializationFailure("x"), True, StatementInterrupted),
        (psycopg.errors.LockNotAvailable("x"), True, StatementInterrupted),
        (psycopg.errors.AdminShutdown("x"), True, ConnectionLost),
        (psycopg.errors.ConnectionFailure("x"), True, ConnectionLost),
        (psycopg.OperationalError("the connection is lost"), True, ConnectionLost),
        (psycopg.errors.InsufficientPrivilege("x"), False, PrivilegeMissing),
        (psycopg.errors.UniqueViolation("x"), False, StatementFailed),
        (psycopg.ProgrammingError("x"), False, StatementFailed),
    ],
)
def test_what_may_be_tried_again(
    error: psycopg.Error, retry: bool, kind: type[PenstockError]
) -> None:
    """The layer that knows the server decides whether a retry can help."""
    assert c.safe_to_retry(error) is retry
    with pytest.raises(kind) as caught, c.server_errors("reading"):
        raise error
    assert c.safe_to_retry(caught.value) is retry
    assert caught.value.message.startswith("reading: ")


@pytest.mark.parametrize(
    ("said", "is_motion"),
    [
        ("cache lookup failed for attribute 1 of relation 16393", True),
        ("could not open relation with OID 16393", True),
        ("could not read block 0", False),
    ],
)
def test_a_table_that_is_altered_or_dropped_now_is_looked_at_again(
    said: str, is_motion: bool
) -> None:
    """The server's functions read the newest catalogue, whatever snapshot the query has."""

    class Said(psycopg.errors.InternalError_):
        diag = SimpleNamespace(message_primary=said)  # type: ignore[assignment]

    assert c.is_table_in_motion(Said()) is is_motion
