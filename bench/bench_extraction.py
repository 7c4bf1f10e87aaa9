"""Extraction to fdatasync against pg_recvlogical to /dev/null, on the same WAL.

Estimate: the walsender sends one message per send() at 60-70 thousand rows/s of W on two cores;
client CPU for decoding, lz4 and writing is about 2 us per row, so one core serves 500,000 rows/s
and the server is the limit: 1.1 x pg_recvlogical at best without another way to read.
Limit: `pg_recvlogical -f /dev/null` from a copy of the slot, which writes and decodes nothing.
Ours ends when the last change is in a closed, fdatasync'ed segment.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from bench import contenders
from bench.harness import Comparison, Contender, Measurement, TreeSampler, arguments
from bench.workload import Workload
from penstock.host.embedded import EmbeddedPostgres

SLOT = "bench_template"
PUBLICATION = "bench_publication"


def extract_once(url: str, directory: str, slot: str, end: int) -> None:
    """Child process: extract until the log holds `end`; prints seconds and rows as JSON."""
    from penstock.model import Lsn
    from penstock.source.extract import ExtractOptions, Extractor
    from penstock.source.postgres.catalog import captured_tables, open_catalog

    with open_catalog(url) as catalog:
        tables = captured_tables(catalog, ["public.w"])
    extractor: Extractor
    options = ExtractOptions(slot=slot, publication=PUBLICATION)

    def reached() -> bool:
        return extractor.progress.row_count >= end

    extractor = Extractor(url, Path(directory), tables=tables, options=options, stop=reached)
    started = time.monotonic()
    outcome = extractor.run()
    print(
        json.dumps(
            {
                "elapsed_s": time.monotonic() - started,
                "rows": extractor.progress.row_count,
                "end": str(Lsn(outcome.end.position)),
            }
        )
    )


def penstock(url: str, slot: str, row_count: int) -> Measurement:
    """Run the extractor in a process of its own and measure it with its children."""
    copy = slot + "_ours"
    contenders.copy_slot(url, slot, copy)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "bench.bench_extraction",
                "--child",
                url,
                directory,
                copy,
                str(row_count),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        with TreeSampler(process.pid) as sampler:
            output, _ = process.communicate()
        if process.returncode != 0:
            raise subprocess.CalledProcessError(process.returncode, "extract")
        told = json.loads(output.splitlines()[-1])
        if told["rows"] != row_count:
            raise RuntimeError(f"extracted {told['rows']} rows, expected {row_count}")
    return Measurement(
        elapsed_s=told["elapsed_s"], cpu_s=sampler.cpu_s, peak_bytes=sampler.peak_bytes
    )


def reference(bindir: Path, url: str, slot: str, end: str) -> Measurement:
    """pg_recvlogical from a copy of the same slot."""
    copy = slot + "_theirs"
    contenders.copy_slot(url, slot, copy)
    return contenders.pg_recvlogical(bindir, url, copy, PUBLICATION, end)


def compare(name: str, workload: Workload, round_count: int) -> None:
    """Make the WAL once, then let both sides read it in turn."""
    with EmbeddedPostgres() as server:
        url = server.url("postgres")
        workload.create(url)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"create publication {PUBLICATION} for table {workload.table}")
            connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
        row_count = workload.change(url)
        end = contenders.wal_end(url)
        Comparison(
            bench=f"extraction_{name}",
            contenders=[
                Contender(
                    name="pg_recvlogical to /dev/null",
                    run=lambda: reference(server.bindir, url, SLOT, end),
                    unit_count=row_count,
                ),
                Contender(
                    name="penstock to fdatasync",
                    run=lambda: penstock(url, SLOT, row_count),
                    unit_count=row_count,
                ),
            ],
        ).run(round_count).print_table()


def main() -> None:
    """W and W1."""
    if sys.argv[1:2] == ["--child"]:
        url, directory, slot, row_count = sys.argv[2:6]
        extract_once(url, directory, slot, int(row_count))
        return
    flags = arguments(__doc__ or "", changes=1_000_000, single_changes=300_000)
    compare("w", Workload(change_count=flags.changes), flags.rounds)
    single = Workload(change_count=flags.single_changes, rows_per_transaction=1)
    compare("w1", single, flags.rounds)


if __name__ == "__main__":
    main()
