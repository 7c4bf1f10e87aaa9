"""Rows of PostgreSQL on their way into an Arrow batch: a `RowStore` with a reader per column."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.codec.postgres.pgtext import cell_reader
from penstock.codec.row_store import RowStore

if TYPE_CHECKING:
    from penstock.model import Relation


class TextStore(RowStore):
    """Collects rows whose values come as PostgreSQL prints them."""

    def __init__(self, relation: Relation) -> None:
        """Start empty."""
        super().__init__(relation)
        self.readers = [cell_reader(column) for column in relation.columns]
