"""The bulk load is killed, stopped and paused: every row arrives once, whatever happens."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest

from harness.pipelines.bulk import (
    ORDERS,
    between,
    check_equal,
    fill_orders,
    load,
    point_of,
    rows,
    run,
)
from harness.servers.proxy import Proxy
from penstock.codec.postgres.lsn import Lsn
from penstock.control.run.bulk_load import bulk_load
from penstock.control.status.lag import read_target_state
from penstock.control.status.live import bulk_line
from penstock.engines.postgres.planner import PostgresPlanner
from penstock.engines.postgres.source.bulk_reader import snapshot_text
from penstock.engines.postgres.source.snapshot import temporary_consistent_point
from penstock.load import chunk as chunks
from penstock.load.bulk import BulkStopped
from penstock.load.bulk_progress import BulkProgress
from penstock.load.ledger import read_ledger, start_positions
from penstock.load.session import Session
from penstock.ports.bulk import ChunkStatus, ChunkTask
from penstock.ports.config import Config
from penstock.ports.progress import open_target_reader

pytestmark = pytest.mark.spark

KILL_TIMEOUT_S = 60.0
CHILD = """
import sys
from pathlib import Path
from penstock.control.run.bulk_load import bulk_load
from penstock.control.pipeline.config import load_config
from penstock.engines.postgres.planner import PostgresPlanner
from penstock.load.bulk import Point
from penstock.load.session import SessionOptions, start_session
from penstock.codec.postgres.lsn import Lsn

config = load_config(Path(sys.argv[1]))
point = None
if sys.argv[2:]:
    point = Point(
        position=Lsn.parse(sys.argv[2]), snapshot_id=sys.argv[3], snapshot_text=sys.argv[4]
    )
options = SessionOptions(work_directory=config.layout.run / "child", master="local[2]")
with start_session(options) as session, PostgresPlanner(config, first=lambda: point) as planner:
    bulk_load(config, session, planner)
"""


@pytest.fixture
def config(source_url: str, target_url: str, tmp_path: Path) -> Config:
    """A data pipeline between two databases, with chunks of one megabyte."""
    return between(source_url, target_url, tmp_path)


# -- kills -----------------------------------------------------------------------------------------


@contextmanager
def child(config: Config, fault: str, *point: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that runs the load; kill it after the block if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(config.path), *point],
        env={**os.environ, "PENSTOCK_FAULT": fault},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(url: str, query: str, expected: int) -> None:
    """Wait until a count is reached."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while time.monotonic() < deadline:
        with psycopg.connect(url) as connection:
            connection.execute("set client_min_messages = error")
            found = connection.execute(
                "select to_regclass('wirekite.bulk_table') is not null"
            ).fetchone()
            if found and found[0]:
                count = connection.execute(query).fetchone()  # type: ignore[arg-type]
                if count and count[0] >= expected:
                    return
        time.sleep(0.05)
    raise TimeoutError(f"{query} did not reach {expected}")


