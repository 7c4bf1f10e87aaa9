"""Decode Ignite's marshalled values from memory: the kernel against its twin, kind by kind.

Then a million objects of 8 fields, each released before the next one, as in a consumer, and read
into columns at once as the change log has them. For comparison, it prints what CPython's own
`marshal.loads` takes for the same content in Python's plain types (tuples, a dict), and Decimal for
a number's text: what a reader in C that makes Python's objects costs.
Estimate: an int costs 10 ns and its call 20 ns, so 30 x and more; a decimal is Decimal's own
150 ns, so 13 x; an array of long is 8 objects for either, the twin's made in C, too: 12 x.
CPU seconds of this process, minimum of the interleaved rounds.
"""

from __future__ import annotations

import json
import marshal as cpython
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import repeat
from typing import Any

import numpy as np

from bench.harness import arguments, describe_machine
from penstock.codec.ignite import _marshal, cells, marshal
from penstock.codec.ignite.cells import Cell
from penstock.codec.ignite.types import BinaryType, Types

NAMES = ("id", "customer", "item", "count", "price", "paid", "created", "note")
ORDER = BinaryType(
    type_id=7, type_name="Order", names=dict(enumerate(NAMES)), schemas={5: NAMES, 6: ("id",)}
)
COLOUR = BinaryType(type_id=9, type_name="Colour", is_enum=True, constants={1: "GREEN"})
TYPES = Types({7: ORDER, 9: COLOUR}.get)
FORMS = ("int64", "int32", "string", "int32", "float64", "bool", "moment", "string")
COLUMNS = tuple(Cell(name, form) for name, form in zip(NAMES, FORMS, strict=True))
CALLS = 20_000
COLUMN_ROWS = 8192


def text(value: str) -> bytes:
    """Return a string."""
    return b"\x09" + struct.pack("<i", len(value)) + value.encode()


def binary(fields: Iterable[bytes], schema: int = 5) -> bytes:
    """Return an object with a compact footer of single bytes."""
    body, footer = b"", b""
    for one in fields:
        footer += bytes([24 + len(body)])
        body += one
    length = 24 + len(body) + len(footer)
    return struct.pack("<BBHiiiii", 103, 1, 0x2B, 7, 99, length, schema, 24 + len(body)) + (
        body + footer
    )


def order(key: int) -> bytes:
    """Return an object like those of which `tests/ignite/Node.java` puts many."""
    return binary(
        [
            struct.pack("<Bq", 4, key),
            struct.pack("<Bi", 3, key * 7919 % 100_000),
            text(f"item {key % 5000}"),
            struct.pack("<Bi", 3, key % 17),
            struct.pack("<Bd", 6, key * 0.25),
            b"\x08" + bytes([key % 3 == 0]),
            struct.pack("<Bqi", 33, 1_700_000_000_000 + key, 0),
            text(f"note of {key}"),
        ]
    )


def shown_order(key: int) -> dict[str, Any]:
    """Return the same content in Python's plain types."""
    return dict(
        zip(
            NAMES,
            (key, key * 7919 % 100_000, f"item {key % 5000}", key % 17, key * 0.25,
             key % 3 == 0, (1_700_000_000_000 + key, 0), f"note of {key}"),
            strict=True,
        )
    )  # fmt: skip


NUMBERS = tuple(range(100_000, 100_008))
VALUES: dict[str, tuple[bytes, Any]] = {
    "int": (struct.pack("<Bi", 3, 123_456), 123_456),
    "string": (text("some text of a customer"), "some text of a customer"),
    "UUID": (b"\x0a" + bytes(range(1, 17)), ((1 << 127) - 5, None)),
    "decimal": (struct.pack("<Bii", 30, 2, 4) + b"\x12\x34\x56\x78", "305419896E-2"),
    "timestamp": (struct.pack("<Bqi", 33, 1_700_000_000_000, 123), (1_700_000_000_000, 123)),
    "Date": (struct.pack("<Bq", 11, 1_700_000_000_000), (1_700_000_000_000,)),
    "enum": (struct.pack("<Bii", 28, 9, 1), None),
    "long[] of 8": (struct.pack("<Bi8q", 15, 8, *NUMBERS), list(NUMBERS)),
    "list of 8": (
        struct.pack("<BiB", 24, 8, 1) + b"".join(struct.pack("<Bi", 3, one) for one in NUMBERS),
        list(NUMBERS),
    ),
    "map of 8": (
        struct.pack("<BiB", 25, 8, 1)
        + b"".join(struct.pack("<Bi", 3, one) + text("abc") for one in NUMBERS),
        [(one, "abc") for one in NUMBERS],
    ),
    "object of 1": (binary([struct.pack("<Bq", 4, 12_345)], 6), {"id": 12_345}),
    "object of 8": (order(12_345), shown_order(12_345)),
}


