"""Images and checksums of a lake's rows: `Dialect` of `ports/verify.py`.

There is no server that computes them, so queries are JSON texts that `verify.py` answers with the
functions of `codec.row_images`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.codec.row_images import (
    add_up,
    hash_images,
    hash_rows,
    is_chosen,
    join_cells,
    name_rows,
    text_of,
)
from penstock.model import TableDefinition
from penstock.ports.verify import ComparedCell, Hasher, Image, Part

__all__ = [
    "add_up",
    "bucket_query",
    "chosen_rows",
    "column_name",
    "hash_images",
    "hash_rows",
    "image",
    "is_chosen",
    "is_long",
    "join_cells",
    "name_rows",
    "names_query",
    "printed_images",
    "rows_query",
    "select_rows",
    "text_of",
]


def column_name(name: str) -> str:
    """Return a column's name as in `VerifyReader.column_types`."""
    return name


def is_long(_type_text: str) -> bool:
    """Return False: a text may have any length here."""
    return False


def printed_images(_: TableDefinition, _types: Mapping[str, str]) -> None:
    """Return None: no lake is a source, so the other side never prints alike."""


def image(cells: Sequence[ComparedCell], key: Sequence[ComparedCell]) -> Image:
    """Return the list of a row's cells, as JSON."""
    return Image(key=_list_cells(key or cells), row=_list_cells(cells))


def _list_cells(cells: Sequence[ComparedCell]) -> str:
    return json.dumps(
        [[one.name, one.text.partition(" ")[0], one.is_any, one.is_long, one.is_bytes]
         for one in cells]
    )  # fmt: skip


def bucket_query(image_: Image, part: Part, buckets: int, _hasher: Hasher) -> str:
    """Return the question for the checksums of one part."""
    return _ask("buckets", image_, [part], buckets, ())


def rows_query(
    image_: Image, parts: Sequence[Part], buckets: int, differing: Sequence[int], _hasher: Hasher
) -> str:
    """Return the question for the rows of the differing buckets."""
    return _ask("rows", image_, parts, buckets, differing)


def names_query(
    image_: Image, parts: Sequence[Part], hashes: Sequence[int], _hasher: Hasher
) -> str:
    """Return the question for keys as text."""
    return _ask("names", image_, parts, 0, hashes)


def chosen_rows(
    image_: Image,
    buckets: int,
    differing: Sequence[int],
    keys: Sequence[int] | None,
    _hasher: Hasher,
) -> str:
    """Return the choice of rows that a repair replaces."""
    if keys is not None:
        return _ask("chosen", image_, (), 0, keys)
    return _ask("chosen", image_, (), buckets, differing)


def select_rows(*_what: Any) -> str:
    """Raise an error: a lake is a target only."""
    raise NotImplementedError


def _ask(
    what: str, image_: Image, parts: Sequence[Part], buckets: int, numbers: Sequence[int]
) -> str:
    return json.dumps(
        {
            "what": what,
            "parts": [[*part.relation, part.where] for part in parts],
            "key": json.loads(image_.key),
            "row": json.loads(image_.row),
            "buckets": buckets,
            "numbers": list(map(int, numbers)),
        }
    )
