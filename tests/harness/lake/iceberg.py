"""Iceberg for tests: catalogues, files as workers write them, and readers of other makes.

Files are written here with pyarrow and the codec of deletions alone, so that a test of commits does
not depend on penstock's writer.
"""

from __future__ import annotations

import itertools
import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import numpy as np
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from penstock.codec.lake.position_deletes import make_position_deletes
from penstock.codec.lake.puffin import make_puffin
from penstock.engines.iceberg.table import IcebergTable
from penstock.engines.lake.format import (
    ColumnStatistics,
    Commit,
    DeleteForm,
    DeletionRef,
    LakeColumn,
    Mark,
    NewDeletes,
    NewFile,
)
from penstock.load.session import Session

_SPARK = "spark.sql.catalog."
_numbers = itertools.count(1)


class Place:
    """Catalogue of Iceberg: its properties for penstock and for Spark.

    Attributes:
        name: The catalogue's name in Spark.
        namespace: The namespace that penstock's tables are in.
    """

    def __init__(self, properties: Mapping[str, str], namespace: str = "shop") -> None:
        """Name a catalogue. properties: as Iceberg spells them."""
        self.name = f"ice{next(_numbers)}"
        self.namespace = namespace
        self._properties = dict(properties)

    def url(self, format_version: int = 3) -> str:
        """Return the URL of a target in the catalogue."""
        query = {f"catalog.{name}": value for name, value in self._properties.items()}
        query["formatVersion"] = str(format_version)
        return f"iceberg://{self.name}/{self.namespace}?{urlencode(query, quote_via=quote)}"

    @property
    def warehouse(self) -> Path:
        """Folder of the tables."""
        return Path(self._properties["warehouse"].removeprefix("file://"))

    def sql_name(self, table: IcebergTable) -> str:
        """Return a table's name in Spark's SQL."""
        parts = (self.name, self.namespace, *table.name)
        return ".".join(f"`{part}`" for part in parts if part)

    def register(self, session: Session) -> None:
        """Make the catalogue known to Spark's SQL."""
        conf = session.spark.conf()
        conf.set(_SPARK + self.name, "org.apache.iceberg.spark.SparkCatalog")
        for name, value in {**self._properties, "cache-enabled": "false"}.items():
            conf.set(f"{_SPARK}{self.name}.{name}", value)


def hadoop_place(folder: Path) -> Place:
    """Return a catalogue that is a folder."""
    return Place({"type": "hadoop", "warehouse": str(folder)})


def sqlite_place(folder: Path) -> Place:
    """Return a catalogue in a file of SQLite."""
    return Place(
        {
            "type": "jdbc",
            "uri": f"jdbc:sqlite:{folder / 'catalogue.db'}",
            "warehouse": str(folder / "warehouse"),
        }
    )


def postgres_place(folder: Path, url: str) -> Place:
    """Return a catalogue in a database of PostgreSQL. url: of the database."""
    parts = urlsplit(url)
    return Place(
        {
            "type": "jdbc",
            "uri": f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}",
            "jdbc.user": parts.username or "postgres",
            "jdbc.password": parts.password or "",
            "warehouse": f"file://{folder}/warehouse",
        }
    )


def rest_place(folder: Path, uri: str) -> Place:
    """Return a REST catalogue that serves the tables in a folder."""
    return Place({"type": "rest", "uri": uri, "warehouse": str(folder)})


# -- writing ---------------------------------------------------------------------------------------


