"""Rows of a table that are put into the log again: the marker RELOAD, and one insert for each row.

They are one transaction of the log's own, at the position to which the log has all commits. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from penstock.codec.columns import after_type, batch_schema, before_type, transactions_batch
from penstock.host.errors import ConnectionLost
from penstock.model import FlushPoint, Marker, MarkerKind, Op, PenstockError, Relation, Rows, Run

REASON = "it was asked for"


@dataclass(slots=True)
class SentAgain:
    """Transaction of the log's own: the marker, then rows, after everything up to `start`."""

    start: FlushPoint
    time_us: int
    gsn: int = field(init=False)
    trx: int = field(init=False)
    row_count: int = 0
    _markers: tuple[Marker, ...] = ()
    _relations: tuple[Relation, ...] = ()

    def __post_init__(self) -> None:
        """Number the transaction."""
        self.gsn, self.trx = self.start.gsn, self.start.trx + 1

    def begin(self, relation: Relation) -> None:
        """Begin with the marker and the shape, which are in the log even without rows."""
        self._relations = (relation,)
        self._markers = (
            Marker(
                kind=MarkerKind.RELOAD,
                gsn=self.gsn,
                trx=self.trx,
                position=self.start.position,
                commit_time_us=self.time_us,
                tables=((relation.schema, relation.name),),
                data={"reason": REASON},
            ),
        )

    def inserts(self, relation: Relation, arrays: tuple[pa.Array, ...], count: int) -> Run:
        """Return the run of rows whose columns these are."""
        fields = list(after_type(relation))
        columns = [
            pa.array(range(self.gsn + 1, self.gsn + count + 1), pa.int64()),
            pa.array([self.trx] * count, pa.int64()),
            pa.array([int(Op.INSERT)] * count, pa.uint8()),
            pa.nulls(count, pa.binary()),
            pa.StructArray.from_arrays(list(arrays), fields=fields),
            pa.nulls(count, before_type(relation)),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=batch_schema(relation))
        return self.batch(relation, batch)

    def batch(self, relation: Relation, batch: pa.RecordBatch) -> Run:
        """Return the run of rows that have the log's form."""
        self.gsn += batch.num_rows
        self.row_count += batch.num_rows
        markers, self._markers = self._markers, ()
        relations, self._relations = self._relations, ()
        return Run(
            rows=(Rows(relation=relation, batch=batch),), markers=markers, relations=relations
        )

    def last(self) -> Run:
        """Return the run that ends the transaction."""
        position = self.start.position
        return Run(
            markers=self._markers,
            relations=self._relations,
            transactions=transactions_batch([(position, position, self.time_us, 0)]),
            end=FlushPoint(
                position=position, gsn=self.gsn, trx=self.trx, commit_time_us=self.time_us
            ),
        )


def make_removed(error: PenstockError) -> ConnectionLost:
    """Return the error that ends the stream because not all rows can be sent.

    The log is then cut before the rows, and the stream continues there.
    """
    return ConnectionLost(
        f"rows that were being sent again are removed from the log: {error.message}",
        hint="Nothing to do: the stream continues without them, and the request is carried out "
        "again.",
    )
