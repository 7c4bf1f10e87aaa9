"""Encode rows of the log as pgoutput frames: rows per second of kernel and twin, on one core.

`python -m bench.bench_encode` prints a JSON line for each: eight columns, as a walsender's client
gets them.
"""

from __future__ import annotations

import json
import time

import numpy as np
import pyarrow as pa

from penstock.codec.columns import batch_schema
from penstock.codec.postgres import pgoutput_encode
from penstock.model import Column, Op, Relation

ROWS = 100_000
REPEATS = 7
NEUTRALS = ("int64", "int32", "string", "float64", "timestamp", "bool", "string", "int64")


def batch_of(relation: Relation) -> pa.RecordBatch:
    """Return ROWS inserts."""
    numbers = np.arange(ROWS)
    arrays = {
        "int64": pa.array(numbers * 7_919),
        "int32": pa.array(numbers % 1000, pa.int32()),
        "string": pa.array([f"customer-{n}" for n in numbers]),
        "float64": pa.array(numbers * 0.25),
        "timestamp": pa.array(1_767_225_600_000_000 + numbers * 1_000_003, pa.timestamp("us")),
        "bool": pa.array(numbers % 2 == 0),
    }
    schema = batch_schema(relation)
    valid = pa.array([True] * ROWS).buffers()[1]
    after = pa.Array.from_buffers(
        schema.field("after").type, ROWS, [valid], children=[arrays[n] for n in NEUTRALS]
    )
    heads = [
        pa.array(numbers + 1),
        pa.array([1] * ROWS, pa.int64()),
        pa.array([int(Op.INSERT)] * ROWS, pa.uint8()),
        pa.nulls(ROWS, pa.binary()),
    ]
    before = pa.nulls(ROWS, schema.field("before").type)
    return pa.RecordBatch.from_arrays([*heads, after, before], schema=schema)


def main() -> None:
    """Print the medians."""
    columns = tuple(
        Column(name=f"c{index}", source_type=neutral, neutral=neutral)
        for index, neutral in enumerate(NEUTRALS)
    )
    relation = Relation(schema="public", name="t", columns=columns, key=(0,), before=(0,))
    batch = batch_of(relation)
    positions = np.arange(1, ROWS + 1, dtype=np.uint64)
    encoders = {"twin": pgoutput_encode.Encoder(relation, 1)}
    if pgoutput_encode.COMPILED:
        encoders["kernel"] = pgoutput_encode.make_encoder(relation, 1)
    for name, encoder in encoders.items():
        times = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            frames = encoder.encode(batch, positions, 0)
            times.append(time.perf_counter() - began)
        rate = round(ROWS / sorted(times)[REPEATS // 2])
        size = len(frames.data) / ROWS
        print(json.dumps({"encoder": name, "rows_per_second": rate, "bytes_per_row": size}))


if __name__ == "__main__":
    main()
