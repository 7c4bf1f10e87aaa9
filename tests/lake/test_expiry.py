"""Removal of earlier versions: nothing that the table of batches names, and all that is older.

With the format in memory, whose versions cannot be read once they are removed; with files of a
Delta table by hand; and with both formats, read by other makes. Not here: reading at a commit
(`test_versions.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.lake.applying import LakeRun
from lake.test_core_apply import Lake
from penstock.engines.delta.expiry import (
    clean_log,
    delete_files,
    find_checkpoints,
    find_oldest,
    is_hidden,
    needed_files,
)
from penstock.engines.delta.state import State
from penstock.engines.lake.batches import BATCHES, Kept
from penstock.engines.lake.by_hand import choose_all
from penstock.engines.lake.expiry import VERSIONS_MIN
from penstock.engines.lake.format import DeleteForm, DeletionRef, LiveFile
from penstock.host.clock import Clock
from penstock.model import TableName

ORDERS = TableName("public", "orders")
HOUR_US = 3600 * 1_000_000
MINUTES = 15


class SetClock(Clock):
    """Clock that a test moves on."""

    def __init__(self) -> None:
        """Begin at some time."""
        self.us = 1_800_000_000_000_000

    def now_us(self) -> int:
        return self.us

    def monotonic_s(self) -> float:
        return self.us / 1e6

    def sleep(self, seconds: float) -> None:
        self.us += round(seconds * 1e6)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Yield a lake with the shop's empty tables."""
    lake = Lake(tmp_path)
    yield lake
    lake.shop.log.writer.close()


def open_at(lake: Lake, clock: Clock) -> LakeRun:
    """Return a loader whose time is a test's."""
    run = lake.open()
    run.target._lake.clock = clock
    return run


class TestPromises:
    def test_versions_are_kept_as_long_as_they_are_named(self, lake: Lake) -> None:
        """Apply batches for ten hours, and read every version that is named after each one."""
        lake.url += "?versionHours=2"
        clock, counts = SetClock(), []
        run = open_at(lake, clock)
        for _ in range(40):
            lake.shop.write(2)
            run.run()
            clock.us += MINUTES * 60 * 1_000_000
            lake._checked.clear()
            lake.check_batches()  # the versions that rows name can be read
            counts.append(len(lake.store.rows(BATCHES)))
        run.close()
        lake.check()
        assert max(counts) == 2 * 60 // MINUTES + 1
        assert lake.store.tables[BATCHES].expired
        for table in lake.shop.tables:
            data = lake.store.tables[table.name]
            assert len(data.versions) - len(data.expired) <= 5 * max(counts)

    def test_a_table_at_rest_keeps_the_version_that_rows_name(self, lake: Lake) -> None:
        """Change one table alone, for longer than versions are kept."""
        lake.url += "?versionHours=1"
        lake.shop.write(3)
        clock = SetClock()
        run = open_at(lake, clock)
        run.run()
        resting = [table for table in lake.shop.tables if table.name != ORDERS]
        before = {table.name: lake.store.newest(table.name).version for table in resting}
        rows = lake.shop.tables
        lake.shop.tables = [table for table in rows if table.name == ORDERS]
        for _ in range(12):
            lake.shop.write(2)
            run.run()
            clock.us += MINUTES * 60 * 1_000_000
        lake.shop.tables = rows
        run.close()
        newest = lake.store.rows(BATCHES)[-1]
        for name, version in before.items():
            assert version not in lake.store.tables[name].expired
            assert json.loads(newest["versions"])[str(name)] >= version
        assert lake.store.tables[ORDERS].expired

    def test_the_number_of_rows_is_limited(self, lake: Lake) -> None:
        """Apply batch after batch in no time, with few rows that may be kept."""
        run = open_at(lake, SetClock())
        run.target._lake.batches._kept = Kept(hours=1, rows_max=20)
        for _ in range(130):
            lake.shop.write(1)
            run.run()
        run.close()
        rows = lake.store.rows(BATCHES)
        assert 20 <= len(rows) <= 20 + 64
        newest = max(row["gsn"] for row in rows)
        assert newest == lake.shop.log.gsn
        lake.check_batches()

    def test_a_table_with_many_versions_is_not_kept_waiting(self, lake: Lake) -> None:
        """Reach the number of versions long before the hour is over."""
        run = open_at(lake, SetClock())
        run.target._lake.batches._kept = Kept(hours=1, rows_max=20)
        for _ in range(VERSIONS_MIN + 5):
            lake.store.touch(ORDERS)
        lake.shop.write(2)
        run.run()
        for _ in range(6):
            lake.shop.write(2)
            run.run()
        run.close()
        assert len(lake.store.tables[ORDERS].expired) >= VERSIONS_MIN
        lake.check()

    def test_the_newest_named_versions_stay_while_newer_rows_name_none(self, lake: Lake) -> None:
        """Append rows without versions after the newest row that has some is old."""
        lake.shop.write(2)
        clock = SetClock()
        run = open_at(lake, clock)
        run.run()
        batches = run.target._lake.batches
        named = [row["versions"] for row in lake.store.rows(BATCHES)]
        clock.us += 100 * HOUR_US
        at = batches.applied_place
        for number in range(70):
            after = replace(at, gsn=at.gsn + 1)
            batches.commit(
                batches.make_commit(at, after, None, token=f"t{number}", applied_us=clock.us),
                at,
            )
            at = after
        assert [row["versions"] for row in lake.store.rows(BATCHES) if row["versions"]] == named
        assert batches.read_promises(clock.us).since_us == clock.us - 100 * HOUR_US
        run.kill()


