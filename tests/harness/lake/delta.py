"""Delta for tests: files as workers write them, and readers of other makes.

Files are written here with pyarrow and the codec of deletion vectors alone, so that a test of
commits does not depend on penstock's writer.
"""

from __future__ import annotations

import gc
import json
import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable as RustTable
from deltalake import QueryBuilder
from pyspark.sql import SparkSession

from penstock.codec.lake.deletion_vectors import bin_name, inline_vector, make_bin
from penstock.codec.lake.z85 import decode_z85
from penstock.engines.lake.format import (
    ColumnStatistics,
    Commit,
    DeleteForm,
    DeletionRef,
    LakeColumn,
    LakeTable,
    Mark,
    NewDeletes,
    NewFile,
)
from penstock.load.session import Session


def mark_at(gsn: int, log_id: str = "a-log") -> Mark:
    """Return the mark of a batch."""
    return Mark(
        log_id=log_id,
        segment=gsn // 10,
        gsn=gsn,
        trx=gsn,
        position=gsn * 100,
        commit_time_us=gsn * 1_000_000,
    )


def write_file(table: LakeTable, rows: pa.Table, columns: Sequence[LakeColumn]) -> NewFile:
    """Write a data file of a table."""
    by_name = {column.name: column for column in columns}
    fields = []
    for field in rows.schema:
        column = by_name[field.name]
        ids = {"PARQUET:field_id": str(column.field_id)} if column.field_id else None
        fields.append(pa.field(column.file_name, field.type, metadata=ids))
    path = Path(table.data_folder) / f"{uuid.uuid4()}.parquet"
    pq.write_table(pa.Table.from_arrays(rows.columns, schema=pa.schema(fields)), path)
    return NewFile(
        location=str(path),
        size_bytes=path.stat().st_size,
        row_count=rows.num_rows,
        statistics={name: _statistics(rows.column(name)) for name in rows.column_names},
    )


def _statistics(values: pa.ChunkedArray) -> ColumnStatistics:
    nans = 0
    if pa.types.is_floating(values.type):
        nans = pc.sum(pc.is_nan(values)).as_py() or 0
        values = values.filter(pc.invert(pc.is_nan(values)))
    low = high = None
    if len(values) > values.null_count:
        low, high = pc.min(values).as_py(), pc.max(values).as_py()
    return ColumnStatistics(
        low=low,
        high=high,
        null_count=values.null_count,
        nan_count=nans,
        value_count=len(values) + nans,
    )


def delete_rows(
    table: LakeTable, positions: Mapping[str, Sequence[int]], *, is_inline: bool = False
) -> tuple[NewDeletes, ...]:
    """Write all deleted positions of data files. positions: by name of a data file."""
    sets = [(name, np.array(sorted(places), np.int64)) for name, places in positions.items()]
    if is_inline:
        return tuple(_delete_inline(name, places) for name, places in sets)
    number = uuid.uuid4()
    content, vectors = make_bin(number, [places for _, places in sets])
    path = Path(table.deletes_folder) / bin_name(number)
    path.write_bytes(content)
    return tuple(
        NewDeletes(
            name=name,
            ref=DeletionRef(
                form=DeleteForm.DELTA,
                location=str(path),
                offset=vector.offset or 0,
                size_bytes=vector.size_bytes,
                cardinality=vector.count,
            ),
            file_size_bytes=len(content),
        )
        for (name, _), vector in zip(sets, vectors, strict=True)
    )


def _delete_inline(name: str, places: Any) -> NewDeletes:
    vector = inline_vector(places)
    ref = DeletionRef(
        form=DeleteForm.DELTA,
        size_bytes=vector.size_bytes,
        cardinality=vector.count,
        inline=decode_z85(vector.text, vector.size_bytes),
    )
    return NewDeletes(name=name, ref=ref)


def append(table: LakeTable, rows: pa.Table, gsn: int) -> NewFile:
    """Commit a file of rows as the batch that ends at a gsn; return it."""
    snapshot = table.snapshot()
    file = write_file(table, rows, snapshot.columns)
    table.commit(Commit(base_version=snapshot.version, adds=(file,), mark=mark_at(gsn)))
    return file


# -- reading ---------------------------------------------------------------------------------------


def read_rust(table: LakeTable, where: str = "") -> pa.Table:
    """Return the rows as delta-rs reads them. where: condition, by which files may be skipped."""
    builder = QueryBuilder().register("t", RustTable(table.location))
    query = "select * from t" + (f" where {where}" if where else "")
    return with_plain_types(pa.table(builder.execute(query).read_all()))


def read_polars(table: LakeTable) -> pa.Table:
    """Return the rows as polars reads them. It does not find folders that are encoded in URIs."""
    return with_plain_types(polars.scan_delta(table.location).collect().to_arrow())


def read_spark(session: Session, table: LakeTable, where: str = "") -> pa.Table:
    """Return the rows as Spark reads them. where: see `read_rust`."""
    spark = SparkSession(session._context, session.spark)
    with warnings.catch_warnings():
        # pyspark leaves the closing of its local sockets to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        frame = spark.read.format("delta").load(table.location)
        found = (frame.where(where) if where else frame).toArrow()
        gc.collect()
    return with_plain_types(found)


def with_plain_types(rows: pa.Table) -> pa.Table:
    """Return rows with one type for each kind of value, whatever a reader names it."""
    fields = []
    for field in rows.schema:
        kind = field.type
        if pa.types.is_timestamp(kind):
            kind = pa.timestamp("us", tz="UTC" if kind.tz else None)
        elif pa.types.is_decimal(kind):
            kind = pa.decimal128(kind.precision, kind.scale)
        elif "string" in str(kind):
            kind = pa.string()
        elif "binary" in str(kind):
            kind = pa.binary()
        fields.append(pa.field(field.name, kind))
    return rows.cast(pa.schema(fields))


def read_all(table: LakeTable, session: Session | None = None) -> dict[str, pa.Table]:
    """Return the rows as each reader reads them, by its name; as Spark does with a session.

    Polars reads no table with column mapping or type widening, delta-rs none with type widening.
    """
    features = table.snapshot(refresh=True).features
    found = {}
    if "typeWidening" not in features:
        found["delta-rs"] = read_rust(table)
    if not features & {"typeWidening", "columnMapping"}:
        found["polars"] = read_polars(table)
    if session is not None or not found:
        assert session is not None, "only Spark reads type widening"
        found["spark"] = read_spark(session, table)
    return found


def read_actions(table: LakeTable, version: int) -> list[dict[str, Any]]:
    """Return the actions of a version in the log."""
    path = Path(table.location) / "_delta_log" / f"{version:020d}.json"
    return [json.loads(line) for line in path.read_text().splitlines()]


def run_sql(session: Session, table: LakeTable, statement: str) -> None:
    """Run a statement of Spark's SQL, as another writer. statement: has {} for the table."""
    session.spark.sql(statement.format(f"delta.`{table.location}`")).collect()
