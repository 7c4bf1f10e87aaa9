"""Messages that are not rows: written, then read by the parsers of the other end."""

from __future__ import annotations

import pytest

from harness.twins.pgoutput import COMMIT_TIME_US, column, relation
from harness.twins.pgoutput import begin as begin_frame
from harness.twins.pgoutput import commit as commit_frame
from penstock.codec.postgres import pgoutput_write as write
from penstock.codec.postgres.pgoutput_messages import (
    Keepalive,
    LogicalMessage,
    RelationColumn,
    RelationMessage,
    TruncateMessage,
    keepalive,
    parse_message,
)
from penstock.codec.postgres.pgoutput_outcome import POSTGRES_EPOCH_US
from penstock.codec.postgres.pgtypes import wire_type
from penstock.model import Column, Identity

NO_TIME = POSTGRES_EPOCH_US  # the time in frames of the builders


def make_column(source_type: str, **more: object) -> Column:
    """Return a column of a type as it is printed."""
    return column("c", "string", source_type=source_type, **more)


def test_begin_and_commit_are_those_of_a_server() -> None:
    """Both are in frames at the position that the builders have."""
    began = write.begin(100, COMMIT_TIME_US, 7)
    assert write.xlog_data(began, 1, NO_TIME) == begin_frame()
    ended = write.commit(100, 150, COMMIT_TIME_US)
    assert write.xlog_data(ended, 1, NO_TIME) == commit_frame()


@pytest.mark.parametrize("xid", [None, 0, 2**32 - 1])
@pytest.mark.parametrize("identity", Identity)
def test_relation(identity: Identity, xid: int | None) -> None:
    """Flags mark the identity: all columns with FULL, none with NOTHING."""
    before = {Identity.FULL: (0, 1), Identity.NOTHING: ()}.get(identity, (1,))
    shape = relation(
        column("größe", "string", source_type="text"),
        column("n", "decimal(10,2)", source_type="numeric(10,2)"),
        before=before,
        identity=identity,
    )
    found = parse_message(write.relation(shape, 2**32 - 1, xid=xid), streamed=xid is not None)
    assert found == RelationMessage(
        xid=xid,
        source_id=2**32 - 1,
        schema="public",
        name="t",
        identity=identity.value,
        columns=(
            RelationColumn(int(0 in before), "größe", 25, -1),
            RelationColumn(int(1 in before), "n", 1700, 0x000A0006),
        ),
    )


def test_a_name_with_a_zero_byte_is_refused() -> None:
    """A zero byte would end the name and shift all later bytes."""
    with pytest.raises(ValueError, match="zero byte"):
        write.relation(relation(column("a\0b", "int64")), 1)


@pytest.mark.parametrize("xid", [None, 9])
@pytest.mark.parametrize(("cascade", "restart"), [(False, False), (True, False), (False, True)])
def test_truncate(cascade: bool, restart: bool, xid: int | None) -> None:
    """The message may have several tables, or none."""
    for ids in ((), (1, 2**32 - 1)):
        message = write.truncate(ids, cascade=cascade, restart_identity=restart, xid=xid)
        assert parse_message(message, streamed=xid is not None) == TruncateMessage(
            xid=xid, cascade=cascade, restart_identity=restart, source_ids=ids
        )


@pytest.mark.parametrize("xid", [None, 9])
@pytest.mark.parametrize("transactional", [True, False])
def test_logical(transactional: bool, xid: int | None) -> None:
    """The content may be any bytes."""
    message = write.logical("é", b"\0\xff", 5, transactional=transactional, xid=xid)
    assert parse_message(message, streamed=xid is not None) == LogicalMessage(
        xid=xid, transactional=transactional, position=5, prefix="é", content=b"\0\xff"
    )


@pytest.mark.parametrize("reply_now", [True, False])
def test_keepalive(reply_now: bool) -> None:
    """The frame's length and content are right."""
    frame = write.keepalive(2**64 - 1, COMMIT_TIME_US, reply_now=reply_now)
    assert frame[:1] == b"d"
    assert int.from_bytes(frame[1:5]) == len(frame) - 1
    assert keepalive(frame[5:]) == Keepalive(
        position=2**64 - 1, server_time_us=COMMIT_TIME_US, reply_now=reply_now
    )


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (make_column("bigint", type_oid=20), (20, -1)),
        (make_column("numeric(12,2)", type_oid=1700, typmod=786438), (1700, 786438)),
        (make_column("numeric(12,2)"), (1700, 786438)),
        (make_column("numeric(5,-2)"), (1700, (5 << 16 | 0x7FE) + 4)),
        (make_column("numeric"), (1700, -1)),
        (make_column("character varying(7)"), (1043, 11)),
        (make_column("character(7)"), (1042, 11)),
        (make_column("timestamp(3) with time zone"), (1184, 3)),
        (make_column("timestamp(0) without time zone"), (1114, 0)),
        (make_column("timestamp with time zone"), (1184, -1)),
        (make_column("interval(6)"), (1186, 0x7FFF0006)),
        (make_column("bit(5)"), (1560, 5)),
        (make_column("bytea"), (17, -1)),
        (make_column("public.mood", type_oid=16_400), (25, -1)),
        (make_column("public.price", type_oid=16_401, base_type="numeric(12,2)"), (1700, 786438)),
        (make_column("integer[]"), (25, -1)),
        (make_column("tinyint(1)"), (25, -1)),
    ],
    ids=lambda value: value.source_type if isinstance(value, Column) else "",
)
def test_the_type_that_is_announced(one: Column, expected: tuple[int, int]) -> None:
    """The type is the one in a server's catalogue; a type that a client cannot know is text."""
    assert wire_type(one) == expected
