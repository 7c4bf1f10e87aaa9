"""Iceberg in `penstock demo`: the part `demo_lake`. Its catalogue is a folder, of type `hadoop`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from penstock.engines.iceberg.versions import open_versions
from penstock.engines.lake.demo import open_library
from penstock.engines.lake.jars import ICEBERG_JARS, find_jars
from penstock.engines.lake.versions import import_library
from penstock.model import TableName
from penstock.ports.demo import DemoLake
from penstock.ports.verify import VerifyReader

CATALOGUE, NAMESPACE = "lake", "shop"


class IcebergDemo(DemoLake):
    """Tables of Iceberg in a folder, read by pyiceberg."""

    reader = "pyiceberg"

    def check(self) -> None:
        find_jars(ICEBERG_JARS)
        import_library("pyiceberg", to_install="penstock[lake]", reads="Iceberg tables")

    def url(self, folder: Path) -> str:
        del folder
        return f"iceberg://{CATALOGUE}/{NAMESPACE}"

    def properties(self, folder: Path) -> Mapping[str, str]:
        name = f"spark.sql.catalog.{CATALOGUE}"
        return {f"{name}.type": "hadoop", f"{name}.warehouse": str(folder)}

    def open_reader(self, url: str, *, sessions: int) -> AbstractContextManager[VerifyReader]:
        return open_library(open_versions(url), sessions=sessions)

    def reading_lines(self, folder: Path, table: TableName) -> tuple[str, ...]:
        place = "/".join((str(folder), NAMESPACE, *table))
        counted = '.group_by("state").aggregate([([], "count_all")])'
        return (
            "from pyiceberg.table import StaticTable",
            f"table = StaticTable.from_metadata({place!r})",
            f"print(table.scan().to_arrow(){counted}.to_pylist())",
        )


DEMO_LAKE = IcebergDemo()
