"""The workload W end to end, in two arrangements: from the same WAL, and live.

The same WAL: W's changes are committed before a side reads. Each side reads them through a copy of
one slot into a fresh target; the time runs from the start signal until the last change is visible.
Live: the time runs from the first commit at the source until the last change is visible, and
includes the commits; both sides run already when it begins. `--tables 20` spreads the changes over
so many tables, and `--sessions 1,4` runs ours with each of these numbers of sessions that apply.

Estimate: all processes share two cores. Per row of W the source needs some 10 us to commit (live
only) and 4 us to decode and send, the extractor 2 us, staging 3.5 us, the merge 4 us: 150,000
rows/s of the same WAL and 85,000 live when nothing waits.
Limit: PostgreSQL's own subscription (streaming on), which applies row by row in one backend: 8 us
a row beside the walsender's 4. The start of Spark is printed, not counted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg

from bench import contenders
from bench.harness import (
    Comparison,
    Contender,
    Measurement,
    ServerSampler,
    TreeSampler,
    arguments,
)
from bench.pipeline import Half, Running, write_config
from bench.roles import RoleSampler
from bench.workload import ManyTables, Workload
from penstock.engines.postgres.server.embedded import EmbeddedPostgres

FIRST_ID, LAST_ID = -2, -1
PUBLICATION = "bench"
SLOT = "bench_template"
# All servers use this: the tables fit. The manual advises a quarter of the machine's memory.
SERVER = {"shared_buffers": "1GB", "max_prepared_transactions": "8"}
SAMPLE_INTERVAL_S = 2.0  # a look costs milliseconds on cores that both sides need


AnyWorkload = Workload | ManyTables


def mark(url: str, workload: AnyWorkload, row_id: int) -> None:
    """Commit a row of each table in one transaction, by which a target shows how far it is."""
    with psycopg.connect(url) as connection:
        for table in workload.tables:
            connection.execute(f"insert into {table} (id) values ({row_id})")


def wait_for_mark(url: str, workload: AnyWorkload, row_id: int) -> None:
    """Wait until these rows are visible in all tables."""
    counts = [f"(select count(*) from {one} where id = {row_id})" for one in workload.tables]
    contenders.wait_for_value(url, f"select {' + '.join(counts)}", len(counts))


class Live:
    """A source and a target with the same base rows, created for every run."""

    def __init__(self, workload: AnyWorkload) -> None:
        """Store the workload: W, or a part of it."""
        self.workload = workload
        self.row_count = 0

    def warm(self, source: str, target: str) -> None:
        """Commit a first row and wait for it: everything that starts late has started then."""
        began = time.monotonic()
        mark(source, self.workload, FIRST_ID)
        wait_for_mark(target, self.workload, FIRST_ID)
        print(f"first row visible in {time.monotonic() - began:.1f} s", flush=True)

    def measure(self, source: str, target: str) -> tuple[float, float]:
        """Commit W's changes and one last row; return seconds until it is visible, and after it."""
        began = time.monotonic()
        self.row_count = self.workload.change(source)
        mark(source, self.workload, LAST_ID)
        committed = time.monotonic()
        wait_for_mark(target, self.workload, LAST_ID)
        return time.monotonic() - began, time.monotonic() - committed

    def subscription(self) -> Measurement:
        """Run PostgreSQL's own subscription."""
        with (
            EmbeddedPostgres(settings=SERVER) as origin,
            EmbeddedPostgres(settings=SERVER) as destination,
        ):
            source, target = origin.url("postgres"), destination.url("postgres")
            fill(self.workload, source, target)
            with contenders.subscription(
                source,
                target,
                publication=PUBLICATION,
                name="bench",
                options="copy_data = false, streaming = on",
            ):
                self.warm(source, target)
                with (
                    ServerSampler(*map(contenders.postmaster, (origin, destination))) as servers,
                    RoleSampler({"source": source, "target": target}) as roles,
                ):
                    total_s, behind_s = self.measure(source, target)
        roles.print_table(self.row_count)
        roles.print_timeline()
        return Measurement(
            elapsed_s=total_s,
            server_cpu_s=servers.cpu_s,
            server_peak_bytes=servers.peak_bytes,
            extra={"behind_last_commit_s": behind_s},
        )

    def penstock(self, sessions: int) -> Measurement:
        """Run `penstock run` in mode change, which applies with so many sessions."""
        with (
            EmbeddedPostgres(settings=SERVER) as origin,
            EmbeddedPostgres(settings=SERVER) as destination,
            tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch,
        ):
            source, target = origin.url("postgres"), destination.url("postgres")
            fill(self.workload, source, target)
            file = write_config(
                Path(scratch),
                source,
                target,
                mode="change",
                exit_when_idle=False,
                flush_interval_s=1,
                apply_sessions=sessions,
            )
            with Running(file) as running:
                self.warm(source, target)
                with (
                    ServerSampler(*map(contenders.postmaster, (origin, destination))) as servers,
                    TreeSampler(running.pid, interval_s=SAMPLE_INTERVAL_S) as sampler,
                    RoleSampler({"source": source, "target": target}, running.pid) as roles,
                ):
                    total_s, behind_s = self.measure(source, target)
        roles.print_table(self.row_count)
        roles.print_timeline()
        return Measurement(
            elapsed_s=total_s,
            cpu_s=sampler.cpu_s,
            peak_bytes=sampler.peak_bytes,
            server_cpu_s=servers.cpu_s,
            server_peak_bytes=servers.peak_bytes,
            extra={"behind_last_commit_s": behind_s},
        )


