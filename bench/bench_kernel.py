"""Decode pgoutput inserts of ten mixed columns from memory: the kernel against its twin.

Estimate: a row is about 290 bytes of wire in 1 begin, 100 rows, 1 commit. Copying and checking
its text costs 0.03 us at 10 GB/s, ten values at 20-60 ns each 0.4 us, bookkeeping 0.1 us: about
0.5 us, 2 M rows/s on one core. The twin makes some 60 Python calls per row: 20-40 us. So 30 x and
more. CPU seconds of this process, minimum of the interleaved rounds; taking the batches included.
"""

from __future__ import annotations

import json
import random
import struct
import time
import uuid
from collections.abc import Callable
from typing import Any

from bench.harness import arguments, describe_machine
from penstock.codec.postgres import pgoutput
from penstock.codec.postgres._pgoutput import Decoder as Kernel
from penstock.model import Column, Relation

NEUTRALS = {
    "id": "int64",
    "n": "int32",
    "label": "string",
    "price": "decimal(12,2)",
    "at": "timestamptz",
    "ok": "bool",
    "doc": "string",
    "ratio": "float64",
    "token": "uuid",
    "note": "string",
}
SOURCE_ID = 16_400
ROWS_PER_TRANSACTION = 100
ROWS_PER_BATCH = 65_536
BLOCK_BYTES = 4 * 2**20


def relation() -> Relation:
    """Return the ten columns."""
    columns = tuple(
        Column(name=name, source_type=neutral, neutral=neutral)
        for name, neutral in NEUTRALS.items()
    )
    return Relation(schema="public", name="mixed", columns=columns, key=(0,), before=(0,))


def _frame(message: bytes) -> bytes:
    payload = b"w" + bytes(24) + message
    return b"d" + struct.pack(">I", len(payload) + 4) + payload


def _row(dice: random.Random, number: int) -> bytes:
    values = [
        str(number),
        str(dice.randrange(-(2**31), 2**31)),
        f"label of row {number}",
        f"{dice.randrange(-(10**6), 10**6)}.{dice.randrange(100):02d}",
        f"2024-{dice.randint(1, 12):02d}-17 {dice.randint(0, 23):02d}:34:56.{number:06d}+00",
        dice.choice("tf"),
        f'{{"a": {number}, "b": [1, 2, 3], "c": "some text of a document"}}',
        repr(dice.random() * 1000),
        str(uuid.UUID(int=dice.getrandbits(128))),
        None if number % 2 else "a note that is there in every other row",
    ]
    cells = [
        b"n" if value is None else b"t" + struct.pack(">I", len(value)) + value.encode()
        for value in values
    ]
    return _frame(b"I" + struct.pack(">IcH", SOURCE_ID, b"N", len(cells)) + b"".join(cells))


def stream(row_count: int) -> bytes:
    """Return transactions of a hundred inserts each."""
    dice = random.Random(1)
    parts = []
    for first in range(0, row_count, ROWS_PER_TRANSACTION):
        position = first + 1
        parts.append(_frame(b"B" + struct.pack(">QqI", position, 0, 7)))
        parts += [_row(dice, first + i) for i in range(ROWS_PER_TRANSACTION)]
        parts.append(_frame(b"C\0" + struct.pack(">QQq", position, position + 50, 0)))
    return b"".join(parts)


def decode(kind: Callable[[], Any], block: bytes, row_count: int) -> float:
    """Decode it all in blocks as from a socket; return CPU seconds."""
    decoder = kind()
    decoder.bind(SOURCE_ID, relation())
    taken = 0
    started = time.process_time()
    at = 0
    while at < len(block):
        end = min(len(block), at + BLOCK_BYTES)
        at = decoder.feed(block, at, end, ROWS_PER_BATCH)
        if decoder.stop is not pgoutput.Stop.MORE:
            taken += sum(rows.batch.num_rows for rows in decoder.take())
    taken += sum(rows.batch.num_rows for rows in decoder.take())
    elapsed = time.process_time() - started
    if taken != row_count:
        raise SystemExit(f"{taken} rows instead of {row_count}")
    return elapsed


def main() -> None:
    """Measure twin and kernel in turn."""
    flags = arguments(__doc__ or "", rows=300_000, twin_rows=10_000)
    counts = {"twin": flags.twin_rows, "kernel": flags.rows}
    kinds: dict[str, Callable[[], Any]] = {"twin": pgoutput.Decoder, "kernel": Kernel}
    blocks = {name: stream(count) for name, count in counts.items()}
    best: dict[str, float] = {}
    for _ in range(flags.rounds):
        for name, kind in kinds.items():
            per_row = decode(kind, blocks[name], counts[name]) / counts[name]
            best[name] = min(per_row, best.get(name, per_row))
    for name, per_row in best.items():
        line = {
            "bench": "pgoutput_decode_10_mixed",
            "contender": name,
            "rows_per_s": round(1 / per_row),
            "cpu_us_per_row": round(per_row * 1e6, 3),
            "bytes_per_row": round(len(blocks[name]) / counts[name]),
            "mb_per_s": round(len(blocks[name]) / counts[name] / per_row / 1e6),
            "ratio": round(best["twin"] / per_row, 1),
            "rounds": flags.rounds,
            "machine": describe_machine(),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
