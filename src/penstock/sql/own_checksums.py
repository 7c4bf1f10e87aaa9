"""Questions of `penstock verify` to a server whose rows penstock hashes itself, as JSON texts.

Rows are read as the bulk load reads them, and penstock computes the texts and the hashes, so that
the numbers equal those of every other engine. Not here: the answers (`verify.py` of the engines),
and the choice of rows that a repair replaces (their `checksum.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from penstock.codec.image_cells import ImageCell, parse_template
from penstock.model import TableDefinition
from penstock.ports.verify import ComparedCell, Hasher, Image, Part


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