class TestDeltaLog:
    def _write(self, folder: Path, names: list[str], *, hours_ago: float) -> None:
        for name in names:
            path = folder / "_delta_log" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
            _make_old(path, hours_ago)

    def test_the_log_is_removed_up_to_a_checkpoint(self, tmp_path: Path) -> None:
        """Keep what is needed to read the floor, whatever is older than that."""
        commits = [f"{number:020d}.json" for number in range(30)]
        more = [f"{n:020d}.checkpoint.parquet" for n in (10, 20)]
        more += [f"{25:020d}.checkpoint.{1:010d}.{2:010d}.parquet", f"{3:020d}.crc"]
        more += [f"{2:020d}.{5:020d}.compacted.json", "_last_checkpoint"]
        self._write(tmp_path, [*commits, *more], hours_ago=30)
        assert find_oldest(str(tmp_path), {}) == 0
        removed, oldest = clean_log(str(tmp_path), {}, 27, before_us=_ago(24))
        assert (removed, oldest) == (20, 20)  # the checkpoint at 25 lacks a part
        left = {path.name for path in (tmp_path / "_delta_log").iterdir()}
        assert left == {*commits[20:], more[1], more[2], "_last_checkpoint"}
        assert find_oldest(str(tmp_path), {}) == 20

    def test_young_files_of_the_log_stay(self, tmp_path: Path) -> None:
        """Keep versions that were written a short time ago, and all without a checkpoint."""
        commits = [f"{number:020d}.json" for number in range(8)]
        self._write(tmp_path, commits, hours_ago=30)
        assert clean_log(str(tmp_path), {}, 7, before_us=_ago(24)) == (0, 0)
        self._write(tmp_path, [f"{5:020d}.checkpoint.parquet"], hours_ago=1)
        self._write(tmp_path, commits[3:5], hours_ago=1)
        assert clean_log(str(tmp_path), {}, 4, before_us=_ago(24)) == (0, 0)
        assert clean_log(str(tmp_path), {}, 5, before_us=_ago(24)) == (3, 5)
        assert clean_log(f"{tmp_path}/none", {}, 5, before_us=_ago(24)) == (0, 0)

    def test_checkpoints_of_every_form_are_found(self) -> None:
        """Find whole ones, those in parts, and those with an id."""
        uuid = "80a083e8-7026-4e79-81be-64bd76c43a11"
        parts = [f"{7:020d}.checkpoint.{n:010d}.{3:010d}.parquet" for n in (1, 2, 3)]
        names = [f"{5:020d}.checkpoint.parquet", f"{9:020d}.checkpoint.{uuid}.json", *parts]
        assert find_checkpoints(names) == {5, 7, 9}
        assert find_checkpoints(names[:-1]) == {5, 9}
        assert find_checkpoints([f"{5:020d}.json", f"{5:020d}.crc"]) == set()

    def test_files_that_no_version_needs_are_deleted(self, tmp_path: Path) -> None:
        """Keep live files, their vectors, those of tombstones, young ones and what is hidden."""
        old = ["live.parquet", "dead vector.bin", "gone.parquet", "gone.bin", "kept.parquet"]
        old += ["p=_1/live.parquet", "p=_1/gone.parquet", "_index/x.parquet", "notes.txt"]
        for name in [*old, "young.parquet"]:
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text("12345")
            _make_old(path, 1 if name.startswith("young") else 200)
        place = str(tmp_path)
        vector = DeletionRef(form=DeleteForm.DELTA, location=f"{place}/dead vector.bin")
        live = [
            LiveFile(name=n, location=f"{place}/{n}", size_bytes=5, row_count=1, deletes=d)
            for n, d in (("live.parquet", (vector,)), ("p=_1/live.parquet", ()))
        ]
        state = State(folder=place, version=1, metadata={}, protocol={})
        state = replace(state, files={one.name: _File(one) for one in live})
        tombstones = json.dumps({"remove": {"path": "kept.parquet"}})
        needed = needed_files(state, tombstones)
        assert delete_files(place, {}, needed, before_us=_ago(168)) == (3, 15)
        left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
        assert left == {*old, "young.parquet"} - {"gone.parquet", "gone.bin", "p=_1/gone.parquet"}

    def test_a_partition_is_not_hidden(self) -> None:
        """Tell folders of partitions from those of other programs."""
        assert is_hidden("_delta_log/1.json")
        assert is_hidden("a/.x.parquet")
        assert not is_hidden("_day=1/x.parquet")
        assert not is_hidden("a/x.parquet")


