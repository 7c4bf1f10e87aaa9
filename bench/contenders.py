"""PostgreSQL's own tools as contenders: what a user would otherwise type.

Each function returns a Measurement of client processes and wall time; servers are shared by all
sides. Nothing here uses penstock.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

from bench.harness import Measurement, run_process
from penstock.engines.postgres.server.embedded import EmbeddedPostgres

PLUGIN_OPTIONS = ("proto_version=2",)
POLL_INTERVAL_S = 0.005


def copy_slot(url: str, slot: str, copy: str) -> None:
    """Make `copy` read the same WAL from the same place as `slot`."""
    with psycopg.connect(url, autocommit=True) as connection:
        drop_slot(connection, copy)
        connection.execute("select pg_copy_logical_replication_slot(%s, %s)", (slot, copy))


def drop_slot(connection: psycopg.Connection, slot: str) -> None:
    """Drop a slot if it is there."""
    connection.execute(
        "select pg_drop_replication_slot(slot_name)"
        "  from pg_replication_slots where slot_name = %s and not active",
        (slot,),
    )


def wal_end(url: str) -> str:
    """Return the present end of WAL, as text."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("select pg_current_wal_lsn()").fetchone()
        assert row is not None
        return str(row[0])


def pg_recvlogical(bindir: Path, url: str, slot: str, publication: str, end: str) -> Measurement:
    """Stream the slot's changes up to `end` into /dev/null."""
    return run_process(
        [
            str(bindir / "pg_recvlogical"),
            "-d",
            url,
            "-S",
            slot,
            "--start",
            "-f",
            "/dev/null",
            "-E",
            end,
            "-o",
            "proto_version=2",
            "-o",
            f"publication_names={publication}",
            "--no-loop",
        ]
    )


def pipe(left: list[str], right: list[str]) -> Measurement:
    """Run `left | right`, as a shell does; raise when either fails."""
    started = time.monotonic()
    giver = subprocess.Popen(left, stdout=subprocess.PIPE)
    measured = run_process_reading(right, giver)
    if giver.wait() != 0:
        raise subprocess.CalledProcessError(giver.returncode, left)
    return Measurement(
        elapsed_s=time.monotonic() - started, cpu_s=measured.cpu_s, peak_bytes=measured.peak_bytes
    )


def run_process_reading(arguments: list[str], giver: subprocess.Popen[bytes]) -> Measurement:
    """Run a command whose input is another's output; the CPU of both counts."""
    import psutil

    started = time.monotonic()
    taker = psutil.Popen(arguments, stdin=giver.stdout, stdout=subprocess.DEVNULL)
    if giver.stdout is not None:
        giver.stdout.close()
    cpu_s, peak_bytes = 0.0, 0
    giver_process = psutil.Process(giver.pid)
    while taker.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            members = [p for p in (giver_process, taker) if p.status() != psutil.STATUS_ZOMBIE]
            times = [p.cpu_times() for p in members]
            cpu_s = max(cpu_s, sum(t.user + t.system for t in times))
            peak_bytes = max(peak_bytes, sum(p.memory_info().rss for p in members))
        time.sleep(POLL_INTERVAL_S)
    if taker.returncode != 0:
        raise subprocess.CalledProcessError(taker.returncode, arguments)
    return Measurement(elapsed_s=time.monotonic() - started, cpu_s=cpu_s, peak_bytes=peak_bytes)


def copy_pipe(bindir: Path, source: str, target: str, table: str, *, binary: bool) -> Measurement:
    """Run `psql copy to stdout | psql copy from stdin`, then add the key, as one figure."""
    form = "(format binary)" if binary else ""
    psql = [str(bindir / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d"]
    started = time.monotonic()
    piped = pipe(
        [*psql, source, "-c", f"copy {table} to stdout {form}"],
        [*psql, target, "-c", f"copy {table} from stdin {form}"],
    )
    with psycopg.connect(target, autocommit=True) as connection:
        connection.execute(f"alter table {table} add primary key (id)")
    return Measurement(
        elapsed_s=time.monotonic() - started, cpu_s=piped.cpu_s, peak_bytes=piped.peak_bytes
    )


def dump_pipe(bindir: Path, source: str, target: str, table: str) -> Measurement:
    """Run `pg_dump -t | psql`: shape, rows and key."""
    return pipe(
        [str(bindir / "pg_dump"), "-t", table, "--no-owner", "-d", source],
        [str(bindir / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", target],
    )


@contextlib.contextmanager
def subscription(
    source: str, target: str, *, publication: str, name: str, options: str
) -> Iterator[None]:
    """Run CREATE SUBSCRIPTION for the time of the block; drop it (with its slot, if any) after."""
    with psycopg.connect(target, autocommit=True) as connection:
        connection.execute(
            f"create subscription {name} connection '{source}'"
            f" publication {publication} with ({options})"
        )
        try:
            yield
        finally:
            connection.execute(f"alter subscription {name} disable")
            connection.execute(f"drop subscription {name}")


def wait_for_value(url: str, query: str, expected: object, *, timeout_s: float = 600) -> float:
    """Poll until the query gives the value; return the seconds it took."""
    started = time.monotonic()
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            row = connection.execute(query).fetchone()
            if row is not None and row[0] == expected:
                return time.monotonic() - started
            if time.monotonic() - started > timeout_s:
                raise TimeoutError(f"{query!r} did not become {expected!r} in {timeout_s} s")
            time.sleep(POLL_INTERVAL_S)


def postmaster(server: EmbeddedPostgres) -> int:
    """Return the process id of a server."""
    return int((server.directory / "postmaster.pid").read_text().splitlines()[0])
