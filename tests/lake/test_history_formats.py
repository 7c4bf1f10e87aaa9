"""Histories in lakes of the real formats, with Spark: failures, foreign maintenance, other readers.

Each batch's versions are replayed: the history of a table leads to the table. Delta is read by
delta-rs, Iceberg by pyiceberg. Not here: each step's failures (`test_history_core.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.lake.applying import LakeRun, Shop, content_of, create_table
from harness.lake.histories import check_changes, in_order, replay
from harness.lake.sides import FORMATS, Side, make_side
from harness.lake.spark import lake_session
from harness.pipelines.changes import Change, relation
from harness.pipelines.loader import LogMaker
from penstock.engines.lake.batches import BATCHES
from penstock.engines.lake.history_shape import history_name
from penstock.host import faults
from penstock.host.faults import FaultInjected
from penstock.load.session import Session
from penstock.model import Column, Relation, TableName
from plugins.shared import SharedSpark

ROUNDS = 6
POINTS = (
    "lake.history.before",
    "lake.history.after",
    "lake.history.done",
    "lake.commit.before",
    "lake.commit.after",
    "lake.batch.before",
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


@pytest.fixture(params=FORMATS)
def side(request: pytest.FixtureRequest, session: Session, tmp_path: Path) -> Side:
    """Return a lake of each format, with histories."""
    side = make_side(request.param, session, tmp_path / "lake")
    side.url += "&history=true" if "?" in side.url else "?history=true"
    return side


def test_histories_lead_to_their_tables(side: Side, tmp_path: Path) -> None:
    """Fail at random steps, rewrite histories as another program, and replay each batch."""
    log = tmp_path / "log"
    log.mkdir()
    shop = Shop(log, seed=5)
    for table in shop.tables:
        create_table(side.catalogue(), table.shape)
    choose, failed = shop.random, 0

    def connect() -> LakeRun:
        return LakeRun(side.table_format, side.url, log, jobs=side.session)

    run = connect()
    for number in range(ROUNDS):
        shop.write(choose.randint(2, 6), per_segment=3)
        point, nth = choose.choice(POINTS), choose.randint(1, 3)
        try:
            with faults.arming(f"{point}:{nth}:error"):
                run.run(files_max=choose.randint(1, 3))
        except FaultInjected:
            failed += 1
            choose.choice([run.fail, run.kill])()
            run = connect()
        if number % 3 == 1:
            side.disturb(history_name(choose.choice(shop.tables).name))
    run.run()
    run.close()
    shop.log.writer.close()
    keys = {}
    for table in shop.tables:
        rows = side.read(history_name(table.name)).to_pylist()
        key = keys[table.name] = [table.shape.columns[index].name for index in table.shape.key]
        assert replay(rows, key) == table.content, table.name
        assert content_of(side.read(table.name).to_pylist()) == table.content, table.name
        check_changes(rows, log, table.shape)
    checked = 0
    for row in side.read(BATCHES).to_pylist():
        versions = json.loads(row["versions"] or "{}")
        for name, key in keys.items():
            version = versions.get(str(history_name(name)))
            if version is not None:
                rows = side.read(history_name(name), version).to_pylist()
                found = replay(rows, key)
                assert found == shop.states[int(row["position"])][name], (row["gsn"], name)
                checked += 1
    assert checked >= len(shop.tables)
    assert failed


def test_a_history_keeps_what_its_table_loses(side: Side, tmp_path: Path) -> None:
    """Add, rename, drop and retype columns; leave values out of updates."""
    first = relation(("id", "bigint", "int64"), ("a", "integer", "int32"), ("b", "text", "string"))

    def shape(version: int, *columns: tuple[int, str, str, str]) -> Relation:
        made = tuple(Column(id=i, name=n, source_type=s, neutral=k) for i, n, s, k in columns)
        return replace(first, columns=made, source_id=7, version=version)

    key, b = (1, "id", "bigint", "int64"), (3, "b", "text", "string")
    shapes = [
        shape(1, key, (2, "a", "integer", "int32"), b),
        shape(2, key, (2, "n", "integer", "int32"), b),
        shape(3, key, (2, "n", "integer", "int32"), (4, "c", "date", "date")),
        shape(4, key, (2, "n", "integer", "int32"), (5, "c", "text", "string")),
    ]
    create_table(side.catalogue(), shapes[0])
    directory = tmp_path / "log"
    directory.mkdir()
    log = LogMaker(directory)
    run = LakeRun(side.table_format, side.url, directory, jobs=side.session)
    inserts = [(1, 1, "x"), (2, 2, "y"), (3, 3, None), (4, 4, "text")]
    for number, (after, version) in enumerate(zip(inserts, shapes, strict=True)):
        update = Change(op="U", gsn=0, after=(1, 9, None), absent=frozenset([2]))
        log.transaction((version, Change(op="I", gsn=0, after=after)))
        log.transaction((version, update))
        log.close_segment()
        if number != 1:
            run.run()
    run.close()
    log.writer.close()
    name = history_name(TableName("public", first.name))
    found = in_order(side.read(name).to_pylist())
    told = [(r["_op"], r["id"], r["n"], r["b"], r["c"], r["c_string"]) for r in found]
    assert told == [
        ("insert", 1, 1, "x", None, None),
        ("update", 1, 9, "x", None, None),
        ("insert", 2, 2, "y", None, None),
        ("update", 1, 9, "x", None, None),
        ("insert", 3, 3, None, None, None),
        ("update", 1, 9, None, None, None),
        ("insert", 4, 4, None, None, "text"),
        ("update", 1, 9, None, None, None),
    ]
    assert all(row["_absent"] is None for row in found)