DONE_CHUNKS = (
    "select count(*) from wirekite.wirekite_progress where operation = 'DL' "
    "and finish_time is not null"
)
# Sessions that have been idle for a while: their workers sleep at the fault point.
RUNNING_COPIES = (
    "select count(*) from pg_stat_activity where application_name = 'penstock bulk' and "
    "state = 'active' and datname = current_database()"
)
ASLEEP = (
    "select count(*) from pg_stat_activity where application_name = 'penstock bulk' and "
    "state <> 'active' and clock_timestamp() - state_change > interval '0.7 s' "
    "and datname = current_database()"
)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("fault", "query", "expected"),
    [
        ("bulk.chunk.committed:2:sleep", DONE_CHUNKS, 2),
        ("bulk.chunk.copied:3:sleep", ASLEEP, 2),
        ("bulk.chunk.copied:1:sleep", ASLEEP, 1),
    ],
)
def test_a_killed_load_goes_on_where_it_was(
    config: Config, spark: Session, fault: str, query: str, expected: int
) -> None:
    """Finished chunks stay and the others follow while the snapshot lives: no row is lost or
    repeated.
    """
    fill_orders(config.source.url)
    with temporary_consistent_point(config.source.url) as point:
        first = point_of(config, point)
        run(config.source.url, "insert into public.orders (id) values (-1)")  # after the point
        with child(
            config, fault, str(first.position), first.snapshot_id, first.snapshot_text
        ) as process:
            wait_for(config.target.url, query, expected)
            os.kill(process.pid, signal.SIGKILL)
        plan = read_ledger(config.layout.state).plans[0]
        before = rows(
            config.target.url,
            "select source, start_time from wirekite.wirekite_progress where operation = 'DL' "
            "and finish_time is not null",
        )
        with PostgresPlanner(config, first=lambda: first) as planner:
            result = bulk_load(config, spark, planner)
    assert result.positions == {ORDERS: point.position}
    assert result.rows == {ORDERS: 60_000}
    run(config.source.url, "delete from public.orders where id = -1")
    check_equal(config)
    assert read_ledger(config.layout.state).plans[0].name == plan.name
    after = rows(config.target.url, "select source, start_time from wirekite.wirekite_progress")
    assert set(before) <= set(after)


@pytest.mark.faults
@pytest.mark.parametrize("goes_on", [True, False], ids=["goes on", "afresh"])
def test_a_load_does_not_wait_for_workers_that_hang(
    config: Config, spark: Session, goes_on: bool
) -> None:
    """The next run loads everything while one is stopped in the middle of a chunk with locked rows.

    It uses the same point with the chunk's own plan, or another plan at a later point.
    """
    fill_orders(config.source.url)
    with ExitStack() as stack:
        point = stack.enter_context(temporary_consistent_point(config.source.url))
        first = point_of(config, point)
        given = (str(first.position), first.snapshot_id, first.snapshot_text) if goes_on else ()
        process = stack.enter_context(child(config, "bulk.chunk.copied:1:sleep", *given))
        wait_for(config.target.url, ASLEEP, 1)
        every = psutil.Process(process.pid).children(recursive=True)
        workers = [one for one in every if one.name().startswith("python")]
        for one in workers:
            one.suspend()
        os.kill(process.pid, signal.SIGKILL)
        try:
            with PostgresPlanner(config, first=lambda: first) as planner:
                result = bulk_load(config, spark, planner)
            assert any("loaded again from the start" in note for note in result.notes) != goes_on
            check_equal(config)
        finally:
            for one in workers:
                with suppress(psutil.NoSuchProcess):
                    one.resume()
        psutil.wait_procs(workers, KILL_TIMEOUT_S)
    check_equal(config)


@pytest.mark.faults
def test_a_killed_load_whose_snapshot_is_gone_starts_unfinished_tables_afresh(
    config: Config, spark: Session
) -> None:
    """The finished table keeps its point, the other gets a later one, and the user is told."""
    fill_orders(config.source.url)
    run(
        config.source.url,
        "create table public.huge (id int, pad text)",
        "insert into public.huge select i, repeat('y', 900) from generate_series(1, 6000) as i",
    )
    # The small ones are read last; a table counts as finished once its load has ended.
    with child(config, "bulk.chunk.copied:3:sleep"):
        wait_for(config.target.url, DONE_CHUNKS, 3)
    early = start_positions(config.layout.state, Lsn)
    run(config.source.url, "delete from public.huge where id < 100")
    result = load(config, spark)
    check_equal(config)
    assert result.positions[ORDERS] > early[ORDERS]
    assert any("is loaded again from the start" in note for note in result.notes)
    assert any("at a later point" in note for note in result.notes)