class SameWal:
    """A source whose WAL holds W's changes; every run reads them into a newly created target."""

    def __init__(self, workload: AnyWorkload, origin: EmbeddedPostgres, row_count: int) -> None:
        """Store the origin, which `prepare` has created."""
        self._workload = workload
        self._origin = origin
        self._source = origin.url("postgres")
        self._row_count = row_count

    @classmethod
    @contextmanager
    def prepare(cls, workload: AnyWorkload) -> Iterator[SameWal]:
        """Provide the source, for the time of a with block."""
        with EmbeddedPostgres(settings=SERVER) as origin:
            source = origin.url("postgres")
            workload.create(source)
            with psycopg.connect(source, autocommit=True) as connection:
                publish(connection, workload)
                connection.execute(
                    "select pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,)
                )
                count = workload.change(source)
                mark(source, workload, LAST_ID)
                analyze(connection, workload)  # else autovacuum does it beside one side
            yield cls(workload, origin, count)

    def subscription(self) -> Measurement:
        """Run PostgreSQL's own subscription."""
        contenders.copy_slot(self._source, SLOT, "bench_theirs")
        with EmbeddedPostgres(settings=SERVER) as destination:
            target = destination.url("postgres")
            fill(self._workload, None, target)
            options = (
                "create_slot = false, slot_name = bench_theirs, enabled = false,"
                " copy_data = false, streaming = on"
            )
            with (
                contenders.subscription(
                    self._source, target, publication=PUBLICATION, name="bench", options=options
                ),
                psycopg.connect(target, autocommit=True) as connection,
                self._servers(destination) as servers,
                RoleSampler({"source": self._source, "target": target}) as roles,
            ):
                began = time.monotonic()
                connection.execute("alter subscription bench enable")
                wait_for_mark(target, self._workload, LAST_ID)
                elapsed_s = time.monotonic() - began
        roles.print_table(self._row_count)
        roles.print_timeline()
        return Measurement(
            elapsed_s=elapsed_s, server_cpu_s=servers.cpu_s, server_peak_bytes=servers.peak_bytes
        )

    def _servers(self, destination: EmbeddedPostgres) -> ServerSampler:
        return ServerSampler(*map(contenders.postmaster, (self._origin, destination)))

    def penstock(self, sessions: int) -> Measurement:
        """Run `penstock load`, which waits; then tell an extractor with finished imports to go.

        sessions: number of those that apply.
        """
        contenders.copy_slot(self._source, SLOT, "bench_ours")
        with psycopg.connect(self._source, autocommit=True) as connection:
            # The log of the previous round is gone: its publication may have another owner.
            connection.execute(f"comment on publication {PUBLICATION} is null")
        with (
            EmbeddedPostgres(settings=SERVER) as destination,
            tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch,
        ):
            target = destination.url("postgres")
            fill(self._workload, None, target)
            file = write_config(
                Path(scratch),
                self._source,
                target,
                mode="change",
                exit_when_idle=False,
                flush_interval_s=1,
                slot="bench_ours",
                publication=PUBLICATION,
                apply_sessions=sessions,
            )
            with (
                Half([sys.executable, "-m", "penstock", "load", str(file)], file) as load,
                Half(
                    [sys.executable, "-m", "bench.bench_end_to_end", "--child", str(file)],
                    file,
                    speaks=True,
                ) as extract,
            ):
                load.until_waiting()
                extract.until_said("ready")
                with (
                    self._servers(destination) as servers,
                    TreeSampler(load.pid, interval_s=SAMPLE_INTERVAL_S) as sampler,
                    TreeSampler(extract.pid, interval_s=SAMPLE_INTERVAL_S) as other,
                    RoleSampler(
                        {"source": self._source, "target": target}, load.pid, extract.pid
                    ) as roles,
                ):
                    began = time.monotonic()
                    extract.say("go")
                    wait_for_mark(target, self._workload, LAST_ID)
                    elapsed_s = time.monotonic() - began
        roles.print_table(self._row_count)
        roles.print_timeline()
        return Measurement(
            elapsed_s=elapsed_s,
            cpu_s=sampler.cpu_s + other.cpu_s,
            peak_bytes=sampler.peak_bytes + other.peak_bytes,
            server_cpu_s=servers.cpu_s,
            server_peak_bytes=servers.peak_bytes,
        )


