"""Store of PostgreSQL's rows until they become an Arrow batch: a `RowStore` with readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.codec.postgres.pgtext import cell_reader
from penstock.codec.row_store import RowStore

if TYPE_CHECKING:
    from penstock.model import Relation


class TextStore(RowStore):
    """Store of rows whose values are PostgreSQL's texts."""

    def __init__(self, relation: Relation) -> None:
        """Start empty."""
        super().__init__(relation)
        self.readers = [cell_reader(column) for column in relation.columns]
