"""Rows of a chunk of the source, in the log's shape, whichever way the engine has.

Batches where the engine decodes them itself, otherwise lines that are converted in Python. The base
and targets that keep rows in files read a chunk by it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.codec.columns import after_type
from penstock.codec.copy_rows import cells_of, inserts
from penstock.codec.lines import LineDialect
from penstock.model import Relation
from penstock.ports.bulk import BulkReader, ChunkTask, ShapedRows


def read_rows(
    reader: BulkReader, task: ChunkTask, relation: Relation, dialect: LineDialect
) -> Iterator[ShapedRows]:
    """Yield the rows of a chunk. Raises the errors of the reader.

    A value that its column's type cannot hold makes the column text, in a new version of the
    relation.

    Args:
        reader: session in the plan's snapshot.
        task: the chunk.
        relation: the table in the log, with the columns of the chunk in order.
        dialect: of the lines, if the engine has only those.
    """
    batches = reader.batches(task, relation)
    return _from_lines(reader, task, relation, dialect) if batches is None else batches


def _from_lines(
    reader: BulkReader, task: ChunkTask, relation: Relation, dialect: LineDialect
) -> Iterator[ShapedRows]:
    for block in reader.lines(task, dialect):
        columns = cells_of(block, len(relation.columns))
        count = len(columns[0]) if columns else block.count(b"\n")
        rows = inserts(relation, columns, count, gsn=1, trx=1, dialect=dialect)
        relation = rows.relation
        values = rows.batch.column("after").flatten()
        schema = pa.schema(list(after_type(relation)))
        yield ShapedRows(relation, pa.RecordBatch.from_arrays(values, schema=schema))
