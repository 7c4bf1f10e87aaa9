"""Extraction to fdatasync against pg_recvlogical to /dev/null, on the same WAL.

Estimate: the walsender makes one send() per message, and waking a client that waits costs it more
than the message; client CPU for decoding, lz4 and writing is 1 to 1.5 us per row of W. So the
server is the limit, and streaming beats pg_recvlogical as far as the client can do without being
woken. Catching up, as from remote servers, reads ranges by COPY instead.
Limit: `pg_recvlogical -f /dev/null` from a copy of the slot, which writes and decodes nothing.
Ours ends when the last change is in a closed, fdatasync'ed segment. `wakeups` counts the voluntary
context switches of ours.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from bench import contenders
from bench.harness import Comparison, Contender, Measurement, TreeSampler, arguments
from bench.workload import Workload
from penstock.engines.postgres.server.embedded import EmbeddedPostgres

SLOT = "bench_template"
PUBLICATION = "bench_publication"


def extract_once(url: str, directory: str, slot: str, end: int, *, streams: bool) -> None:
    """Extract until the log holds `end` rows; print the cost as JSON: the child process.

    streams: never catch up by COPY.
    """
    from penstock.codec.postgres.lsn import Lsn
    from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
    from penstock.engines.postgres.source.source_engine import PostgresEngine
    from penstock.extract.extractor import ExtractOptions, Extractor
    from penstock.ports.source import BEHIND_BYTES

    with open_catalog(url) as catalog:
        tables = captured_tables(catalog, ["public.w"])
    extractor: Extractor
    options = ExtractOptions(
        slot=slot, publication=PUBLICATION, catch_up_bytes=0 if streams else BEHIND_BYTES
    )

    def has_reached() -> bool:
        return extractor.progress.row_count >= end

    engine = PostgresEngine(url, tables=tables, options=options)
    extractor = Extractor(engine, Path(directory), options=options, stop=has_reached)
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.monotonic()
    outcome = extractor.run()
    elapsed_s = time.monotonic() - started
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "elapsed_s": elapsed_s,
                "cpu_s": used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime,
                "wakeups": used.ru_nvcsw - before.ru_nvcsw,
                "rows": extractor.progress.row_count,
                "end": str(Lsn(outcome.end.position)),
            }
        )
    )


def penstock(url: str, slot: str, row_count: int, *, streams: bool) -> Measurement:
    """Run the extractor in a process of its own; its start and imports do not count."""
    copy = slot + ("_streams" if streams else "_ours")
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
                "streams" if streams else "",
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
        elapsed_s=told["elapsed_s"],
        cpu_s=told["cpu_s"],
        peak_bytes=sampler.peak_bytes,
        extra={"wakeups": told["wakeups"]},
    )


def reference(bindir: Path, url: str, slot: str, end: str) -> Measurement:
    """Run pg_recvlogical from a copy of the same slot."""
    copy = slot + "_theirs"
    contenders.copy_slot(url, slot, copy)
    return contenders.pg_recvlogical(bindir, url, copy, PUBLICATION, end)


def compare(name: str, workload: Workload, round_count: int) -> None:
    """Write the WAL once, then let both sides read it in turn."""
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
                    name="penstock, streaming only",
                    run=lambda: penstock(url, SLOT, row_count, streams=True),
                    unit_count=row_count,
                ),
                Contender(
                    name="penstock, catching up",
                    run=lambda: penstock(url, SLOT, row_count, streams=False),
                    unit_count=row_count,
                ),
            ],
        ).run(round_count).print_table()


def main() -> None:
    """Compare W and W1."""
    if sys.argv[1:2] == ["--child"]:
        url, directory, slot, row_count, streams = sys.argv[2:7]
        extract_once(url, directory, slot, int(row_count), streams=bool(streams))
        return
    flags = arguments(__doc__ or "", changes=1_000_000, single_changes=300_000)
    compare("w", Workload(change_count=flags.changes), flags.rounds)
    single = Workload(change_count=flags.single_changes, rows_per_transaction=1)
    compare("w1", single, flags.rounds)


if __name__ == "__main__":
    main()
