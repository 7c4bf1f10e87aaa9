"""Cost of a mutation in a staging database: staged, sent again, read, marked applied, retired."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pyarrow as pa

from bench.harness import ServerSampler, arguments, describe_machine
from penstock.engines.postgres.feeds.database import PostgresStaging, PostgresStagingSession
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.model.hlc import ZERO, Hlc
from penstock.ports.feeds import MUTATIONS, StagedTable

TABLE = StagedTable(("shop", "public"), "orders")
REQUEST_ROWS = 5_000  # about a megabyte, which changefeeds are told to send at a time
WINDOW_ROWS = 50_000
KEYS = 10_000_000
BASE_NS = 1_700_000_000_000_000_000


def requests(first: int, count: int) -> Iterator[pa.RecordBatch]:
    """Return batches of rows of about 130 bytes of JSON, one per microsecond."""
    rng = random.Random(first)
    for low in range(first, first + count, REQUEST_ROWS):
        numbers = range(low, min(low + REQUEST_ROWS, first + count))
        keys = [rng.randrange(KEYS) for _ in numbers]
        after = [
            b'{"id": %d, "customer": "customer %d", "total": 12.50, "note": "as long as notes '
            b'are", "placed_at": "2024-01-01T00:00:00"}' % (key, key)
            for key in keys
        ]
        columns = [
            pa.array([BASE_NS + number * 1000 for number in numbers], pa.int64()),
            pa.array([0] * len(keys), pa.int64()),
            pa.array([f"[{key}]" for key in keys], pa.string()),
            pa.array(after, pa.binary()),
            pa.nulls(len(keys), pa.binary()),
        ]
        yield pa.record_batch(columns, schema=MUTATIONS)


def time_of(number: int) -> Hlc:
    """Return the time of the mutation with a number."""
    return Hlc(BASE_NS + number * 1000)


def measure_step(step: str, postmaster: int, count: int, work: Callable[[], int]) -> None:
    """Do it and print the cost of each mutation."""
    with ServerSampler(postmaster) as sampler:
        began, used = time.perf_counter(), os.times()
        done = work()
        elapsed_s, now = time.perf_counter() - began, os.times()
    client_s = now.user + now.system - used.user - used.system
    assert done == count, (step, done, count)
    line = {
        "bench": "staging",
        "step": step,
        "mutations_per_s": round(count / elapsed_s),
        "client_us": round(client_s / count * 1e6, 2),
        "server_us": round(sampler.cpu_s / count * 1e6, 2),
    }
    print(json.dumps(line), flush=True)


def stage(session: PostgresStagingSession, batches: list[pa.RecordBatch], *, new: bool) -> int:
    """Stage requests; return how many were new, or were not."""
    found = [session.stage({TABLE: batch})[TABLE] for batch in batches]
    return sum(one.added if new else one.duplicates for one in found)


def apply(session: PostgresStagingSession, first: int, count: int) -> int:
    """Read windows and mark them, as a sequencer does; return how many."""
    total = 0
    for low in range(first, first + count, WINDOW_ROWS):
        after, through = time_of(low - 1), time_of(min(low + WINDOW_ROWS, first + count) - 1)
        read = list(session.read([TABLE], after, through, limit=REQUEST_ROWS))
        assert sum(part.rows[TABLE].num_rows for part in read if part.rows)
        total += session.mark_applied_through([TABLE], through, after=after)[TABLE]
    return total


def read(session: PostgresStagingSession, count: int) -> int:
    """Read all; return how many."""
    parts = session.read([TABLE], ZERO, time_of(count), limit=REQUEST_ROWS)
    return sum(part.rows[TABLE].num_rows for part in parts if part.rows)


def mark(session: PostgresStagingSession, count: int) -> int:
    """Mark all, a window at a time; return how many."""
    return sum(
        session.mark_applied_through(
            [TABLE], time_of(low + WINDOW_ROWS - 1), after=time_of(low - 1)
        )[TABLE]
        for low in range(0, count, WINDOW_ROWS)
    )


def beside_retiring(
    staging: PostgresStaging, session: PostgresStagingSession, postmaster: int, count: int
) -> None:
    """Stage and apply as many again, alone and while the applied ones are retired."""
    for step, retires, first in (("apply", False, count), ("apply beside retire", True, 2 * count)):
        batches = list(requests(first, count))
        stop = threading.Event()
        retired = 0

        def retire(stop: threading.Event = stop) -> None:
            nonlocal retired
            with staging.open_session() as other:
                while not stop.is_set() and (part := other.retire(TABLE, time_of(2 * count))):
                    retired += part

        with ExitStack() as ended:
            if retires:
                thread = threading.Thread(target=retire)
                thread.start()
                ended.callback(thread.join)
                ended.callback(stop.set)

            def work(batches: list[pa.RecordBatch] = batches, first: int = first) -> int:
                stage(session, batches, new=True)
                return apply(session, first, count)

            measure_step(step, postmaster, count, work)
        if retires:
            print(json.dumps({"bench": "staging", "retired_beside": retired}), flush=True)


def main() -> None:
    """Measure all steps, one after the other."""
    given = arguments(__doc__ or "", rows=400_000)
    count = given.rows
    settings = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
    with EmbeddedPostgres(settings=settings) as server:
        postmaster = int((server.directory / "postmaster.pid").read_text().split()[0])
        staging = PostgresStaging(server.url("_replicator"))
        staging.create()
        batches = list(requests(0, count))
        with staging.open_session() as session:
            measure_step("stage", postmaster, count, lambda: stage(session, batches, new=True))
            measure_step("again", postmaster, count, lambda: stage(session, batches, new=False))
            measure_step("read", postmaster, count, lambda: read(session, count))
            measure_step("mark", postmaster, count, lambda: mark(session, count))
            beside_retiring(staging, session, postmaster, count)
            measure_step("retire", postmaster, count, lambda: _retire_last(session, count))
    print(json.dumps({"bench": "staging", "machine": describe_machine()}))


def _retire_last(session: PostgresStagingSession, count: int) -> int:
    """Retire what the other session has left, then the last part; return the last part's count."""
    _retire_all(session, 2 * count)
    return _retire_all(session, 3 * count)


def _retire_all(session: PostgresStagingSession, before: int) -> int:
    total = 0
    while part := session.retire(TABLE, time_of(before)):
        total += part
    return total


if __name__ == "__main__":
    main()
