"""Transaction metadata: places of events in their transactions, and messages BEGIN and END.

Counts go on over the runs of a transaction. Only the tables that the consumer takes are counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.kafka.envelope import Orders
from penstock.kafka.schemas import ARRAY, INT64, STRING, STRUCT, Schema

KEY = Schema(
    kind=STRUCT, name="io.debezium.connector.common.TransactionMetadataKey", version=1,
    fields={"id": STRING},
)  # fmt: skip
_COLLECTION = Schema(
    kind=STRUCT, name="event.collection", version=1,
    fields={"data_collection": STRING, "event_count": INT64},
)  # fmt: skip
VALUE = Schema(
    kind=STRUCT,
    name="io.debezium.connector.common.TransactionMetadataValue",
    version=1,
    fields={
        "status": STRING,
        "id": STRING,
        "event_count": INT64.as_optional(),
        "data_collections": Schema(kind=ARRAY, items=_COLLECTION, optional=True),
        "ts_ms": INT64,
    },
)


@dataclass(slots=True)
class _Open:
    """Counts of a transaction that has not ended."""

    total: int = 0
    tables: dict[str, int] = field(default_factory=dict)


class TransactionCounts:
    """Counts the events of transactions, run by run."""

    def __init__(self) -> None:
        self._trx = 0
        self._open: _Open | None = None

    def of_run(
        self, tables: Sequence[str], batches: Sequence[Any], moved: Sequence[Any]
    ) -> tuple[list[Orders], list[tuple[str, dict[str, Any]]]]:
        """Return the orders of each batch of a run, and the messages BEGIN and END, in order, as
        id and value.

        Args:
            tables: name of each batch's table.
            batches: record batches.
            moved: masks of the rows that are two events.
        """
        weights = [1 + one.astype(np.int64) for one in moved]
        sizes = [batch.num_rows for batch in batches]
        gsns = np.concatenate([batch.column("gsn").to_numpy() for batch in batches])
        trxs = np.concatenate([batch.column("trx").to_numpy() for batch in batches])
        order = np.argsort(gsns, kind="stable")
        total = np.empty(len(gsns), np.int64)
        total[order] = _places(trxs[order], np.concatenate(weights)[order])
        collections = [
            _places(batch.column("trx").to_numpy(), weight)
            for batch, weight in zip(batches, weights, strict=True)
        ]
        carried = self._open if self._open is not None else _Open()
        total = total + np.where(trxs == self._trx, carried.total, 0)
        orders = []
        starts = np.cumsum([0, *sizes])
        seen: dict[str, int] = {}
        for at, (table, batch, counts) in enumerate(zip(tables, batches, collections, strict=True)):
            own = batch.column("trx").to_numpy()
            before = carried.tables.get(table, 0) + seen.get(table, 0)
            counts = counts + np.where(own == self._trx, before, 0)
            first = own == self._trx
            seen[table] = seen.get(table, 0) + int(weights[at][first].sum())
            orders.append(Orders(total[starts[at] : starts[at + 1]], counts))
        return orders, list(self._note(tables, batches, weights))

    def end(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the message END of the open transaction, if there is one."""
        found = list(self._end())
        self._trx, self._open = 0, None
        return found

    def _note(
        self, tables: Sequence[str], batches: Sequence[Any], weights: Sequence[Any]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        counts: dict[int, dict[str, int]] = {}
        for table, batch, weight in zip(tables, batches, weights, strict=True):
            numbers, places = np.unique(batch.column("trx").to_numpy(), return_inverse=True)
            sums = np.bincount(places, weight)
            for trx, count in zip(numbers.tolist(), sums.tolist(), strict=True):
                known = counts.setdefault(trx, {})
                known[table] = known.get(table, 0) + int(count)
        for trx in sorted(counts):
            if trx != self._trx:
                yield from self._end()
                self._trx, self._open = trx, _Open()
                yield str(trx), _message("BEGIN", trx, None)
            assert self._open is not None, "it was begun"
            for table, count in counts[trx].items():
                self._open.total += count
                self._open.tables[table] = self._open.tables.get(table, 0) + count

    def _end(self) -> Iterator[tuple[str, dict[str, Any]]]:
        if self._open is not None:
            yield str(self._trx), _message("END", self._trx, self._open)


def _places(trxs: Any, weights: Any) -> Any:
    """Return the place of each event among those of its transaction, from 1; transactions
    are neighbours.
    """
    ends = np.cumsum(weights)
    begins = ends - weights
    is_new = np.append(True, trxs[1:] != trxs[:-1])
    base = np.maximum.accumulate(np.where(is_new, begins, 0))
    return begins - base + 1


def _message(status: str, trx: int, counts: _Open | None) -> dict[str, Any]:
    collections = None
    if counts is not None:
        collections = [
            {"data_collection": table, "event_count": count}
            for table, count in counts.tables.items()
        ]
    return {
        "status": status,
        "id": str(trx),
        "event_count": None if counts is None else counts.total,
        "data_collections": collections,
        "ts_ms": time.time_ns() // 1_000_000,
    }
