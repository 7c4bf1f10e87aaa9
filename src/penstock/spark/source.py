"""Data source `ckt`: the schema of a table's changes, and the reading of a batch.

Spark makes the source in a process of its own, pickles it, and plans and reads in others. So what
the data frame shows is fixed when its schema is asked for: the shape of the rows, and the end.
Not here: streams (`stream.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import DataType, StructType

from penstock.control.pipeline.diagnostics import keep_quiet
from penstock.control.status.log_view import find_log, read_log
from penstock.log.change_tables import ChangeShape
from penstock.log.changes import ChangeLog, TableNotInLog
from penstock.log.layout import SegmentMissing
from penstock.log.links import LogPlace
from penstock.log.scan import Scan, ScanShape
from penstock.model import PenstockError
from penstock.model.layout import PipelineLayout
from penstock.spark.options import OptionInvalid, Options
from penstock.spark.reading import group_parts, read_segments, spark_schema, telling
from penstock.spark.stream import CktStreamReader, Streaming, load_shape


class SchemaGiven(PenstockError):
    """Error: a schema was given to the format `ckt`, whose schema comes from the log."""

    code = "SK02"
    retry = "never"


class CktSource(DataSource):
    """Data source of one data frame or stream. Attribute options: as the user wrote them."""

    def __init__(self, options: dict[str, str]) -> None:
        """Keep the options."""
        super().__init__(options)
        keep_quiet()  # a worker of Spark would print the log lines
        self._scan: Scan | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ckt"

    def schema(self) -> StructType:
        """Return the schema of the changes in the log. Raises the errors of `ChangeLog.scan`."""
        with telling():
            return spark_schema(self._find_scan().shape)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of what was in the log when the data frame was made.

        Raises SchemaGiven, and OptionInvalid for an option of streams.
        """
        with telling():
            scan = self._find_scan()
            if self._parse().consumer is not None:
                raise OptionInvalid(
                    "the option consumer is for streams",
                    hint="Leave it out, or use readStream.",
                    option="consumer",
                )
            _check_schema(schema, scan.shape)
            return CktReader(scan)

    def streamReader(self, schema: StructType) -> CktStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream. Raises StreamUnnamed, SchemaGiven."""
        with telling():
            options = self._parse()
            scan = self._find_scan()
            _check_schema(schema, scan.shape)
            return CktStreamReader(Streaming.of(scan, options, _find_place(options)))

    def _parse(self) -> Options:
        return Options.parse(dict(self.options))

    def _find_scan(self) -> Scan:
        if self._scan is None:
            options = self._parse()
            plan = plan_batch if options.consumer is None else plan_stream
            self._scan = plan(options)
        return self._scan


class CktReader(DataSourceReader):
    """Reader of a batch: partitions are groups of segments."""

    def __init__(self, scan: Scan) -> None:
        """Keep the plan."""
        self._scan = scan

    def partitions(self) -> Sequence[InputPartition]:
        """Return the groups; one without segments if nothing was requested."""
        return group_parts(self._scan.parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a group. Raises SegmentMissing, SegmentCorrupt."""
        with telling():
            yield from read_segments(self._scan, partition.value)


def plan_batch(options: Options) -> Scan:
    """Return the plan of what the options ask for. Raises the errors of `read_log` and `scan`."""
    log = open_log(options)
    if options.table is None:
        return log.scan_all(splits=options.splits)
    return log.scan(options.table, columns=options.column_names, splits=options.splits)


def plan_stream(options: Options) -> Scan:
    """Return the plan of a stream, whose shape also has what the stream had when it last ran.

    Then the log needs no row of the table: earlier ones may be removed by now.
    Raises the errors of `read_log` and `scan`.
    """
    log = open_log(options)
    if options.table is None:
        return log.scan_later(splits=options.splits)
    saved = load_shape(_find_place(options).consumers / str(options.consumer))
    if saved is None:
        return log.scan(options.table, columns=options.column_names, splits=options.splits)
    table, shape = saved
    shape = shape.only(options.column_names)
    try:
        scan = log.scan(options.table, columns=options.column_names, splits=options.splits)
    except (TableNotInLog, SegmentMissing):
        return log.scan_later(table, shape, splits=options.splits)
    assert isinstance(scan.shape, ChangeShape), "it is of one table"
    return replace(scan, shape=shape.join(scan.shape))


def open_log(options: Options) -> ChangeLog:
    """Return the log. Raises the errors of `read_log`."""
    return read_log(
        options.path,
        tables=() if options.table is not None else options.patterns,
        since=options.since,
        until=options.until,
        gsn_after=options.gsnAfter,
        gsn_through=options.gsnThrough,
    )


def _find_place(options: Options) -> LogPlace:
    """Return the log with its consumers' directories.

    Raises OptionInvalid for a directory that is not a pipeline's.
    """
    found = find_log(Path(options.path))
    layout = PipelineLayout(root=found.directory.parent)
    if layout.log != found.directory:
        raise OptionInvalid(
            f"{found.directory} is not the log of a pipeline, so a stream cannot be its consumer",
            hint="Name the pipeline's directory or its file; a batch (spark.read) reads any "
            "directory of segments.",
            option="path",
        )
    return LogPlace(log=found.directory, consumers=layout.consumers, extension=found.extension)


def _check_schema(given: StructType, shape: ScanShape) -> None:
    expected = spark_schema(shape)
    if _kinds(given) != _kinds(expected):
        raise SchemaGiven(
            "the schema differs from that of the log",
            hint='Leave .schema(...) out; choose columns with .option("columns", "id, name").',
        )


def _kinds(schema: StructType) -> list[tuple[str, DataType]]:
    return [(one.name, one.dataType) for one in schema]
