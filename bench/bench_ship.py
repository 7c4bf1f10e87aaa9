"""Cost of `[spark] log = "ship"`: W's segments, read by executors or carried to them by Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import psycopg

from bench import contenders
from bench.bench_loader import PUBLICATION, SLOT, Targets, make_segments, penstock
from bench.harness import Comparison, Contender, Measurement, arguments, beside_servers
from bench.spark_home import use_copied_spark
from bench.workload import Workload
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.load import shipping
from penstock.load.session import SessionKeeper, SessionOptions

MASTER = "local-cluster[2,1,1024]"


def main() -> None:
    """Write segments once, then load them in turn."""
    flags = arguments(__doc__ or "", changes=1_000_000, files_per_batch=1)
    with (
        EmbeddedPostgres() as source,
        EmbeddedPostgres() as target,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch,
    ):
        url, folder = source.url("postgres"), Path(scratch)
        use_copied_spark(folder)
        sessions = SessionKeeper(SessionOptions(master=MASTER, work_directory=folder / "spark"))
        workload = Workload(change_count=flags.changes)
        workload.create(url)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"create publication {PUBLICATION} for table w")
            connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
        row_count = workload.change(url)
        make_segments(url, folder / "pipeline", row_count)
        log = folder / "pipeline" / "log"
        targets = Targets(target, [Workload()])
        sessions.get()
        servers = [contenders.postmaster(server) for server in (source, target)]

        def side(name: str, prepare: Callable[[], object], *, ships: bool) -> Contender:
            def measure_once() -> Measurement:
                fresh = targets.fresh()
                prepare()
                return beside_servers(
                    lambda: penstock(
                        sessions,
                        fresh,
                        log,
                        flags.files_per_batch,
                        servers=servers,
                        ships_frames=ships,
                    ),
                    servers[1],
                )

            return Contender(name=name, run=measure_once, unit_count=row_count, unit="changes")

        inline = shipping.INLINE_BYTES_MAX

        def limit(size_bytes: int) -> Callable[[], object]:
            return lambda: setattr(shipping, "INLINE_BYTES_MAX", size_bytes)

        Comparison(
            bench="ship",
            contenders=[
                side("log = shared", limit(inline), ships=False),
                side("log = ship, with partitions", limit(inline), ships=True),
                side("log = ship, as broadcasts", limit(0), ships=True),
            ],
        ).run(flags.rounds).print_table()
        sessions.close()


if __name__ == "__main__":
    main()
