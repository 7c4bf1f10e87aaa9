"""Decode webhook batches of a changefeed into columns: the kernel, its twin, other JSON readers.

Estimate: a line of seven columns has about 250 bytes. Every byte is looked at once, 0.2-0.3 us at
1 GB/s; its three texts are copied into columns by Python, 0.15 us each; so about 1 us a mutation,
two hundredths of what two cores have for one at 50,000 a second. The twin makes some 100 Python
calls a line.

Could a library do the kernel's work? `msgspec` keeps raw JSON, too; its objects become the same
columns here, without the refusals that it cannot make: a duplicate field, a name in another case,
an exponent that no target holds. `pysimdjson` gives numbers back as doubles, `orjson` has no raw
values: they are measured without the columns, if they are installed. CPU seconds, minimum of the
interleaved rounds.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import random
import time
from collections.abc import Callable, Mapping

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from bench.harness import arguments, describe_machine
from penstock.codec import _changefeed, changefeed
from penstock.feeds.receiver.decode import Decoder
from penstock.feeds.receiver.targets import Kind, Place, TargetTables
from penstock.ports.feeds import MUTATIONS, Group, StagedTable

GROUP = ("shop", "public")
TABLES = ("customers", "orders", "order_lines")
LINES_PER_REQUEST = 1000
_OURS = "kernel, into columns"


class _Catalog:
    group_parts = 2

    def keys(self, _group: Group, /) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys(TABLES, ("id",))

    def check(self) -> None:
        pass


class _Line(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    updated: str
    topic: str
    key: msgspec.Raw
    after: msgspec.Raw = msgspec.Raw(b"")
    before: msgspec.Raw = msgspec.Raw(b"")


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    payload: list[_Line]
    length: int


_BATCHES = msgspec.json.Decoder(_Batch)
_TIME = r"^\d{1,19}\.(?:0|\d{10})$"


def _texts(raws: list[msgspec.Raw]) -> pa.Array:
    return pa.array([bytes(raw) or None for raw in raws], pa.binary())


def columns_by_msgspec(body: bytes, tables: TargetTables) -> dict[StagedTable, pa.RecordBatch]:
    """Decode a request as `Decoder` does, with msgspec in place of the kernel."""
    by_topic: dict[str, list[_Line]] = {}
    for line in _BATCHES.decode(body).payload:
        by_topic.setdefault(line.topic, []).append(line)
    found = {}
    for topic, lines in by_topic.items():
        times = pa.array([line.updated for line in lines], pa.string())
        if not pc.all(pc.match_substring_regex(times, _TIME)).as_py():
            raise ValueError("a line with another time")
        numbers = pc.list_flatten(pc.split_pattern(times, ".")).cast(pa.int64()).to_numpy()
        keys = _texts([line.key for line in lines])
        if keys.null_count:
            raise ValueError("a line without a key")
        images = (_texts([line.after for line in lines]), _texts([line.before for line in lines]))
        columns = [pa.array(numbers[0::2]), pa.array(numbers[1::2]), keys.view(pa.string())]
        batch = pa.record_batch([*columns, *images], schema=MUTATIONS)
        found[tables.of_topic(GROUP, topic)] = batch
    return found


def libraries(body: bytes) -> dict[str, tuple[Callable[[], object], int]]:
    """Return readers of JSON that penstock does not need, if they are installed."""
    found: dict[str, tuple[Callable[[], object], int]] = {}
    with contextlib.suppress(ImportError):
        orjson = importlib.import_module("orjson")
        found["orjson, objects"] = (functools.partial(orjson.loads, body), 30)
    with contextlib.suppress(ImportError):
        parser = importlib.import_module("simdjson").Parser()

        def texts() -> object:
            names = ("updated", "topic")
            return [
                (*(line[name] for name in names), line["key"].mini, line["after"].mini)
                for line in parser.parse(body)["payload"]
            ]

        found["pysimdjson, texts"] = (texts, 30)
    return found


def request(dice: random.Random) -> bytes:
    """Return the body of one webhook request."""
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
    """Return the CPU seconds of one call."""
    begun = time.process_time()
    for _ in range(calls):
        function()
    return (time.process_time() - begun) / calls


def main() -> None:
    """Print one JSON line per way."""
    options = arguments("Decode webhook batches of a changefeed.")
    body = request(random.Random(1))
    place = Place(group=GROUP, kind=Kind.BATCH)
    tables = TargetTables(_Catalog())
    decoder = Decoder(tables)
    ours, theirs = decoder.decode(place, body).batches, columns_by_msgspec(body, tables)
    assert ours.keys() == theirs.keys()
    assert all(ours[table].equals(theirs[table]) for table in ours), "msgspec makes other columns"
    ways: dict[str, tuple[Callable[[], object], int]] = {
        "kernel": (functools.partial(_changefeed.scan_batch, body, True), 50),
        _OURS: (functools.partial(decoder.decode, place, body), 50),
        "twin": (functools.partial(changefeed.scan_batch, body, True), 1),
        "msgspec, raw": (functools.partial(_BATCHES.decode, body), 50),
        "msgspec, into columns": (functools.partial(columns_by_msgspec, body, tables), 50),
        **libraries(body),
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
                    "times_of_kernel_into_columns": round(seconds / best[_OURS], 2),
                    "mutations_per_cpu_s": round(LINES_PER_REQUEST / seconds),
                    "bytes_per_mutation": round(len(body) / LINES_PER_REQUEST),
                    "machine": describe_machine(),
                }
            )
        )


if __name__ == "__main__":
    main()
