"""Numbers in text from outside: limited, and never an error without a code."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from harness.pipelines.log import SOURCE, announced_batch
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.codec.mysql.json_diff import parse_path
from penstock.codec.mysql.malformed import Malformed
from penstock.codec.postgres.lsn import Lsn
from penstock.codec.postgres.pgoutput_messages import LogicalMessage
from penstock.codec.postgres.pgwire import server_message
from penstock.codec.postgres.pgwire_server import Refused
from penstock.codec.postgres.scram import ScramClient, ScramError
from penstock.engines.ignite.source.position import IgnitePosition
from penstock.engines.merged.position import MergedPosition
from penstock.engines.mysql.source.heartbeat import sent_us_in as savepoint_sent_us
from penstock.engines.postgres.source.heartbeat import PREFIX, sent_us_in
from penstock.log import Writer
from penstock.merge.inputs import InputPlace, MergeInput
from penstock.merge.order import Global
from penstock.model import FlushPoint, Marker, MarkerKind, PenstockError, Run
from penstock.model.change import GLOBAL_PREFIX
from penstock.model.whole_number import parse_whole
from penstock.serve.forms import stream_options

LONG = "9" * 5000  # more digits than int() accepts
ODD = ("", "-1", "+1", "1_0", " 1", "1 ", "²", "١", "1.0", "0x1")


@pytest.mark.parametrize("text", [*ODD, LONG, "11"])
def test_what_is_no_number_in_range_is_none(text: str) -> None:
    """Only ASCII digits count, however many there are: ValueError is never raised."""
    assert parse_whole(text, 10) is None
    assert parse_whole(text, 10, otherwise=7) == 7


def test_zeros_in_front_do_not_count() -> None:
    """Leading zeros do not use up digits."""
    assert parse_whole("0" * 5000 + "12") == 12
    assert parse_whole("000") == 0
    assert parse_whole("9223372036854775807") == 2**63 - 1
    assert parse_whole("9223372036854775808") is None


def beat(content: str) -> LogicalMessage:
    """Return a message that any user of a source can write."""
    return LogicalMessage(
        xid=None, transactional=True, position=1, prefix=PREFIX, content=content.encode()
    )


def test_a_user_of_a_source_writes_a_heartbeat_that_is_none() -> None:
    """The log would have a number that no reader accepts."""
    assert sent_us_in(beat("s 17"), "s") == 17
    for text in (*ODD, LONG, "9" * 20):
        assert sent_us_in(beat(f"s {text}"), "s") is None
    assert savepoint_sent_us(b"penstock_heartbeat_7_17", 7) == 17
    assert savepoint_sent_us(b"penstock_heartbeat_7_" + LONG.encode(), 7) is None


@pytest.mark.parametrize("text", [LONG, "²", "1_0"])
@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda text: BinlogPosition.parse(f"binlog.000001:{text}"), PenstockError),
        (lambda text: BinlogPosition.parse(f"binlog.{text}:4"), PenstockError),
        (lambda text: IgnitePosition.parse(f"{text}/1"), PenstockError),
        (lambda text: IgnitePosition.parse(f"1/{text}"), PenstockError),
        (MergedPosition.parse, PenstockError),
        (lambda text: Lsn.parse(f"{text}/1"), PenstockError),
        (lambda text: Lsn.parse(f"1/{text}"), PenstockError),
        (lambda text: parse_path(f"$[{text}]"), Malformed),
        (lambda text: stream_options("pgoutput", {"proto_version": text}), Refused),
    ],
)
def test_positions_and_options_are_refused_with_a_code(
    read: Callable[[str], Any], error: type[Exception], text: str
) -> None:
    """A command, a client or a file has them."""
    with pytest.raises(error):
        read(text)


def test_a_server_says_numbers_that_are_none() -> None:
    """The place of an error is omitted; a challenge is refused."""
    for text in (LONG, "²"):
        said = server_message(b"SERROR\0C42601\0Mno\0P" + text.encode() + b"\0\0")
        assert (said.position, said.message) == (0, "no")
    client = ScramClient("secret")
    nonce = re.search(rb"r=([^,]+)", client.first())
    assert nonce is not None
    with pytest.raises(ScramError, match="iteration count"):
        client.final(b"r=" + nonce[1] + b"x,s=c2FsdA==,i=" + LONG.encode())


def test_no_number_is_checked_by_its_characters_alone() -> None:
    """`isdigit` accepts superscripts, and any number of digits."""
    pattern = re.compile(
        r"\bint\((\w+)\).*\b\1\.is(?:digit|decimal)\(|is(?:digit|decimal)\(\).*int\("
    )
    root = Path(penstock.__file__).parent
    found = [
        f"{path.relative_to(root)}:{number}"
        for path in sorted(root.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    # Ports of the pipeline file, where ValueError is expected; digits of a file's first 20 bytes;
    # places that this program printed itself; a group's number, one digit of a replacement.
    allowed = ("model/sections.py", "ports/", "host/files.py", "host/faults.py")
    allowed += ("serve/catalog/binder.py", "serve/catalog/patterns.py")
    assert [one for one in found if not one.startswith(allowed)] == []


def test_a_merge_reads_a_message_of_a_global_transaction_of_too_many_parts(tmp_path: Path) -> None:
    """Any user of a source can write its prefix, so it must not stop the merge."""
    prefix = f"{GLOBAL_PREFIX}/{LONG}"
    marker = Marker(
        kind=MarkerKind.MESSAGE,
        gsn=0,
        trx=1,
        position=100,
        commit_time_us=1,
        data={"prefix": prefix, "transactional": True, "content": "transfer"},
    )
    end = FlushPoint(position=150, trx=1, commit_time_us=1)
    with Writer.open(tmp_path / "log", log_id=None, source=SOURCE) as writer:
        writer.write(Run(markers=(marker,), transactions=announced_batch([1]), end=end))
        writer.flush()
        place = InputPlace(name="a", log=tmp_path / "log", links=tmp_path / "cdc")
        found = MergeInput(place, trx=0, number=0, log_id=writer.log_id)
        chunk = found.read()
        found.close()
    assert chunk is not None
    assert chunk.globals == {1: Global(id="transfer", parts=0)}
