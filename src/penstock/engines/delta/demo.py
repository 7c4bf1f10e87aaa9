"""Delta Lake in `penstock demo`: the part `demo_lake`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from penstock.engines.delta.places import table_folder
from penstock.engines.delta.versions import open_versions
from penstock.engines.lake.demo import open_library
from penstock.engines.lake.jars import DELTA_JARS, find_jars
from penstock.engines.lake.versions import import_library
from penstock.model import TableName
from penstock.ports.demo import DemoLake
from penstock.ports.verify import VerifyReader


class DeltaDemo(DemoLake):
    """Tables of Delta Lake in a folder, read by delta-rs."""

    reader = "delta-rs"

    def check(self) -> None:
        find_jars(DELTA_JARS)
        import_library("deltalake", to_install="penstock[lake]", reads="Delta tables")

    def url(self, folder: Path) -> str:
        return f"delta+file://{folder}"

    def properties(self, folder: Path) -> Mapping[str, str]:
        """Return none: Delta has no catalogue."""
        del folder
        return {}

    def open_reader(self, url: str, *, sessions: int) -> AbstractContextManager[VerifyReader]:
        return open_library(open_versions(url), sessions=sessions)

    def reading_lines(self, folder: Path, table: TableName) -> tuple[str, ...]:
        name = table.name
        query = f"select state, count(*) from {name} group by state"
        return (
            "from deltalake import DeltaTable, QueryBuilder",
            f"lake = QueryBuilder().register({name!r}, "
            f"DeltaTable({table_folder(str(folder), table)!r}))",
            f"print(lake.execute({query!r}).read_all())",
        )


DEMO_LAKE = DeltaDemo()