def time_calls(called: Callable[..., Any], *given: Iterable[Any]) -> float:
    """Return the CPU seconds of calls whose results are discarded."""
    calls = map(called, *given)
    began_s = time.process_time()
    deque(calls, maxlen=0)
    return time.process_time() - began_s


def yardstick_of(name: str, plain: Any) -> tuple[Callable[..., Any], Any]:
    """Return CPython's function for the same value, and its argument."""
    if name == "decimal":
        return Decimal, plain
    return cpython.loads, cpython.dumps(plain)


def kinds(rounds: int, decoders: dict[str, Callable[..., Any]]) -> None:
    """Time each kind of value, and print a line for it."""
    best: dict[tuple[str, str], float] = {}
    for _ in range(rounds):
        for name, (data, plain) in VALUES.items():
            kind = 100 if data[0] == 103 else 1
            for way, decode in decoders.items():
                calls = CALLS if way == "kernel" else CALLS // 20
                seconds = time_calls(decode, repeat(data, calls), repeat(kind)) / calls
                best[name, way] = min(seconds, best.get((name, way), seconds))
            called, given = yardstick_of(name, plain)
            seconds = time_calls(called, repeat(given, CALLS)) / CALLS
            best[name, "cpython"] = min(seconds, best.get((name, "cpython"), seconds))
    for name in VALUES:
        line = {
            "bench": "ignite_value",
            "kind": name,
            "twin_ns": round(best[name, "twin"] * 1e9),
            "kernel_ns": round(best[name, "kernel"] * 1e9),
            "cpython_ns": round(best[name, "cpython"] * 1e9) if name != "enum" else None,
            "ratio": round(best[name, "twin"] / best[name, "kernel"], 1),
            "machine": describe_machine(),
        }
        print(json.dumps(line), flush=True)


def in_columns(read: Callable[..., Any], data: Sequence[Any]) -> float:
    """Return CPU seconds for Arrow's columns, so many rows at a time."""
    began_s = time.process_time()
    for at in range(0, len(data), COLUMN_ROWS):
        found = read(data[at : at + COLUMN_ROWS], COLUMNS)
        assert found[0][0][0].as_py() == at
    return time.process_time() - began_s


def many(rounds: int, count: int, decoders: dict[str, Callable[..., Any]]) -> None:
    """Time each way to read many objects, and print a line for it."""
    data = [order(key) for key in range(count)]
    plain = [cpython.dumps(shown_order(key)) for key in range(count)]
    some = data[: count // 20]
    kernel = _marshal.Decoder(TYPES).cells_at
    lengths = np.array([len(one) for one in data], np.int64)
    begins, joined = np.cumsum(lengths) - lengths, b"".join(data)

    def at_once(rows: range, columns: tuple[Cell, ...]) -> Any:
        here = slice(rows.start, rows.stop)
        return kernel(joined, begins[here], lengths[here], columns)

    ways: dict[str, tuple[int, Callable[[], float]]] = {
        "twin": (len(some), lambda: time_calls(decoders["twin"], some, repeat(100))),
        "kernel": (count, lambda: time_calls(decoders["kernel"], data, repeat(100))),
        "cpython": (count, lambda: time_calls(cpython.loads, plain)),
        "columns, twin": (
            len(some),
            lambda: in_columns(lambda data, cols: cells.read_cells(data, cols, TYPES), some),
        ),
        "columns, kernel": (count, lambda: in_columns(at_once, range(count))),
    }
    best: dict[str, float] = {}
    for _ in range(rounds):
        for way, (rows, run) in ways.items():
            seconds = run() / rows
            best[way] = min(seconds, best.get(way, seconds))
    for way, seconds in best.items():
        twin = best["columns, twin" if way.startswith("columns") else "twin"]
        line = {
            "bench": "ignite_objects_of_8",
            "way": way,
            "objects": count,
            "objects_per_s": round(1 / seconds),
            "ns": round(seconds * 1e9),
            "ratio": round(twin / seconds, 1),
            "machine": describe_machine(),
        }
        print(json.dumps(line), flush=True)


def main() -> None:
    """Print one JSON line per kind and way."""
    flags = arguments(__doc__ or "", rows=1_000_000)
    decoders: dict[str, Callable[..., Any]] = {
        "twin": lambda data, kind: marshal.decode(data, kind, TYPES),
        "kernel": _marshal.Decoder(TYPES).decode,
    }
    kinds(flags.rounds, decoders)
    many(flags.rounds, flags.rows, decoders)


if __name__ == "__main__":
    main()
