"""Cost of one small batch: 100 changes spread over 1, 20 and 200 tables, with a warm Spark."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import psycopg

from bench.bench_loader import Always
from bench.harness import arguments, describe_machine
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.engines.postgres.source.source_engine import PostgresEngine
from penstock.extract.extractor import ExtractOptions, Extractor
from penstock.load.loader import Loader, LoaderOptions
from penstock.load.session import PendingSession, SessionKeeper, SessionOptions
from penstock.log import list_segments

CHANGES = 100
SLOT, PUBLICATION = "bench_batch", "bench_publication"


def create_tables(url: str, count: int) -> None:
    """Create tables of ten columns with a key."""
    columns = "".join(f", c{number} text" for number in range(8))
    with psycopg.connect(url, autocommit=True) as connection:
        for number in range(count):
            connection.execute(
                f"create table t{number} (id int primary key, n int default 0{columns})"
            )


def make_segments(url: str, directory: Path, table_count: int, batch_count: int) -> Path:
    """Write one segment per batch, each with 100 changes over the tables; return the log."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"create publication {PUBLICATION} for all tables")
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
    with open_catalog(url) as catalog:
        tables = captured_tables(catalog, ["public.*"])
    for batch in range(batch_count):
        with psycopg.connect(url) as connection:
            for change in range(max(CHANGES, table_count)):
                connection.execute(
                    f"insert into t{change % table_count} (id, c0) values (%s, 'x')",
                    (batch * 100_000 + change,),
                )
        wanted = max(CHANGES, table_count)
        extractor: Extractor
        options = ExtractOptions(slot=SLOT, publication=PUBLICATION, flush_interval_s=3600)
        extractor = Extractor(
            PostgresEngine(url, tables=tables, options=options),
            directory,
            options=options,
            stop=lambda: extractor.progress.row_count >= wanted,  # noqa: B023 - run() ends here
        )
        extractor.run()
    return directory / "log"


def measure(sessions: SessionKeeper, table_count: int, batch_count: int) -> None:
    """Load the batches one by one; the first two are not counted."""
    with (
        EmbeddedPostgres() as source,
        EmbeddedPostgres() as target,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch,
    ):
        folder = Path(scratch)
        for server in (source, target):
            create_tables(server.url("postgres"), table_count)
        log = make_segments(source.url("postgres"), folder, table_count, batch_count)
        last = list_segments(log)[-1].number
        seconds: list[dict[str, float]] = []
        loader: Loader

        def has_reached() -> bool:
            if loader.state.batch_count > len(seconds):
                seconds.append(dict(loader.state.seconds))
            return loader.state.applied_segment >= last

        loader = Loader(
            LoaderOptions(
                url=target.url("postgres"),
                log_directory=log,
                state_directory=folder,
                run_directory=folder,
                max_files_per_batch=1,
                exit_when_done=False,
            ),
            sessions,
            stop=has_reached,
            actions=Always(),
        )
        loader.run()
    warm = sorted(sum(steps.values()) for steps in seconds[2:])
    figures = {
        "bench": "batch",
        "tables": table_count,
        "batches": len(warm),
        "min_s": round(warm[0], 3),
        "median_s": round(warm[len(warm) // 2], 3),
        "max_s": round(warm[-1], 3),
    }
    print(json.dumps(figures), flush=True)
    print(
        f"{table_count:>4} tables  min {warm[0]:.2f} s  median {warm[len(warm) // 2]:.2f} s"
        f"  max {warm[-1]:.2f} s   last batch by step: "
        + ", ".join(f"{name} {value:.3f}" for name, value in seconds[-1].items()),
        flush=True,
    )


def main() -> None:
    """Measure 1, 20 and 200 tables."""
    flags = arguments(__doc__ or "", batches=12)
    print(f"batch of {CHANGES} changes ({describe_machine()})")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        spark = SessionOptions(master="local[2]", work_directory=Path(scratch))
        sessions = SessionKeeper(spark, PendingSession(spark))
        for table_count in (1, 20, 200):
            measure(sessions, table_count, flags.batches)
        sessions.close()


if __name__ == "__main__":
    main()
