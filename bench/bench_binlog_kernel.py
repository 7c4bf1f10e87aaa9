"""Decode binlog inserts of ten mixed columns from memory: the kernel against its twin.

Estimate: a row is about 190 bytes in events of 8 KB, a transaction is 100 rows. Its checksum costs
0.1 us at 2 GB/s, ten values at 10-40 ns each 0.25 us, bookkeeping 0.1 us: about 0.4 us, 2.5 M
rows/s on one core. The twin makes some 60 Python calls per row: 20-40 us. So 30 x and more.
CPU seconds of this process, minimum of the interleaved rounds; taking the batches included.
"""

from __future__ import annotations

import json
import random
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

from bench.harness import arguments, describe_machine
from penstock.codec.mysql import binlog
from penstock.codec.mysql._binlog import Decoder as Kernel
from penstock.codec.mysql.binlog_tables import relation_of, table_map

TABLE_ID = 77
ROWS_PER_TRANSACTION = 100
ROWS_PER_EVENT = 40
ROWS_PER_BATCH = 65_536
BLOCK_BYTES = 4 * 2**20
NAMES = ("id", "n", "label", "price", "at", "ok", "doc", "ratio", "token", "note")


class Stream:
    """Packets of a dump, with checksums and positions."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.offset = 4

    def add(self, kind: int, body: bytes) -> None:
        """Append an event."""
        length = 19 + len(body) + 4
        self.offset += length
        event = struct.pack("<IBIIIH", 1, kind, 1, length, self.offset & 0xFFFFFFFF, 0) + body
        event += struct.pack("<I", zlib.crc32(event))
        self.parts.append((length + 1).to_bytes(3, "little") + b"\0\0" + event)


def table_body() -> bytes:
    """Return the body: bigint, int, varchar(100), decimal(12,2), timestamp(6), tinyint, text,
    double, binary(16).
    """
    types = bytes((8, 3, 15, 246, 17, 1, 252, 5, 254, 15))
    metadata = bytes((200, 0, 12, 2, 6, 2, 8, 254, 16, 144, 1))
    body = struct.pack("<QB", TABLE_ID | 1 << 48, 2)[:8] + b"\x01b\0\x05mixed\0"
    body += bytes((len(types),)) + types + bytes((len(metadata),)) + metadata
    body += b"\xfe\x03"  # all but the first may be NULL
    names = b"".join(bytes((len(name),)) + name.encode() for name in NAMES)
    charsets = bytes((45, 45, 63, 45))
    body += bytes((1, 1, 0)) + bytes((3, len(charsets))) + charsets
    return body + bytes((4, len(names))) + names + bytes((8, 1, 0))


def row(dice: random.Random, number: int) -> bytes:
    """Return the null bits and the values of one row."""
    label = f"label of row {number}".encode()
    doc = f'{{"a": {number}, "b": [1, 2, 3], "c": "some text of a document"}}'.encode()
    note = b"a note that is there in every other row"
    parts = [
        bytes((0, 2 if number % 2 else 0)),
        struct.pack("<qi", number, dice.randrange(-(2**31), 2**31)),
        bytes((len(label),)) + label,
        struct.pack(">BI", 0x80, dice.randrange(10**9)) + bytes((dice.randrange(100),)),
        struct.pack(">I", 1_700_000_000 + number) + (number % 10**6).to_bytes(3, "big"),
        bytes((number % 2,)),
        struct.pack("<H", len(doc)) + doc,
        struct.pack("<d", dice.random() * 1000),
        bytes((16,)) + dice.randbytes(15) + b"\1",
    ]
    if number % 2 == 0:
        parts.append(bytes((len(note), 0)) + note)
    return b"".join(parts)


def stream(row_count: int) -> bytes:
    """Return transactions of a hundred inserts, after a rotate event and a format description."""
    dice = random.Random(1)
    made = Stream()
    rotate = struct.pack("<IBIIIHQ", 0, 4, 1, 19 + 8 + 13, 0, 0x20, 4) + b"binlog.000001"
    made.parts.append((len(rotate) + 1).to_bytes(3, "little") + b"\0\0" + rotate)
    made.add(15, struct.pack("<H50sIB", 4, b"8.0.40", 0, 19) + bytes(40) + b"\1")
    for first in range(0, row_count, ROWS_PER_TRANSACTION):
        gtid = bytes(17) + struct.pack("<QBQQ", first + 1, 2, 0, 0) + bytes((1, 0, 0, 0, 0, 0, 0))
        made.add(33, gtid)
        made.add(2, bytes(8) + b"\0\0\0\0\0\0BEGIN")
        made.add(19, table_body())
        last = min(first + ROWS_PER_TRANSACTION, row_count)
        for start in range(first, last, ROWS_PER_EVENT):
            rows = [row(dice, n) for n in range(start, min(start + ROWS_PER_EVENT, last))]
            head = TABLE_ID.to_bytes(6, "little") + struct.pack("<HHB", 1, 2, 10)
            made.add(30, head + b"\xff\xff" + b"".join(rows))
        made.add(16, struct.pack("<Q", first + 1))
    return b"".join(made.parts)


def decode(kind: Callable[[], Any], block: bytes, row_count: int) -> float:
    """Decode it all in blocks as from a socket; return CPU seconds."""
    decoder = kind()
    taken = at = 0
    started = time.process_time()
    while at < len(block):
        end = min(len(block), at + BLOCK_BYTES)
        at = decoder.feed(block, at, end, ROWS_PER_BATCH)
        if decoder.stop is binlog.Stop.MESSAGE and decoder.message[4] == 19:
            table = table_map(decoder.message[19:], is_mariadb=False)
            decoder.bind(table, relation_of(table, is_mariadb=False))
        elif decoder.stop is not binlog.Stop.MORE:
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
    kinds: dict[str, Callable[[], Any]] = {"twin": binlog.Decoder, "kernel": Kernel}
    blocks = {name: stream(count) for name, count in counts.items()}
    best: dict[str, float] = {}
    for _ in range(flags.rounds):
        for name, kind in kinds.items():
            per_row = decode(kind, blocks[name], counts[name]) / counts[name]
            best[name] = min(per_row, best.get(name, per_row))
    for name, per_row in best.items():
        line = {
            "bench": "binlog_decode_10_mixed",
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
