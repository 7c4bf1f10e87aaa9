"""What the loader reports in run/load.json: for displays, never for decisions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.host.files import REAL_FILES, Files
from penstock.host.state_file import report_file

if TYPE_CHECKING:  # who shows the state need not wait for Arrow
    from penstock.ports.loading import Batch

STATE_NAME = "load.json"
ALTERATIONS_MAX = 1000
# Upper bounds in seconds; what is above the last one counts in one more bucket.
BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)


class Histogram(msgspec.Struct):
    """Counts of durations by bucket, as Prometheus has them.

    Attributes:
        sum_s: Sum of all durations.
        last_s: The newest one.
    """

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0
    last_s: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one. Less than nothing, which two clocks can give, counts as 0."""
        self.last_s = max(seconds, 0.0)
        self.sum_s += self.last_s
        self.counts[bisect_left(BOUNDS_S, self.last_s)] += 1

    @property
    def count(self) -> int:
        """How many were observed."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, int]]:
        """The buckets as Prometheus wants them: upper bound, and how many are not above it."""
        names = [*map(str, BOUNDS_S), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))

    def quantile(self, share: float) -> float | None:
        """The quantile at this share, interpolated linearly; None before the first.

        A quantile above the last bound is given as the last bound.
        """
        wanted, before = share * self.count, 0
        if not self.count:
            return None
        for number, count in enumerate(self.counts[:-1]):
            if count and before + count >= wanted:
                low = BOUNDS_S[number - 1] if number else 0.0
                return low + (BOUNDS_S[number] - low) * (wanted - before) / count
            before += count
        return BOUNDS_S[-1]


class AppliedAlteration(msgspec.Struct, frozen=True, kw_only=True):
    """A schema change that the loader has carried out. number: counts from 1 in each process."""

    number: int
    table: str
    change: str


class LoaderState(msgspec.Struct, kw_only=True):
    """What `run/load.json` holds.

    state: starting, waiting, applying, paused, held, retrying or ended. Rows are changes applied
    by this process. commit_time_us: of the last applied commit. seconds: of each step of the last
    batch; its staging may have run while the batch before was applied. heartbeats: how long each
    took from before its commit at the source until it was visible, by this machine's clock.
    commits: the same from the commit of each batch's last transaction, by the source's clock.
    problem: what failed last, since problem_since_us, to be tried again at next_try_us; empty and 0
    once it has worked. is_spark_starting: no job can run yet. alterations: the last
    ALTERATIONS_MAX.
    """

    pid: int
    state: str = "starting"
    updated_us: int = 0
    batch_count: int = 0
    row_count: int = 0
    file_count: int = 0
    applied_gsn: int = 0
    applied_segment: int = -1
    applied_position: int = 0
    commit_time_us: int = 0
    batch_rows: int = 0
    batch_files: int = 0
    batch_tables: int = 0
    seconds: dict[str, float] = {}
    heartbeats: Histogram = msgspec.field(default_factory=Histogram)
    commits: Histogram = msgspec.field(default_factory=Histogram)
    problem: str = ""
    problem_since_us: int = 0
    next_try_us: int = 0
    is_spark_starting: bool = False
    alterations: list[AppliedAlteration] = []

    def measured(self, batch: Batch, *, now_us: int) -> None:
        """A batch has become visible: note how long that took from its commits."""
        for sent_us in batch.heartbeats:
            self.heartbeats.observe((now_us - sent_us) / 1e6)
        if batch.after.trx > batch.before.trx and batch.after.commit_time_us:
            self.commits.observe((now_us - batch.after.commit_time_us) / 1e6)

    def applied(self, batch: Batch, seconds: Mapping[str, float]) -> None:
        """Count a batch. seconds: of its steps."""
        self.batch_count += 1
        self.row_count += batch.counts.changes
        self.file_count += len(batch.whole)
        self.batch_rows = batch.counts.changes
        self.batch_files = len(batch.whole)
        self.batch_tables = batch.tables
        self.seconds = dict(seconds)
        self.note_progress()

    def altered(self, table: str, change: str) -> None:
        """Note a schema change of a target table."""
        number = self.alterations[-1].number + 1 if self.alterations else 1
        new = AppliedAlteration(number=number, table=table, change=change)
        self.alterations = [*self.alterations, new][-ALTERATIONS_MAX:]

    def note_failure(self, problem: str, *, now_us: int, wait_s: float) -> None:
        """Something failed and is tried again after a while."""
        self.problem = problem
        self.problem_since_us = self.problem_since_us or now_us
        self.next_try_us = now_us + round(wait_s * 1e6)

    def note_progress(self) -> None:
        """It works again."""
        self.problem, self.problem_since_us, self.next_try_us = "", 0, 0


def write_loader_state(run_directory: Path, state: LoaderState, files: Files = REAL_FILES) -> None:
    """Replace the file. After a crash of the machine nobody wants the old one back."""
    files.make_directory(run_directory)
    report_file(run_directory / STATE_NAME, LoaderState, files).save(state)


def read_loader_state(run_directory: Path, files: Files = REAL_FILES) -> LoaderState | None:
    """What the loader last wrote, or None."""
    return report_file(run_directory / STATE_NAME, LoaderState, files).load()
