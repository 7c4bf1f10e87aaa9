"""Rows of a scan as Spark takes them: its types, partitions, and errors with their hints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.log import change_tables
from penstock.log.scan import Part, Scan, ScanShape
from penstock.model import PenstockError

PARTITION_BYTES = 16 * 2**20
BATCH_ROWS = 65_536


def spark_schema(shape: ScanShape) -> StructType:
    """Return a shape's schema with Spark's types."""
    empty = change_tables.for_spark(shape.schema.empty_table())
    return from_arrow_schema(empty.schema, prefer_timestamp_ntz=True)


def group_parts(parts: Sequence[Part]) -> list[InputPartition]:
    """Return groups of consecutive segments, by size; at least one."""
    groups: list[list[int]] = [[]]
    size = 0
    for part in parts:
        if groups[-1] and size + part.size_bytes > PARTITION_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(part.number)
        size += part.size_bytes
    return [InputPartition(tuple(group)) for group in groups]


def read_segments(scan: Scan, numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield the changes of segments with Spark's types."""
    for number in numbers:
        for table in scan.read(number):
            yield from change_tables.for_spark(table).to_batches(max_chunksize=BATCH_ROWS)


@contextmanager
def telling() -> Iterator[None]:
    """Let an error of this project show its hint: Spark prints no more than a traceback."""
    try:
        yield
    except PenstockError as error:
        error.add_note(f"next: {error.hint}")
        raise
