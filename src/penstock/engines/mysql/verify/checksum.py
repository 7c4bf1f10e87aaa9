"""The SQL of `checksum.py` for MySQL and MariaDB: the same numbers for the same images.

SHA-256 is what all three engines have. A derived table would be put on disk whole to be read once,
so an expression is repeated where it is needed twice. Not here: running the queries
(`compare_mysql.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.control.checksum import KEY_TEXT_LENGTH_MAX, Hasher, Image, Part
from penstock.engines.mysql.connect import quoted

HASH_DIGITS = 16  # of 64 bits


def hash_of(text: str, which: int) -> str:
    """SQL of hash number `which` (1 or 2) of a text, as a signed 64-bit number."""
    first = 1 + (which - 1) * HASH_DIGITS
    return f"cast(conv(substr(sha2({text}, 256), {first}, {HASH_DIGITS}), 16, -10) as signed)"


def bucket_query(image: Image, part: Part, buckets: int, _hasher: Hasher) -> str:
    """As `checksum.bucket_query`, with 0 for the second sum."""
    return f"""
        select {_bucket(image, buckets)} as bucket,
               count(*),
               sum({hash_of(image.row, 1)}),
               0
          from {quoted(*part.relation)}
         where {part.condition}
         group by bucket
    """


def rows_query(
    image: Image, parts: Sequence[Part], buckets: int, differing: Sequence[int], _hasher: Hasher
) -> str:
    """As `checksum.rows_query`. The parts are of one table, which is read as a whole."""
    wanted = "true"
    if len(differing) < buckets:
        wanted = f"{_bucket(image, buckets)} in ({_numbers(differing)})"
    return f"""
        select {hash_of(image.key, 1)} as key1,
               {hash_of(image.key, 2)},
               {hash_of(image.row, 1)},
               {hash_of(image.row, 2)}
          from {quoted(*parts[0].relation)}
         where {wanted}
         order by key1
    """


def names_query(image: Image, parts: Sequence[Part], hashes: Sequence[int], _hasher: Hasher) -> str:
    """As `checksum.names_query`."""
    return f"""
        select {hash_of(image.key, 1)},
               {hash_of(image.key, 2)},
               left({image.name or image.key}, {KEY_TEXT_LENGTH_MAX})
          from {quoted(*parts[0].relation)}
         where {hash_of(image.key, 1)} in ({_numbers(hashes)})
    """


def chosen_rows(
    image: Image, buckets: int, differing: Sequence[int], keys: Sequence[int] | None, _: Hasher
) -> str:
    """As `checksum.chosen_rows`."""
    if keys is None:
        return f"{_bucket(image, buckets)} in ({_numbers(differing)})"
    return f"{hash_of(image.key, 1)} in ({_numbers(keys)})"


def _bucket(image: Image, buckets: int) -> str:
    return f"({hash_of(image.key, 1)} & {buckets - 1})"


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
