"""`penstock stage` beside millions of applied rows: its rate alone, and while they are retired.

The mutation table is filled inside the server, with its own columns, indexes and fill factor; keys
in random order, as a table's are. Then `bench_stage`'s feed is applied turn by turn by a command
that keeps applied rows and by one that retires them; at last by one that keeps them while
autovacuum removes what was deleted. The ratios are to stay above 0.9.

Estimate: a row retired costs the server 3 us, and its page goes into the WAL whole, as old pages
do after each checkpoint; autovacuum adds 1 us a row, and reads both indexes. So 50,000 of them a
second would take 0.2 of one core; a step is followed by a rest of six times as long: 0.14 of one
core. On disk a row takes 300 bytes and its entries in the indexes 80: 50 million take 18 GiB. The
folder is removed at the end, and when interrupted.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable

import psycopg

from bench.bench_stage import fresh_servers, measure, running
from bench.feed import History
from bench.harness import arguments, describe_machine
from penstock.engines.postgres.feeds.database import PostgresStaging
from penstock.ports.feeds import StagedTable

TABLE = StagedTable(("postgres", "public"), "orders")
PLACE = "public._postgres_public_orders"
PART_ROWS = 1_000_000
KEEP = 'retireOffset = "100000h"\n'
RETIRE = 'retireOffset = "24h"\n'
AGE_NS = 3 * 86_400 * 10**9
VACUUM_S = 300.0
BYTES_PER_ROW = 600  # with indexes and WAL
ALONE, RETIRING, VACUUMED = (
    "nothing is retired",
    "while rows are retired",
    "while rows are vacuumed",
)
FILL = f"""
    insert into {PLACE} (nanos, logical, key, mut, applied, applied_at)
    select %s + i * 1000, 0, '[' || (i * 7919 %% 1000000007) || ']',
           convert_to('{{"id": ' || i || ', "note": "as long as notes are"}}', 'utf8'), true, now()
      from generate_series(%s::int8, %s) i
"""
INDEX = f"""
    select indexrelid::regclass::text, pg_get_indexdef(indexrelid)
      from pg_index where indrelid = '{PLACE}'::regclass and not indisunique
"""
DELETED = f"select n_tup_del from pg_stat_user_tables where relid = '{PLACE}'::regclass"
SIZE = f"select pg_total_relation_size('{PLACE}'), pg_table_size('{PLACE}')"
VACUUMING = "select count(*) from pg_stat_progress_vacuum"


def fill(url: str, count: int) -> None:
    """Create the mutation table, and put so many applied rows into it."""
    began = time.monotonic()
    staging = PostgresStaging(url)
    staging.create()
    with staging.open_session() as session:
        session.prepare([TABLE])
    with psycopg.connect(url, autocommit=True) as connection:
        ((index, definition),) = connection.execute(INDEX.encode()).fetchall()
        connection.execute(f"drop index {index}".encode())  # recreated in one go below
        first_ns = time.time_ns() - AGE_NS
        for low in range(0, count, PART_ROWS):
            high = min(low + PART_ROWS, count) - 1
            connection.execute(FILL.encode(), (first_ns, low, high))
        connection.execute(definition.encode())
        connection.execute(f"vacuum (analyze) {PLACE}".encode())
        connection.execute("checkpoint")
        total, table = connection.execute(SIZE.encode()).fetchone() or (0, 0)
    line = {
        "bench": "retire",
        "rows": count,
        "filled_s": round(time.monotonic() - began),
        "gib": round(total / 2**30, 2),
        "bytes_per_row": round(table / count),
        "bytes_per_row_of_indexes": round((total - table) / count),
    }
    print(json.dumps(line), flush=True)


def number(url: str, query: str) -> int:
    """Return the number that a query returns."""
    with psycopg.connect(url, autocommit=True) as connection:
        (found,) = connection.execute(query.encode()).fetchone() or (0,)
        return int(found)


def provoke_vacuum(url: str) -> None:
    """Have autovacuum remove deleted rows, and wait until it works."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"alter table {PLACE} set (autovacuum_vacuum_scale_factor = 0,"
            " autovacuum_vacuum_threshold = 1000)".encode()
        )
    until(lambda: number(url, VACUUMING) > 0, "autovacuum did not begin")


def until(is_so: Callable[[], bool], otherwise: str) -> None:
    """Wait for a condition. Raises TimeoutError."""
    deadline = time.monotonic() + VACUUM_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.2)


def main() -> None:
    """Fill, then run the rounds."""
    flags = arguments(
        __doc__ or "",
        applied=2_000_000,
        rows=1_000_000,
        rows_per_mark=50_000,
        rows_per_body=5_000,
    )
    if shutil.disk_usage(tempfile.gettempdir()).free < flags.applied * BYTES_PER_ROW:
        sys.exit(f"{tempfile.gettempdir()} has no room for {flags.applied:,} rows: --applied fewer")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # folders are removed then
    best: dict[str, float] = {}
    history = History()
    with fresh_servers(autovacuum_naptime="1s") as urls:
        staging = urls["staging"]
        fill(staging, flags.applied)

        def run(name: str, more: str) -> None:
            with running(urls, more) as one:
                retired, began = number(staging, DELETED), time.monotonic()
                found = measure(name, one, history, flags)
                took_s = time.monotonic() - began
                time.sleep(1.5)  # sessions tell the statistics once a second
                retired = number(staging, DELETED) - retired
            best[name] = max(best.get(name, 0.0), found.per_s)
            print(json.dumps({"retired": retired, "retired_per_s": round(retired / took_s)}))

        for _ in range(flags.rounds):
            run(ALONE, KEEP)
            run(RETIRING, RETIRE)
        provoke_vacuum(staging)
        run(VACUUMED, KEEP)
        print(json.dumps({"is_vacuumed_still": number(staging, VACUUMING) > 0}))
    print(f"\nretire ({describe_machine()})\n{'':<34}{'mutations/s':>12}{'ratio':>8}")
    for name, per_s in best.items():
        print(f"{name:<34}{per_s:>12,.0f}{per_s / best[ALONE]:>8.2f}")


if __name__ == "__main__":
    main()
