"""Rows that a repair replaces, at servers that cannot compute the hashes of their keys.

The text of the query is therefore JSON: the SELECT of all rows, with the key's columns in front,
and the choice. The engine's reader drops the other rows. Not here: the images of its columns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codec.image_cells import ImageCell
from penstock.codec.row_images import is_chosen
from penstock.ports.verify import Hasher, Image


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Hashes of keys.

    Attributes:
        key: Cells of the key.
        types: Types of the key's columns, in order.
        buckets: Number of buckets; 0 if numbers are hashes of keys.
        numbers: Buckets, or first hashes.
    """

    key: tuple[tuple[str, str, bool, bool, bool, str], ...]
    types: tuple[str, ...] = ()
    buckets: int
    numbers: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Choice:
        """Return the choice that `chosen_rows` wrote."""
        return msgspec.json.decode(text, type=cls)

    @property
    def cells(self) -> tuple[ImageCell, ...]:
        """Cells of the key."""
        return tuple(ImageCell(*one) for one in self.key)

    def find(self, keys: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return for each row whether it is chosen. keys: the images' columns of the keys."""
        asked: dict[str, Any] = {
            "key": [cell[:5] for cell in self.cells],
            "buckets": self.buckets,
            "numbers": self.numbers,
        }
        return is_chosen(keys, asked)


class ChosenRows(msgspec.Struct, frozen=True, kw_only=True):
    """A query and a choice of its rows. The first columns are those of the choice's key."""

    sql: str
    choice: Choice

    @classmethod
    def parse(cls, text: str) -> ChosenRows:
        """Return the content of a text that `is_chosen_text`."""
        return msgspec.json.decode(text, type=cls)

    def take(self, batch: pa.RecordBatch, width: int, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Return the chosen rows of a batch, without the columns in front.

        Args:
            batch: Rows of the query.
            width: Number of columns in front.
            keys: The images' columns of the rows' keys.
        """
        rest: pa.RecordBatch = batch.select(range(width, batch.num_columns))
        return rest.filter(pa.array(self.choice.find(keys)))


def is_chosen_text(text: str) -> bool:
    """Return whether a chunk's text is a choice, not SQL."""
    return text.startswith("{")


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
