"""Put the changes of Ignite nodes into the change log: of one node, and of two with all copies.

Segments are made here: each of two nodes has each change, as primary or as backup. One node's log
has as many rows as that of both, of which the other's copies are left out. Seconds run until
the extraction has found nothing more for a moment, each flush with fdatasync. Estimate: a version
costs 1 us, and twice as many entries are read; its block in SQLite 1 us, and a sync per flush.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from pathlib import Path

from bench.harness import arguments, describe_machine
from harness.ignite.cluster import Cluster, Directories, Record, segment_of
from harness.ignite.source import extract, rows_of
from penstock.codec.ignite.wal import Version
from penstock.control.pipeline.config import load_config
from penstock.ports.registry import split_urls

COUNT = 200_000
SEGMENT_ENTRIES = 50_000
WAYS = {"one node": 1, "a list of one": 1, "two nodes": 2}


def made_cluster(folder: Path, count: int) -> Directories:
    """Return two nodes with the same changes, of random keys; 1 ms lies between two."""
    made = Directories(folder, Cluster(2, 1))
    chance = random.Random(1)
    for number, begin in enumerate(range(0, count, SEGMENT_ENTRIES)):
        records = [
            Record(chance.randrange(count), Version(1, at, 1, 0), at, at)
            for at in range(begin, min(begin + SEGMENT_ENTRIES, count))
        ]
        data = segment_of(records, number)
        for node in (0, 1):
            (made.cdc(node) / f"{number:016}.wal").write_bytes(data)
    return made


def seconds_of(way: str, made: Directories, place: Path, count: int) -> float:
    """Return the seconds until all changes are in a log, and all copies read."""
    urls = split_urls(made.url)[: WAYS[way]]
    file = place / "nodes.toml"
    file.write_text(
        f'[pipeline]\nname = "n"\ndirectory = "{place / "pipeline"}"\n[source]\n'
        f'url = {json.dumps(urls[0] if way == "one node" else urls)}\ntables = ["*"]\n'
    )
    begun_s = time.perf_counter()
    extract(file)
    seconds = time.perf_counter() - begun_s
    found = len(rows_of(load_config(file)))
    assert found == count, f"{way}: {found} rows of {count}"
    return seconds


def main() -> None:
    """Print one JSON line per way."""
    options = arguments("Put changes of Ignite nodes into the change log.", count=COUNT)
    count = options.count
    best: dict[str, float] = {}
    for _ in range(options.rounds):
        for way in WAYS:
            with tempfile.TemporaryDirectory() as folder:
                made = made_cluster(Path(folder) / "nodes", count)
                seconds = seconds_of(way, made, Path(folder), count)
            best[way] = min(best.get(way, seconds), seconds)
    for way, seconds in best.items():
        print(
            json.dumps(
                {
                    "bench": "ignite_nodes",
                    "way": way,
                    "rows": count,
                    "entries_read": count * WAYS[way],
                    "seconds": round(seconds, 3),
                    "rows_per_s": round(count / seconds),
                    "machine": describe_machine(),
                }
            )
        )


if __name__ == "__main__":
    main()
