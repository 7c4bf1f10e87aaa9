"""The change log as events and as batches, into a consumer that counts, compared with the plain
way.

Ten columns, frames of 5,000 rows; one thread. Estimate: an event is two small objects and a place
in two lists: 0.2 us; its key and its value two more, and the key's column as Python values 0.1 us:
0.5 us, 2 M events/s. The plain way makes ten Python values, two dicts and a datetime of each row
whether they are used or not: 7 us. Batches cost decompressing and verifying alone: 0.1 us a row.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.bench_log import runs, write
from bench.harness import Comparison, Contender, Measurement, arguments
from penstock.consume import CdcEvent, batches_of, events_of
from penstock.log import Segment, list_segments, open_segment
from penstock.model import TableName

BATCH_ROWS = 5_000
TOUCHED = ("note", "price")


def everything(_: TableName) -> bool:
    """Return True for every table."""
    return True


def segments(directory: Path) -> Iterator[Segment]:
    """Yield the segments of a log, open in turn."""
    for file in list_segments(directory):
        with open_segment(file.path) as segment:
            yield segment


def events(directory: Path, *, keep_binary: bool) -> Iterator[CdcEvent]:
    """Yield all events of a log."""
    for segment in segments(directory):
        for piece in events_of(segment, takes=everything, gsn_after=0, keep_binary=keep_binary):
            yield from piece.events


def count_events(directory: Path, *, keep_binary: bool) -> int:
    """Read keys and values of events, as a consumer's on_events would."""
    keys = values = 0
    for segment in segments(directory):
        for piece in events_of(segment, takes=everything, gsn_after=0, keep_binary=keep_binary):
            for event in piece.events:
                keys += event.key is not None
                values += event.value is not None
    assert keys == values
    return keys


def touch_events(directory: Path, *, keep_binary: bool) -> int:
    """Read two columns of each value as well."""
    count = 0
    for event in events(directory, keep_binary=keep_binary):
        value = event.value
        if event.key is not None and value is not None:
            for name in TOUCHED:
                value[name]
            count += 1
    return count


def count_plain(directory: Path) -> int:
    """Count keys and values by to_pylist: a dict per row."""
    keys = values = 0
    for segment in segments(directory):
        for rows in segment.rows():
            for row in rows.batch.to_pylist():
                after = row["after"]
                keys += (after["id"],) is not None
                values += after is not None
    assert keys == values
    return keys


def count_batches(directory: Path) -> int:
    """Count rows of record batches."""
    count = 0
    for segment in segments(directory):
        for piece in batches_of(segment, takes=everything, gsn_after=0):
            count += sum(found.batch.num_rows for found in piece.events)
    return count


def measure_once(count: Callable[[], int], expected: int) -> Measurement:
    """Measure one reading of the whole log."""
    started, cpu_started = time.perf_counter(), time.process_time()
    assert count() == expected
    return Measurement(
        elapsed_s=time.perf_counter() - started, cpu_s=time.process_time() - cpu_started
    )


def main() -> None:
    """Measure the plain way first: the ratios are against it."""
    chosen = arguments(__doc__, rows=600_000)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        write(path, runs(chosen.rows, BATCH_ROWS), "lz4")
        ways: dict[str, Callable[[], int]] = {
            "to_pylist": lambda: count_plain(path),
            "events": lambda: count_events(path, keep_binary=False),
            "events, keepBinary": lambda: count_events(path, keep_binary=True),
            "events, two columns": lambda: touch_events(path, keep_binary=False),
            "events, two columns, keepBinary": lambda: touch_events(path, keep_binary=True),
            "batches": lambda: count_batches(path),
        }
        contenders = [
            Contender(
                name=name, run=lambda w=way: measure_once(w, chosen.rows), unit_count=chosen.rows
            )
            for name, way in ways.items()
        ]
        Comparison(bench="consume", contenders=contenders).run(chosen.rounds).print_table()


if __name__ == "__main__":
    main()
