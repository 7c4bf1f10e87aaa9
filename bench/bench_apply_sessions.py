"""The loader alone on W's changes in twenty tables, applied by one session and by four.

Estimate: with one session, applying takes longer than staging: 2.6 us a row of one backend. Four
backends and the workers that stage the next batch need more than two cores, so the gain is limited
here by the servers' own work; with `bench.cores` each backend has a share of its own.
Limit: one session, which is the default.

The last lines show how much later the last part of a batch was committed than the first one: the
milliseconds between both commits, as the server recorded them, for each batch.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import psycopg

from bench import contenders
from bench.bench_loader import PUBLICATION, SLOT, Targets, make_segments, penstock
from bench.harness import Comparison, Contender, Measurement, arguments, beside_servers
from bench.workload import ManyTables, Workload
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.load.session import PendingSession, SessionKeeper, SessionOptions

SERVER = {"shared_buffers": "1GB", "track_commit_timestamp": "on"}
COMMITS = """
    select distinct extract(epoch from pg_xact_commit_timestamp(xmin))::float8
      from {table}
     where id > {base}
     order by 1
"""
ENDS = """
    select distinct extract(epoch from pg_xact_commit_timestamp(xmin))::float8
      from wirekite.wirekite_progress
     where operation = 'CL'
     order by 1
"""


def measure_spreads_ms(url: str, shares: list[Workload], *, is_prepared: bool) -> list[float]:
    """Return for each batch the time between the first and the last commit of its parts.

    The commit that ends a batch is the last of its parts, and the first if they are prepared.
    """
    with psycopg.connect(url) as connection:

        def read(query: str) -> list[float]:
            return [row[0] for row in connection.execute(query)]

        ends = read(ENDS)
        commits = {
            time
            for share in shares
            for time in read(COMMITS.format(table=share.table, base=share.base_row_count))
        }
    batches: dict[float, list[float]] = {end: [end] for end in ends}
    for time in commits:
        earlier, later = [t for t in ends if t <= time], [t for t in ends if t >= time]
        batches[earlier[-1] if is_prepared else later[0]].append(time)
    return [1e3 * (max(times) - min(times)) for times in batches.values()]


def main() -> None:
    """Write the segments once, then load them in turn."""
    flags = arguments(__doc__ or "", changes=1_000_000, sessions=4)
    with (
        EmbeddedPostgres() as source,
        EmbeddedPostgres(settings=SERVER) as plain,
        EmbeddedPostgres(settings={**SERVER, "max_prepared_transactions": "8"}) as preparing,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch,
    ):
        url, folder = source.url("postgres"), Path(scratch)
        tables = ManyTables(whole=Workload(change_count=flags.changes))
        shares = tables.shares
        spark = SessionOptions(master="local[2]", work_directory=folder / "spark")
        sessions = SessionKeeper(spark, PendingSession(spark))
        tables.create(url)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"create publication {PUBLICATION} for tables in schema public")
            connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
        row_count = tables.change(url)
        make_segments(url, folder / "pipeline", row_count, pattern="public.w*")
        log = folder / "pipeline" / "log"
        sessions.get()
        servers = [contenders.postmaster(one) for one in (source, plain, preparing)]
        spreads: dict[str, list[float]] = {}

        def side(name: str, targets: Targets, server: int, count: int) -> Contender:
            """Return a contender with so many sessions."""

            def load(fresh: str) -> Measurement:
                return penstock(sessions, fresh, log, 1, servers=servers, apply_sessions=count)

            def measure_once() -> Measurement:
                fresh = targets.fresh()
                measured = beside_servers(lambda: load(fresh), server)
                found = measure_spreads_ms(fresh, shares, is_prepared="prepared" in name)
                spreads.setdefault(name, []).extend(found)
                return measured

            return Contender(name=name, run=measure_once, unit_count=row_count, unit="changes")

        at_plain, at_preparing = Targets(plain, shares), Targets(preparing, shares)
        several = f"{flags.sessions} sessions"
        Comparison(
            bench="apply_sessions",
            contenders=[
                side("1 session", at_plain, servers[1], 1),
                side(f"{several}, ahead", at_plain, servers[1], flags.sessions),
                side(f"{several}, prepared", at_preparing, servers[2], flags.sessions),
            ],
        ).run(flags.rounds).print_table()
        for name, found in spreads.items():
            ordered = sorted(found)
            print(
                f"{name}: first to last commit of a batch, ms: median "
                f"{ordered[len(ordered) // 2]:.1f}, longest {ordered[-1]:.1f}, of {len(found)}"
            )
        sessions.close()


if __name__ == "__main__":
    main()
