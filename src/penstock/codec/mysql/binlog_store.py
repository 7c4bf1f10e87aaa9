"""Store of one relation version's rows from a binlog, until they become an Arrow batch.

A `RowStore` whose last rows can be dropped again.
"""

from __future__ import annotations

from penstock.codec.row_store import RowStore


class Store(RowStore):
    """Store of decoded rows; those of an undone transaction are dropped."""

    def count_of(self, trx: int) -> int:
        """Return how many of the last rows belong to a transaction."""
        count = 0
        while count < len(self._heads) and self._heads[-1 - count][1] == trx:
            count += 1
        return count

    def drop_last(self, count: int) -> None:
        """Forget the last rows."""
        for rows in (self._heads, self._absent, self._after, self._before):
            del rows[len(rows) - count :]
