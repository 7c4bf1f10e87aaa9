"""Binlog kernel without memory: it raises an error, does not crash, and loses no decoded row."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.twins.binlog import DECODERS
from penstock.codec.mysql import binlog

TESTS = Path(__file__).parent.parent

# The program runs in a process of its own, because the limit would hold for all of pytest.
SCRIPT = """
import json, resource, sys
from harness.twins.binlog import DECODERS
from harness.twins.binlog_events import Log, UPDATE, WRITE, rows_body
from harness.twins.binlog_feed import TWO, feed, inserts, row, rows_of

def address_space_bytes():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

log = Log(checksums=False).begin().table(TWO)
start = len(log.events)
for i in range(100):
    log.add(*inserts(TWO, *(row(TWO, i, "x" * 50) for _ in range(9))))
    log.add(UPDATE, rows_body(TWO, UPDATE, row(TWO, i, "y") + row(TWO, i + 1, "z")))
rows = log.events[start:]
head = Log(checksums=False).begin().table(TWO).packets()
# Their place is not told: the same events come again and again.
log.events = [event[:13] + bytes(4) + event[17:] for event in rows]
block = log.packets()
decoder = DECODERS["kernel"](byte_limit=900 << 20)
feed(decoder, head)
limits = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (address_space_bytes() + int(sys.argv[1]), limits[1]))
failed = False
for _ in range(100_000):
    try:
        decoder.feed(block, 0, len(block), 10**9)
    except MemoryError:
        failed = True
        break
resource.setrlimit(resource.RLIMIT_AS, limits)
count = decoder.row_count
(taken,) = decoder.take()
taken.batch.validate(full=True)
kept = taken.batch.column("gsn")[-1].as_py()
decoder.reset()
more = Log(checksums=False).begin().table(TWO).add(*inserts(TWO, row(TWO, 1, "after")))
feed(decoder, more.packets())
(last,) = rows_of(decoder)
behind = last["gsn"] - kept
print(json.dumps([failed, count, taken.batch.num_rows, behind, last["after"]["c1"]]))
"""


@pytest.mark.parametrize("room_mib", [12, 40, 90])
def test_without_memory_decoding_fails_and_what_was_decoded_stays(room_mib: int) -> None:
    """The row that found no room is not kept; after a reset decoding continues."""
    if not binlog.COMPILED:
        return  # the twin has Python's own memory errors
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(room_mib << 20)],
        capture_output=True,
        text=True,
        check=True,
        cwd=TESTS,
        timeout=120,
    )
    failed, count, row_count, behind, last = json.loads(done.stdout)
    assert failed
    assert row_count == count > 1000
    assert behind == 1
    assert last == "after"


PAYLOAD_SCRIPT = """
import resource, struct, sys
import pyarrow as pa
from harness.twins.binlog import DECODERS, packet
from harness.twins.binlog_events import Log, Table, WRITE, bare, gtid_body, image, payload_head
from harness.twins.binlog_events import query_body, rows_body
from harness.twins.binlog_feed import feed, number, rows_of

name, piece_mib, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
table = Table(kinds=("int", "longtext"), name="p", table_id=12)
text = b"x" * (piece_mib << 20)
cells = [number(1), text]
pieces = [
    bare(2, query_body("BEGIN")) + bare(19, table.body()),
    *[bare(WRITE, rows_body(table, WRITE, image(table, cells)))] * count,
    bare(16, bytes(8)),
]
packed = [pa.compress(piece, "zstd", asbytes=True) for piece in (pieces[0], pieces[1], pieces[-1])]
body = packed[0] + packed[1] * count + packed[2]
size = sum(map(len, pieces))
log = Log(checksums=False).add(33, gtid_body(1))
block = log.add(40, payload_head(len(body), size, zstd=True) + body).packets()
feed(DECODERS[name](), block[:200])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
decoder, at, rows = DECODERS[name](), 0, 0
while at < len(block) or decoder.stop.name != "MORE":
    at += feed(decoder, block[at:], limit=1)
    rows += sum(taken.batch.num_rows for taken in decoder.take())
assert rows == count and decoder.gtid.endswith(":1") and not decoder.in_transaction
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(size >> 20, len(block) >> 10, peak >> 10)
"""


@pytest.mark.parametrize(
    ("name", "count"),
    [*((name, 32) for name in DECODERS), pytest.param("kernel", 264, marks=pytest.mark.long)],
)
def test_a_payload_is_never_in_memory_as_a_whole(name: str, count: int) -> None:
    """Kilobytes expand to 4 GiB and more: rows are returned as they arrive, one event is kept."""
    done = subprocess.run(
        [sys.executable, "-c", PAYLOAD_SCRIPT, name, "16", str(count)],
        capture_output=True,
        text=True,
        check=True,
        cwd=TESTS,
        timeout=120,
    )
    size_mib, packed_kib, grown_mib = map(int, done.stdout.split())
    assert size_mib >= 16 * count
    assert packed_kib < 512
    assert grown_mib < 160


def test_decoding_gives_its_memory_back() -> None:
    """Taking batches and binding tables repeatedly does not grow the process."""
    script = """
import resource
from harness.twins.binlog import DECODERS
from harness.twins.binlog_twins import WORLD, Case, Driver
from harness.twins.binlog import as_packets, recorded_files
name, data = recorded_files("mysql-9.7")[1]
block = as_packets(name, data)
peaks = []
for number in range(60):
    Driver(DECODERS["kernel"], Case(block=block, row_limit=20)).run()
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(peaks[-1] - peaks[29])
"""
    if not binlog.COMPILED:
        return
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=TESTS
    )
    assert int(done.stdout) < 8 * 1024  # KiB; a block that leaks would cost 6 MiB more
