"""Peak memory of the extractor: one transaction of 5 million rows, in progress and at its commit.

Estimate: the server streams the transaction in blocks of logical_decoding_work_mem; they are
written to a side file as they arrive. At the commit they are replayed in batches: an 8 MB socket
buffer, at most 128 MiB of decoded runs in the queue, 8 MiB of frames, and some 90 MiB of Python
with pyarrow.
Catching up by COPY has no queue. For comparison, it measures the same number of rows in
transactions of 50. The limit to keep below is 400 MiB.
"""

from __future__ import annotations

from functools import partial

import psycopg

from bench.bench_extraction import PUBLICATION, SLOT, penstock
from bench.harness import Comparison, Contender, arguments
from bench.workload import ROW, Workload
from penstock.engines.postgres.server.embedded import EmbeddedPostgres


def one_transaction(url: str, row_count: int) -> None:
    """Insert all rows in one transaction."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "insert into w select "
            + ROW.format(id="i")
            + f" from generate_series(1, {row_count}) i"
        )


def measure(name: str, row_count: int, round_count: int, *, giant: bool) -> None:
    """Write the WAL once, and extract it in separate processes."""
    with EmbeddedPostgres() as server:
        url = server.url("postgres")
        workload = Workload(change_count=row_count)
        workload.create(url, filled=not giant)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"create publication {PUBLICATION} for table w")
            connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
        if giant:
            one_transaction(url, row_count)
        else:
            row_count = workload.change(url)
        Comparison(
            bench=f"memory_{name}",
            contenders=[
                Contender(
                    name=way,
                    run=partial(penstock, url, SLOT, row_count, streams=streams),
                    unit_count=row_count,
                )
                for way, streams in (("streaming", True), ("catching up", False))
            ],
        ).run(round_count).print_table()


def main() -> None:
    """Measure one giant transaction, then many small ones."""
    flags = arguments(__doc__ or "", rows=5_000_000)
    rounds = min(flags.rounds, 2)
    measure("one_transaction", flags.rows, rounds, giant=True)
    measure("transactions_of_50", flags.rows, rounds, giant=False)


if __name__ == "__main__":
    main()
