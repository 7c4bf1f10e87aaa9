"""Batches in lakes of the real formats, with Spark: histories with failures, read by other makes.

Delta is read by delta-rs, Iceberg by pyiceberg: neither is the writer. Not here: each step's
failures (`test_core_apply.py`), each format's own rules (`test_delta.py`, `test_iceberg.py`).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable as RustTable
from deltalake import QueryBuilder
from pyiceberg.table import StaticTable

from harness.lake.applying import LakeRun, Shop, content_of, create_table
from harness.lake.iceberg import Place, hadoop_place
from harness.lake.spark import lake_session
from penstock.engines.delta.catalogue import FORMAT as DELTA
from penstock.engines.iceberg.catalogue import FORMAT as ICEBERG
from penstock.engines.iceberg.table import IcebergTable
from penstock.engines.lake.batches import BATCHES
from penstock.engines.lake.format import Catalogue, LakeFormat
from penstock.host import faults
from penstock.host.faults import FaultInjected
from penstock.load.session import Session
from penstock.model import TableName
from plugins.shared import SharedSpark

ROUNDS = 8
POINTS = (
    "lake.stage.recorded",
    "lake.lookup.after",
    "lake.commit.before",
    "lake.commit.after",
    "lake.batch.before",
    "lake.batch.after",
    "lake.compact.before",
    "lake.compact.after",
)


@pytest.fixture(scope="module")
def session(
    shared_spark: SharedSpark, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    """Session with the classes of both formats."""
    shared_spark.close()
    with lake_session(tmp_path_factory.mktemp("spark"), master="local[2]") as running:
        yield running


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


@pytest.fixture(params=["delta", "iceberg v3", "iceberg v2"])
def side(request: pytest.FixtureRequest, session: Session, tmp_path: Path) -> Side:
    """Return a lake of each format."""
    if request.param == "delta":
        return DeltaSide(session, tmp_path / "lake")
    return IcebergSide(session, tmp_path / "lake", int(request.param[-1]))


def rows_of(table: pa.Table) -> Sequence[dict[str, Any]]:
    """Return the rows of an Arrow table."""
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def test_a_history_with_failures_and_foreign_maintenance(side: Side, tmp_path: Path) -> None:
    """Fail at random steps, rewrite tables as another program, and compare each batch."""
    log = tmp_path / "log"
    log.mkdir()
    shop = Shop(log, seed=3)
    for table in shop.tables:
        create_table(side.catalogue(), table.shape)
    choose, failed = shop.random, 0

    def connect() -> LakeRun:
        return LakeRun(side.table_format, side.url, log, jobs=side.session)

    run = connect()
    for number in range(ROUNDS):
        shop.write(choose.randint(2, 6), per_segment=3)
        point, nth = choose.choice(POINTS), choose.randint(1, 4)
        try:
            with faults.arming(f"{point}:{nth}:error"):
                run.run(files_max=choose.randint(1, 3))
        except FaultInjected:
            failed += 1
            choose.choice([run.fail, run.kill])()
            run = connect()
        if number % 3 == 1:
            side.disturb(choose.choice(shop.tables).name)
    run.run()
    run.close()
    shop.log.writer.close()
    for table in shop.tables:
        assert content_of(rows_of(side.read(table.name))) == table.content, table.name
    checked = 0
    for row in rows_of(side.read(BATCHES)):
        for name, version in json.loads(row["versions"] or "{}").items():
            table = TableName(*name.split("."))
            found = content_of(rows_of(side.read(table, version)))
            assert found == shop.states[int(row["position"])][table], (row["gsn"], name)
            checked += 1
    assert checked >= len(shop.tables)
    assert failed
