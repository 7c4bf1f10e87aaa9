"""Partitioned tables of lakes, with the format in memory: moves, joined files, filled columns.

Not here: transforms (`tests/unit/test_lake_partitions.py`), the real formats
(`test_partitions.py`).
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.lake.applying import LakeRun, content_of, create_table
from harness.lake.fake_format import FakeCatalogue, FakeFormat, FakeStore
from harness.lake.moving import ORDERS, SHAPE, Orders
from penstock.engines.lake.format import LiveFile
from penstock.engines.lake.partitions import split_rows
from penstock.engines.lake.upkeep import Limits
from penstock.host import faults
from penstock.host.faults import FaultInjected
from penstock.model import Column
from penstock.ports.target import StagingChanged

TERMS = ("day(at)", "truncate(2, region)", "bucket(2, amount)")


class Lake:
    """Lake in memory with the partitioned table."""

    def __init__(self, folder: Path, *, terms: tuple[str, ...] = TERMS, seed: int = 1) -> None:
        self.url = f"delta+file://{folder}/lake"
        self.store = FakeStore(root=folder / "lake")
        self.log = folder / "log"
        self.orders = Orders(self.log, seed)
        create_table(FakeCatalogue(self.store), SHAPE, partition=terms)

    def open(self, **how: Any) -> LakeRun:
        """Return a new loader."""
        return LakeRun(FakeFormat(self.store), self.url, self.log, **how)

    @property
    def files(self) -> tuple[LiveFile, ...]:
        """Live files."""
        return self.store.newest(ORDERS).files

    def check(self) -> None:
        """Fail unless the rows are the source's, and those of each file are of its partition."""
        assert content_of(self.store.rows(ORDERS)) == self.orders.content
        snapshot = self.store.newest(ORDERS)
        assert snapshot.partition
        for file in snapshot.files:
            with pq.ParquetFile(file.location) as opened:
                table = opened.read()
            columns = [one for one in snapshot.columns if one.file_name in table.column_names]
            arrays = [table.column(one.file_name).combine_chunks() for one in columns]
            parts = split_rows(snapshot.partition, columns, arrays, table=ORDERS)
            assert {partition for partition, _ in parts} == {file.partition}


def row(number: int, region: str | None, at: dt.datetime | None, **more: Any) -> tuple[Any, ...]:
    """Return a row."""
    return (number, region, at, more.get("day"), more.get("amount"), more.get("note"))


def test_an_update_that_moves_a_row_deletes_it_in_its_old_partition(tmp_path: Path) -> None:
    """The row is deleted by position where it was, and is in a file of its new partition."""
    lake = Lake(tmp_path, terms=("day(at)",))
    old, new = dt.datetime(1969, 12, 31, 23), dt.datetime(1970, 1, 1)  # noqa: DTZ001
    lake.orders.put(row(1, "eu", old), row(2, "eu", old))
    run = lake.open()
    run.run()
    (before,) = lake.files
    assert before.partition == ("-1",)
    lake.orders.put(row(1, "eu", new))
    run.run()
    assert {(file.partition, file.row_count, file.dead_count) for file in lake.files} == {
        (("-1",), 2, 1),
        (("0",), 1, 0),
    }
    lake.check()
    run.close()
    lake.orders.log.writer.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_rows_move_while_files_are_joined_and_loaders_fail(tmp_path: Path, seed: int) -> None:
    """The columns of partitions change, are NULL or not sent; all rows are removed at times."""
    lake = Lake(tmp_path, seed=seed)
    choose, failed = lake.orders.random, 0
    run = lake.open(limits=Limits(count=2, dead_rows_min=2))
    points = ("lake.lookup.after", "lake.commit.after", "lake.compact.before", "lake.compact.after")
    for number in range(8):
        lake.orders.write(2)
        if number == 5:
            lake.orders.truncate()
        try:
            with faults.arming(f"{choose.choice(points)}:{choose.randint(1, 2)}:error"):
                run.run(files_max=choose.randint(1, 2))
        except FaultInjected:
            failed += 1
            run.kill()
            run = lake.open(limits=Limits(count=2, dead_rows_min=2))
        run.run()
        lake.check()
    assert failed
    assert "compact" in lake.store.tables[ORDERS].operations
    run.close()
    lake.orders.log.writer.close()


def test_a_new_column_is_filled_in_files_of_each_partition(tmp_path: Path) -> None:
    """Files are rewritten each for its own partition where the format keeps no initial value."""
    lake = Lake(tmp_path)
    lake.store.keeps_initial = False
    lake.orders.write(3)
    run = lake.open()
    run.run()
    extra = Column(name="extra", source_type="integer", neutral="int32", missing="7")
    wider = replace(SHAPE, version=2, columns=(*SHAPE.columns, extra))
    lake.orders.log.transaction(relations=[wider])
    lake.orders.log.close_segment()
    run.run()
    lake.orders.rows = {key: (*one, 7) for key, one in lake.orders.rows.items()}
    assert "fill" in lake.store.tables[ORDERS].operations
    lake.check()
    run.close()
    lake.orders.log.writer.close()


def test_rows_staged_for_other_partitions_are_staged_again(tmp_path: Path) -> None:
    """A table that was created again meanwhile takes no file of its earlier partitions."""
    lake = Lake(tmp_path, terms=("region",))
    lake.orders.write(1)
    run = lake.open()
    staged = run.stage()
    assert staged is not None
    snapshot = lake.store.newest(ORDERS)
    day = next(one for one in snapshot.columns if one.name == "day")
    lake.store.put(
        ORDERS,
        replace(snapshot, partition=(replace(snapshot.partition[0], source=day),)),
        "foreign",
    )
    opened = run.engine._lake
    assert opened is not None
    opened.snapshot(ORDERS, refresh=True)
    with pytest.raises(StagingChanged):
        run.apply(staged)
    run.kill()
    lake.orders.log.writer.close()