class _File:
    """Data file of a state, of which only its facts are needed."""

    def __init__(self, live: LiveFile) -> None:
        self.live = live


class TestCompaction:
    def test_small_files_and_those_with_deleted_rows_are_chosen(self) -> None:
        """Join by size and partition; leave large files that are whole."""
        size = 100
        whole = _file("whole", size_bytes=90)
        sparse = _file("sparse", size_bytes=90, dead=9)
        small = [_file(f"s{n}", size_bytes=30) for n in range(5)]
        apart = [_file(f"p{n}", size_bytes=30, partition=("x",)) for n in range(2)]
        alone = _file("alone", size_bytes=30, partition=("y",))
        dirty = _file("dirty", size_bytes=30, dead=1, partition=("z",))
        found = choose_all([whole, sparse, *small, *apart, alone, dirty], file_bytes=size)
        names = sorted(tuple(file.name for file in group) for group in found)
        assert names == [
            ("dirty",),
            ("p0", "p1"),
            ("s0", "s1", "s2"),
            ("s3", "s4"),
            ("sparse",),
        ]


def _file(
    name: str, *, size_bytes: int, dead: int = 0, partition: tuple[Any, ...] = ()
) -> LiveFile:
    deletes = (DeletionRef(form=DeleteForm.DELTA, cardinality=dead),) if dead else ()
    return LiveFile(
        name=name,
        location=f"/{name}",
        size_bytes=size_bytes,
        row_count=100,
        deletes=deletes,
        partition=partition,
    )


def _ago(hours: float) -> int:
    time = datetime.now(UTC) - timedelta(hours=hours)
    return round(time.timestamp() * 1e6)


def _make_old(path: Path, hours: float) -> None:
    time_s = _ago(hours) / 1e6
    os.utime(path, (time_s, time_s))
