"""Questions for images and checksums of SQL Server's rows: `Dialect` of `ports/verify.py`.

Rows are read as the bulk load reads them, and penstock computes the texts and the hashes, so that
the numbers equal those of every other engine. Queries are JSON texts that `verify.py` answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec

from penstock.codec.sqlserver.columns import SourceColumn, select_expression
from penstock.codec.sqlserver.row_images import ImageCell, parse_template
from penstock.engines.sqlserver.reading import statements
from penstock.engines.sqlserver.reading.chosen_rows import Choice, ChosenRows
from penstock.model import TableDefinition
from penstock.ports.verify import ComparedCell, Hasher, Image, Part


def column_name(name: str) -> str:
    """Return a column's name as in `VerifyReader.column_types`, whose case may be ignored."""
    return name.lower()


def is_long(type_text: str) -> bool:
    """Return False: a text may have any length here."""
    del type_text
    return False


def printed_images(table: TableDefinition, target_types: Mapping[str, str]) -> None:
    """Return None: the server prints no images."""
    del table, target_types


def image(cells: Sequence[ComparedCell], key: Sequence[ComparedCell]) -> Image:
    """Return the list of a row's cells, as JSON."""
    return Image(key=_list_cells(key or cells), row=_list_cells(cells))


def _list_cells(cells: Sequence[ComparedCell]) -> str:
    found = []
    for one in cells:
        kind, change = parse_template(one.text)
        found.append(ImageCell(one.name, kind, one.is_any, one.is_long, one.is_bytes, change))
    return json.dumps(found)


def bucket_query(image: Image, part: Part, buckets: int, hasher: Hasher) -> str:
    """Return the question for the checksums of one part."""
    del hasher
    return _ask("buckets", image, [part], buckets, ())


def rows_query(
    image: Image, parts: Sequence[Part], buckets: int, differing: Sequence[int], hasher: Hasher
) -> str:
    """Return the question for the rows of the differing buckets."""
    del hasher
    return _ask("rows", image, parts, buckets, differing)


def names_query(image: Image, parts: Sequence[Part], hashes: Sequence[int], hasher: Hasher) -> str:
    """Return the question for keys as text."""
    del hasher
    return _ask("names", image, parts, 0, hashes)


def chosen_rows(
    image: Image,
    buckets: int,
    differing: Sequence[int],
    keys: Sequence[int] | None,
    hasher: Hasher,
) -> str:
    """Return the choice of rows that a repair replaces: a `Choice` as JSON, without types."""
    del hasher
    choice = Choice(
        key=tuple(tuple(cell) for cell in json.loads(image.key)),
        buckets=buckets if keys is None else 0,
        numbers=tuple(int(one) for one in (differing if keys is None else keys)),
    )
    return msgspec.json.encode(choice).decode()


def select_rows(
    table: TableDefinition, columns: Sequence[str], expressions: Sequence[str], where: str
) -> str:
    """Return a text by which the bulk reader reads the chosen rows: `ChosenRows` as JSON."""
    choice = msgspec.json.decode(where, type=Choice)
    types = {one.name.lower(): SourceColumn.from_column(one) for one in table.columns}
    key = [types[cell.name.lower()] for cell in choice.cells]
    front = [select_expression(column, alias=f"__key{place}") for place, column in enumerate(key)]
    listed = expressions or [select_expression(types[name.lower()]) for name in columns]
    named = tuple(cell._replace(name=f"__key{place}") for place, cell in enumerate(choice.cells))
    rows = ChosenRows(
        sql=statements.rows(table.name, [*front, *listed]),
        choice=msgspec.structs.replace(
            choice, key=named, types=tuple(column.kind.text for column in key)
        ),
    )
    return msgspec.json.encode(rows).decode()


def _ask(
    what: str, image: Image, parts: Sequence[Part], buckets: int, numbers: Sequence[int]
) -> str:
    return json.dumps(
        {
            "what": what,
            "parts": [[*part.relation, part.where] for part in parts],
            "key": json.loads(image.key),
            "row": json.loads(image.row),
            "buckets": buckets,
            "numbers": list(map(int, numbers)),
        }
    )
