"""The loader alone on W's segments, batches of 150,000 changes, against psql.

Estimate: a batch of 150,000 changes of W folds to about 135,000 keys; reading and folding take
0.1 s, COPY into the merge table 0.5 s on one connection, delete and upsert 0.7 s in the target's
one transaction: about 115,000 changes/s, of which the target's own work is two thirds.
Limit: psql, `copy` of the same changes into an unlogged table, delete, upsert of the last change
per key, in one transaction per 150,000 changes. Its input files are created beforehand.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import psycopg
import pyarrow as pa

from bench import contenders
from bench.harness import (
    Comparison,
    Contender,
    Measurement,
    TreeSampler,
    arguments,
    beside_servers,
    run_process,
)
from bench.workload import Workload
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.engines.postgres.source.source_engine import PostgresEngine
from penstock.extract.extractor import ExtractOptions, Extractor
from penstock.load.loader import Loader, LoaderOptions
from penstock.load.session import PendingSession, SessionKeeper, SessionOptions
from penstock.log import list_segments
from penstock.log.segment import open_segment

SLOT = "bench_loader"
PUBLICATION = "bench_publication"
COLUMNS = "id, n, t, amount, at, flag, doc, f, u, note"
BATCH_CHANGES = 150_000

STAGE = 'create unlogged table staged (seq bigint, op "char", like w including defaults)'
APPLY = f"""
    delete from w using staged s where w.id = s.id and s.op = 'D';
    insert into w ({COLUMNS})
    select {COLUMNS} from (select distinct on (id) * from staged order by id, seq desc) last
     where op <> 'D'
        on conflict (id) do update
       set ({COLUMNS.removeprefix("id, ")}) = ({
    ", ".join("excluded." + c for c in COLUMNS.removeprefix("id, ").split(", "))
});
    truncate staged;
"""


class Always:
    """An action that is always RUN."""

    def word(self) -> str:
        """Return RUN."""
        return "RUN"


def make_segments(url: str, directory: Path, row_count: int, *, pattern: str = "public.w") -> None:
    """Extract W's changes into segments of 150,000 operations. pattern: of its tables."""
    with open_catalog(url) as catalog:
        tables = captured_tables(catalog, [pattern])
    extractor: Extractor
    options = ExtractOptions(slot=SLOT, publication=PUBLICATION, flush_interval_s=3600)
    extractor = Extractor(
        PostgresEngine(url, tables=tables, options=options),
        directory,
        options=options,
        stop=lambda: extractor.progress.row_count >= row_count,
    )
    extractor.run()


def cell(value: object) -> str:
    """Return one value in COPY's text form."""
    if value is None:
        return "\\N"
    if isinstance(value, bytes):
        return value.hex()
    return str(value).replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")


def lines_of(batch: pa.RecordBatch) -> Iterator[str]:
    """Yield a batch's changes as lines of `staged`."""
    for row in batch.to_pylist():
        image = row["after"] or {"id": row["before"]["id"]}
        cells = [cell(image.get(name)) for name in COLUMNS.split(", ")]
        yield "\t".join([str(row["gsn"]), chr(row["op"]), *cells]) + "\n"


def make_script(directory: Path, log: Path) -> Path:
    """Return the psql script of the limit, one transaction per segment, and its data files."""
    script = ["\\set ON_ERROR_STOP 1", STAGE + ";"]
    for segment_file in list_segments(log):
        path = directory / f"{segment_file.number}.tsv"
        with path.open("w") as out, open_segment(segment_file.path) as segment:
            for rows in segment.rows():
                out.writelines(lines_of(rows.batch))
        script += ["begin;", f"\\copy staged from '{path}'", APPLY, "commit;"]
    path = directory / "apply.sql"
    path.write_text("\n".join(script))
    return path


def penstock(
    sessions: SessionKeeper,
    url: str,
    log: Path,
    files_per_batch: int,
    *,
    servers: Collection[int] = (),
    ships_frames: bool = False,
    apply_sessions: int = 1,
) -> Measurement:
    """Load every segment, as `penstock load` does, in batches of one segment.

    servers: processes that are not ours and do not count. ships_frames: see `BatchOptions`.
    apply_sessions: see `LoaderOptions`.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        options = LoaderOptions(
            url=url,
            log_directory=log,
            state_directory=Path(scratch),
            run_directory=Path(scratch),
            max_files_per_batch=files_per_batch,
            exit_when_done=False,
            ships_frames=ships_frames,
            apply_sessions=apply_sessions,
        )
        last = list_segments(log)[-1].number
        loader: Loader
        loader = Loader(
            options,
            sessions,
            stop=lambda: loader.state.applied_segment >= last,
            actions=Always(),
        )
        with TreeSampler(os.getpid(), without=servers) as sampler:
            began = time.monotonic()
            loader.run()
            elapsed_s = time.monotonic() - began
    return Measurement(elapsed_s=elapsed_s, cpu_s=sampler.cpu_s, peak_bytes=sampler.peak_bytes)


class Targets:
    """Fresh copies of the target as it was before the changes."""

    def __init__(self, server: EmbeddedPostgres, workloads: Sequence[Workload]) -> None:
        """Create the template, with the tables of the workloads."""
        self._server = server
        self._count = 0
        self._admin = psycopg.connect(server.url("postgres"), autocommit=True)
        self._admin.execute("create database base")
        for workload in workloads:
            workload.create(server.url("base"))
        with psycopg.connect(server.url("base"), autocommit=True) as connection:
            connection.execute("vacuum analyze")

    def fresh(self) -> str:
        """Return the URL of a new copy; the previous one is dropped."""
        self._admin.execute(f"drop database if exists copy_{self._count} with (force)")
        self._count += 1
        self._admin.execute(f"create database copy_{self._count} template base")
        self._admin.execute("checkpoint")
        return self._server.url(f"copy_{self._count}")


def main() -> None:
    """Write segments and scripts once, then load them in turn."""
    flags = arguments(__doc__ or "", changes=1_000_000, files_per_batch=1)
    with (
        EmbeddedPostgres() as source,
        EmbeddedPostgres() as target,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch,
    ):
        url, folder = source.url("postgres"), Path(scratch)
        spark = SessionOptions(master="local[2]", work_directory=folder / "spark")
        sessions = SessionKeeper(spark, PendingSession(spark))
        workload = Workload(change_count=flags.changes)
        workload.create(url)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"create publication {PUBLICATION} for table w")
            connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
        row_count = workload.change(url)
        make_segments(url, folder / "pipeline", row_count)
        log = folder / "pipeline" / "log"
        script = make_script(folder, log)
        targets = Targets(target, [Workload()])
        psql = str(target.bindir / "psql")
        sessions.get()
        subprocess.run([psql, "--version"], check=True)
        servers = [contenders.postmaster(server) for server in (source, target)]

        def side(name: str, run: Callable[[str], Measurement]) -> Contender:
            """Return a contender. run: gets the URL of a fresh target."""

            def measure_once() -> Measurement:
                fresh = targets.fresh()
                return beside_servers(lambda: run(fresh), servers[1])

            return Contender(name=name, run=measure_once, unit_count=row_count, unit="changes")

        def ours(fresh: str) -> Measurement:
            return penstock(sessions, fresh, log, flags.files_per_batch, servers=servers)

        Comparison(
            bench="loader",
            contenders=[
                side(
                    "psql copy, delete, upsert",
                    lambda fresh: run_process([psql, "-X", "-q", "-d", fresh, "-f", str(script)]),
                ),
                side("penstock load", ours),
            ],
        ).run(flags.rounds).print_table()
        sessions.close()


if __name__ == "__main__":
    main()
