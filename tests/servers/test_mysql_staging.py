"""Merge tables of MySQL and MariaDB between two attempts of a task: only one of them counts."""

from __future__ import annotations

from contextlib import closing

import pyarrow as pa
import pytest

from harness.pipelines.loader import LogMaker
from harness.pipelines.merge import ITEM, insert
from penstock.engines.mysql.connect import Connection, connect, run
from penstock.engines.mysql.target import send as sending
from penstock.engines.mysql.target.claims import claim_staging
from penstock.engines.mysql.target.layout import MergeLayout
from penstock.engines.mysql.target.merge_tables import MergeTables, check_staged
from penstock.engines.mysql.target.progress import transaction
from penstock.host.errors import ConnectionLost, StatementInterrupted
from penstock.model import TableName
from penstock.ports.target import MergeSpec, StagingChanged
from plugins.mysql_loader import ITEMS, MyStart, Target


def begin_sending(worker: Connection, staging: str, stamp: int) -> None:
    """Begin like a worker: in a transaction that stays open."""
    worker.begin()
    sending._check_stamp(
        worker,
        sending.Destination(
            url="", table=TableName("public", "t"), staging=staging, stamp=stamp, relation=ITEM
        ),
    )


def staged_item(my_start: MyStart, log: LogMaker) -> tuple[Connection, MergeSpec]:
    """Stage a batch of one row; return the session that would apply it, and its merge table."""
    target = my_start(ITEMS, rows_directory=None)
    log.transaction(insert(ITEM, 1, "a", 1))
    log.close_segment()
    [merge] = [spec for phase in target.stage().phases for spec in phase.merges]
    connection: Connection = target.target.connection
    run(connection, "set innodb_lock_wait_timeout = 1", doing="setting up")
    return connection, merge


def test_a_worker_that_still_sends_is_waited_for(
    my_start: MyStart, my_target: Target, log: LogMaker
) -> None:
    """The worker's rows, committed after the count, would be applied too; other tables are free."""
    connection, merge = staged_item(my_start, log)
    expected = {merge.staging: (merge.stamp, merge.staged_row_count)}
    run(
        connection,
        "insert into wirekite.wirekite_merge values ('other', 1, '')",
        doing="setting up",
    )
    with closing(connect(my_target.url, application_name="test")) as worker:
        begin_sending(worker, "other", 1)
        with transaction(connection):
            check_staged(connection, expected)
        worker.rollback()
        begin_sending(worker, merge.staging, merge.stamp)
        run(worker, f"insert into wirekite.{merge.staging} (id) values (9)", doing="sending")
        with pytest.raises(StatementInterrupted), transaction(connection):
            check_staged(connection, expected)
        worker.commit()
    with pytest.raises(StagingChanged), transaction(connection):
        check_staged(connection, expected)


def test_a_worker_that_hangs_is_ended(my_start: MyStart, my_target: Target, log: LogMaker) -> None:
    """The abandoned worker is ended after a wait, and its rows do not count."""
    connection, merge = staged_item(my_start, log)
    expected = {merge.staging: (merge.stamp, merge.staged_row_count)}
    for then in (
        lambda: check_staged(connection, expected),
        lambda: MergeTables(connection).make_empty({merge.staging: ITEM}),
    ):
        with (
            closing(connect(my_target.url, application_name="test")) as worker,
            closing(connect(my_target.url, application_name="test")) as other,
        ):
            claim_staging(other, "other")
            claim_staging(worker, merge.staging)
            begin_sending(worker, merge.staging, merge.stamp)
            run(worker, f"insert into wirekite.{merge.staging} (id) values (9)", doing="sending")
            with pytest.raises(StatementInterrupted), transaction(connection):
                then()
            with transaction(connection):
                then()
            with pytest.raises(ConnectionLost):
                run(worker, "commit", doing="sending")
            run(other, "select 1", doing="it is at another merge table")


def test_merge_tables_are_emptied_ahead(my_start: MyStart, log: LogMaker) -> None:
    """The next batch uses them as they are; workers of the previous batch are refused."""
    target = my_start(ITEMS, rows_directory=None)
    log.transaction(insert(ITEM, 1, "a", 1))
    log.close_segment()
    [first] = [spec for phase in target.batch().phases for spec in phase.merges]
    target.empty_ahead()
    assert target.rows("select count(*) from wirekite.t_wkm") == [(0,)]
    layout = MergeLayout(ITEM)
    batch = pa.RecordBatch.from_pylist([{layout.count: 2, "id": 5}], schema=layout.schema)
    late = sending.Destination(
        url=target.url,
        table=TableName("public", "t"),
        staging="t_wkm",
        stamp=first.stamp,
        relation=ITEM,
    )
    with pytest.raises(StagingChanged):
        sending.send(late, [batch])
    ahead = target.rows("select stamp from wirekite.wirekite_merge where merge_name = 't_wkm'")
    log.transaction(insert(ITEM, 2, "b", 2))
    log.close_segment()
    [second] = [spec for phase in target.batch().phases for spec in phase.merges]
    assert [(second.stamp,)] == ahead
    assert target.rows("select id from t order by id") == [(1,), (2,)]


def test_another_loader_uses_an_emptied_merge_table(my_start: MyStart, log: LogMaker) -> None:
    """The other loader's rows are not mistaken for the batch's."""
    target = my_start(ITEMS, rows_directory=None)
    for number in (1, 2):
        log.transaction(insert(ITEM, number, "a", 1))
        log.close_segment()
        target.batch()
        target.empty_ahead()
        for statement in (
            "update wirekite.wirekite_merge set stamp = stamp + 1",
            "insert into wirekite.t_wkm (id) values (9)",
        ):
            target.execute(statement)
    assert target.rows("select id from t order by id") == [(1,), (2,)]
