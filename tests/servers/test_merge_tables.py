"""Merge tables of PostgreSQL between batches, attempts and loaders: only one batch's rows count."""

from __future__ import annotations

import pyarrow as pa
import pytest

from harness.pipelines.changes import relation
from harness.pipelines.loader import LogMaker
from harness.pipelines.merge import ITEM, TABLE, Start, insert
from penstock.engines.postgres.target.merge import MergeLayout
from penstock.engines.postgres.target.merge_tables import PostgresMergeWriter
from penstock.model import Identity, TableName
from penstock.ports.target import StagingChanged


def test_rows_of_a_late_worker_are_noticed(start: Start, log: LogMaker) -> None:
    """Rows that another process writes into a merge table are never applied as the batch's."""
    target = start("create table public.t (a int, b text)")
    bag = relation(
        ("a", "integer", "int32"), ("b", "text", "string"), key=(), identity=Identity.FULL
    )
    log.transaction(insert(bag, 1, "x"))
    log.close_segment()
    for late in (
        "insert into wirekite.t_wkm values (1, 1, 'x')",
        "delete from wirekite.t_wkm",
        # Another loader's batch of as many rows, staged into the same table.
        "truncate wirekite.t_wkm; insert into wirekite.t_wkm values (1, 7, 'another')",
    ):
        with pytest.raises(StagingChanged) as caught:
            target.batch(after_job=late)
        assert caught.value.retry == "backoff"
    target.batch()
    assert target.rows("select count(*) from public.t") == [(1,)]


def test_late_workers_are_refused(start: Start, log: LogMaker) -> None:
    """A worker of an abandoned batch finds that the merge table belongs to another batch."""
    target = start(TABLE)
    log.transaction(insert(ITEM, 1, "a", 1))
    log.close_segment()
    target.batch()
    layout, table = MergeLayout(ITEM), TableName("public", "t")
    batch = pa.RecordBatch.from_pylist([{layout.count: 2, "id": 5}], schema=layout.schema)
    late = PostgresMergeWriter(url=target.url, table=table, staging="t_wkm", stamp=0, relation=ITEM)
    with pytest.raises(StagingChanged, match="another batch"):
        late.send(iter([batch]))
    assert target.rows("select count(*) from wirekite.t_wkm where id = 5") == [(0,)]


def test_merge_tables_are_emptied_ahead(start: Start, log: LogMaker) -> None:
    """The next batch uses them as they are; workers of the previous batch are refused."""
    target = start(TABLE)
    log.transaction(insert(ITEM, 1, "a", 1))
    log.close_segment()
    [first] = [spec for phase in target.batch().phases for spec in phase.merges]
    target.empty_ahead()
    assert target.rows("select count(*) from wirekite.t_wkm") == [(0,)]
    layout = MergeLayout(ITEM)
    batch = pa.RecordBatch.from_pylist([{layout.count: 2, "id": 5}], schema=layout.schema)
    late = PostgresMergeWriter(
        url=target.url,
        table=TableName("public", "t"),
        staging="t_wkm",
        stamp=first.stamp,
        relation=ITEM,
    )
    with pytest.raises(StagingChanged):
        late.send(iter([batch]))
    ahead = target.rows("select pg_relation_filenode('wirekite.t_wkm')::bigint")
    log.transaction(insert(ITEM, 2, "b", 2))
    log.close_segment()
    [second] = [spec for phase in target.batch().phases for spec in phase.merges]
    assert [(second.stamp,)] == ahead
    assert target.rows("select id from public.t order by id") == [(1,), (2,)]


def test_another_loader_uses_an_emptied_merge_table(start: Start, log: LogMaker) -> None:
    """The other loader's rows are not mistaken for the batch's."""
    target = start(TABLE)
    for number in (1, 2):
        log.transaction(insert(ITEM, number, "a", 1))
        log.close_segment()
        target.batch()
        target.empty_ahead()
        for statement in ("truncate wirekite.t_wkm", "insert into wirekite.t_wkm (id) values (9)"):
            target.execute(statement)
    assert target.rows("select id from public.t order by id") == [(1,), (2,)]
