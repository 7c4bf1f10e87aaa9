"""Batches in lakes of the real formats, with Spark: histories with failures, read by other makes.

Delta is read by delta-rs, Iceberg by pyiceberg: neither is the writer. Not here: each step's
failures (`test_core_apply.py`), each format's own rules (`test_delta.py`, `test_iceberg.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.lake.applying import LakeRun, Shop, content_of, create_table
from harness.lake.sides import DeltaSide, IcebergSide, Side, rows_of
from harness.lake.spark import lake_session
from penstock.engines.lake.batches import BATCHES
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


@pytest.fixture(params=["delta", "iceberg v3", "iceberg v2"])
def side(request: pytest.FixtureRequest, session: Session, tmp_path: Path) -> Side:
    """Return a lake of each format."""
    if request.param == "delta":
        return DeltaSide(session, tmp_path / "lake")
    return IcebergSide(session, tmp_path / "lake", int(request.param[-1]))


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
