"""The log served over the replication protocol: rows a second into a client, and 20 clients' CPU.

Eight columns, 135 bytes a row on the wire, transactions of 10,000 rows; the server is a process of
its own, the log exists before the first request. Contenders: a socket that only drains,
pg_recvlogical into /dev/null, and pg_recvlogical at a real server that has the same rows; a stock
subscription that catches up with the one and with the other. Then 1 and 20 drains at once, and the
CPU seconds of the server for each.

Estimate: a row costs decompressing 0.1 us, encoding 0.5 us (the kernel prints numbers itself,
except a float, which Arrow turns into text: 0.2 us), one copy to join the pieces and one into the
socket 0.1 us: 0.7 us, 1.4 M rows/s with one core for it. pg_recvlogical takes 2 us a row: 0.5 M/s
at most. The second slot finds its blocks encoded: 20 slots cost the encoding once and 20 times the
socket, 0.6 + 20 * 0.05 us. Of each client the bytes go from the shared block into its socket,
without a copy of ours.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import psycopg
import pyarrow as pa

from bench.harness import describe_machine
from penstock.codec.columns import batch_schema, transactions_batch
from penstock.codec.postgres.scram import ScramClient
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.log import Writer
from penstock.model import Column, FlushPoint, Op, Relation, Rows, Run
from penstock.serve import numbers

TYPES = {
    "id": ("bigint", "int64"),
    "a": ("integer", "int32"),
    "b": ("text", "string"),
    "c": ("double precision", "float64"),
    "d": ("timestamp without time zone", "timestamp"),
    "e": ("boolean", "bool"),
    "f": ("text", "string"),
    "g": ("bigint", "int64"),
}
RELATION = Relation(
    schema="public",
    name="bulk",
    columns=tuple(Column(name=n, source_type=t, neutral=k) for n, (t, k) in TYPES.items()),
    key=(0,),
    before=(0,),
    source_id=1,
)
COLUMNS = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
PASSWORD = "bench"
PER_TRANSACTION = 10_000
CLIENTS = 20
ROUNDS_MAX = 5  # each takes a slot of its own, which pg_recvlogical moves on


def run_of(first: int, count: int, trx: int) -> Run:
    """Return one transaction of inserts."""
    n = np.arange(first, first + count)
    arrays = [
        pa.array(n),
        pa.array(n % 1000, pa.int32()),
        pa.array([f"customer-{one}" for one in n]),
        pa.array(n * 0.25),
        pa.array(1_767_225_600_000_000 + n * 1_000_000, pa.timestamp("us")),
        pa.array(n % 2 == 0),
        pa.array([None if one % 3 == 0 else f"note {one}" for one in n]),
        pa.array(n * 7),
    ]
    schema = batch_schema(RELATION)
    images = pa.StructArray.from_arrays(arrays, fields=list(schema.field("after").type))
    columns = [
        pa.array(n),
        pa.array([trx] * count, pa.int64()),
        pa.array([int(Op.INSERT)] * count, pa.uint8()),
        pa.nulls(count, pa.binary()),
        images,
        pa.nulls(count, schema.field("before").type),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    gsn = first + count - 1
    end = FlushPoint(position=trx * 100 + 50, gsn=gsn, trx=trx, commit_time_us=trx)
    lines = [(trx * 100, trx * 100 + 50, trx, 700 + trx)]
    return Run(
        rows=(Rows(relation=RELATION, batch=batch),),
        transactions=transactions_batch(lines),
        end=end,
    )


def write_log(directory: Path, first: int, last: int, trx: int) -> int:
    """Write rows first to last in transactions from a number on; return the last one's number."""
    source = {"engine": "postgresql"}
    with Writer.open(directory, log_id=None, source=source) as writer:
        for at in range(first, last + 1, PER_TRANSACTION):
            writer.write(run_of(at, min(PER_TRANSACTION, last + 1 - at), trx))
            writer.flush()
            if writer.due:
                writer.rotate()
            trx += 1
    return trx - 1


