"""Bytes of a binary COPY into a merge table, which the server returns byte for byte."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.codec.postgres import copy_binary
from penstock.codec.postgres.copy_binary import HEADER, TRAILER, RowWriter
from plugins.postgres import Server

MINUTE_US = 60_000_000
# The type in a merge table, the type of the batch, values as integers if memory has them so.
CASES: list[tuple[str, Any, list[Any]]] = [
    ("boolean", pa.bool_(), [True, False]),
    ("smallint", pa.int16(), [-(2**15), -1, 0, 2**15 - 1]),
    ("integer", pa.int32(), [-(2**31), -1, 0, 2**31 - 1]),
    ("bigint", pa.int64(), [-(2**63), -1, 0, 2**63 - 1]),
    ("real", pa.float32(), [float("nan"), float("-inf"), -0.0, 1e-45, 0.1]),
    ("double precision", pa.float64(), [float("nan"), float("inf"), -0.0, 5e-324, 0.1]),
    ("date", pa.date32(), [-2_440_588, -1, 0, 10_957, 2_145_042_905]),
    ("time without time zone", pa.time64("us"), [0, 1, 1440 * MINUTE_US]),
    ("timestamp without time zone", pa.timestamp("us"), [-210_866_803_200_000_000, -1, 2**63 - 1]),
    ("timestamp with time zone", pa.timestamp("us", "UTC"), [-210_866_803_200_000_000, 2**63 - 1]),
    ("uuid", pa.binary(16), [bytes(16), bytes(range(16))]),
    ("bytea", pa.binary(), [b"", b"\0\xff", b"x" * 300_000]),
    ("text", pa.string(), ["", "ß\U0001f600\n\\N", "y" * 300_000]),
]
NUMBERS = [
    0,
    1,
    -1,
    9,
    10,
    100,
    9999,
    10**4,
    10**8,
    -(10**17),
    2**64 - 1,
    2**64,
    10**37,
    10**38 - 1,
]


def decimals() -> list[tuple[str, Any, list[Any]]]:
    """Return short and long numbers with each scale, with zeros at their ends."""
    return [
        (
            "numeric",
            pa.decimal128(38, scale),
            [Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)) for n in NUMBERS],
        )
        for scale in range(39)
    ]


def arrays() -> list[tuple[str, Any, list[Any]]]:
    """Return arrays of the types into which columns of wide tables are packed."""
    return [
        (f"{sql}[]", pa.list_(kind), [values, [*values, None], [None], [], values[:1]])
        for sql, kind, values in CASES
    ]


def column(kind: Any, values: list[Any]) -> Any:
    """Return an Arrow array that begins with NULL; numbers are given as they are in memory."""
    values = [None, *values]
    element = kind.value_type if pa.types.is_list(kind) else kind
    if not pa.types.is_temporal(element):
        return pa.array(values, kind)
    bits = pa.int32() if pa.types.is_date32(element) else pa.int64()
    if element is kind:
        return pa.array(values, bits).view(kind)
    lists = pa.array(values, pa.list_(bits))
    held = [pa.py_buffer(lists.buffers()[0]), lists.buffers()[1]]
    inner = [lists.values.view(element)]
    return pa.Array.from_buffers(kind, len(lists), held, children=inner)


WRITERS: list[type[RowWriter]] = [RowWriter]
if copy_binary.COMPILED:
    WRITERS.append(copy_binary._KernelWriter)


@pytest.mark.parametrize("kind", WRITERS)
def test_what_is_written_is_read_back(postgres: Server, kind: type[RowWriter]) -> None:
    """Every type of a merge table, extremes and NULLs are equal; so the server kept the values."""
    url = postgres.make_database("staged_bytes")
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            for sql, arrow, values in [*CASES, *decimals(), *arrays()]:
                batch = pa.RecordBatch.from_arrays([column(arrow, values)], ["c"])
                assert batch.num_rows == len(values) + 1
                sent = b"".join(kind(batch.schema).blocks(batch))
                got = there_and_back(connection, sql, HEADER + sent + TRAILER)
                assert got == HEADER + sent + TRAILER, (sql, str(arrow))
            # The server sends jsonb as it prints it, after the same head.
            batch = pa.RecordBatch.from_arrays([pa.array([b'{"a": 1}', None])], ["c"])
            sent = HEADER + b"".join(kind(batch.schema, [b"\1"]).blocks(batch)) + TRAILER
            assert there_and_back(connection, "jsonb", sent) == sent
    finally:
        postgres.drop_database(url)


def there_and_back(connection: Any, sql: str, data: bytes) -> bytes:
    """Return what the server returns of a table with one column."""
    connection.execute(f"drop table if exists m; create table m (c {sql})")
    with connection.cursor().copy("copy m from stdin with (format binary)") as copy:
        copy.write(data)
    with connection.cursor().copy("copy m to stdout with (format binary)") as copy:
        return b"".join(copy)
