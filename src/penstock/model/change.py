"""Runs of rows, markers and flush points: the stream that a source sends into the log.

Here rows travel as Arrow columns; only consumers and tests have an object per row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.model.relation import Relation


class Op(IntEnum):
    """Kind of a row change; the number is the ASCII letter kept in the log."""

    INSERT = ord("I")
    UPDATE = ord("U")
    DELETE = ord("D")


class MarkerKind(StrEnum):
    """Kind of a marker. The log keeps the values: never rename one."""

    TRUNCATE = "truncate"
    DDL = "ddl"
    RESOLVED = "resolved"
    HEARTBEAT = "heartbeat"
    MESSAGE = "message"
    RELOAD = "reload"  # the rows that follow replace a table whole (see `reload.py`)


# `data` of a DDL whose tables were dropped.
DROP_TABLE = {"statement": "drop table"}

# `data["prefix"]` of a MESSAGE whose `data["content"]` names a global transaction that this
# transaction is a part of. `penstock.global/3`: it has three parts, each at another source.
GLOBAL_PREFIX = "penstock.global"

# Prefix of heartbeat messages. Such a message holds the slot that it is for and its send time in
# microseconds. Heartbeats that penstock serves are for any slot.
HEARTBEAT_PREFIX = "penstock.heartbeat"
ANY_SLOT = "*"


def is_global_prefix(prefix: str) -> bool:
    """Return whether a message names a global transaction; see GLOBAL_PREFIX."""
    return prefix == GLOBAL_PREFIX or prefix.startswith(f"{GLOBAL_PREFIX}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """Event between row changes that is not a row change itself.

    A marker stands after row `gsn` and before the next one; markers with the same gsn keep their
    order in the log.

    Attributes:
        tables: `(schema, name)` of the tables concerned.
        data: details that JSON can hold, with the keys of `docs/ckt-format.md`.
    """

    kind: MarkerKind
    gsn: int
    trx: int
    position: int
    commit_time_us: int
    tables: tuple[tuple[str, str], ...] = ()
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Row changes of one relation version, in commit order.

    Attributes:
        batch: rows with the schema of `penstock.codec.columns.batch_schema(relation)`: gsn, trx,
            op, absent, after, before. Across all rows of a log each gsn is one higher than the
            previous one. An update that changed its key is two higher: the number left out belongs
            to the old key.
    """

    relation: Relation
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPoint:
    """End of whole transactions.

    Attributes:
        position: the source may forget everything before this position once the point is on disk
            (for PostgreSQL the END of the last commit record).
        gsn: the last one assigned; 0 if none.
        trx: the last one assigned; 0 if none.
        commit_time_us: commit time of the last transaction, microseconds since 1970 UTC; 0 if
            none.
    """

    position: int
    gsn: int = 0
    trx: int = 0
    commit_time_us: int = 0

    def continues(self, end: FlushPoint) -> bool:
        """Return whether this point has no changes since `end` and is not before it."""
        return (end.gsn, end.trx) == (self.gsn, self.trx) and end.position <= self.position


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Piece of the stream, in order. Rows of several relations interleave by gsn.

    Attributes:
        relations: shapes that became current and have no rows yet (a column added to a table that
            is not written).
        transactions: the transactions that end in this run, in order and without gaps, whether
            their rows are in this run or in earlier ones: a batch of
            `penstock.codec.columns.TRANSACTIONS_SCHEMA`.
        end: set if the run ends where a transaction ends. None means that the transaction
            continues in the next run, so a giant transaction never has to fit in memory.
    """

    rows: tuple[Rows, ...] = ()
    markers: tuple[Marker, ...] = ()
    relations: tuple[Relation, ...] = ()
    transactions: pa.RecordBatch | None = None
    end: FlushPoint | None = None