class Server:
    """A `penstock serve` over a log. pid: of its process."""

    def __init__(self, root: Path) -> None:
        self.file = root / "shop.toml"
        self.file.write_text(
            '[pipeline]\nname = "shop"\ndirectory = "."\n'
            '[source]\nurl = "postgresql://x@127.0.0.1:9/x"\ntables = ["public.*"]\n'
            '[serve]\nlisten = "127.0.0.1:0"\nusers = { repl = "${BENCH_PASSWORD}" }\n'
            '[serve.publications.p]\ntables = ["public.*"]\n'
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "serve", str(self.file), "--json"],
            stdout=subprocess.PIPE,
            env={**os.environ, "BENCH_PASSWORD": PASSWORD},
        )
        assert self.process.stdout is not None
        told = json.loads(self.process.stdout.readline())
        self.port = int(told["address"].rpartition(":")[2])
        self.pid = self.process.pid

    @property
    def cpu_s(self) -> float:
        """Return user and system seconds so far."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def url(self, **more: str) -> str:
        """Return the URL for libpq."""
        parts = {"host": "127.0.0.1", "port": str(self.port), "user": "repl", "dbname": "shop"}
        return " ".join(f"{k}={v}" for k, v in {**parts, "password": PASSWORD, **more}.items())

    def command(self, text: str) -> None:
        """Run a replication command."""
        with psycopg.connect(self.url(replication="database"), autocommit=True) as connection:
            result = connection.pgconn.exec_(text.encode())
            assert result.status != psycopg.pq.ExecStatus.FATAL_ERROR, result.error_message

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait()


class Drain:
    """A client that reads and confirms nothing."""

    def __init__(self, server: Server) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port))
        self.buffer = memoryview(bytearray(4 << 20))
        words = b"user\0repl\0database\0shop\0replication\0database\0\0"
        body = struct.pack(">i", 196608) + words
        self.socket.sendall(struct.pack(">i", len(body) + 4) + body)
        client = ScramClient(PASSWORD)
        self._message()
        first = client.first()
        name = client.mechanism.encode() + b"\0"
        self._say(b"p", name + struct.pack(">i", len(first)) + first)
        self._say(b"p", client.final(self._message()[4:]))
        while self._message(b"Z"):
            pass

    def _say(self, kind: bytes, body: bytes) -> None:
        self.socket.sendall(kind + struct.pack(">i", len(body) + 4) + body)

    def _message(self, last: bytes = b"") -> bytes:
        head = self._exactly(5)
        body = self._exactly(int.from_bytes(head[1:]) - 4)
        return b"" if head[:1] == last else body or b"-"

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            data = self.socket.recv(count - len(found))
            assert data, "the server has gone"
            found += data
        return found

    def run(self, slot: str, end: int) -> int:
        """Read until a keepalive says that all is sent; return how many bytes that was."""
        query = (
            f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names 'p')"
        )
        self._say(b"Q", query.encode() + b"\0")
        total, tail = 0, b""
        wanted = b"d\0\0\0\x16k" + struct.pack(">Q", end)
        while True:
            count = self.socket.recv_into(self.buffer)
            assert count, "the server has gone"
            total += count
            tail = (tail + bytes(self.buffer[max(0, count - 64) : count]))[-128:]
            if wanted in tail:
                self.socket.close()
                return total


@contextmanager
def serve(rows: int) -> Iterator[tuple[Server, int]]:
    """Provide a server, and the LSN at which all rows are sent; its slots begin before them."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_log(root / "log", 1, 1, 1)
        server = Server(root)
        try:
            slots = [f"s{number}" for number in range(CLIENTS + ROUNDS_MAX)]
            for slot in (*slots, *(f"c{number}" for number in range(ROUNDS_MAX))):
                server.command(
                    f"CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput (SNAPSHOT 'nothing')"
                )
            trx = write_log(root / "log", 2, rows + 1, 2)
            yield server, numbers.end_of(rows + 1, trx)
        finally:
            server.stop()


def print_rate(what: str, rows: int, elapsed_s: float, cpu_s: float, **more: float) -> None:
    """Print a line."""
    rate = round(rows / elapsed_s)
    line = {"measure": what, "rows_per_second": rate, "server_cpu_s": round(cpu_s, 2), **more}
    print(json.dumps(line), flush=True)


def drain(server: Server, end: int, clients: int) -> tuple[float, float]:
    """Return seconds and the server's CPU seconds for so many clients at once."""
    drains = [Drain(server) for _ in range(clients)]
    threads = [
        threading.Thread(target=one.run, args=(f"s{number}", end))
        for number, one in enumerate(drains)
    ]
    cpu, began = server.cpu_s, time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began, server.cpu_s - cpu


def receive(command: list[str]) -> float:
    """Return the seconds that pg_recvlogical takes."""
    began = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - began


def recvlogical(program: Path, url: str, slot: str, end: str) -> list[str]:
    """Return its command line."""
    return [
        *(str(program), "-d", url, f"--slot={slot}", "--start", "-f", "/dev/null"),
        *("-o", "proto_version=1", "-o", "publication_names=p", f"--endpos={end}", "--no-loop"),
    ]


