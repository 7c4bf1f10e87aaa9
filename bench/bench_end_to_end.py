"""W end to end: from the first commit at the source to the last change visible in the target.

Estimate: the workload, the walsender, the extractor, the loader and the target's apply share two
cores. Per row of W the source needs some 10 us to commit and 8 us to decode and send, the
extractor 3 us, staging 4 us, the merge 5 us: about 65,000 rows/s when nothing waits.
Limit: PostgreSQL's own subscription (streaming on), which applies row by row in one backend.
Both run already when the first change is committed; the start of Spark is printed, not counted.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import psycopg

from bench import contenders
from bench.harness import Comparison, Contender, Measurement, TreeSampler, arguments
from bench.pipeline import Running, write_config
from bench.roles import RoleSampler
from bench.workload import Workload
from penstock.host.embedded import EmbeddedPostgres

FIRST_ROW = "select count(*) from w where id = -2"
LAST_ROW = "select count(*) from w where id = -1"


class Pair:
    """A source and a target that hold the same base rows, made anew for every run."""

    def __init__(self, change_count: int) -> None:
        """change_count: of W."""
        self.workload = Workload(change_count=change_count)
        self.row_count = 0

    def warm(self, source: str, target: str) -> None:
        """Commit a first row and wait for it: whatever starts late has started then."""
        began = time.monotonic()
        with psycopg.connect(source, autocommit=True) as connection:
            connection.execute("insert into w (id) values (-2)")
        contenders.wait_for_value(target, FIRST_ROW, 1)
        print(f"first row visible in {time.monotonic() - began:.1f} s", flush=True)

    def measure(self, source: str, target: str) -> tuple[float, float]:
        """Commit W's changes and one last row; seconds until it is visible, and behind it."""
        began = time.monotonic()
        self.row_count = self.workload.change(source)
        with psycopg.connect(source, autocommit=True) as connection:
            connection.execute("insert into w (id) values (-1)")
        committed = time.monotonic()
        contenders.wait_for_value(target, LAST_ROW, 1)
        return time.monotonic() - began, time.monotonic() - committed

    def subscription(self) -> Measurement:
        """PostgreSQL's own."""
        with EmbeddedPostgres() as origin, EmbeddedPostgres() as destination:
            source, target = origin.url("postgres"), destination.url("postgres")
            self._fill(source, target)
            with contenders.subscription(
                source,
                target,
                publication="bench",
                name="bench",
                options="copy_data = false, streaming = on",
            ):
                self.warm(source, target)
                with RoleSampler({"source": source, "target": target}) as roles:
                    total_s, behind_s = self.measure(source, target)
        roles.print_table(self.row_count)
        return Measurement(elapsed_s=total_s, extra={"behind_last_commit_s": behind_s})

    def penstock(self) -> Measurement:
        """`penstock run` in mode change."""
        with (
            EmbeddedPostgres() as origin,
            EmbeddedPostgres() as destination,
            tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch,
        ):
            source, target = origin.url("postgres"), destination.url("postgres")
            self._fill(source, target)
            file = write_config(
                Path(scratch),
                source,
                target,
                mode="change",
                exit_when_idle=False,
                flush_interval_s=1,
            )
            with Running(file) as running:
                self.warm(source, target)
                with (
                    TreeSampler(running.pid) as sampler,
                    RoleSampler({"source": source, "target": target}, running.pid) as roles,
                ):
                    total_s, behind_s = self.measure(source, target)
        roles.print_table(self.row_count)
        return Measurement(
            elapsed_s=total_s,
            cpu_s=sampler.cpu_s,
            peak_bytes=sampler.peak_bytes,
            extra={"behind_last_commit_s": behind_s},
        )

    def _fill(self, source: str, target: str) -> None:
        for url in (source, target):
            self.workload.create(url)
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("vacuum analyze w")
        with psycopg.connect(source, autocommit=True) as connection:
            connection.execute("create publication bench for table w")


def main() -> None:
    """Both in turn."""
    flags = arguments(__doc__ or "", changes=1_000_000)
    pair = Pair(flags.changes)
    Comparison(
        bench="end_to_end_w",
        contenders=[
            Contender(name="CREATE SUBSCRIPTION", run=pair.subscription, unit_count=flags.changes),
            Contender(name="penstock run", run=pair.penstock, unit_count=flags.changes),
        ],
    ).run(flags.rounds).print_table()


if __name__ == "__main__":
    main()
