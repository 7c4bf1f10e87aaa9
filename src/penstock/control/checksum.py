"""Checksums of tables, computed inside the servers: the SQL and the arithmetic, no connection.

A row's image is the text of all its compared columns as their output functions print it, so that
NULL and '', 1.0 and 1.00, -0 and 0, and blanks at the end of a character(n) all differ. Rows fall
into buckets, which are ranges of their key's hash: the same row falls into the same bucket on
both servers, however they sort text and wherever the row lies. A bucket's checksum is the number
of its rows and two independent 64-bit hashes, each summed: sums see duplicates, which exclusive-or
would cancel. Not here: running the queries and comparing what comes back (`compare.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.engines.postgres.connect import quoted
from penstock.model import TableDefinition, TableName

BUCKETS_MIN = 64
BUCKETS_MAX = 65_536
ROWS_PER_BUCKET = 128  # few enough to ship when a bucket differs, many enough to cost nothing
KEY_TEXT_LENGTH_MAX = 200  # characters of a key that a result names

_INTEGERS = frozenset({"smallint", "integer", "bigint"})
_NUMERIC = re.compile(r"numeric(?:\((\d+),(-?\d+)\))?\Z")
_CHARACTER = re.compile(r"character\((\d+)\)\Z")


class Hasher(StrEnum):
    """How images become numbers.

    FAST: the server's own 64-bit hash of text; the same on servers of one byte order and one
    encoding, which is probed. SHA256: the same everywhere, at about twice the time. SHARED: the
    same, also on MySQL and MariaDB, for images of `shared_image.py`; one sum per bucket in place of
    two, as these servers would compute the image anew for the second one.
    """

    FAST = "fast"
    SHA256 = "sha256"
    SHARED = "shared"

    @property
    def way(self) -> str:
        """How tables are compared by it, for people."""
        return {
            Hasher.FAST: "checksums computed by each server, with its own hash",
            Hasher.SHA256: "checksums computed by each server, with SHA-256",
            Hasher.SHARED: "checksums computed by each server, with SHA-256 over the texts by "
            "which the table of types compares",
        }[self]


# Both servers must give the same numbers for these, or SHA256 is used.
PROBE = """
    select array_agg(hashtextextended(x collate "C", 1) order by n)::text,
           current_setting('server_encoding')
      from unnest(array['', 'a', 'penstock', repeat('0123456789abc', 99)])
           with ordinality as probe(x, n)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of a table that one query reads: a leaf, or a range of its blocks.

    block_first, block_end: None for open ends; both None reads the whole relation. where: another
    kind of range, as SQL.
    """

    relation: TableName
    size_bytes: int = 0
    block_first: int | None = None
    block_end: int | None = None
    where: str = ""

    @property
    def condition(self) -> str:
        """The range as SQL; `true` for the whole relation."""
        ends = [self.where] if self.where else []
        if self.block_first is not None:
            ends.append(f"ctid >= '({self.block_first},0)'")
        if self.block_end is not None:
            ends.append(f"ctid < '({self.block_end},0)'")
        return " and ".join(ends) or "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One side's SQL for a table's rows: the text of the key and of the whole row.

    key is the row itself for a table without a key. Both are `row(...)::text` in collation C, or
    what `shared_image.py` makes. name: how people are told a key; the key itself when empty.
    """

    key: str
    row: str
    name: str = ""


def key_columns(table: TableDefinition) -> tuple[str, ...]:
    """The columns that name a row: primary key, else replica identity index, else none."""
    if table.primary_key:
        return table.primary_key
    names = {column.name for column in table.columns if not column.generated}
    return table.identity_columns if set(table.identity_columns) != names else ()


def source_image(table: TableDefinition) -> Image:
    """The SQL that prints a source row: every column raw, generated ones too."""
    return _image({c.name: quoted(c.name) for c in table.columns}, key_columns(table))


def target_image(table: TableDefinition, target_types: Mapping[str, str]) -> Image:
    """The SQL that prints a target row as the source would.

    target_types: column name to type as format_type() prints it; must name every column.
    """
    expressions = {
        c.name: as_source_prints(quoted(c.name), c.type_text, target_types[c.name])
        for c in table.columns
    }
    return _image(expressions, key_columns(table))


def _image(expressions: Mapping[str, str], key: Sequence[str]) -> Image:
    row = _row_text(list(expressions.values()))
    return Image(key=_row_text([expressions[name] for name in key]) if key else row, row=row)


def _row_text(expressions: Sequence[str]) -> str:
    # A record's output calls each column's output function; casting a character(n) to text by
    # itself would cut its blanks. The collation keeps a database's own from changing the hash.
    return f'row({", ".join(expressions)})::text collate "C"'