@contextmanager
def publisher(rows: int) -> Iterator[tuple[EmbeddedPostgres, str]]:
    """Provide a real server with the same rows after its slots, and the LSN of their end."""
    with EmbeddedPostgres() as server:
        with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
            connection.execute(f"create table bulk ({COLUMNS}, primary key (id))")
            connection.execute("create publication p for table bulk")
            for slot in (f"{kind}{number}" for kind in "sc" for number in range(ROUNDS_MAX)):
                connection.execute(
                    "select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,)
                )
            for at in range(1, rows + 1, PER_TRANSACTION):
                connection.execute(
                    "insert into bulk select n, n %% 1000, 'customer-' || n, n * 0.25, "
                    "timestamp '2026-01-01' + n * interval '1 s', n %% 2 = 0, "
                    "case when n %% 3 = 0 then null else 'note ' || n end, n * 7 "
                    "from generate_series(%s::bigint, %s::bigint) n",
                    (at, min(at + PER_TRANSACTION - 1, rows)),
                )
            found = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
            connection.execute("checkpoint")
            connection.execute("select pg_logical_emit_message(true, 'x', 'x')")
        assert found is not None
        yield server, str(found[0])


def caught_up(subscriber: EmbeddedPostgres, url: str, slot: str, last: int) -> float:
    """Return seconds until a stock subscription, which was off, has the last row in its empty
    table.
    """
    with psycopg.connect(subscriber.url("postgres"), autocommit=True) as connection:
        connection.execute("drop table if exists bulk")
        connection.execute(f"create table bulk ({COLUMNS}, primary key (id))".encode())
        connection.execute(
            f"create subscription s connection '{url}' publication p with (copy_data = false, "
            f"create_slot = false, slot_name = '{slot}', enabled = false)".encode()
        )
        connection.execute("checkpoint")
        began = time.perf_counter()
        connection.execute("alter subscription s enable")
        while connection.execute("select 1 from bulk where id = %s", (last,)).fetchone() is None:
            time.sleep(0.02)
        elapsed = time.perf_counter() - began
        connection.execute("alter subscription s disable")
        connection.execute("alter subscription s set (slot_name = none)")
        connection.execute("drop subscription s")
    return elapsed


def main() -> None:
    """Print a line for each measure of each round, and the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=0)
    given = parser.parse_args()
    rows = given.rows or (100_000 if given.quick else 2_000_000)
    few = rows // 4
    print(json.dumps(describe_machine()))
    rates: dict[str, list[float]] = {}
    with (
        serve(rows) as (server, end),
        serve(few) as (short, _),
        publisher(few) as (real, real_end),
        EmbeddedPostgres() as subscriber,
    ):
        program = real.bindir / "pg_recvlogical"
        for number in range(1 if given.quick else min(given.rounds, ROUNDS_MAX)):
            elapsed, cpu = drain(server, end, 1)
            print_rate("drain", rows, elapsed, cpu)
            rates.setdefault("drain", []).append(rows / elapsed)
            before = server.cpu_s
            lsn = f"{end >> 32:X}/{end & 0xFFFFFFFF:X}"
            elapsed = receive(recvlogical(program, server.url(), f"s{CLIENTS + number}", lsn))
            print_rate("pg_recvlogical", rows, elapsed, server.cpu_s - before)
            rates.setdefault("pg_recvlogical", []).append(rows / elapsed)
            url = real.url("postgres")
            elapsed = receive(recvlogical(program, url, f"s{number}", real_end))
            print_rate("pg_recvlogical, real publisher", few, elapsed, 0.0)
            rates.setdefault("real publisher", []).append(few / elapsed)
            for what, place, last in (
                ("subscriber", short.url(), few + 1),
                ("subscriber of a real publisher", url, few),
            ):
                elapsed = caught_up(subscriber, place, f"c{number}", last)
                print_rate(what, few, elapsed, 0.0)
                rates.setdefault(what, []).append(few / elapsed)
            elapsed, one = drain(server, end, 1)
            elapsed, many = drain(server, end, CLIENTS)
            print_rate(
                f"{CLIENTS} drains", CLIENTS * rows, elapsed, many, cpu_of_one_s=round(one, 2)
            )
            rates.setdefault("cpu of 20 over cpu of 1", []).append(many / max(one, 0.01))
    for name, found in rates.items():
        print(json.dumps({"measure": name, "median": round(statistics.median(found), 2)}))


if __name__ == "__main__":
    main()
