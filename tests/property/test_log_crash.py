"""The log on a simulated disk: after any fault, what was flushed is there once, complete."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.faults.disk import Disk, PowerCut
from harness.pipelines.log import (
    SOURCE,
    Change,
    Plain,
    Row,
    end_point,
    inserts,
    number_rows,
    plain_rows,
    plain_segment,
    run_of,
    transactions,
)
from harness.twins.examples import examples
from penstock.log import links
from penstock.log.layout import list_segments
from penstock.log.reader import check
from penstock.log.segment import LogFollower, SegmentOpener, open_segment
from penstock.log.writer import Writer, WriterOptions
from penstock.model import FlushPoint, PenstockError, Run

LOG = Path("/shop/log")
CDC = Path("/shop/cdc")
OPTIONS = WriterOptions(buffer_size_bytes_max=2000, consumers=CDC)


@dataclass
class World:
    """A source that can be asked again, a log, a loader and a consumer."""

    disk: Disk
    committed: list[list[Row]]
    acknowledged: FlushPoint = field(default_factory=lambda: FlushPoint(position=0))
    applied: list[Plain] = field(default_factory=list)  # by the loader; durable in its target
    removes_files: bool = False
    tail: SegmentOpener | None = None
    finder: LogFollower | None = None

    def extract(self, steps: list[str]) -> None:
        """Open the log, stream what is missing in it, as the extractor does; close at the end."""
        self.tail = SegmentOpener(files=self.disk)
        self.finder = LogFollower(LOG, files=self.disk)
        with Writer.open(LOG, log_id=None, source=SOURCE, options=OPTIONS, files=self.disk) as log:
            log.check_acknowledged(self.acknowledged.position)
            self.acknowledged = log.resume
            pending = self.committed[log.resume.trx :]
            for step, rows in zip(_endless(steps), pending, strict=False):
                self._write(log, rows, step)
            log.rotate()
            self.acknowledged = log.durable
            if not pending:
                return
            # The idle source moves on without changes.
            last = end_point(pending[-1][-1].trx, pending[-1][-1].gsn)
            idle = FlushPoint(position=last.position + 7, gsn=last.gsn, trx=last.trx)
            log.write(Run(end=idle))
            self.acknowledged = log.flush()

    def _write(self, log: Writer, rows: list[Row], step: str) -> None:
        if step == "piecewise":
            for row in rows[:-1]:
                log.write(run_of([row], ended=False))
            log.write(run_of(rows[-1:]))
        elif step == "broken":
            # The connection breaks inside the transaction; it is sent again from its start.
            self.acknowledged = log.flush()
            log.write(run_of(rows[:1], ended=False))
            assert log.rewind() == self.acknowledged
            log.write(run_of(rows))
        else:
            log.write(run_of(rows))
        if step in ("flush", "follow", "rotate", "load"):
            self.acknowledged = log.flush()
        if step in ("rotate", "load"):
            log.rotate()
        if step == "load":
            self.load()
        if step == "follow":
            self.load()
            self.follow(log.segment_number, log.durable)

    def follow(self, number: int, durable: FlushPoint) -> None:
        """Apply the durable part of the open segment, too."""
        assert self.tail is not None
        assert self.finder is not None
        applied = numbered_upto(self.committed, len(self.applied))
        file = self.finder.find(number=number, trx_after=applied)
        if file is None:
            assert applied == durable.trx, "what is durable is not found"
            return
        with self.tail.open(file) as segment:
            assert segment.end == durable
            self.applied += [row for row in plain_segment(segment) if row[0] > len(self.applied)]

    def load(self) -> None:
        """Apply each closed segment once, by gsn, and perhaps remove it."""
        for file in list_segments(LOG, files=self.disk):
            with open_segment(file.path, files=self.disk) as segment:
                assert segment.start.gsn <= len(self.applied), "a gap before this segment"
                fresh = [row for row in plain_segment(segment) if row[0] > len(self.applied)]
                self.applied += fresh
            if self.removes_files:
                self.disk.unlink(file.path)

    def assert_nothing_lost(self) -> None:
        """Check after a recovery that all acknowledged rows are in the log or applied, once, and no
        more.
        """
        with Writer.open(LOG, log_id=None, source=SOURCE, options=OPTIONS, files=self.disk) as log:
            resume = log.resume
        assert resume.position >= self.acknowledged.position
        assert resume.gsn >= self.acknowledged.gsn
        rows = [row for group in self.committed[: resume.trx] for row in group]
        assert resume.gsn == len(rows), "the resume point does not end a transaction"
        self.load()
        assert self.applied == plain_rows(rows)
        assert not [f for f in check(LOG, files=self.disk) if f.severity == "error"]
        assert len([name for name in self.disk.listdir(LOG) if name.endswith("_")]) == 0


def numbered_upto(committed: list[list[Row]], gsn: int) -> int:
    """Return the transaction that ends with this row."""
    return max((rows[-1].trx for rows in committed if rows[-1].gsn <= gsn), default=0)


def _endless(steps: list[str]) -> Any:
    while True:
        yield from steps


STEPS = st.lists(
    st.sampled_from(["write", "flush", "follow", "piecewise", "rotate", "load", "broken"]),
    min_size=1,
    max_size=6,
)


def new_world(committed: list[list[Change]], seed: int, removes_files: bool) -> World:
    """Return a world with one enabled consumer."""
    disk = Disk(seed)
    disk.make_directory(LOG)
    links.enable(CDC / "lake", files=disk)
    disk.operation_count = 0
    return World(disk=disk, committed=number_rows(committed), removes_files=removes_files)


def operations_of(committed: list[list[Change]], steps: list[str]) -> int:
    """Return how many disk operations the whole script takes without a fault."""
    world = new_world(committed, 0, removes_files=False)
    world.extract(steps)
    return world.disk.operation_count


def run_with_trouble(world: World, steps: list[str], trouble: list[Any]) -> None:
    """Start again after each trouble; the last start is undisturbed."""
    for kind, at, loader_looks in trouble:
        world.disk.operation_count = 0
        if kind == "cut":
            world.disk.cut_at = at
        elif kind in ("full", "failed"):
            number = errno.ENOSPC if kind == "full" else errno.EIO
            world.disk.fail_at = (at, number)
        try:
            world.extract(steps)
        except PowerCut:
            assert kind == "cut"
        except PenstockError:
            assert kind in ("full", "failed")
        world.disk.is_off, world.disk.cut_at, world.disk.fail_at = False, None, None
        if loader_looks:
            world.load()
        if kind == "cut":
            world.disk.power_cut()
        world.disk.process_died()
    world.assert_nothing_lost()
    # The power is cut again: the result of the recovery must be durable itself.
    world.disk.power_cut()
    world.assert_nothing_lost()
    world.extract(steps)
    world.assert_nothing_lost()
    assert world.applied == plain_rows(row for group in world.committed for row in group)


@given(data=st.data(), committed=transactions(), steps=STEPS, seed=st.integers(0, 2**32))
@examples(0.75)
def test_recovery_keeps_what_was_flushed_and_nothing_partial(
    data: st.DataObject, committed: list[list[Change]], steps: list[str], seed: int
) -> None:
    """Power cuts, full disks and failed syncs happen at any operation, also while recovering.

    75 worlds in `make check`, 150 in CI, thousands in `make soak`.
    """
    count = operations_of(committed, steps)
    trouble = data.draw(
        st.lists(
            st.tuples(
                st.sampled_from(["cut", "cut", "failed", "full"]),
                st.integers(0, count),
                st.booleans(),
            ),
            min_size=1,
            max_size=4,
        )
    )
    world = new_world(committed, seed, removes_files=data.draw(st.booleans()))
    run_with_trouble(world, steps, trouble)


@given(committed=transactions(max_size=4), steps=STEPS, seed=st.integers(0, 2**32))
@examples(0.02)
def test_a_power_cut_at_every_single_operation(
    committed: list[list[Change]], steps: list[str], seed: int
) -> None:
    """Each write, sync, rename, link and removal of the script is tried in turn, not at random.

    There are 2 scripts in `make check`, 4 in CI, 100 in `make soak`.
    """
    for at in range(operations_of(committed, steps)):
        for removes, looks in product((False, True), repeat=2):
            world = new_world(committed, seed + at, removes_files=removes)
            run_with_trouble(world, steps, [("cut", at, looks)])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("steps", [["rotate"], ["load"], ["flush", "piecewise", "rotate"]])
def test_a_loader_that_removes_at_once_cannot_make_the_log_forget(
    steps: list[str], seed: int
) -> None:
    """The segment may be gone before the writer has recorded anywhere that it was closed."""
    committed = [inserts(2), inserts(1, first=2), inserts(3, first=3)]
    for at in range(operations_of(committed, steps)):
        world = new_world(committed, seed, removes_files=True)
        run_with_trouble(world, steps, [("cut", at, True)])


@given(committed=transactions(max_size=3), steps=STEPS, seed=st.integers(0, 2**32))
@examples(0.02)
def test_a_power_cut_at_every_operation_of_a_recovery(
    committed: list[list[Change]], steps: list[str], seed: int
) -> None:
    """A start that finds a cut tail is itself cut, at each of its operations.

    There are 2 scripts in `make check`, 4 in CI, 100 in `make soak`.
    """
    half = operations_of(committed, steps) // 2
    for at in range(30):
        world = new_world(committed, seed, removes_files=False)
        run_with_trouble(world, steps, [("cut", half, False), ("cut", at, False)])
