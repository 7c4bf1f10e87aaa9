"""The kernel without memory: it raises an error, does not crash, and loses no decoded row."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.codec.postgres import pgoutput

TESTS = Path(__file__).parent.parent

# The program runs in a process of its own, because the limit would hold for all of pytest.
SCRIPT = """
import json, resource, sys
from harness.twins.pgoutput import DECODERS, UNCHANGED, begin, column, insert, relation, update

def address_space_bytes():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

shape = relation(column("id", "int64"), column("s", "string"), column("n", "decimal(12,2)"))
rows = [insert(5, [str(i), "x" * 50, "1.10"]) for i in range(250)]
rows += [update(5, [str(i), UNCHANGED, None], key=[str(i), None, None]) for i in range(250)]
block = b"".join(rows)
last = insert(5, ["1", "after", "1.10"])
head = begin()
decoder = DECODERS["kernel"](byte_limit=900 << 20)
decoder.bind(5, shape)
decoder.feed(head, 0, len(head), 1)
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
decoder.feed(last, 0, len(last), 10**9)
(taken,) = decoder.take()
taken.batch.validate(full=True)
after = taken.batch.column("after").field("s")
print(json.dumps([failed, count, taken.batch.num_rows, decoder.gsn, after[-1].as_py()]))
"""


@pytest.mark.parametrize("room_mib", [12, 40, 90])
def test_without_memory_decoding_fails_and_what_was_decoded_stays(room_mib: int) -> None:
    """The row that found no room is not kept; with memory again decoding continues after it."""
    if not pgoutput.COMPILED:
        return  # the twin has Python's own memory errors
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(room_mib << 20)],
        capture_output=True,
        text=True,
        check=True,
        cwd=TESTS,
        timeout=120,
    )
    failed, count, row_count, gsn, last = json.loads(done.stdout)
    assert failed
    assert row_count == gsn == count + 1
    assert count > 1000
    assert last == "after"
