"""Read a table's rows from the log's base, at the end of the durable part of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.base.held import BaseNotReady, Holder
from penstock.base.shapes import keeps_rows
from penstock.base.state import Piece, as_inserts
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.errors import ConnectionLost
from penstock.model import Relation, TableName
from penstock.ports.source import BaseRows, TableRows

POLL_S = 0.02
ROWS_MAX = 20_000  # of a batch


class LogBaseRows(BaseRows):
    """Rows of the log's base. Only the decoding thread uses it."""

    def __init__(self, holder: Holder, *, clock: Clock = REAL_CLOCK) -> None:
        """Keep the base's holder, which is registered under a name of its own."""
        self._holder, self._clock = holder, clock
        holder.clear()

    @contextmanager
    def at(
        self, table: TableName, trx: int, *, gives_up: Callable[[], bool]
    ) -> Iterator[_Held | None]:
        while (end := self._holder.end()) is None or end.trx < trx:
            if gives_up():
                raise ConnectionLost("reload given up: the stream is being closed")
            self._clock.sleep(POLL_S)
        try:
            held, _ = self._holder.hold_now()
        except BaseNotReady:
            yield None
            return
        try:
            if held.manifest.of(table) is None or held.end.trx != trx:
                yield None
                return
            with closing(held.pieces(table)) as pieces:
                first = next(pieces)  # says the shape
                yield _Held(relation=first.relation, pieces=pieces)
        finally:
            held.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held(TableRows):
    """Rows of one table in the base. pieces: the pieces after the first."""

    relation: Relation = field()
    pieces: Iterator[Piece]

    def fits(self, relation: Relation) -> bool:
        return keeps_rows(self.relation, relation)

    def inserts(self, *, gsn: int, trx: int) -> Iterator[pa.RecordBatch]:
        for piece in self.pieces:
            for at in range(0, piece.rows.num_rows, ROWS_MAX):
                batch = as_inserts(piece.slice(at, ROWS_MAX), gsn=gsn, trx=trx)
                yield batch
                gsn += batch.num_rows
