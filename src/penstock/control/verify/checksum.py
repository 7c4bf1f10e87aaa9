"""Checksums of tables: the arithmetic, without a server.

A row's image is the text of all its compared columns, so that NULL and '' differ. Rows fall into
buckets, which are ranges of their key's hash: the same row falls into the same bucket on both
servers, however they sort text and wherever the row lies. A bucket's checksum is the number of its
rows and two independent 64-bit hashes, each summed: sums see duplicates, which exclusive-or would
cancel. Not here: the SQL (`ports.verify.Dialect`), comparing the results (`compare.py`).
"""

from __future__ import annotations

BUCKETS_MIN = 64
BUCKETS_MAX = 65_536
ROWS_PER_BUCKET = 128  # few enough to ship when a bucket differs, many enough to cost nothing

Sums = dict[int, tuple[int, int, int]]
"""Map of bucket number to (rows, sum of hash 1, sum of hash 2)."""


def bucket_count(row_estimate: int) -> int:
    """Return the number of buckets of a table with so many rows: a power of two."""
    wanted = max(BUCKETS_MIN, min(BUCKETS_MAX, row_estimate // ROWS_PER_BUCKET))
    return 1 << (wanted - 1).bit_length()


def add_sums(total: Sums, more: Sums) -> None:
    """Add a part's checksums to its table's."""
    for bucket, (rows, one, two) in more.items():
        had = total.get(bucket, (0, 0, 0))
        total[bucket] = (had[0] + rows, had[1] + one, had[2] + two)


def differing_buckets(source: Sums, target: Sums) -> list[int]:
    """Return the buckets whose checksums are not equal, in order."""
    return sorted(b for b in source.keys() | target.keys() if source.get(b) != target.get(b))
