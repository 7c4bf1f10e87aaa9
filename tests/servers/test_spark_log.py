"""The format `ckt` in a real Spark: batches, streams that go on after a stop, segments kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import penstock
from harness.pipelines.log import (
    ITEM,
    ITEM_2,
    Change,
    inserts,
)
from harness.pipelines.log_steps import log_at
from penstock.load.session import Session
from penstock.log import list_segments
from penstock.model import Op

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    # PySpark leaves the socket of its rows to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NAME = "copy"


@pytest.fixture
def session(spark: Session) -> SparkSession:
    """A session of the shared Spark."""
    assert spark is not None
    return SparkSession(SparkContext.getOrCreate())


def read(session: SparkSession, root: Path, **options: Any) -> DataFrame:
    """Return the changes of the table as a batch."""
    return session.read.format("ckt").options(table="public.item", **options).load(os.fspath(root))


class Copy:
    """A stream into a folder of Parquet files, which is run until it has everything."""

    def __init__(self, session: SparkSession, root: Path, **options: Any) -> None:
        self._session, self._root = session, root
        self._options = {"table": "public.item", "consumer": NAME, "start": "beginning"} | options
        self._out = root / "out"

    def run(self) -> None:
        """Run the query once. Raises what it fails with."""
        query = (
            self._session.readStream.format("ckt")
            .options(**self._options)
            .load(os.fspath(self._root))
            .writeStream.format("parquet")
            .option("checkpointLocation", os.fspath(self._root / "checkpoint"))
            .trigger(availableNow=True)
            .start(os.fspath(self._out))
        )
        query.awaitTermination()

    def rows(self) -> list[tuple[int, str]]:
        """Return number and kind of all changes that were copied, in order."""
        frame = self._session.read.option("mergeSchema", True).parquet(os.fspath(self._out))
        found = frame.select("_trx", "_gsn", "_op").collect()
        return [(row["_gsn"], row["_op"]) for row in sorted(found)]

    @property
    def links(self) -> list[int]:
        """Return the segments that are kept for it."""
        return [file.number for file in list_segments(self._root / "cdc" / NAME)]


def test_a_batch_has_the_log_with_types(session: SparkSession, tmp_path: Path) -> None:
    """Filters of Spark give what they should, whatever was asked before; limits are options."""
    with log_at(tmp_path) as log:
        log.write(inserts(10), [Change(relation=ITEM_2, op=Op.INSERT, after=(90, "x", None))])
        log.rotate()
        log.write([Change(relation=ITEM, op=Op.UPDATE, after=(5, None), before=(4,))])
        frame = read(session, tmp_path)
        assert frame.where("id > 7").count() == 3
        assert frame.count() == 12, "a filter that is pushed down would stay"
        assert frame.where("id > 7").union(frame.where("id > 3")).count() == 3 + 8
        assert read(session, tmp_path, gsnAfter=10, columns="note").columns == [
            *("_gsn", "_trx", "_position", "_commit_time", "_op", "_absent", "_sent"),
            *("note", "_before"),
        ]
        assert read(session, tmp_path, gsnAfter=10).count() == 2
        assert read(session, tmp_path, keyChanges="split").where("_op = 'delete'").count() == 1
        through_python = penstock.read_log(tmp_path).to_spark(session, "public.item")
        assert through_python.drop("_sent").collect() == frame.drop("_sent").collect()
        every = session.read.format("ckt").load(os.fspath(tmp_path))
        assert every.where("_table = 'public.item'").count() == 12


def test_wrong_options_are_told_with_the_next_step(session: SparkSession, tmp_path: Path) -> None:
    """The hint is in what Spark shows."""
    with log_at(tmp_path) as log:
        log.write(inserts(1))
        for options, told in (
            ({"colums": "id"}, "next: Write one of: columns"),
            ({"consumer": "x"}, "next: Leave it out"),
        ):
            with pytest.raises(AnalysisException, match=told):
                read(session, tmp_path, **options).collect()


def test_a_stream_copies_each_change_once(session: SparkSession, tmp_path: Path) -> None:
    """Started again it goes on; the segments that it needs are kept, and only those."""
    with log_at(tmp_path) as log:
        log.write(inserts(2))
        copy = Copy(session, tmp_path)
        copy.run()
        assert copy.rows() == [(1, "insert"), (2, "insert")]
        log.truncate()
        copy.run()
        assert copy.rows()[2:] == [(2, "truncate")], "it has the number of the row before"
        log.rotate()
        log.write(inserts(1, first=2))
        log.rotate()
        log.write(inserts(1, first=3))
        log.rotate()
        log.remove()
        assert copy.links == [0, 1, 2], "what it has not committed is kept for it"
        copy.run()
        expected = [(1, "insert"), (2, "insert"), (2, "truncate"), (3, "insert"), (4, "insert")]
        assert copy.rows() == expected
        log.write(inserts(1, first=4))
        copy.run()
        assert copy.rows() == [*expected, (5, "insert")]
        assert copy.links == []
        copy.run()
        assert copy.rows() == [*expected, (5, "insert")]


def test_a_stream_stops_at_a_change_of_shape(session: SparkSession, tmp_path: Path) -> None:
    """Started again it has the new column; nothing is lost or doubled."""
    with log_at(tmp_path) as log:
        log.write(inserts(1))
        copy = Copy(session, tmp_path)
        copy.run()
        log.write([Change(relation=ITEM_2, op=Op.INSERT, after=(7, "x", None))])
        log.rotate()
        log.remove()
        # The schema of a query is that of its start: this one is asked for before the change.
        with pytest.raises(Exception, match=r"got another shape.*price"):
            copy.run()
        copy.run()
        assert copy.rows() == [(1, "insert"), (2, "insert")]


def test_a_stream_without_a_name_is_refused(session: SparkSession, tmp_path: Path) -> None:
    """Segments would not be kept for it."""
    with log_at(tmp_path) as log:
        log.write(inserts(1))
        copy = Copy(session, tmp_path, consumer="")
        with pytest.raises(Exception, match="a stream is a consumer of the log"):
            copy.run()