@pytest.mark.faults
def test_a_worker_left_over_cannot_add_rows_of_an_old_plan(config: Config, spark: Session) -> None:
    """A task of an abandoned plan finds the table under another plan and ends."""
    fill_orders(config.source.url, 1000)
    load(config, spark)
    plan = read_ledger(config.layout.state).plans[0]
    with temporary_consistent_point(config.source.url) as point:
        task = ChunkTask(
            source_url=config.source.url,
            target_url=config.target.url,
            table=plan.source,
            target=plan.target,
            chunk=plan.chunks[0],
            columns=plan.columns,
            binary=plan.binary,
            snapshot_id=point.snapshot_id,
            snapshot_text=snapshot_text(config.source.url, point.snapshot_id),
            plan="given up",
            replica_role=True,
        )
        with chunks.ChunkCopier() as copier:
            assert copier.copy(task).status is ChunkStatus.PLAN_GONE
    check_equal(config)


def test_another_snapshot_of_the_same_name_is_not_taken_for_ours(
    config: Config, spark: Session
) -> None:
    """Names of snapshots are reused after a restart; the snapshot's content distinguishes them."""
    fill_orders(config.source.url, 1000)
    with temporary_consistent_point(config.source.url) as point:
        stale = dataclasses.replace(point_of(config, point), snapshot_text="1:2:")
        run(config.source.url, "insert into public.orders (id) values (-1)")
        with PostgresPlanner(config, first=lambda: stale) as planner:
            result = bulk_load(config, spark, planner)
    assert result.positions[ORDERS] > point.position
    check_equal(config)


@pytest.mark.faults
def test_a_chunk_copied_by_two_processes_is_there_once(config: Config, spark: Session) -> None:
    """The second process waits for the first to commit, sees its DL row and adds nothing."""
    fill_orders(config.source.url, 1000)
    load(config, spark)
    plan = read_ledger(config.layout.state).plans[0]
    run(config.target.url, "update wirekite.bulk_table set finish_time = null")
    with temporary_consistent_point(config.source.url) as point, ExitStack() as stack:
        task = ChunkTask(
            source_url=config.source.url,
            target_url=config.target.url,
            table=plan.source,
            target=plan.target,
            chunk=plan.chunks[0],
            columns=plan.columns,
            binary=plan.binary,
            snapshot_id=point.snapshot_id,
            snapshot_text=snapshot_text(config.source.url, point.snapshot_id),
            plan=plan.name,
            replica_role=True,
        )
        copier = stack.enter_context(chunks.ChunkCopier())
        outcome = copier.copy(task)
        assert (outcome.status, outcome.rows) == (ChunkStatus.DONE_BEFORE, 1000)
    check_equal(config)


def test_a_stopped_load_keeps_its_chunks(config: Config, spark: Session) -> None:
    """Ctrl-C ends the load in order; the next run completes it."""
    fill_orders(config.source.url, 150_000)
    seen: list[BulkProgress] = []
    with pytest.raises(BulkStopped):
        load(config, spark, on_progress=seen.append, stop=lambda: bool(seen))
    load(config, spark)
    check_equal(config)


def slow_orders(config: Config, count: int = 60_000) -> None:
    """Create orders, and a target table that takes a second for each chunk of them."""
    fill_orders(config.source.url, count)
    run(
        config.target.url,
        "create table public.orders (id bigint, note text, total numeric(12,2), at timestamptz)",
        "create function public.slow() returns trigger language plpgsql as $$ begin "
        "if new.id % 8000 = 0 then perform pg_sleep(1); end if; return new; end $$",
        "create trigger slow before insert on public.orders for each row "
        "execute function public.slow()",
        "alter table public.orders enable always trigger slow",
    )


def finished_chunks(config: Config) -> int:
    """Return the number of chunks that the target records as done."""
    return int(str(rows(config.target.url, DONE_CHUNKS)[0][0]))