def as_source_prints(column: str, source_type: str, target_type: str) -> str:
    """A target column in the source type's text form, where the target's type is wider.

    Only a value that the narrower form holds exactly is brought into it: 1.1000 in numeric(12,4)
    prints as 1.10 for numeric(10,2), while 1.1049 stays as it is and so differs. Types not listed
    are compared by their own text.
    """
    if source_type == target_type:
        return column
    to_numeric = _NUMERIC.match(target_type)
    from_numeric = _NUMERIC.match(source_type)
    if to_numeric and source_type in _INTEGERS:
        return f"case when {column} = trunc({column}) then trunc({column}) else {column} end"
    if to_numeric and from_numeric and from_numeric[2]:
        scale = max(int(from_numeric[2]), 0)
        rounded = f"round({column}, {scale})"
        return f"case when {column} = {rounded} then {rounded} else {column} end"
    if (to := _CHARACTER.match(target_type)) and (start := _CHARACTER.match(source_type)):
        length = int(start[1])
        if int(to[1]) > length:
            return (
                f"case when length({column}) <= {length} "
                f"then {column}::character({length}) else {column} end"
            )
    if source_type == "date" and target_type.startswith("timestamp"):
        day = f"{column}::date"
        return f"case when {column} = {day} then {day}::text else {column}::text end"
    return column


def bucket_count(row_estimate: int) -> int:
    """How many buckets a table of so many rows gets: a power of two."""
    wanted = max(BUCKETS_MIN, min(BUCKETS_MAX, row_estimate // ROWS_PER_BUCKET))
    return 1 << (wanted - 1).bit_length()


def _hash(hasher: Hasher, text: str, which: int) -> str:
    """SQL of hash number `which` (1 or 2) of a text, as a signed 64-bit number."""
    if hasher is Hasher.FAST:
        return f"hashtextextended({text}, {which})"
    digest = f"sha256(convert_to({text}, 'UTF8'))"
    piece = f"substring({digest} from {which * 8 - 7} for 8)"
    return f"('x' || encode({piece}, 'hex'))::bit(64)::bigint"


def bucket_query(image: Image, part: Part, buckets: int, hasher: Hasher) -> str:
    """SQL for the checksums of one part: rows `(bucket, rows, sum of hash 1, sum of hash 2)`."""
    # `offset 0` keeps the planner from merging the levels, which would print each row twice.
    second = "0" if hasher is Hasher.SHARED else f"sum({_hash(hasher, 'image', 2)})"
    return f"""
        select bucket,
               count(*),
               sum({_hash(hasher, "image", 1)}),
               {second}
          from (select {_hash(hasher, image.key, 1)} & {buckets - 1} as bucket,
                       {image.row} as image
                  from only {quoted(*part.relation)}
                 where {part.condition}
                offset 0) as piece
         group by bucket
    """


def rows_query(
    image: Image, parts: Sequence[Part], buckets: int, differing: Sequence[int], hasher: Hasher
) -> str:
    """SQL for the rows of the differing buckets, ordered by the first hash of their keys.

    Rows `(key hash 1, key hash 2, row hash 1, row hash 2)`. differing: bucket numbers, all of
    them ours, hence safe as literals.
    """
    wanted = "true"
    if len(differing) < buckets:
        wanted = f"{_hash(hasher, image.key, 1)} & {buckets - 1} = any({_numbers(differing)})"
    return f"""
        select {_hash(hasher, "key", 1)} as key1,
               {_hash(hasher, "key", 2)},
               {_hash(hasher, "image", 1)},
               {_hash(hasher, "image", 2)}
          from ({_union(image, parts, wanted)}) as rows
         order by key1
    """


def names_query(image: Image, parts: Sequence[Part], hashes: Sequence[int], hasher: Hasher) -> str:
    """SQL for keys as text: rows `(key hash 1, key hash 2, text cut to KEY_TEXT_LENGTH_MAX)`.

    hashes: first hashes of the keys that are wanted.
    """
    wanted = f"{_hash(hasher, image.key, 1)} = any({_numbers(hashes)})"
    return f"""
        select {_hash(hasher, "key", 1)},
               {_hash(hasher, "key", 2)},
               left(name, {KEY_TEXT_LENGTH_MAX})
          from ({_union(image, parts, wanted)}) as rows
    """


def chosen_rows(
    image: Image, buckets: int, differing: Sequence[int], keys: Sequence[int] | None, hasher: Hasher
) -> str:
    """The condition that a row's key has one of these first hashes; None: is in these buckets."""
    number = _hash(hasher, image.key, 1)
    if keys is None:
        return f"{number} & {buckets - 1} = any({_numbers(differing)})"
    return f"{number} = any({_numbers(keys)})"


def _union(image: Image, parts: Sequence[Part], wanted: str) -> str:
    return "\n union all\n".join(
        f"""
        (select {image.key} as key, {image.row} as image, {image.name or image.key} as name
           from only {quoted(*part.relation)}
          where {part.condition} and {wanted}
         offset 0)
        """
        for part in parts
    )


def _numbers(numbers: Sequence[int]) -> str:
    return f"array[{', '.join(map(str, numbers))}]::bigint[]"


Sums = dict[int, tuple[int, int, int]]
"""Bucket number to (rows, sum of hash 1, sum of hash 2)."""


def add_sums(total: Sums, more: Sums) -> None:
    """Add a part's checksums to its table's."""
    for bucket, (rows, one, two) in more.items():
        had = total.get(bucket, (0, 0, 0))
        total[bucket] = (had[0] + rows, had[1] + one, had[2] + two)


def differing_buckets(source: Sums, target: Sums) -> list[int]:
    """The buckets whose checksums are not equal, in order."""
    return sorted(b for b in source.keys() | target.keys() if source.get(b) != target.get(b))
