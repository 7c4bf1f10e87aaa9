"""PostgreSQL's SQL of images and checksums: `Dialect` of `ports/verify.py`.

Between two servers of PostgreSQL a row's image is the text of all its compared columns as their
output functions print it, so that NULL and '', 1.0 and 1.00, -0 and 0, and blanks at the end of a
character(n) all differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from penstock.codec.types import fill_template
from penstock.engines.postgres.connect import quote
from penstock.model import TableDefinition
from penstock.ports.verify import (
    KEY_TEXT_LENGTH_MAX,
    ComparedCell,
    Hasher,
    Image,
    Part,
    key_columns,
)

_INTEGERS = frozenset({"smallint", "integer", "bigint"})
_NUMERIC = re.compile(r"numeric(?:\((\d+),(-?\d+)\))?\Z")
_CHARACTER = re.compile(r"character\((\d+)\)\Z")


# Both servers must give the same numbers for these, or SHA256 is used.
PROBE = """
    select array_agg(hashtextextended(x collate "C", 1) order by n)::text,
           current_setting('server_encoding')
      from unnest(array['', 'a', 'penstock', repeat('0123456789abc', 99)])
           with ordinality as probe(x, n)
"""


def column_name(name: str) -> str:
    """Return a column's name as in `VerifyReader.column_types`, whose case may be ignored."""
    return name


def image(cells: Sequence[ComparedCell], key: Sequence[ComparedCell]) -> Image:
    """Return SQL for rows that every engine prints alike."""
    row = _join(cells)
    named = " || ',' || ".join(f"coalesce({_text(cell)}, '')" for cell in key or cells)
    return Image(key=_join(key) if key else row, row=row, name=f"('(' || {named} || ')')")


def _join(cells: Sequence[ComparedCell]) -> str:
    listed = " || '|' || ".join(map(_mark, cells))
    return f'({listed}) collate "C"'


def _text(cell: ComparedCell) -> str:
    return f"({fill_template(cell.text, quote(cell.name))})"


def _mark(cell: ComparedCell) -> str:
    """Return the SQL of a column's part of the image."""
    text = _text(cell)
    if cell.is_long and cell.is_bytes:
        text = f"encode(sha256({quote(cell.name)}), 'hex')"
    elif cell.is_long:
        text = f"encode(sha256(convert_to({text}, 'UTF8')), 'hex')"
    elif cell.is_any:
        text = f"length({text}) || ':' || {text}"
    return f"coalesce({text}, 'N')"


def is_long(_: str) -> bool:
    """Return False: texts may have any length here. Only the other side may have a lower limit."""
    return False


def printed_images(
    table: TableDefinition, target_types: Mapping[str, str]
) -> tuple[Image, Image] | None:
    """Return images of source and target for two servers of this engine, which prints the rows."""
    return source_image(table), target_image(table, target_types)


def source_image(table: TableDefinition) -> Image:
    """Return the SQL that prints a source row: every column raw, generated ones too."""
    return _image({c.name: quote(c.name) for c in table.columns}, key_columns(table))


def target_image(table: TableDefinition, target_types: Mapping[str, str]) -> Image:
    """Return the SQL that prints a target row as the source would.

    target_types: column name to type as format_type() prints it; must name every column.
    """
    expressions = {
        c.name: as_source_prints(quote(c.name), c.type_text, target_types[c.name])
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
    """Return a target column in the source type's text form, where the target's type is wider.

    Only a value that the narrower type holds exactly is converted to it: 1.1000 in numeric(12,4)
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


def _hash(hasher: Hasher, text: str, which: int) -> str:
    """Return the SQL of hash number `which` (1 or 2) of a text, as a signed 64-bit number."""
    if hasher is Hasher.FAST:
        return f"hashtextextended({text}, {which})"
    digest = f"sha256(convert_to({text}, 'UTF8'))"
    piece = f"substring({digest} from {which * 8 - 7} for 8)"
    return f"('x' || encode({piece}, 'hex'))::bit(64)::bigint"


def bucket_query(image: Image, part: Part, buckets: int, hasher: Hasher) -> str:
    """Return SQL for the checksums of one part."""
    # `offset 0` keeps the planner from merging the levels, which would print each row twice.
    second = "0" if hasher is Hasher.SHARED else f"sum({_hash(hasher, 'image', 2)})"
    return f"""
        select bucket,
               count(*),
               sum({_hash(hasher, "image", 1)}),
               {second}
          from (select {_hash(hasher, image.key, 1)} & {buckets - 1} as bucket,
                       {image.row} as image
                  from only {quote(*part.relation)}
                 where {part.condition}
                offset 0) as piece
         group by bucket
    """


def rows_query(
    image: Image, parts: Sequence[Part], buckets: int, differing: Sequence[int], hasher: Hasher
) -> str:
    """Return SQL for the rows of the differing buckets as `Hashes`, ordered by key hash 1."""
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
    """Return SQL for keys as text."""
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
    """Return the condition that a row's key has one of these first hashes."""
    number = _hash(hasher, image.key, 1)
    if keys is None:
        return f"{number} & {buckets - 1} = any({_numbers(differing)})"
    return f"{number} = any({_numbers(keys)})"


def select_rows(
    table: TableDefinition, columns: Sequence[str], _: Sequence[str], where: str
) -> str:
    """Return the statement that reads whole rows, as those of the bulk load do."""
    names = ", ".join(map(quote, columns))
    only = "" if table.is_partitioned else "only "
    return f"copy (select {names} from {only}{quote(*table.name)} where {where}) to stdout"


def _union(image: Image, parts: Sequence[Part], wanted: str) -> str:
    return "\n union all\n".join(
        f"""
        (select {image.key} as key, {image.row} as image, {image.name or image.key} as name
           from only {quote(*part.relation)}
          where {part.condition} and {wanted}
         offset 0)
        """
        for part in parts
    )


def _numbers(numbers: Sequence[int]) -> str:
    return f"array[{', '.join(map(str, numbers))}]::bigint[]"
