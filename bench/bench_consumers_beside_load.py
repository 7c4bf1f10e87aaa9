"""The load's rate and lag without a consumer, and beside a slow, a failing and a disabled one.

`penstock run`, Spark, PostgreSQL to PostgreSQL; each run has a target of its own and reads the same
WAL through a copy of one slot. Backlog: W's changes are committed before the run starts; one closed
segment a batch, and the rate is that from the first batch's commit in the target to the last one's,
so that the starts of processes are in no figure. Then rows are committed at a modest rate, and each
is waited for in the target.

The slow consumer waits 1 ms with each event, as for an answer of another server, and is behind all
the time. The failing one raises at its hundredth event, and is started again after 1, 2, 4, 8 ...
seconds: the densest starts that there are. The disabled one is registered and gets no links: it
reads the segment that is open when it starts, as far as it comes, and then waits.

Estimate: consumers share nothing with the load but the two cores and the disk's cache: a link at a
rotation costs 0.1 ms, the slow one some 0.2 ms of CPU an event that it waits for, 5 % of a core; a
start of the failing one 1 s of CPU, five starts in forty seconds, 6 % of both cores. So the backlog
0.9 and more, the lag within the noise.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from bench import contenders
from bench.bench_fresh import PostgresSession, measure, quantiles
from bench.harness import Comparison, Contender, Measurement, arguments, describe_machine
from bench.pipeline import Running, write_config
from bench.workload import Workload
from penstock.control.consumers import consumer_process
from penstock.control.pipeline.config import load_config
from penstock.engines.postgres.server.embedded import EmbeddedPostgres

ALONE = "no consumer"
DISABLED = "a disabled one"
CLASSES = {"a slow one": "Slow", "a failing one": "Failing", DISABLED: "Quick"}
PUBLICATION = "bench"
SLOT = "bench_template"
BASE = "base"
LOOK_S = 0.002
BACKLOG_MAX_S = 300.0
CONSUMERS = '''
import time
from pathlib import Path

from penstock.consume import CdcConsumer


class Slow(CdcConsumer):
    """Notes its start, and how many events it has read; waits with each."""

    def __init__(self, notes):
        self.notes = Path(notes)

    def note(self, line):
        with self.notes.open("a") as file:
            file.write(line + "\\n")

    def start(self, metrics):
        self.note("start")

    def on_events(self, events):
        count = 0
        for _ in events:
            time.sleep(0.001)
            count += 1
            if count == 1000:
                break
        self.note(str(count))
        return True


class Quick(Slow):
    """Takes what there is."""

    def on_events(self, events):
        self.note(str(sum(1 for _ in events)))
        return True


class Failing(Slow):
    """Raises at its hundredth event."""

    def on_events(self, events):
        for count, _ in enumerate(events, start=1):
            if count == 100:
                self.note(str(count))
                raise RuntimeError("told to fail")
        return True
'''


class Progress(threading.Thread):
    """Thread that notes when the target's applied row number rises."""

    def __init__(self, target: str, until: int) -> None:
        super().__init__(daemon=True)
        self._target = target
        self._until = until
        self.seen: list[tuple[float, int]] = []

    def run(self) -> None:
        """Look until the target has it."""
        deadline = time.monotonic() + BACKLOG_MAX_S
        last = 0
        with psycopg.connect(self._target, autocommit=True) as connection:
            while last < self._until and time.monotonic() < deadline:
                applied = _read_applied(connection)
                if applied > last:
                    last = applied
                    self.seen.append((time.monotonic(), applied))
                time.sleep(LOOK_S)

    def rate(self) -> tuple[int, float]:
        """Return the rows after the first batch, and the seconds they took."""
        self.join()
        if len(self.seen) < 2 or self.seen[-1][1] < self._until:
            raise TimeoutError(f"the backlog is not loaded: {self.seen[-1:]} of {self._until}")
        (began, first), (ended, last) = self.seen[0], self.seen[-1]
        return last - first, ended - began


def _read_applied(connection: psycopg.Connection) -> int:
    """Return the gsn that the load has applied; 0 before it has begun."""
    there = connection.execute("select to_regclass('wirekite.wirekite_log')").fetchone()
    if there is None or there[0] is None:
        return 0
    row = connection.execute("select applied_gsn from wirekite.wirekite_log").fetchone()
    return 0 if row is None else int(row[0])