def mark_at(gsn: int) -> Mark:
    """Return the mark of a batch."""
    return Mark(log_id="a-log", segment=gsn // 10, gsn=gsn, trx=gsn, position=gsn * 100)


def write_file(table: IcebergTable, rows: pa.Table, columns: Sequence[LakeColumn]) -> NewFile:
    """Write a data file of a table."""
    by_name = {column.name: column for column in columns}
    schema = pa.schema(
        [
            field.with_metadata({"PARQUET:field_id": str(by_name[field.name].field_id)})
            for field in rows.schema
        ]
    )
    path = Path(table.data_folder) / f"{uuid.uuid4()}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows.cast(schema), path)
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
    if len(values) > values.null_count and not pa.types.is_boolean(values.type):
        low, high = pc.min(values).as_py(), pc.max(values).as_py()
    return ColumnStatistics(
        low=low,
        high=high,
        null_count=values.null_count,
        nan_count=nans,
        value_count=len(values) + nans,
    )


def delete_rows(
    table: IcebergTable, positions: Mapping[str, Sequence[int]]
) -> tuple[NewDeletes, ...]:
    """Write all deleted positions of data files. positions: by name of a data file."""
    sets = [(name, np.array(sorted(places), np.int64)) for name, places in positions.items()]
    folder = Path(table.deletes_folder)
    if table.delete_form is DeleteForm.PUFFIN:
        content, blobs = make_puffin(sets)
        path = folder / f"{uuid.uuid4()}.puffin"
        path.write_bytes(content)
        return tuple(
            NewDeletes(
                name=blob.data_file,
                ref=DeletionRef(
                    form=DeleteForm.PUFFIN,
                    location=str(path),
                    offset=blob.offset,
                    size_bytes=blob.size_bytes,
                    cardinality=blob.count,
                ),
                file_size_bytes=len(content),
            )
            for blob in blobs
        )
    return tuple(_delete_by_file(folder, name, places) for name, places in sets)


def _delete_by_file(folder: Path, name: str, places: Any) -> NewDeletes:
    content = make_position_deletes(name, places)
    path = folder / f"{uuid.uuid4()}-deletes.parquet"
    path.write_bytes(content)
    ref = DeletionRef(
        form=DeleteForm.POSITIONS,
        location=str(path),
        size_bytes=len(content),
        cardinality=len(places),
    )
    return NewDeletes(name=name, ref=ref, file_size_bytes=len(content))


def append(table: IcebergTable, rows: pa.Table, gsn: int) -> NewFile:
    """Commit a file of rows as the batch that ends at a gsn; return it."""
    snapshot = table.snapshot()
    file = write_file(table, rows, snapshot.columns)
    table.commit(Commit(base_version=snapshot.version, adds=(file,), mark=mark_at(gsn)))
    return file


# -- reading ---------------------------------------------------------------------------------------


def read_pyiceberg(table: IcebergTable) -> pa.Table:
    """Return the rows as pyiceberg reads them."""
    return StaticTable.from_metadata(table.metadata_location()).scan().to_arrow()


def read_polars(table: IcebergTable) -> pa.Table:
    """Return the rows as polars reads them."""
    with warnings.catch_warnings():  # of another planner, which is a package of its own
        warnings.simplefilter("ignore", polars.exceptions.PerformanceWarning)
        scan = polars.scan_iceberg(table.metadata_location(), reader_override="native")
        return scan.collect().to_arrow()


def read_spark(session: Session, place: Place, table: IcebergTable) -> pa.Table:
    """Return the rows as Spark reads them."""
    spark = SparkSession(session._context, session.spark)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # pyspark leaves a socket to its collector
        return spark.sql(f"select * from {place.sql_name(table)}").toArrow()


def read_summary(table: IcebergTable) -> dict[str, str]:
    """Return the summary of the newest snapshot, as pyiceberg reads it."""
    snapshot = StaticTable.from_metadata(table.metadata_location()).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return dict(snapshot.summary.additional_properties)


def run_sql(session: Session, statement: str) -> None:
    """Run a statement of Spark's SQL, as a foreign writer."""
    session.spark.sql(statement).collect()


def read_all(
    session: Session, place: Place, table: IcebergTable, *, by_polars: bool = True
) -> dict[str, pa.Table]:
    """Return the rows as each reader reads them, by the reader's name."""
    found = {"pyiceberg": read_pyiceberg(table), "spark": read_spark(session, place, table)}
    return found | {"polars": read_polars(table)} if by_polars else found