def test_pause_lets_chunks_end_and_begins_none_until_run(config: Config, spark: Session) -> None:
    """Started chunks are kept, the state says paused, and the same plan continues afterwards."""
    slow_orders(config)
    act = "update wirekite.wirekite_action set action = '{}'"
    seen: list[BulkProgress] = []
    at_rest: list[int] = []

    def on_progress(reading: BulkProgress) -> None:
        if reading.rows_done and not any(r.rows_done for r in seen):  # a chunk is being copied
            run(config.target.url, act.format("PAUSE"))
        seen.append(reading)
        if reading.phase == "paused":
            at_rest.append(finished_chunks(config))
            time.sleep(2.5)
            at_rest.append(finished_chunks(config))
            assert rows(config.target.url, RUNNING_COPIES) == [(0,)]
            with closing(open_target_reader(config.target.url, application_name="test")) as reader:
                bulk = read_target_state(reader, config).bulk
            assert bulk is not None
            assert bulk.phase == "paused"
            assert "bulk load paused at" in bulk_line(bulk)
            run(config.source.url, "delete from public.orders where id % 2 = 0")
            run(config.target.url, act.format("RUN"))

    result = load(config, spark, on_progress=on_progress)
    assert [r.phase for r in seen].count("paused") == 1
    assert 0 < at_rest[0] == at_rest[1] < seen[-1].tables[0].chunks_total
    # All rows were read at the point of the first plan.
    assert result.rows == {ORDERS: 60_000}
    assert rows(config.target.url, "select count(*), count(distinct id) from orders") == [
        (60_000, 60_000)
    ]


def test_stop_while_paused_ends_the_load(config: Config, spark: Session) -> None:
    """A stopped load does not wait for RUN; the next run completes it."""
    slow_orders(config)
    act = "update wirekite.wirekite_action set action = '{}'"

    def on_progress(reading: BulkProgress) -> None:
        if reading.phase == "paused":
            run(config.target.url, act.format("STOP"))
        elif reading.rows_done:  # a chunk is being copied
            run(config.target.url, act.format("PAUSE"))

    with pytest.raises(BulkStopped):
        load(config, spark, on_progress=on_progress)
    assert 0 < finished_chunks(config) < len(read_ledger(config.layout.state).plans[0].chunks)
    with pytest.raises(BulkStopped):
        load(config, spark)
    run(config.target.url, act.format("RUN"))
    load(config, spark)
    check_equal(config)


# -- network failures ------------------------------------------------------------------------------

TEARS: dict[str, tuple[bytes, bool, bool]] = {
    "rows from the source": (b"", False, False),
    "rows to the target": (b"", True, False),
    "commit": (b"COMMIT", True, False),
    "answer to commit": (b"COMMIT", True, True),
}


@pytest.mark.faults
@pytest.mark.parametrize("torn", TEARS)
def test_a_chunk_torn_on_its_way_is_there_once(
    source_url: str, target_url: str, tmp_path: Path, spark: Session, torn: str
) -> None:
    """A connection is cut in the middle of a chunk: it is copied again, unless it had arrived."""
    fill_orders(source_url)
    ports = [urlsplit(url).port or 0 for url in (source_url, target_url)]
    with Proxy(ports[0]) as source, Proxy(ports[1]) as target:
        config = between(source.url(source_url), target.url(target_url), tmp_path)
        pattern, to_server, whole = TEARS[torn]
        broken = source if torn == "rows from the source" else target

        def tear() -> None:
            wait_for(target_url, RUNNING_COPIES, 1)
            broken.tear(pattern, to_server=to_server, whole=whole)

        source.slow(2_000_000)  # so that the chunks take long
        beside = threading.Thread(target=tear)
        beside.start()
        with temporary_consistent_point(source_url) as point:
            first = point_of(config, point)
            with PostgresPlanner(config, first=lambda: first) as planner:
                result = bulk_load(config, spark, planner)
        beside.join()
        assert broken.torn.is_set()
        assert source.cut_count + target.cut_count == 1
    assert result.rows == {ORDERS: 60_000}
    check_equal(between(source_url, target_url, tmp_path))
