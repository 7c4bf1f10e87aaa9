"""Offsets and partitions of a stream of the format `ckt`, as Spark asks for them, without a JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from harness.pipelines.log import ITEM_2, Change, inserts
from harness.pipelines.log_steps import Log, log_at
from penstock.consume.lock import ConsumerLocked
from penstock.host.state_of_log import StateOfOtherLog
from penstock.log import list_segments
from penstock.model import Op
from penstock.spark import stream as streams
from penstock.spark.options import OptionInvalid, Options
from penstock.spark.source import CktSource, SchemaGiven
from penstock.spark.stream import CktStreamReader, ShapeChanged, StreamUnnamed

NAME = "copy"


class Begin(Protocol):
    """Fixture `begin`."""

    def __call__(self, root: Path, **options: str) -> CktStreamReader:
        """Return the reader of a query that is started now."""
        ...


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Return the reader of a query that is started now; it ends with the test."""
    begun: list[CktStreamReader] = []

    def start(root: Path, **options: str) -> CktStreamReader:
        given = {"path": os.fspath(root), "table": "public.item", "consumer": NAME} | options
        source = CktSource({"start": "beginning"} | given)
        begun.append(source.streamReader(source.schema()))
        return begun[-1]

    yield start
    for reader in begun:
        reader.stop()


def read(reader: CktStreamReader, start: Any, end: Any) -> list[tuple[int, str]]:
    """Return number and kind of the changes of a micro-batch, in order."""
    found = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            columns = (batch.column(name).to_pylist() for name in ("_trx", "_gsn", "_op"))
            found += list(zip(*columns, strict=True))
    return [(gsn, op) for _, gsn, op in sorted(found)]


def list_links(root: Path) -> list[int]:
    """Return the segments that the consumer has links to."""
    return [file.number for file in list_segments(root / "cdc" / NAME)]


def follow(log: Log, reader: CktStreamReader) -> list[tuple[int, str]]:
    """Return the changes up to a stop in the middle of everything that can happen to a log."""
    start = reader.initialOffset()
    found = []
    steps = (
        lambda: log.write(inserts(2)),
        log.truncate,
        log.rotate,
        lambda: log.write(inserts(1, first=2), inserts(1, first=3)),
        log.rotate,
        log.remove,
        lambda: log.write(inserts(1, first=4)),
    )
    for step in steps:
        step()
        end = reader.latestOffset()
        found += read(reader, start, end)
        reader.commit(end)
        start = end
    return found


EVERYTHING = [
    *((1, "insert"), (2, "insert"), (3, "insert"), (3, "truncate")),
    *((4, "insert"), (5, "insert"), (6, "insert")),
]


def test_each_change_is_in_one_micro_batch(begin: Begin, tmp_path: Path) -> None:
    """A truncate has the number of the row before it, and is a transaction of its own."""
    with log_at(tmp_path) as log:
        log.write(inserts(1, first=-1))
        reader = begin(tmp_path)
        assert follow(log, reader) == EVERYTHING
        assert list_links(tmp_path) == []


def test_a_micro_batch_can_be_read_again(begin: Begin, tmp_path: Path) -> None:
    """Later changes are not in it, wherever its segments are by then."""
    with log_at(tmp_path) as log:
        log.write(inserts(1))
        reader = begin(tmp_path)
        start = reader.initialOffset()
        end = reader.latestOffset()
        log.truncate()
        log.write(inserts(1, first=1))
        log.rotate()
        log.remove()
        assert list_links(tmp_path) == [0]
        assert read(reader, start, end) == [(1, "insert")]


def test_segments_are_kept_until_their_changes_are_committed(begin: Begin, tmp_path: Path) -> None:
    """The segment of the offset is kept: it may have more."""
    with log_at(tmp_path) as log:
        log.write(inserts(1))
        reader = begin(tmp_path)
        reader.initialOffset()
        log.rotate()
        log.write(inserts(1, first=1))
        end = reader.latestOffset()
        log.write(inserts(1, first=2))
        log.rotate()
        reader.commit(end)
        assert list_links(tmp_path) == [1]


@pytest.mark.parametrize("is_truncated", [False, True])
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_new_checkpoint_goes_on_where_the_consumer_was(
    begin: Begin, tmp_path: Path, *, is_truncated: bool, is_closed: bool
) -> None:
    """The offset of a consumer's position is the one that was committed."""
    with log_at(tmp_path) as log:
        log.write(inserts(1), inserts(1, first=1))
        if is_truncated:
            log.truncate()
        if is_closed:
            log.rotate()
        reader = begin(tmp_path)
        reader.initialOffset()
        end = reader.latestOffset()
        reader.commit(end)
        reader.stop()
        log.truncate()
        again = begin(tmp_path)
        assert again.initialOffset() == end
        assert read(again, end, again.latestOffset()) == [(2, "truncate")]


def test_a_new_stream_begins_now_unless_asked(begin: Begin, tmp_path: Path) -> None:
    """Changes that are in the log were before it."""
    with log_at(tmp_path) as log:
        log.write(inserts(1))
        reader = begin(tmp_path, start="now")
        start = reader.initialOffset()
        assert reader.partitions(start, reader.latestOffset()) == []
        log.write(inserts(1, first=1))
        assert read(reader, start, reader.latestOffset()) == [(2, "insert")]


