"""Applying W into MariaDB and MySQL, against the server's own replica on the same binlog.

Estimate: a replica applies row by row, with a lookup by key each: 15 to 25 us a row of one thread,
which is 40 to 60 k changes/s. Ours folds 160,000 changes to as many rows, most of which the table
reads itself (LOAD DATA ... REPLACE: what the replica does, 2 to 3 us of parsing, and an insert that
fails before each update); deletes go through a merge table. MariaDB executes events of ours
instead: 1 us for base64, and 1 to 2 us less for fewer, larger events and commits. Reading, folding
and writing, 3 us, happen on the second core.
Limit: the replica's applier, its relay log fetched beforehand, from START to the last change being
visible; with its threads as the server comes (`--workers` for more). Both sides have the same
server, which flushes with its default settings (`--nosync`: not at all), the same base rows, and
write the server's own binlog (log_slave_updates).
The replica works inside the server: its CPU and memory are the server's, ours are the processes of
the load; `target_cpu_s` is what the target's server used in either case.
Small, as a trial run: `--rounds 1 --rows 220000 --changes 50000`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from bench.bench_extraction_mysql import KINDS, SETTINGS, Server
from bench.bench_loader import Always
from bench.harness import ROUND_COUNT, Comparison, Contender, Measurement, TreeSampler
from bench.workload_mysql import DATABASE, Made, MySQLWorkload, row_count
from penstock.engines.mysql.connect import Connection, connect, rows, run
from penstock.engines.mysql.source.beginning import find_beginning
from penstock.engines.mysql.source.source_engine import MySQLEngine
from penstock.extract.extractor import ExtractOptions, Extractor
from penstock.load.loader import Loader, LoaderOptions
from penstock.load.session import PendingSession, SessionKeeper, SessionOptions
from penstock.log import list_segments

# The sizes of the servers' default redo log; the embedded servers have less.
SHIPPED = {
    "mariadb": {"innodb_log_file_size": "96M"},
    "mysql": {"innodb_log_file_size": "48M"},
}
POLL_INTERVAL_S = 0.02
SAMPLE_INTERVAL_S = 0.5
TIMEOUT_S = 900.0


def make_segments(url: str, directory: Path, made: Made) -> None:
    """Extract the changes into segments of 150,000 operations."""
    beginning = find_beginning(url, [f"{DATABASE}.w"], at=made.begin)
    options = ExtractOptions(flush_interval_s=3600)
    extractor: Extractor
    engine = MySQLEngine(
        url, tables=beginning.tables, options=options, beginning=beginning, task=str(directory)
    )
    extractor = Extractor(
        engine,
        directory,
        options=options,
        stop=lambda: extractor.progress.row_count >= made.row_count,
    )
    extractor.run()


def penstock(
    sessions: SessionKeeper,
    servers: tuple[Server, Server],
    workload: MySQLWorkload,
    log: Path,
    expected: int,
) -> Measurement:
    """Load every segment, as `penstock load` does, in batches of one segment."""
    target = servers[1]
    restore(workload, target)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        options = LoaderOptions(
            url=target.url(DATABASE),
            log_directory=log,
            state_directory=Path(scratch),
            run_directory=Path(scratch),
            max_files_per_batch=1,
            exit_when_done=False,
        )
        last = list_segments(log)[-1].number
        loader: Loader
        loader = Loader(
            options,
            sessions,
            stop=lambda: loader.state.applied_segment >= last,
            actions=Always(),
        )
        without = [server.pid for server in servers]
        with (
            TreeSampler(target.pid, interval_s=SAMPLE_INTERVAL_S) as there,
            TreeSampler(os.getpid(), without=without, interval_s=SAMPLE_INTERVAL_S) as sampler,
        ):
            began = time.monotonic()
            loader.run()
            elapsed_s = time.monotonic() - began
    check(target, expected)
    return Measurement(
        elapsed_s=elapsed_s,
        cpu_s=sampler.cpu_s,
        peak_bytes=sampler.peak_bytes,
        server_cpu_s=there.cpu_s,
        server_peak_bytes=there.peak_bytes,
    )


def replica(
    servers: tuple[Server, Server], workload: MySQLWorkload, made: Made, expected: int, workers: int
) -> Measurement:
    """Measure the server's own applier."""
    source, target = servers
    restore(workload, target)
    with connect(target.url(), application_name="bench") as connection:
        follow(connection, source, made, workers)
        do(connection, "start slave io_thread")
        wait_until(connection, made, "read_master_log_pos", "master_log_file")
        with TreeSampler(target.pid, interval_s=SAMPLE_INTERVAL_S) as there:
            began = time.monotonic()
            do(connection, "start slave sql_thread")
            wait_until(connection, made, "exec_master_log_pos", "relay_master_log_file")
            elapsed_s = time.monotonic() - began
        do(connection, "stop slave")
        do(connection, "reset slave all")
    check(target, expected)
    return Measurement(
        elapsed_s=elapsed_s,
        server_cpu_s=there.cpu_s,
        server_peak_bytes=there.peak_bytes,
    )


