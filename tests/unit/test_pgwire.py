"""Messages of the protocol, byte by byte, and broken ones."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.postgres import pgwire
from penstock.codec.postgres.pgwire import WireError
from penstock.model import PenstockError


def test_startup_message_holds_version_and_pairs() -> None:
    """The message has length, version 3.0, pairs, and the closing zero."""
    message = pgwire.startup({"user": "u", "replication": "database"})
    assert message[:8] == struct.pack(">ii", len(message), 196608)
    assert message[8:] == b"user\0u\0replication\0database\0\0"


def test_nul_in_a_string_is_refused() -> None:
    """A NUL would end the string early and change what the server is asked."""
    with pytest.raises(WireError):
        pgwire.query("select 1\0; drop table t")


def test_standby_status_is_as_the_manual_prints_it() -> None:
    """The message has `r`, three LSNs, the time since 2000, and whether an answer is wanted."""
    message = pgwire.standby_status(
        write=3, flush=2, apply=1, time_us=pgwire.UNIX_TO_POSTGRES_US + 7, reply_now=True
    )
    assert message == b"d" + struct.pack(">icQQQqB", 38, b"r", 3, 2, 1, 7, 1)


def test_frames_are_cut_only_when_whole() -> None:
    """A frame is returned once its last byte is there, not before."""
    data = b"xx" + pgwire.copy_data(b"payload") + b"Z"
    for end in range(2, len(data) - 1):
        assert pgwire.frame_at(data, 2, end) is None
    frame = pgwire.frame_at(data, 2, len(data))
    assert frame is not None
    assert (frame.kind, data[frame.start : frame.end]) == (ord("d"), b"payload")


@pytest.mark.parametrize("length", [-1, 0, 3, 2**31 - 1])
def test_impossible_lengths_are_an_error(length: int) -> None:
    """No buffer grows for an impossible length."""
    with pytest.raises(WireError):
        pgwire.frame_at(b"d" + struct.pack(">i", length), 0, 5)


def test_md5_answer() -> None:
    """The answer is the salted hash of the hash of password and user, as the manual says."""
    answer = pgwire.md5_password("postgres", "secret", b"\x01\x02\x03\x04")
    inner = hashlib.md5(b"secretpostgres").hexdigest()
    assert answer == b"md5" + hashlib.md5(inner.encode() + b"\1\2\3\4").hexdigest().encode()


def test_error_fields() -> None:
    """The fixed severity has priority over the localised one; unknown fields are ignored."""
    body = b"SFEHLER\0VERROR\0C42704\0Mmessage\0Ddetail\0Hhint\0P12\0?x\0\0"
    said = pgwire.server_message(body)
    assert (said.severity, said.sqlstate, said.message) == ("ERROR", "42704", "message")
    assert (said.detail, said.hint, said.position) == ("detail", "hint", 12)


def test_rows_are_read_back_with_nulls() -> None:
    """NULL is None; an empty text is empty."""
    body = struct.pack(">h", 3) + struct.pack(">i", -1) + struct.pack(">i", 0)
    body += struct.pack(">i", 2) + "ä".encode()
    assert pgwire.data_row(body) == [None, "", "ä"]


PARSERS = [
    pgwire.server_message,
    pgwire.authentication,
    pgwire.sasl_mechanisms,
    pgwire.parameter_status,
    pgwire.backend_key,
    pgwire.command_tag,
    pgwire.row_description,
    pgwire.data_row,
]


@given(st.binary(max_size=60), st.sampled_from(PARSERS))
def test_any_bytes_give_a_value_or_one_typed_error(body: bytes, parser: object) -> None:
    """No bytes of a server cause an IndexError, a struct.error, or an endless loop."""
    try:
        parser(body)  # type: ignore[operator]
    except PenstockError:
        pass
    except UnicodeDecodeError:
        pytest.fail("text that is not UTF-8 must be a WireError")


def test_replication_names_are_quoted() -> None:
    """Quotes in names and values cannot end the command."""
    sql = pgwire.start_replication('a"b', "0/0", [("publication_names", '"p\'q"')])
    assert sql == ('START_REPLICATION SLOT "a""b" LOGICAL 0/0 ("publication_names" \'"p\'\'q"\')')
