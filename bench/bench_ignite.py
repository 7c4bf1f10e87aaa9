"""Read an Ignite node's log: our consumers beside Ignite's own utility, on the same segments.

A real node writes so many binary objects of 8 fields, in segments of 64 MiB. A consumer then only
counts; ours once more with every key and value decoded. Seconds run from the consumer's start to
the end of its last call, so that the start of a JVM does not count. The last way puts them into a
change log, each flush with fdatasync, from the opening of the log to the closing of its last file.
Rounds are interleaved.
Estimate, of 480 bytes an event: in a second thread, without the GIL, 0.25 us to read them, 0.15 us
to check them at 3 GB/s, and for the log 0.05 us to find keys, values and versions. An event of ours
is 0.1 us. Into the log: 0.2 us for the columns of a key and 8 fields, 0.1 us for order, numbers and
transactions, 0.2 us to encode with lz4, 0.15 us to write, sync and acknowledge: 0.65 us.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.harness import arguments, describe_machine
from harness.ignite.recordings import node_pipeline
from harness.ignite.source import source_pipeline
from penstock.consume import CdcConsumer
from penstock.consume import run as run_consumer
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.servers import pipeline_of
from penstock.control.run.extract_process import extract_options
from penstock.extract.extractor import Extractor
from penstock.ports.source import extraction_of
from plugins.ignite_node import Ignite, ignite_folder

COUNT = 1_000_000
SEGMENT_BYTES = 64 << 20
REGION_MEGABYTES = 1024


class Counting(CdcConsumer):
    """Consumer that counts events; decodes: reads key and value."""

    def __init__(self, *, decodes: bool) -> None:
        self._decodes = decodes
        self._idle = 0
        self.count = 0
        self.begun_s = self.ended_s = 0.0

    def start(self, _: Any) -> None:
        self.begun_s = time.perf_counter()

    def alive(self) -> bool:
        self._idle += 1
        return self._idle < 3

    def on_events(self, events: Iterator[Any]) -> bool:
        self._idle = 0
        before = self.count
        if self._decodes:
            for event in events:
                assert event.key is not None
                assert event.value is not None
                self.count += 1
        else:
            for _ in events:
                self.count += 1
        if self.count > before:
            self.ended_s = time.perf_counter()
        return True


def link_files(work: Path, place: Path) -> Path:
    """Return a work directory with links to the same files; segments deleted there stay here."""
    shutil.copytree(work, place, copy_function=os.link)
    return place


def ours(work: Path, place: Path, *, decodes: bool) -> tuple[int, float]:
    """Return events, and the seconds of our consumer."""
    consumer = Counting(decodes=decodes)
    run_consumer(node_pipeline(place, link_files(work, place / "work")), "all", consumer)
    return consumer.count, consumer.ended_s - consumer.begun_s


def into_log(work: Path, place: Path, count: int) -> tuple[int, float]:
    """Return events, and the seconds until all of them are in a change log on disk."""
    path = source_pipeline(place, link_files(work, place / "work"))
    config = load_config(path)
    options = extract_options(config)
    opened = extraction_of(config).open_engine
    with opened(pipeline_of(config), options, tables=list, stop=lambda: False) as engine:
        extractor = Extractor(
            engine,
            config.directory,
            options=options,
            stop=lambda: extractor.progress.row_count >= count,
        )
        begun_s = time.perf_counter()
        extractor.run()
        return extractor.progress.row_count, time.perf_counter() - begun_s


def utility(ignite: Ignite, work: Path, place: Path) -> tuple[int, float]:
    """Return events, and the seconds of Ignite's utility."""
    copy = link_files(work, place / "work")
    ignite.give(place)
    ignite.run("Count", copy, "node-1", place / "count.txt", segment=SEGMENT_BYTES)
    count, seconds = (place / "count.txt").read_text().split()
    return int(count), float(seconds)


def main() -> None:
    """Print one JSON line per way."""
    options = arguments("Read an Ignite node's log.", count=COUNT)
    count = options.count
    with ignite_folder() as folder:
        ignite = Ignite(folder)
        work = ignite.work("work")
        ignite.run("Node", "many", work, count, segment=SEGMENT_BYTES, region=REGION_MEGABYTES)
        segments = sorted((work / "db/wal/cdc/node_1").glob("*.wal"))
        size = sum(path.stat().st_size for path in segments)
        best: dict[str, float] = {}
        for number in range(options.rounds):
            for way in ("utility", "ours", "ours, decoded", "ours, into the log"):
                place = folder / "place"
                place.mkdir()
                if way == "utility":
                    found, seconds = utility(ignite, work, place)
                elif way == "ours, into the log":
                    found, seconds = into_log(work, place, count)
                else:
                    found, seconds = ours(work, place, decodes=way != "ours")
                assert found == count, f"round {number}, {way}: {found} events of {count}"
                best[way] = min(best.get(way, seconds), seconds)
                shutil.rmtree(place)
    for way, seconds in best.items():
        print(
            json.dumps(
                {
                    "bench": "ignite_read",
                    "way": way,
                    "events": count,
                    "log_bytes_per_event": round(size / count),
                    "seconds": round(seconds, 3),
                    "events_per_s": round(count / seconds),
                    "times_utility": round(best["utility"] / seconds, 2),
                    "machine": describe_machine(),
                }
            )
        )


if __name__ == "__main__":
    main()
