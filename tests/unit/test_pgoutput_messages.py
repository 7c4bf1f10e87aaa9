"""Parsers of the pgoutput messages that are not rows."""

from __future__ import annotations

import struct

import pytest

from penstock.codec.errors import DecodeError
from penstock.codec.postgres import pgoutput_messages as messages
from penstock.codec.postgres.pgoutput_outcome import POSTGRES_EPOCH_US

RELATION = (
    struct.pack(">I", 16_400)
    + b"public\0"
    + "größe\0".encode()
    + b"d"
    + struct.pack(">H", 2)
    + b"\1id\0"
    + struct.pack(">Ii", 20, -1)
    + b"\0price\0"
    + struct.pack(">Ii", 1700, 786_438)
)
TIMES = struct.pack(">QQq", 10, 20, 5)
GID = struct.pack(">I", 77) + b"gid\0"

BODIES: dict[str, bytes] = {
    "R": RELATION,
    "Y": struct.pack(">I", 16_500) + b"public\0mood\0",
    "T": struct.pack(">IBII", 2, 3, 16_400, 16_401),
    "M": struct.pack(">BQ", 1, 10) + b"prefix\0" + struct.pack(">I", 3) + b"a\0b",
    "O": struct.pack(">Q", 10) + b"other\0",
    "S": struct.pack(">IB", 77, 1),
    "E": b"",
    "c": struct.pack(">IB", 77, 0) + TIMES,
    "A": struct.pack(">II", 77, 78),
    "b": TIMES + GID,
    "P": b"\0" + TIMES + GID,
    "K": b"\0" + TIMES + GID,
    "r": b"\0" + struct.pack(">QQqq", 10, 20, 5, 6) + GID,
    "p": b"\0" + TIMES + GID,
}


def test_relation_with_its_columns() -> None:
    """Names may have any letters; flags, types and modifiers are kept as sent."""
    assert messages.relation_message(RELATION) == messages.RelationMessage(
        xid=None,
        source_id=16_400,
        schema="public",
        name="größe",
        identity="d",
        columns=(
            messages.RelationColumn(1, "id", 20, -1),
            messages.RelationColumn(0, "price", 1700, 786_438),
        ),
    )


def test_empty_schema_means_pg_catalog() -> None:
    """The server omits the schema for pg_catalog."""
    body = struct.pack(">I", 1) + b"\0pg_class\0n" + struct.pack(">H", 0)
    assert messages.relation_message(body).schema == "pg_catalog"


@pytest.mark.parametrize("kind", ["R", "Y", "T", "M"])
def test_streamed_messages_carry_their_xid(kind: str) -> None:
    """Inside a streamed transaction the xid precedes the body."""
    body = BODIES[kind]
    plain = messages.parse_message(kind.encode() + body)
    streamed = messages.parse_message(kind.encode() + struct.pack(">I", 99) + body, streamed=True)
    assert plain.xid is None  # type: ignore[union-attr]
    assert streamed.xid == 99  # type: ignore[union-attr]


def test_messages_of_streamed_and_prepared_transactions() -> None:
    """Each field has its value, times are in microseconds since 1970."""
    parse = messages.parse_message
    time = POSTGRES_EPOCH_US + 5
    assert parse(b"S" + BODIES["S"]) == messages.StreamStart(xid=77, first=True)
    assert parse(b"E") == messages.StreamStop()
    assert parse(b"c" + BODIES["c"]) == messages.StreamCommit(
        xid=77, position=10, end_position=20, commit_time_us=time
    )
    assert parse(b"A" + BODIES["A"]) == messages.StreamAbort(
        xid=77, subxid=78, position=None, abort_time_us=None
    )
    assert parse(b"A" + BODIES["A"] + struct.pack(">Qq", 10, 5)) == messages.StreamAbort(
        xid=77, subxid=78, position=10, abort_time_us=time
    )
    for kind in "bPp":
        assert parse(kind.encode() + BODIES[kind]) == messages.PreparedMessage(
            kind=kind, position=10, end_position=20, prepare_time_us=time, xid=77, gid="gid"
        )
    assert parse(b"K" + BODIES["K"]) == messages.CommitPrepared(
        position=10, end_position=20, commit_time_us=time, xid=77, gid="gid"
    )
    assert parse(b"r" + BODIES["r"]) == messages.RollbackPrepared(
        prepare_end_position=10,
        rollback_end_position=20,
        prepare_time_us=time,
        rollback_time_us=time + 1,
        xid=77,
        gid="gid",
    )


def test_truncate_type_origin_and_logical_message() -> None:
    """Options are bits; a logical message's content may have any bytes."""
    parse = messages.parse_message
    assert parse(b"T" + BODIES["T"]) == messages.TruncateMessage(
        xid=None, cascade=True, restart_identity=True, source_ids=(16_400, 16_401)
    )
    assert parse(b"Y" + BODIES["Y"]) == messages.TypeMessage(
        xid=None, type_oid=16_500, schema="public", name="mood"
    )
    assert parse(b"O" + BODIES["O"]) == messages.OriginMessage(position=10, name="other")
    assert parse(b"M" + BODIES["M"]) == messages.LogicalMessage(
        xid=None, transactional=True, position=10, prefix="prefix", content=b"a\0b"
    )


def test_keepalive() -> None:
    """A keepalive has the server's position, and whether the server waits for an answer."""
    payload = b"k" + struct.pack(">QqB", 9, 5, 1)
    assert messages.keepalive(payload) == messages.Keepalive(
        position=9, server_time_us=POSTGRES_EPOCH_US + 5, reply_now=True
    )
    with pytest.raises(DecodeError):
        messages.keepalive(b"w" + payload[1:])


@pytest.mark.parametrize("kind", BODIES)
def test_every_shortened_message_is_a_decode_error(kind: str) -> None:
    """A message cut anywhere is refused, never read past its end."""
    body = BODIES[kind]
    for length in range(len(body)):
        with pytest.raises(DecodeError):
            messages.parse_message(kind.encode() + body[:length])


@pytest.mark.parametrize("kind", BODIES)
def test_bytes_behind_a_message_are_a_decode_error(kind: str) -> None:
    """Remaining bytes mean that the form was misread."""
    with pytest.raises(DecodeError):
        messages.parse_message(kind.encode() + BODIES[kind] + b"\0")


def test_broken_text_count_identity_and_kind_are_decode_errors() -> None:
    """Lengths from the wire never lead to reading or allocating more than there is."""
    parse = messages.parse_message
    for broken in (
        b"",
        b"?",
        b"O" + struct.pack(">Q", 1) + b"\xff\0",
        b"T" + struct.pack(">IB", 2**32 - 1, 0),
        b"M" + struct.pack(">BQ", 0, 1) + b"\0" + struct.pack(">I", 2**32 - 1),
        b"R" + RELATION.replace(b"\0d\0", b"\0z\0"),
    ):
        with pytest.raises(DecodeError) as caught:
            parse(broken)
        assert caught.value.code == "DC01"
        assert caught.value.offset >= 0
