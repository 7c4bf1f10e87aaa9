"""Effect of more executors on one hot table: each phase, and all of it on `local-cluster`."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from typing import Any

import psycopg

from bench import bench_batch, bench_loader
from bench.contenders import postmaster
from bench.harness import ServerSampler, TreeSampler, arguments, describe_machine
from bench.scale_model import Costs, simulate
from bench.spark_home import use_copied_spark
from bench.workload import Workload
from penstock.base.fold import FoldedRows, fold
from penstock.codec.types import NO_CHOICES
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.load import session as sessions
from penstock.load.job import TaskOutcome, Work, _bucket, _Frames
from penstock.load.plan import FrameRef, Task
from penstock.load.session import Session, SessionOptions, start_session
from penstock.load.shared_rows import SharedRows
from penstock.load.sql_target import StagedBatch, open_stager
from penstock.log.frames import FrameReader
from penstock.log.layout import next_segments
from penstock.log.segment import open_either, open_segment
from penstock.model.policies import EVOLVE_ALL
from penstock.ports.loading import BatchOptions
from penstock.ports.target import engine_of

EXECUTORS = (1, 2, 4)
PHASE_BUCKETS = (1, 2, 4, 8)
SMALL_TABLES = 100
PHASES = ("read", "split", "fold", "order", "send")
FILES_MAX = 1000
Phases = dict[str, float]  # CPU microseconds per row


@dataclass(slots=True)
class InProcess:
    """A session that does the tasks here, phase by phase, and notes the CPU of each."""

    cpu_s: Counter[str] = field(default_factory=Counter)
    server: int = 0
    server_cpu_s: float = 0.0
    slots_are_fixed = False

    def run(
        self, partitions: Sequence[Sequence[Work]], _work: object, *, description: str = ""
    ) -> list[TaskOutcome]:
        """Run the tasks in this process, one after the other."""
        del description
        with ServerSampler(self.server) as sampler:
            found = [self._do(work) for works in partitions for work in works]
        self.server_cpu_s += sampler.cpu_s
        return found

    def tell(self, description: str, found: object) -> None:
        """Do nothing: it is never called."""

    def _do(self, work: Work) -> TaskOutcome:
        task, writer = work.task, work.writer
        files = {ref.path: FrameReader(open_either(ref.path)) for ref in task.frames}
        every = _Frames(task, files, writer.prepare_rows)
        frames: Any
        if work.shared is not None:
            frames = self._share(task, work.shared, every)
        else:
            frames = self._time("read", lambda: list(every))
            if task.buckets > 1:
                bucket = _bucket(task, frames)
                frames = self._time("split", lambda: list(bucket))
        net = self._time("fold", lambda: fold(task.relation, frames))
        rows = FoldedRows(
            net=net,
            layout=writer.layout,
            frames=frames,
            part=task.bucket,
            in_key_order=True,
            any_unsent=bool(net.counts.absent),
        )
        batches = self._time("order", lambda: list(chain(rows.deletes(), rows.upserts())))
        staged = self._time("send", lambda: writer.write(_Made(rows, batches)))
        for reader in files.values():
            reader.file.close()
        return TaskOutcome(
            phase=task.phase,
            staging=task.staging,
            bucket=task.bucket,
            counts=net.counts,
            absent_columns=rows.absent_columns,
            staged=staged,
        )

    def _share(self, task: Task, directory: Path, every: _Frames) -> list[Any]:
        """Return a bucket's rows; reading is what the division of the frames reads."""

        def read(ref: FrameRef) -> Any:
            return self._time("read", lambda: every.read(ref))

        before = self.cpu_s["read"]
        found = self._time("split", lambda: list(SharedRows(task, directory, read)))
        self.cpu_s["split"] -= self.cpu_s["read"] - before
        return found

    def _time(self, phase: str, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = work()
        self.cpu_s[phase] += time.process_time() - began
        return result


class _Made:
    """Finished rows; see NetRows."""

    def __init__(self, rows: FoldedRows, batches: list[Any]) -> None:
        self.counts, self.part, self.any_unsent = rows.counts, rows.part, rows.any_unsent
        self._batches = batches

    def deletes(self) -> Iterator[Any]:
        """Return all of them."""
        return iter(self._batches)

    def upserts(self) -> Iterator[Any]:
        """Return nothing."""
        return iter(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One batch. cpu_s: of our processes; the server's is of both steps."""

    rows: int
    stage_s: float
    apply_s: float
    cpu_s: float = 0.0
    staging_server_s: float = 0.0
    applying_server_s: float = 0.0

    def us(self, seconds: float) -> float:
        """Return CPU microseconds per row."""
        return seconds * 1e6 / self.rows


def load(
    url: str,
    log: Path,
    session: Any,
    *,
    executors: int,
    server: int,
    scratch: Path | None,
    applies: bool = True,
) -> Ran:
    """Stage everything that is in a log as one batch, and apply it unless told not to.

    scratch: directory in which buckets share rows; None if each reads all frames.
    """
    files = next_segments(log, after=-1, count_max=FILES_MAX)
    with open_segment(files[0].path) as first:
        log_id = first.header.log_id
    engine = engine_of(url)
    options = BatchOptions(
        url=url,
        log_id=log_id,
        namespaces={},
        threads_max=executors,
        extension="ckt",
        starts={},
        settled={},
        choices=NO_CHOICES,
        policies=EVOLVE_ALL,
        rows_directory=scratch,
    )
    opened: Any = engine.open_target(
        url, {}, allow_triggers=False, choices=NO_CHOICES, policies=EVOLVE_ALL
    )
    with closing(opened) as target, closing(open_stager(engine, options)) as stager:
        applied = target.bind(log_id)
        with (
            TreeSampler(os.getpid(), without=[server]) as ours,
            ServerSampler(server) as staging_server,
        ):
            staged: StagedBatch = stager.stage(files, session, applied=applied)
        with ServerSampler(server) as applying_server:
            seconds = target.apply(staged) if applies else {"apply": 0.0, "commit": 0.0}
    return Ran(
        rows=staged.counts.changes,
        stage_s=staged.seconds["stage"],
        apply_s=seconds["apply"] + seconds["commit"],
        cpu_s=ours.cpu_s,
        staging_server_s=staging_server.cpu_s,
        applying_server_s=applying_server.cpu_s,
    )


@contextmanager
def cluster(
    executors: int, folder: Path, more: Mapping[str, str] | None = None
) -> Iterator[Session]:
    """Provide a session on `local-cluster`; it writes beside its SPARK_HOME, which is a copy.

    more: properties of Spark.
    """
    use_copied_spark(folder)
    sessions.EXECUTOR_WAIT_S = 600.0  # a busy machine takes longer
    session = start_session(
        SessionOptions(
            work_directory=folder / f"work-{executors}",
            master=f"local-cluster[{executors},1,1024]",
            conf={"spark.executor.memory": "1024m", **(more or {})},
        )
    )
    try:
        while session.parallelism < executors:
            time.sleep(0.2)
        session.run([[0]] * 4 * executors, warm, description="warming up")
        yield session
    finally:
        session.close()
        del os.environ["SPARK_HOME"]


def warm(tasks: Iterator[int]) -> Iterable[int]:
    """Import what a task needs."""
    from penstock.load import job

    time.sleep(0.5)
    return [len(job.__name__) for _ in tasks]


def nothing(tasks: Iterator[int]) -> Iterable[int]:
    """Do no work."""
    return list(tasks)


def job_ms(session: Session, executors: int) -> float:
    """Return the median wall time of a job with a task per executor that does nothing."""
    seconds = []
    for _ in range(9):
        began = time.monotonic()
        session.run([[0]] * executors, nothing, description="no work")
        seconds.append(time.monotonic() - began)
    return sorted(seconds)[4] * 1e3


def phases(
    fresh: Callable[[], str], log: Path, server: int, scratch: Path, rounds: int
) -> dict[int, Phases]:
    """Measure each phase in this process, by the number of buckets: the minimum of the rounds.

    Prints it for buckets that share their rows, as on one machine, and for buckets that each read
    all frames, as on a cluster; returns the latter. Only the first round applies what is staged:
    applying takes longest, and its figures are the server's.
    """
    found: dict[tuple[bool, int], Phases] = {}
    url = ""
    for number in range(rounds):
        for shares, buckets in product((False, True), PHASE_BUCKETS):
            session = InProcess(server=server)
            applies = number == 0
            if applies or number == 1:
                url = fresh()
            ran = load(
                url,
                log,
                session,
                executors=buckets,
                server=server,
                scratch=scratch if shares else None,
                applies=applies,
            )
            seen = {phase: session.cpu_s[phase] for phase in PHASES}
            seen |= {"staging": session.server_cpu_s}
            if applies:
                seen["applying"] = ran.applying_server_s
            figures = {phase: ran.us(seconds) for phase, seconds in seen.items()}
            least = found.setdefault((shares, buckets), figures)
            found[shares, buckets] = least | {
                phase: min(least[phase], figure) for phase, figure in figures.items()
            }
    print("| frames | buckets | " + " | ".join(PHASES) + " | all | target, staging | applying |")
    print("|---" * (len(PHASES) + 5) + "|")
    for (shares, buckets), least in sorted(found.items()):
        way = "divided once" if shares else "read by each"
        ours = [least[phase] for phase in PHASES]
        cells = [*ours, sum(ours), least["staging"], least["applying"]]
        print(f"| {way} | {buckets} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")
    return {buckets: least for (shares, buckets), least in found.items() if not shares}


def measure_costs(
    found: dict[int, Phases], small: tuple[InProcess, Ran], *, row_bytes: float, job: float
) -> Costs:
    """Return the input of the simulation."""
    one, most = found[1], max(found)
    tables, ran = small
    return Costs(
        read_us=one["read"],
        split_us=found[most]["split"] / most,
        own_us=one["fold"] + one["order"] + one["send"],
        staged_us=one["staging"],
        applied_us=one["applying"],
        task_ms=sum(tables.cpu_s.values()) * 1e3 / SMALL_TABLES,
        table_ms=ran.applying_server_s * 1e3 / SMALL_TABLES,
        job_ms=job,
        row_bytes=row_bytes,
    )


def print_simulation(costs: Costs, rows: int) -> None:
    """Print up to 64 executors and 1,000 tables, of equal size or with half of the rows in one."""
    processors = 16
    print(f"\nCosts: {costs}")
    print(
        f"Assumed: {rows:,} rows a batch, maxThreads as many as executors; executors of one "
        f"processor as fast as here, the target's server with {processors}; a network and disks "
        "that are no limit; partitions are taken in order (list scheduling); the next batch is "
        "staged while one is applied by one backend."
    )
    print(
        "| executors | tables | rows | executors, s | target stages, s | target applies, s "
        "| million rows/s | limit | executors' CPU, us per row |"
    )
    print("|---" * 9 + "|")
    for executors in (1, 4, 16, 64):
        for tables in (1, 10, 100, 1000):
            for shape in ("even",) if tables == 1 else ("even", "half in one"):
                counts = spread(rows, tables, shape)
                one = simulate(
                    costs, rows=counts, executors=executors, server_processors=processors
                )
                print(
                    f"| {executors} | {tables:,} | {shape} | {one.executors_s:.2f} "
                    f"| {one.staging_s:.2f} | {one.applying_s:.2f} "
                    f"| {rows / one.seconds / 1e6:.2f} | {one.limit} | {one.cpu_us:.2f} |"
                )


def spread(rows: int, tables: int, shape: str) -> list[int]:
    """Return rows per table."""
    if shape == "even":
        return [rows // tables] * tables
    return [rows // 2] + [rows // 2 // (tables - 1)] * (tables - 1)


def main() -> None:
    """Write the logs, then measure, then compute."""
    flags = arguments(__doc__ or "", changes=600_000, simulated_rows=4_000_000, phases_only=0)
    print(f"one hot table, {flags.changes:,} changes ({describe_machine()})")
    with ExitStack() as stack:
        source, target, many = (stack.enter_context(EmbeddedPostgres()) for _ in range(3))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        url, server = source.url("postgres"), postmaster(target)
        workload = Workload(change_count=flags.changes)
        workload.create(url)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"create publication {bench_loader.PUBLICATION} for table w")
            connection.execute(
                "select pg_create_logical_replication_slot(%s, 'pgoutput')", (bench_loader.SLOT,)
            )
        bench_loader.make_segments(url, folder / "hot", workload.change(url))
        log = folder / "hot" / "log"
        targets = bench_loader.Targets(target, [Workload()])
        print("\nCPU microseconds per row, in one process:\n")
        found = phases(targets.fresh, log, server, folder, flags.rounds)
        if flags.phases_only:
            return
        small = small_tables(many, target, folder, server)
        job = 0.0
        print("\nOn local-cluster, all of Spark's processes counted:\n")
        print("| executors | stage | apply | our CPU | target's, staging | a job without work |")
        print("|---" * 6 + "|")
        for executors in EXECUTORS:
            with cluster(executors, folder) as session:
                rounds = [
                    load(
                        targets.fresh(),
                        log,
                        session,
                        executors=executors,
                        server=server,
                        scratch=None,
                    )
                    for _ in range(flags.rounds)
                ]
                job = job_ms(session, executors)
            ran = min(rounds, key=lambda one: one.cpu_s)
            print(
                f"| {executors} | {ran.stage_s:.2f} s | {ran.apply_s:.2f} s "
                f"| {ran.us(ran.cpu_s):.2f} us | {ran.us(ran.staging_server_s):.2f} us "
                f"| {job:.0f} ms |",
                flush=True,
            )
        size = sum(path.stat().st_size for path in log.glob("*.ckt"))
        costs = measure_costs(found, small, row_bytes=size / ran.rows, job=job)
        print_simulation(costs, flags.simulated_rows)


def small_tables(
    source: EmbeddedPostgres, target: EmbeddedPostgres, folder: Path, server: int
) -> tuple[InProcess, Ran]:
    """Measure a batch of one row for each of many tables: the second, when merge tables exist."""
    bench_batch.create_tables(source.url("postgres"), SMALL_TABLES)
    with psycopg.connect(target.url("postgres"), autocommit=True) as connection:
        connection.execute("create database small")
    bench_batch.create_tables(target.url("small"), SMALL_TABLES)
    log = bench_batch.make_segments(source.url("postgres"), folder / "small", SMALL_TABLES, 1)
    session = InProcess(server=server)
    ran = load(target.url("small"), log, session, executors=1, server=server, scratch=folder)
    return session, ran


if __name__ == "__main__":
    main()
