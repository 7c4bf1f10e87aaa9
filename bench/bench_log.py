"""Write and read the change log: ten-column rows to fdatasync with lz4, and back.

Estimate: a row is about 150 bytes as Arrow columns. lz4 at 0.7 GB/s costs 0.2 us, checksum at 10
GB/s nothing, copying and the write to the page cache 0.1 us, the disk at 0.5 GB/s for half the
bytes 0.15 us: about 0.5 us, 2 M rows/s on one core; in batches of 5,000 fixed costs of 0.1 ms per
batch add 0.02 us. Reading: the same bytes decompress at 2 GB/s: 0.1 us, 5 M rows/s and more.
Opening a closed segment by its footer is four system calls and some JSON: well below 1 ms.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from bench.harness import Comparison, Contender, Measurement, arguments, describe_machine
from penstock.codec.columns import after_type, batch_schema, before_type, transactions_batch
from penstock.log import Writer, WriterOptions, list_segments, open_segment
from penstock.model import Column, FlushPoint, Relation, Rows, Run

NEUTRALS = {
    "id": "int64",
    "n": "int32",
    "small": "int16",
    "price": "decimal(12,2)",
    "at": "timestamptz",
    "ok": "bool",
    "ratio": "float64",
    "label": "string",
    "note": "string",
    "token": "uuid",
}
RELATION = Relation(
    schema="public",
    name="item",
    columns=tuple(Column(name=n, source_type=t, neutral=t) for n, t in NEUTRALS.items()),
    key=(0,),
    before=(0,),
)
OPEN_COUNT = 30


def after_images(count: int) -> pa.StructArray:
    """Return values that compress about as real ones do: random numbers, texts of few words."""
    dice = random.Random(7)
    words = ["order", "paid", "shipped", "returned", "customer", "address", "changed", "by"]
    values = {
        "id": range(count),
        "n": [dice.randrange(10**6) for _ in range(count)],
        "small": [dice.randrange(100) for _ in range(count)],
        "price": None,
        "at": [1_700_000_000_000_000 + dice.randrange(10**12) for _ in range(count)],
        "ok": [dice.random() < 0.5 for _ in range(count)],
        "ratio": [dice.random() for _ in range(count)],
        "label": [f"item-{n % 5000:05}" for n in range(count)],
        "note": [" ".join(dice.choices(words, k=6)) for _ in range(count)],
        "token": [dice.randbytes(16) for _ in range(count)],
    }
    kind = after_type(RELATION)
    arrays = []
    for field in kind:
        if field.name == "price":
            cents = pa.array([dice.randrange(10**6) for _ in range(count)], pa.int64())
            arrays.append(cents.cast(pa.decimal128(20, 0)).cast(field.type))
        else:
            arrays.append(pa.array(values[field.name], field.type))
    return pa.StructArray.from_arrays(arrays, fields=list(kind))


def runs(row_count: int, batch_rows: int) -> list[Run]:
    """Return all rows of one table, in runs of one transaction each."""
    images = after_images(row_count)
    schema = batch_schema(RELATION)
    made = []
    for trx, start in enumerate(range(0, row_count, batch_rows), 1):
        count = min(batch_rows, row_count - start)
        columns = [
            pa.array(range(start + 1, start + count + 1), pa.int64()),
            pa.array([trx] * count, pa.int64()),
            pa.array([ord("I")] * count, pa.uint8()),
            pa.nulls(count, pa.binary()),
            images.slice(start, count),
            pa.nulls(count, before_type(RELATION)),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        end = FlushPoint(position=trx * 100 + 50, gsn=start + count, trx=trx)
        told = transactions_batch([(trx * 100, trx * 100 + 50, 1_700_000_000_000_000 + trx, trx)])
        rows = (Rows(relation=RELATION, batch=batch),)
        made.append(Run(rows=rows, transactions=told, end=end))
    return made


def write(directory: Path, prepared: list[Run], compression: str | None) -> None:
    """Write with a flush per run, and rotation when due, as the extractor does."""
    options = WriterOptions(compression=compression)
    with Writer.open(directory, log_id=None, source={"engine": "bench"}, options=options) as log:
        for run in prepared:
            log.write(run)
            log.flush()
            if log.due():
                log.rotate()
        log.rotate()


def measured_write(prepared: list[Run], compression: str | None) -> Measurement:
    """Return wall and CPU time of one log, in a directory of its own."""
    with tempfile.TemporaryDirectory() as name:
        started, cpu_started = time.perf_counter(), time.process_time()
        write(Path(name), prepared, compression)
        elapsed_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
        size = sum(file.path.stat().st_size for file in list_segments(Path(name)))
    return Measurement(elapsed_s=elapsed_s, cpu_s=cpu_s, extra={"log_mib": size / 2**20})


def measured_read(directory: Path) -> Measurement:
    """Read all rows of all segments, verified and decompressed."""
    started, cpu_started = time.perf_counter(), time.process_time()
    for file in list_segments(directory):
        with open_segment(file.path) as segment:
            for rows in segment.rows():
                assert rows.batch.num_rows
    return Measurement(
        elapsed_s=time.perf_counter() - started, cpu_s=time.process_time() - cpu_started
    )


def measured_order(directory: Path) -> Measurement:
    """Read all rows again, one by one in strict order."""
    started, cpu_started = time.perf_counter(), time.process_time()
    for file in list_segments(directory):
        with open_segment(file.path) as segment:
            for _ in segment.in_order():
                pass
    return Measurement(
        elapsed_s=time.perf_counter() - started, cpu_s=time.process_time() - cpu_started
    )


def print_open_cost(directory: Path) -> None:
    """Print the time that a loader needs per batch of segments before it reads a row."""
    path = list_segments(directory)[0].path
    best = min(_open_all(path) for _ in range(10))
    line = {"bench": "log_open", "segments": OPEN_COUNT, "open_ms_each": round(best, 4)}
    print(json.dumps(line | {"machine": describe_machine()}), flush=True)


def _open_all(path: Path) -> float:
    started = time.perf_counter()
    for _ in range(OPEN_COUNT):
        with open_segment(path) as segment:
            assert segment.totals.rows
    return (time.perf_counter() - started) / OPEN_COUNT * 1e3


def main() -> None:
    """Measure batches of 5,000, 50,000 and 150,000 rows."""
    chosen = arguments(__doc__, rows=600_000)
    contenders = []
    logs = []
    for batch_rows in (5_000, 50_000, 150_000):
        prepared = runs(chosen.rows, batch_rows)
        for compression in ("lz4", None):
            contenders.append(
                Contender(
                    name=f"write {batch_rows} {compression or 'plain'}",
                    run=lambda p=prepared, c=compression: measured_write(p, c),
                    unit_count=chosen.rows,
                )
            )
        directory = tempfile.TemporaryDirectory()
        logs.append(directory)
        write(Path(directory.name), prepared, "lz4")
        path = Path(directory.name)
        for name, measure in (("read", measured_read), ("read in order", measured_order)):
            contenders.append(
                Contender(
                    name=f"{name} {batch_rows} lz4",
                    run=lambda p=path, m=measure: m(p),
                    unit_count=chosen.rows,
                )
            )
    Comparison(bench="log", contenders=contenders).run(chosen.rounds).print_table()
    for directory in logs:
        print_open_cost(Path(directory.name))
        directory.cleanup()


if __name__ == "__main__":
    main()
