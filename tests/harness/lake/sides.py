"""Lakes of the real formats in tests, each with a reader of another make."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import cast

import pyarrow as pa
from deltalake import DeltaTable as RustTable
from deltalake import QueryBuilder
from pyiceberg.table import StaticTable

from harness.lake.iceberg import Place, hadoop_place
from penstock.engines.delta.catalogue import FORMAT as DELTA
from penstock.engines.iceberg.catalogue import FORMAT as ICEBERG
from penstock.engines.iceberg.table import IcebergTable
from penstock.engines.lake.format import Catalogue, LakeFormat
from penstock.load.session import Session
from penstock.model import TableName

FORMATS = ("delta", "iceberg v3", "iceberg v2")


class Side(ABC):
    """Lake of one format, and a reader of another make."""

    table_format: LakeFormat
    url: str

    def __init__(self, session: Session) -> None:
        self.session = session

    def catalogue(self) -> Catalogue:
        """Return the catalogue, as another process opens it."""
        return self.table_format.open(self.url, self.session, {})

    @abstractmethod
    def read(self, name: TableName, version: int | None = None) -> pa.Table:
        """Return the rows of a table, in its newest or another version."""

    @abstractmethod
    def disturb(self, name: TableName) -> None:
        """Rewrite a table's files, as another program's maintenance does."""


class DeltaSide(Side):
    """Delta, read by delta-rs."""

    table_format = DELTA

    def __init__(self, session: Session, folder: Path) -> None:
        super().__init__(session)
        self.folder = folder
        self.url = f"delta+file://{folder}"

    def read(self, name: TableName, version: int | None = None) -> pa.Table:
        table = RustTable(self.folder / name.schema / name.name, version=version)
        builder = QueryBuilder().register("t", table)
        return pa.table(builder.execute("select * from t").read_all())

    def disturb(self, name: TableName) -> None:
        path = self.folder / name.schema / name.name
        self.session.spark.sql(f"optimize delta.`{path}`").collect()


class IcebergSide(Side):
    """Iceberg, read by pyiceberg."""

    table_format = ICEBERG

    def __init__(self, session: Session, folder: Path, format_version: int) -> None:
        super().__init__(session)
        self.place: Place = hadoop_place(folder)
        self.place.register(session)
        self.url = self.place.url(format_version)

    def read(self, name: TableName, version: int | None = None) -> pa.Table:
        table = cast(IcebergTable, self.catalogue().find(name))
        metadata = StaticTable.from_metadata(table.metadata_location())
        return metadata.scan(snapshot_id=version).to_arrow()

    def disturb(self, name: TableName) -> None:
        table = ".".join((self.place.namespace, *name))
        self.session.spark.sql(
            f"call {self.place.name}.system.rewrite_data_files(table => '{table}', "
            "options => map('rewrite-all', 'true'))"
        ).collect()


def make_side(kind: str, session: Session, folder: Path) -> Side:
    """Return a lake of one of FORMATS."""
    if kind == "delta":
        return DeltaSide(session, folder)
    return IcebergSide(session, folder, int(kind[-1]))