def test_the_end_may_be_asked_for_before_the_start(begin: Begin, tmp_path: Path) -> None:
    """Spark does so: a change that is written between them is in the second micro-batch."""
    with log_at(tmp_path) as log:
        log.write(inserts(1))
        reader = begin(tmp_path, start="now")
        end = reader.latestOffset()
        log.write(inserts(1, first=1))
        start = reader.initialOffset()
        assert read(reader, start, end) == []
        assert read(reader, end, reader.latestOffset()) == [(2, "insert")]


def test_only_what_is_durable_is_read(begin: Begin, tmp_path: Path) -> None:
    """A row that a crash may take back is not in a micro-batch."""
    with log_at(tmp_path) as log:
        log.write(inserts(1))
        reader = begin(tmp_path)
        start = reader.initialOffset()
        log.write(inserts(1, first=1), is_durable=False)
        assert read(reader, start, reader.latestOffset()) == [(1, "insert")]


def test_a_checkpoint_of_another_log_is_refused(begin: Begin, tmp_path: Path) -> None:
    """Numbers mean nothing in another log."""
    with log_at(tmp_path / "one") as log:
        log.write(inserts(1))
        start = begin(tmp_path / "one").initialOffset()
    with log_at(tmp_path / "two") as log:
        log.write(inserts(1))
        reader = begin(tmp_path / "two")
        reader.initialOffset()
        with pytest.raises(StateOfOtherLog, match="the checkpoint of the stream"):
            reader.partitions(start, reader.latestOffset())


def test_one_process_is_the_consumer(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second stream of that name would release the segments of the first."""
    monkeypatch.setattr(streams, "LOCK_WAIT_S", 0.0)
    with log_at(tmp_path) as log:
        log.write(inserts(1))
        reader = begin(tmp_path)
        reader.initialOffset()
        with pytest.raises(ConsumerLocked):
            begin(tmp_path).latestOffset()
        reader.stop()
        begin(tmp_path).latestOffset()


def test_another_shape_stops_the_stream_until_it_is_started_again(
    begin: Begin, tmp_path: Path
) -> None:
    """The shape is kept beside the consumer: the log may have no row of the table by then."""
    with log_at(tmp_path) as log:
        log.write(inserts(1))
        reader = begin(tmp_path)
        start = reader.initialOffset()
        log.write([Change(relation=ITEM_2, op=Op.INSERT, after=(7, "x", None))])
        log.rotate()
        log.remove()
        with pytest.raises(ShapeChanged, match="price"):
            reader.partitions(start, reader.latestOffset())
        reader.stop()
        again = begin(tmp_path)
        assert read(again, start, again.latestOffset()) == [(1, "insert"), (2, "insert")]


def test_options_are_checked() -> None:
    """A typo, a wrong value or a missing one is named with what to write."""
    wrong = (
        ({"path": "x", "tabel": "t"}, "no option tabel"),
        ({"table": "t"}, "needs a path"),
        ({"path": "x", "columns": "a"}, "needs the option table"),
        ({"path": "x", "gsnAfter": "²"}, "not a number"),
        ({"path": "x", "keyChanges": "both"}, "keyChanges is 'both'"),
        ({"path": "x", "start": "snapshot"}, "start is 'snapshot'"),
        ({"path": "x", "table": "t", "columns": '["a"'}, "not a JSON array"),
    )
    for given, told in wrong:
        with pytest.raises(OptionInvalid, match=told):
            assert Options.parse(given).column_names is not None
    odd = Options.parse({"PATH": "x", "Table": "t", "columns": '["a, b", "c"]'})
    assert odd.column_names == ("a, b", "c")


def test_a_stream_needs_a_name_and_a_pipeline(begin: Begin, tmp_path: Path) -> None:
    """Segments are kept for a consumer only, and a directory of segments has none."""
    with log_at(tmp_path) as log:
        log.write(inserts(1))
        with pytest.raises(StreamUnnamed):
            begin(tmp_path, consumer="")
        (tmp_path / "log").rename(tmp_path / "segments")
        with pytest.raises(OptionInvalid, match="not the log of a pipeline"):
            begin(tmp_path / "segments")
        (tmp_path / "segments").rename(tmp_path / "log")


def test_a_schema_of_the_user_must_be_that_of_the_log(tmp_path: Path) -> None:
    """Another one would read other columns than it names."""
    with log_at(tmp_path) as log:
        log.write(inserts(1))
        source = CktSource({"path": os.fspath(tmp_path), "table": "public.item"})
        schema = source.schema()
        source.reader(schema)
        del schema.fields[-1]
        del schema.names[-1]
        with pytest.raises(SchemaGiven):
            source.reader(schema)


def test_a_worker_prints_no_log_lines() -> None:
    """Spark's Python workers share the program's output, which has no line of penstock's log."""
    program = (
        "import structlog; from penstock.spark.source import CktSource; CktSource({}); "
        "structlog.get_logger().info('consumer registered')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout + done.stderr == ""
