"""Decode webhook batches of a changefeed into columns: the kernel, its twin, JSON readers.

Estimate: a line of seven columns has about 250 bytes. Every byte is looked at once, 0.2-0.3 us at
1 GB/s; its three texts are copied into columns by Python, 0.15 us each; so about 1 us a mutation,
two hundredths of what two cores have for one at 50,000 a second. The twin makes some 100 Python
calls a line. `msgspec` keeps raw JSON too, but checks neither numbers nor strings of what it passes
over, and its objects would still have to become columns. CPU seconds, minimum of the interleaved
rounds.
"""

from __future__ import annotations

import functools
import json
import random
import time
from collections.abc import Callable, Mapping

import msgspec

from bench.harness import arguments, describe_machine
from penstock.codec import _changefeed, changefeed
from penstock.ports.staging import Group
from penstock.stage.receiver.decode import Decoder
from penstock.stage.receiver.paths import Kind, Place
from penstock.stage.receiver.targets import TargetTables

GROUP = ("shop", "public")
TABLES = ("customers", "orders", "order_lines")
LINES_PER_REQUEST = 1000


class _Catalog:
    group_parts = 2

    def keys(self, _group: Group, /) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys(TABLES, ("id",))

    def check(self) -> None:
        pass


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    updated: str
    topic: str
    key: msgspec.Raw
    after: msgspec.Raw = msgspec.Raw(b"")
    before: msgspec.Raw = msgspec.Raw(b"")


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    payload: list[_Line]
    length: int


def request(dice: random.Random) -> bytes:
    """The body of one webhook request."""
    lines = []
    for number in range(LINES_PER_REQUEST):
        row = {
            "id": dice.randrange(10**9),
            "region": "eu-west",
            "customer_id": f"3d5a1c1e-7c1b-4f0e-9a55-{number:012}",
            "total": dice.randrange(10**6) / 100,
            "placed_at": "2024-03-01T10:00:00.123456Z",
            "note": None if number % 2 else "a note that is there in every other row",
            "tags": ["vip", "eu"],
        }
        lines.append(
            {
                "after": row,
                "key": ["eu-west", row["id"]],
                "topic": dice.choice(TABLES),
                "updated": f"{1709287200000000000 + number}.0000000001",
            }
        )
    batch = {"payload": lines, "length": len(lines)}
    return json.dumps(batch, separators=(",", ":")).encode()


def cpu_seconds(function: Callable[[], object], calls: int) -> float:
    """CPU seconds of one call."""
    begun = time.process_time()
    for _ in range(calls):
        function()
    return (time.process_time() - begun) / calls


def main() -> None:
    """Print one JSON line per way."""
    options = arguments("Decode webhook batches of a changefeed.")
    body = request(random.Random(1))
    place = Place(group=GROUP, kind=Kind.BATCH)
    decoder = Decoder(TargetTables(_Catalog()))
    ways: dict[str, tuple[Callable[[], object], int]] = {
        "kernel": (functools.partial(_changefeed.scan_batch, body, True), 50),
        "kernel, into columns": (functools.partial(decoder.decode, place, body), 50),
        "twin": (functools.partial(changefeed.scan_batch, body, True), 1),
        "msgspec, raw": (functools.partial(msgspec.json.decode, body, type=_Batch), 50),
        "json": (functools.partial(json.loads, body), 20),
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(options.rounds):
        for name, (function, calls) in ways.items():
            best[name] = min(best[name], cpu_seconds(function, calls))
    for name, seconds in best.items():
        print(
            json.dumps(
                {
                    "bench": "changefeed_decode",
                    "way": name,
                    "cpu_us_per_mutation": round(seconds / LINES_PER_REQUEST * 1e6, 3),
                    "mutations_per_cpu_s": round(LINES_PER_REQUEST / seconds),
                    "bytes_per_mutation": round(len(body) / LINES_PER_REQUEST),
                    "machine": describe_machine(),
                }
            )
        )


if __name__ == "__main__":
    main()