def follow(connection: Connection, source: Server, made: Made, workers: int) -> None:
    """Make the server a replica that begins where the changes do."""
    parts = urlsplit(source.url())
    if connection.server.is_mariadb:
        do(connection, f"set global slave_parallel_threads = {workers}")
        more = ", master_use_gtid = no"
    else:
        do(connection, f"set global slave_parallel_workers = {workers}")
        more = ", master_auto_position = 0, get_master_public_key = 1"
    do(
        connection,
        f"change master to master_host = '127.0.0.1', master_port = {parts.port}, "
        f"master_user = '{parts.username}', master_password = '{parts.password}', "
        f"master_log_file = '{made.begin.file}', master_log_pos = {made.begin.offset}{more}",
    )


def wait_until(connection: Connection, made: Made, offset: str, file: str) -> None:
    """Wait until one of the replica's places is the end of the changes."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        state = rows(connection, "show slave status", doing="looking at the replica")[0]
        failed = state["last_sql_error"] or state["last_io_error"]
        if failed:
            raise RuntimeError(failed)
        if (state[file], int(state[offset])) >= (made.end.file, made.end.offset):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"the replica is at {state[file]}:{state[offset]}")
        time.sleep(POLL_INTERVAL_S)


def restore(workload: MySQLWorkload, target: Server) -> None:
    """Restore the target as it was before the changes, without tables of ours or of the source."""
    workload.restore(target.url())
    with connect(target.url(), application_name="bench") as connection:
        do(connection, "drop database if exists wirekite")
        new = connection.server.mysql(8, 4)  # transactions of the previous round would be skipped
        do(connection, "reset binary logs and gtids" if new else "reset master")


def check(target: Server, expected: int) -> None:
    """Fail unless the table has as many rows as it must."""
    found = row_count(target.url())
    if found != expected:
        raise RuntimeError(f"{found} rows in the target, expected {expected}")


def do(connection: Connection, statement: str) -> None:
    """Run a statement of the bench."""
    run(connection, statement, doing="running the replica")


def compare(kind: str, sessions: SessionKeeper, flags: argparse.Namespace, scratch: Path) -> None:
    """Make binlog and segments once, then let both sides apply them in turn."""
    settings = {**SETTINGS[kind], **SHIPPED[kind], "innodb_buffer_pool_size": "1G"}
    flushing = not flags.nosync
    follows = {"server_id": "2", "skip_slave_start": "ON", "log_slave_updates": "ON"}
    workload = MySQLWorkload(
        base_row_count=flags.rows,
        change_count=flags.changes,
        rows_per_transaction=flags.rows_per_transaction,
    )
    with (
        KINDS[kind](settings=settings) as source,
        KINDS[kind](settings={**settings, **follows}, durable=flushing) as target,
    ):
        servers = (source, target)
        log = scratch / kind / "log"
        workload.create(source.url())
        workload.create(target.url())
        made = workload.change(source.url())
        make_segments(source.url(DATABASE), scratch / kind, made)
        expected = row_count(source.url())
        Comparison(
            bench=f"apply_{kind}",
            contenders=[
                Contender(
                    name="the server's own replica",
                    run=lambda: replica(servers, workload, made, expected, flags.workers),
                    unit_count=made.row_count,
                    unit="changes",
                ),
                Contender(
                    name="penstock load",
                    run=lambda: penstock(sessions, servers, workload, log, expected),
                    unit_count=made.row_count,
                    unit="changes",
                ),
            ],
        ).run(flags.rounds).print_table()


def main() -> None:
    """Compare on both servers, or on one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUND_COUNT)
    parser.add_argument("--rows", type=int, default=500_000, help="rows before the changes")
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=0, help="threads of the replica's applier")
    parser.add_argument("--rows-per-transaction", type=int, default=50, help="50 is W, 1 W1")
    parser.add_argument("--nosync", action="store_true", help="a target that flushes nothing")
    parser.add_argument("--server", choices=sorted(KINDS), action="append")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        spark = SessionOptions(master="local[2]", work_directory=Path(directory) / "spark")
        sessions = SessionKeeper(spark, PendingSession(spark))
        began = time.monotonic()
        sessions.get()
        print(f"spark session started in {time.monotonic() - began:.1f} s", flush=True)
        for kind in flags.server or sorted(KINDS):
            compare(kind, sessions, flags, Path(directory))
        sessions.close()


if __name__ == "__main__":
    main()