def extract_when_told(file: str) -> None:
    """Say that it is ready, wait for a line, extract until stopped: the child process."""
    from penstock.control.pipeline.config import load_config
    from penstock.control.run.extract_process import extract_changes
    from penstock.ports.source import extraction_of

    config = load_config(Path(file))
    extraction_of(config)
    print("ready", flush=True)
    sys.stdin.readline()
    extract_changes(config, checked=True)


def analyze(connection: psycopg.Connection, workload: AnyWorkload) -> None:
    """Vacuum and analyze all tables."""
    connection.execute(f"vacuum analyze {', '.join(workload.tables)}")


def publish(connection: psycopg.Connection, workload: AnyWorkload) -> None:
    """Create the publication of all tables."""
    connection.execute(f"create publication {PUBLICATION} for table {', '.join(workload.tables)}")


def fill(workload: AnyWorkload, source: str | None, target: str) -> None:
    """Create the tables with their base rows, and the source's publication."""
    for url in filter(None, (source, target)):
        workload.create(url)
        with psycopg.connect(url, autocommit=True) as connection:
            analyze(connection, workload)
    if source is not None:
        with psycopg.connect(source, autocommit=True) as connection:
            publish(connection, workload)


def main() -> None:
    """Run both arrangements, both sides in turn."""
    if sys.argv[1:2] == ["--child"]:
        extract_when_told(sys.argv[2])
        return
    flags = arguments(
        __doc__ or "", changes=1_000_000, same_wal=1, live=1, narrow=0, tables=1, sessions="1"
    )
    whole = Workload(change_count=flags.changes, narrow=bool(flags.narrow))
    workload: AnyWorkload = whole
    rows = "narrow" if flags.narrow else "w"
    if flags.tables > 1:
        workload = ManyTables(whole=whole, count=flags.tables)
        rows += f"_{flags.tables}_tables"
    counts = [int(count) for count in flags.sessions.split(",")]
    if flags.same_wal:
        with SameWal.prepare(workload) as same:
            compare(f"end_to_end_{rows}_same_wal", same, flags, counts)
    if flags.live:
        compare(f"end_to_end_{rows}_live", Live(workload), flags, counts)


def compare(
    name: str, sides: SameWal | Live, flags: argparse.Namespace, counts: Sequence[int]
) -> None:
    """Run all sides in turn: the subscription, and ours with each number of sessions."""

    def ours(count: int) -> Contender:
        called = "penstock" if count == 1 else f"penstock, {count} sessions"
        return Contender(name=called, run=lambda: sides.penstock(count), unit_count=flags.changes)

    theirs = Contender(name="CREATE SUBSCRIPTION", run=sides.subscription, unit_count=flags.changes)
    Comparison(bench=name, contenders=[theirs, *map(ours, counts)]).run(flags.rounds).print_table()


if __name__ == "__main__":
    main()
