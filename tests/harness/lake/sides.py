"""Lakes of the real formats, each with a reader of another make: delta-rs, pyiceberg."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import pyarrow as pa
from deltalake import DeltaTable as RustTable
from deltalake import QueryBuilder
from pyiceberg.table import StaticTable

from harness.lake.iceberg import Place, hadoop_place
from penstock.engines.delta.catalogue import FORMAT as DELTA
from penstock.engines.iceberg.catalogue import FORMAT as ICEBERG
from penstock.engines.iceberg.table import IcebergTable
from penstock.engines.lake.format import Catalogue, LakeFormat
from penstock.engines.lake.url import parse_url
from penstock.load.session import Session
from penstock.model import TableName


class Side(ABC):
    """Lake of one format, and a reader of another make."""

    table_format: LakeFormat
    url: str

    def __init__(self, session: Session) -> None:
        self.session = session

    def catalogue(self) -> Catalogue:
        """Return the catalogue, as another process opens it."""
        return self.table_format.open(self.url, self.session, {})

    @property
    def state(self) -> str:
        """Folder of penstock's own files."""
        return parse_url(self.url).state.removeprefix("file://")

    @abstractmethod
    def read(self, name: TableName, version: int | None = None) -> pa.Table:
        """Return the rows of a table, in its newest or another version."""

    @abstractmethod
    def sql_name(self, name: TableName) -> str:
        """Return a table's name in Spark's SQL."""

    @abstractmethod
    def disturb(self, name: TableName) -> None:
        """Rewrite a table's files, as another program's maintenance does."""


class DeltaSide(Side):
    """Delta, read by delta-rs."""

    table_format = DELTA

    def __init__(
        self, session: Session, folder: Path, *, options: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(session)
        self.folder = folder
        self.url = f"delta+file://{folder}"
        if options:
            self.url += "?" + urlencode(options)

    def read(self, name: TableName, version: int | None = None) -> pa.Table:
        table = RustTable(self.folder / name.schema / name.name, version=version)
        builder = QueryBuilder().register("t", table)
        return pa.table(builder.execute("select * from t").read_all())

    def sql_name(self, name: TableName) -> str:
        return f"delta.`{self.folder / name.schema / name.name}`"

    def disturb(self, name: TableName) -> None:
        self.session.spark.sql(f"optimize {self.sql_name(name)}").collect()


class IcebergSide(Side):
    """Iceberg, read by pyiceberg."""

    table_format = ICEBERG

    def __init__(
        self,
        session: Session,
        folder: Path,
        format_version: int,
        *,
        options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(session)
        self.format_version = format_version
        self.place: Place = hadoop_place(folder)
        self.place.register(session)
        self.url = self.place.url(format_version)
        if options:
            self.url += "&" + urlencode(options)

    def read(self, name: TableName, version: int | None = None) -> pa.Table:
        table = cast(IcebergTable, self.catalogue().find(name))
        metadata = StaticTable.from_metadata(table.metadata_location())
        return metadata.scan(snapshot_id=version).to_arrow()

    def sql_name(self, name: TableName) -> str:
        return ".".join((self.place.name, self.place.namespace, *name))

    def disturb(self, name: TableName) -> None:
        table = ".".join((self.place.namespace, *name))
        self.session.spark.sql(
            f"call {self.place.name}.system.rewrite_data_files(table => '{table}', "
            "options => map('rewrite-all', 'true'))"
        ).collect()


def rows_of(table: pa.Table) -> Sequence[dict[str, Any]]:
    """Return the rows of an Arrow table."""
    found: list[dict[str, Any]] = table.to_pylist()
    return found
