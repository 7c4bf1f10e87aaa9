"""Rows of a snapshot through the proxy that executors read from, at 127.0.0.1 and under TLS.

Estimate, in microseconds of one core per row of W (170 bytes as the server sends it): the server's
text 1.3, lines in the client 0.2; of the proxy a receive and a send per block 0.1, and as much for
the client's receive. TLS 1.3 with AES-256-GCM at 1 to 2 GB/s adds 0.1 to 0.2 at each end, and a
call per 16 kB. So 0.5 us of CPU more. Whether it takes longer depends on cores: server, proxy and
client are three processes at work at once.
Limit: the same rows without TLS. The proxy is a process of its own, as the load process is.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import Connection

from bench.bench_bulk_mysql import fill
from bench.harness import Comparison, Contender, Measurement, TreeSampler, arguments, beside_servers
from harness.servers.mysql_embedded import EmbeddedMariaDB, EmbeddedMySQL
from penstock.codec.lines import CellForm, LineDialect, TextCell
from penstock.engines.mysql.connect import connect, run
from penstock.engines.mysql.source.bulk_reader import RowsOfChunk
from penstock.engines.mysql.source.catalog import captured_tables
from penstock.engines.mysql.source.proxied_session import open_proxied
from penstock.engines.mysql.source.session_proxy import SessionProxy
from penstock.engines.mysql.source.snapshot import open_snapshots

COLUMN_COUNT = 10
TEXT = "bench"


def proxy(url: str, encrypts: bool, pipe: Connection) -> None:
    """Pass one session on, until a byte arrives in the pipe."""
    with connect(url, application_name="bench") as connection:
        tables = captured_tables(connection, ["bench.w"])
    with (
        open_snapshots(url, tables, count=1) as taken,
        SessionProxy.of(
            taken.connections, place="here", snapshot_text=TEXT, encrypts=encrypts
        ) as lender,
    ):
        pipe.send(lender.snapshot_id)
        pipe.recv()


def read(url: str, *, encrypts: bool, server: int, rows: int) -> Measurement:
    """Read all rows as lines of COPY, and discard them."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    lender = context.Process(target=proxy, args=(url, encrypts, theirs))
    lender.start()
    snapshot_id = ours.recv()
    cells = [TextCell(form=CellForm.PLAIN)] * COLUMN_COUNT
    with (
        open_proxied(snapshot_id, TEXT) as session,
        TreeSampler(os.getpid(), without=[server]) as sampler,
    ):
        began = time.monotonic()
        lines = RowsOfChunk(session, "select * from w", cells, LineDialect.COPY)
        byte_count = sum(len(block) for block in lines)
        elapsed_s = time.monotonic() - began
    if lines.row_count != rows:
        raise ValueError(f"{lines.row_count} rows of {rows}")
    ours.send(None)
    lender.join()
    return Measurement(
        elapsed_s=elapsed_s,
        cpu_s=sampler.cpu_s,
        peak_bytes=sampler.peak_bytes,
        extra={"mb_per_s": byte_count / elapsed_s / 1e6},
    )


def main() -> None:
    """Measure both in turn."""
    flags = arguments(__doc__ or "", rows=1_000_000, mysql=0)
    kind = EmbeddedMySQL if flags.mysql else EmbeddedMariaDB
    with kind(settings={"innodb_buffer_pool_size": "1G"}) as server:
        with connect(server.url(), application_name="bench") as connection:
            run(connection, "create database bench", doing="making a database")
        url = server.url("bench")
        fill(url, flags.rows)

        def contender(name: str, *, encrypts: bool) -> Contender:
            def once() -> Measurement:
                return beside_servers(
                    lambda: read(url, encrypts=encrypts, server=server.pid, rows=flags.rows),
                    server.pid,
                )

            return Contender(name=name, run=once, unit_count=flags.rows)

        contenders = [contender("plain", encrypts=False), contender("tls", encrypts=True)]
        name = f"session_proxy_{server.flavour}"
        Comparison(bench=name, contenders=contenders).run(flags.rounds).print_table()


if __name__ == "__main__":
    main()