class Side:
    """Servers of all runs. change_count: of the backlog."""

    def __init__(self, origin: EmbeddedPostgres, destination: EmbeddedPostgres, flags: Any) -> None:
        self._source = origin.url("postgres")
        self._destination = destination
        self._flags = flags
        self._numbers = itertools.count()
        self._runs = itertools.count()
        workload = Workload(change_count=flags.changes)
        workload.create(self._source)
        self._execute(self._source, "create table ping (id int primary key, payload varchar(100))")
        self._execute(
            self._source,
            f"create publication {PUBLICATION} for table w, ping",
            f"select pg_create_logical_replication_slot('{SLOT}', 'pgoutput')",
        )
        self.row_count = workload.change(self._source)
        self._execute(destination.url("postgres"), f"create database {BASE}")
        base = destination.url(BASE)
        workload.create(base)
        self._execute(
            base,
            "create table ping (id int primary key, payload varchar(100))",
            "vacuum analyze w",
        )

    def run(self, contender: str) -> Measurement:
        """Return a target, a pipeline and, but for the first contender, a consumer of its own."""
        target = self._new_target()
        slot = "bench_ours"
        contenders.copy_slot(self._source, SLOT, slot)
        # The log of the previous run is gone: its publication may have another owner.
        self._execute(self._source, f"comment on publication {PUBLICATION} is null")
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
            file = write_config(
                Path(scratch),
                self._source,
                target,
                mode="change",
                exit_when_idle=False,
                files_per_batch=1,
                slot=slot,
                publication=PUBLICATION,
            )
            notes = _with_consumer(file, contender)
            progress = Progress(target, self.row_count)
            progress.start()
            with Running(file):
                row_count, elapsed_s = progress.rate()
                found, _ = measure(
                    PostgresSession(self._source),
                    PostgresSession(target),
                    self._numbers,
                    self._flags.rate,
                    self._flags.seconds,
                )
            starts, events = _read_notes(notes)
        shown = quantiles(found)
        return Measurement(
            elapsed_s=elapsed_s * self.row_count / row_count,
            extra={**shown, "consumer_starts": starts, "consumer_events": events},
        )

    def _new_target(self) -> str:
        """Return a database with W's rows."""
        name = f"run_{next(self._runs)}"
        self._execute(
            self._destination.url("postgres"),
            f"create database {name} template {BASE}",
            "checkpoint",
        )
        return self._destination.url(name)

    @staticmethod
    def _execute(url: str, *statements: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())


def _with_consumer(file: Path, contender: str) -> Path:
    """Add the contender's consumer to the pipeline file; return where it notes."""
    notes = file.parent / "notes.txt"
    if contender == ALONE:
        return notes
    (file.parent / "bench_consumers.py").write_text(CONSUMERS)
    file.write_text(
        file.read_text()
        + f'[consumers.beside]\nclass = "bench_consumers:{CLASSES[contender]}"\n'
        + f'options = {{ notes = "{notes}" }}\n'
    )
    if contender == DISABLED:
        config = load_config(file)
        consumer_process.add(config, "beside")
        consumer_process.disable(config, "beside")
    return notes


def _read_notes(notes: Path) -> tuple[int, int]:
    """Return how often the consumer was started, and how many events it has read."""
    lines = notes.read_text().splitlines() if notes.exists() else []
    return lines.count("start"), sum(int(line) for line in lines if line != "start")


@contextmanager
def servers(flags: Any) -> Iterator[Side]:
    """Provide both servers, with the backlog in the source's WAL."""
    with EmbeddedPostgres() as origin, EmbeddedPostgres() as destination:
        yield Side(origin, destination, flags)


def table(results: Mapping[str, Sequence[Measurement]], row_count: int) -> list[str]:
    """Return a line per contender: the best and the median round, with the ratio to the first."""
    lines = [
        f"{'contender':<18}{'rows/s best':>12}{'ratio':>7}{'median':>10}{'ratio':>7}"
        f"{'p50 ms best':>13}{'ratio':>7}{'median':>8}{'ratio':>7}{'p90 ms':>8}{'ratio':>7}"
        f"{'starts':>8}{'events':>9}"
    ]
    first: list[float] = []
    for name, runs in results.items():
        rates = [row_count / run.elapsed_s for run in runs]
        p50 = [run.extra["p50_ms"] for run in runs]
        p90 = statistics.median(run.extra["p90_ms"] for run in runs)
        figures = [max(rates), statistics.median(rates), min(p50), statistics.median(p50), p90]
        first = first or figures
        a, b, c, d, e = (
            f"{one:,.{digits}f}{one / other:>7.2f}"
            for one, other, digits in zip(figures, first, (0, 0, 1, 1, 1), strict=True)
        )
        starts = statistics.median(run.extra["consumer_starts"] for run in runs)
        events = statistics.median(run.extra["consumer_events"] for run in runs)
        lines.append(f"{name:<18}{a:>19}{b:>17}{c:>20}{d:>15}{e:>15}{starts:>8.0f}{events:>9.0f}")
    return lines


def main() -> None:
    """Run all contenders in turn."""
    flags = arguments(__doc__ or "", changes=1_000_000, rate=20, seconds=10)
    print(f"consumers beside the load ({describe_machine()})", flush=True)
    with servers(flags) as side:
        side.run(ALONE)  # not counted: the servers have just been filled
        comparison = Comparison(
            bench="consumers_beside_load",
            contenders=[
                Contender(name=name, run=lambda n=name: side.run(n), unit_count=side.row_count)
                for name in (ALONE, *CLASSES)
            ],
        ).run(flags.rounds)
    print("\n".join(table(comparison.results, side.row_count)), flush=True)


if __name__ == "__main__":
    main()
