"""SQL of images and checksums of MySQL and MariaDB: `Dialect` of `ports/verify.py`.

The numbers equal those of every other engine for the same images, because all have SHA-256. A
derived table would be written to disk whole to be read once, so an expression that is needed twice
is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.codec.types import fill_template
from penstock.engines.mysql.connect import quote
from penstock.model import TableDefinition
from penstock.ports.verify import KEY_TEXT_LENGTH_MAX, ComparedCell, Hasher, Image, Part

HASH_DIGITS = 16  # of 64 bits
_SHOWN = 200  # characters of one column that name a row
_LONG = frozenset(
    {
        "tinytext", "text", "mediumtext", "longtext", "tinyblob", "blob", "mediumblob", "longblob",
        "json", "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring",
        "multipolygon", "geometrycollection", "geomcollection",
    }
)  # fmt: skip


def column_name(name: str) -> str:
    """Return a column's name as in `VerifyReader.column_types`, whose case may be ignored."""
    return name.lower()


def image(cells: Sequence[ComparedCell], key: Sequence[ComparedCell]) -> Image:
    """Return SQL for rows that every engine prints alike."""
    row = _join(cells)
    named = ", ".join(f"coalesce(left({_text(cell)}, {_SHOWN}), '')" for cell in key or cells)
    return Image(
        key=_join(key) if key else row, row=row, name=f"concat('(', concat_ws(',', {named}), ')')"
    )


def _join(cells: Sequence[ComparedCell]) -> str:
    listed = ", '|', ".join(map(_mark, cells))
    return f"concat({listed})"


def _text(cell: ComparedCell) -> str:
    return f"({fill_template(cell.text, quote(cell.name))})"


def _mark(cell: ComparedCell) -> str:
    """Return the SQL of a column's part of the image."""
    text = _text(cell)
    if cell.is_long:
        digested = quote(cell.name) if cell.is_bytes else text
        text = f"sha2({digested}, 256)"
    elif cell.is_any:
        text = f"concat(char_length({text}), ':', {text})"
    return f"coalesce({text}, 'N')"


def is_long(type_text: str) -> bool:
    """Return whether an image has a digest: a concat() above max_allowed_packet would be NULL."""
    return type_text.partition("(")[0].partition(" ")[0].lower() in _LONG


def printed_images(_: TableDefinition, _types: Mapping[str, str]) -> None:
    """Return None: MySQL and MariaDB print some types differently, for example JSON."""


def hash_of(text: str, which: int) -> str:
    """Return the SQL of hash number `which` (1 or 2) of a text, as a signed 64-bit number."""
    first = 1 + (which - 1) * HASH_DIGITS
    return f"cast(conv(substr(sha2({text}, 256), {first}, {HASH_DIGITS}), 16, -10) as signed)"


def bucket_query(image: Image, part: Part, buckets: int, _hasher: Hasher) -> str:
    """Return SQL for the checksums of one part."""
    return f"""
        select {_bucket(image, buckets)} as bucket,
               count(*),
               sum({hash_of(image.row, 1)}),
               0
          from {quote(*part.relation)}
         where {part.condition}
         group by bucket
    """


def rows_query(
    image: Image, parts: Sequence[Part], buckets: int, differing: Sequence[int], _hasher: Hasher
) -> str:
    """Return SQL for the rows of the differing buckets. The parts are of one table, which is
    read as a whole.
    """
    wanted = "true"
    if len(differing) < buckets:
        wanted = f"{_bucket(image, buckets)} in ({_numbers(differing)})"
    return f"""
        select {hash_of(image.key, 1)} as key1,
               {hash_of(image.key, 2)},
               {hash_of(image.row, 1)},
               {hash_of(image.row, 2)}
          from {quote(*parts[0].relation)}
         where {wanted}
         order by key1
    """


def names_query(image: Image, parts: Sequence[Part], hashes: Sequence[int], _hasher: Hasher) -> str:
    """Return SQL for keys as text."""
    return f"""
        select {hash_of(image.key, 1)},
               {hash_of(image.key, 2)},
               left({image.name or image.key}, {KEY_TEXT_LENGTH_MAX})
          from {quote(*parts[0].relation)}
         where {hash_of(image.key, 1)} in ({_numbers(hashes)})
    """


def chosen_rows(
    image: Image, buckets: int, differing: Sequence[int], keys: Sequence[int] | None, _: Hasher
) -> str:
    """Return the condition for rows in differing buckets, or, if keys are given, for rows whose
    key's first hash is one of them.
    """
    if keys is None:
        return f"{_bucket(image, buckets)} in ({_numbers(differing)})"
    return f"{hash_of(image.key, 1)} in ({_numbers(keys)})"


def select_rows(
    table: TableDefinition, _: Sequence[str], expressions: Sequence[str], where: str
) -> str:
    """Return the statement that reads whole rows, as those of the bulk load do."""
    return f"select {', '.join(expressions)} from {quote(*table.name)} where {where}"


def _bucket(image: Image, buckets: int) -> str:
    return f"({hash_of(image.key, 1)} & {buckets - 1})"


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
