"""Read a table of ten mixed columns for files: binary COPY to Arrow against text COPY to Arrow.

Both ways are those of the log's base: a worker's session in a snapshot reads one chunk of an
embedded PostgreSQL through its socket. `text` converts lines in Python (`codec/copy_rows.py`),
`binary` decodes frames in the kernel, `memory` does so from memory, without socket and server.

Estimate: a row is about 130 bytes of wire. The kernel takes ten values at 5-15 ns each, and checks
and copies two texts: 0.15 us, so 5 M rows/s from memory. Receiving and moving 130 bytes costs 0.05
us, waking up for each megabyte little: 3 M rows per CPU second through the socket. Text COPY costs
a Python call or two per value: 10 us, 0.1 M rows/s. CPU seconds of this process, so without the
server's; minimum of the interleaved rounds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from bench.harness import arguments, describe_machine
from penstock.codec.copy_rows import cells_of, inserts
from penstock.codec.lines import LineDialect
from penstock.codec.postgres import pgwire
from penstock.codec.postgres.copy_binary_decode import make_copy_decoder
from penstock.codec.postgres.copy_binary_outcome import Stop, find_form
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.engines.postgres.source.bulk_reader import (
    BEGIN_READ,
    PostgresBulkReader,
    open_reader,
)
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.model import Relation, TableName
from penstock.ports.bulk import Chunk, ChunkTask
from penstock.ports.registry import part
from penstock.sql.read_plan import RELATION_OF_PART

T = TableName("public", "mixed")
COPY_OUT = "copy (select * from public.mixed where id <= {}) to stdout"
FILL = """
    insert into public.mixed
    select n, n % 100000, (n % 1000000) * 1.07, 'label of row ' || n,
        case when n % 2 = 0 then 'a note that is there in every other row' end,
        timestamptz '2024-01-01' + n * interval '1.001 s', date '2024-01-01' + n % 1000,
        n % 3 = 0, n / 7.0, nullif(n % 5, 0)
      from generate_series(1, {rows}) n
"""
OIDS = (20, 23, 1700, 25, 25, 1184, 1082, 16, 701, 20)
BLOCK_BYTES = 1 << 20


@contextmanager
def reading(url: str, count: int) -> Iterator[tuple[PostgresBulkReader, ChunkTask]]:
    """Give a worker's session and the task of the first rows."""
    with connect(url, application_name="bench") as holder:
        holder.execute(BEGIN_READ)
        row = holder.execute("select pg_export_snapshot(), pg_current_snapshot()::text").fetchone()
        assert row is not None
        task = ChunkTask(
            source_url=url,
            target_url="",
            table=T,
            target=T,
            chunk=Chunk(number=0, relation=T, copy_out=COPY_OUT.format(count)),
            columns=(),
            binary=False,
            snapshot_id=row[0],
            snapshot_text=row[1],
            plan="",
            replica_role=False,
        )
        reader = open_reader(url, *row)
        assert reader is not None
        try:
            yield reader, task
        finally:
            reader.close()


def read_text(url: str, relation: Relation, count: int) -> tuple[int, float]:
    """Read by text COPY; return rows and CPU seconds."""
    rows = 0
    with reading(url, count) as (reader, task):
        started = time.process_time()
        for block in reader.lines(task, LineDialect.COPY):
            columns = cells_of(block, len(relation.columns))
            batch = inserts(relation, columns, len(columns[0]), gsn=1, trx=1).batch
            rows += batch.num_rows
        return rows, time.process_time() - started


def read_binary(url: str, relation: Relation, count: int) -> tuple[int, float]:
    """Read by binary COPY; return rows and CPU seconds."""
    with reading(url, count) as (reader, task):
        started = time.process_time()
        batches = reader.batches(task, relation)
        assert batches is not None
        rows = sum(batch.num_rows for _, batch in batches)
        return rows, time.process_time() - started


def record(url: str, count: int) -> bytes:
    """Return the frames of a binary COPY."""
    frames = bytearray()
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        statement = COPY_OUT.format(count) + " (format binary)"
        with cursor.copy(statement.encode()) as copy:
            for row in copy:
                frames += pgwire.copy_data(bytes(row))
    return bytes(frames)


def decode(frames: bytes, relation: Relation) -> tuple[int, float]:
    """Decode frames from memory, in blocks; return rows and CPU seconds."""
    forms = [
        form
        for oid, column in zip(OIDS, relation.columns, strict=True)
        if (form := find_form(oid, column.neutral)) is not None
    ]
    started = time.process_time()
    decoder = make_copy_decoder(relation, forms)
    at = rows = 0
    while not decoder.ended:
        at = decoder.feed(frames, at, min(len(frames), at + BLOCK_BYTES))
        if decoder.stop is Stop.LIMIT or decoder.ended:
            batch = decoder.take()
            rows += 0 if batch is None else batch.num_rows
    return rows, time.process_time() - started


def main() -> None:
    """Measure the ways in turn."""
    flags = arguments(__doc__ or "", rows=500_000, text_rows=50_000)
    with EmbeddedPostgres() as server:
        url = server.url("postgres")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "create table public.mixed (id bigint primary key, n int, price numeric(12,2), "
                "label text, note text, at timestamptz, day date, ok bool, ratio float8, m bigint)"
            )
            connection.execute(FILL.replace("{rows}", str(flags.rows)).encode())
            connection.execute("vacuum analyze public.mixed")
        with open_catalog(url) as catalog:
            [definition] = captured_tables(catalog, [str(T)])
        relation: Relation = part(url, RELATION_OF_PART)(definition)
        frames = record(url, flags.rows)
        counts = {"text": flags.text_rows, "binary": flags.rows, "memory": flags.rows}
        ways: dict[str, Callable[[], tuple[int, float]]] = {
            "text": lambda: read_text(url, relation, counts["text"]),
            "binary": lambda: read_binary(url, relation, counts["binary"]),
            "memory": lambda: decode(frames, relation),
        }
        best: dict[str, float] = {}
        for _ in range(flags.rounds):
            for name, way in ways.items():
                rows, seconds = way()
                if rows != counts[name]:
                    raise SystemExit(f"{rows} rows instead of {counts[name]}")
                best[name] = min(seconds / rows, best.get(name, seconds / rows))
    for name, per_row in best.items():
        line = {
            "bench": "binary_copy_10_mixed",
            "contender": name,
            "rows_per_cpu_s": round(1 / per_row),
            "cpu_us_per_row": round(per_row * 1e6, 3),
            "bytes_per_row": round(len(frames) / flags.rows),
            "ratio": round(best["text"] / per_row, 1),
            "rounds": flags.rounds,
            "machine": describe_machine(),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
