"""What flows from a source into the log: runs of rows and markers, and flush points.

One row as an object exists only in consumers and tests; here rows travel as Arrow columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.model.relation import Relation


class Op(IntEnum):
    """What happened to a row; the number is the ASCII letter kept in the log."""

    INSERT = ord("I")
    UPDATE = ord("U")
    DELETE = ord("D")


class MarkerKind(StrEnum):
    """What a marker says. Values are kept in the log: never rename one."""

    TRUNCATE = "truncate"
    DDL = "ddl"
    RESOLVED = "resolved"
    HEARTBEAT = "heartbeat"
    MESSAGE = "message"
    RELOAD = "reload"  # the rows that follow replace a table whole (see `reload.py`)


# `data` of a DDL whose tables were dropped.
DROP_TABLE = {"statement": "drop table"}

# `data["prefix"]` of a MESSAGE that names the global transaction which this one is a part of, in
# `data["content"]`. `penstock.global/3`: it has three parts, each at another source.
GLOBAL_PREFIX = "penstock.global"

# Prefix of the messages that are heartbeats: the slot that one is for and when it was sent, in
# microseconds. Served ones are for any slot.
HEARTBEAT_PREFIX = "penstock.heartbeat"
ANY_SLOT = "*"


def is_global_prefix(prefix: str) -> bool:
    """Whether a message names a global transaction; see GLOBAL_PREFIX."""
    return prefix == GLOBAL_PREFIX or prefix.startswith(f"{GLOBAL_PREFIX}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """Something that is not a row change, placed between row changes.

    It comes after row `gsn` and before the next one; markers with the same gsn keep their order in
    the log.
    tables: `(schema, name)` of what it concerns. data: JSON-able details, keys as in
    `docs/ckt-format.md`.
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

    batch has the schema of `penstock.codec.columns.batch_schema(relation)`: gsn, trx, op, absent,
    after, before. Over all rows of a log each gsn is one higher than the one before, that of an
    update that changed its key two: the one left out is the old key's.
    """

    relation: Relation
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPoint:
    """The end of whole transactions.

    position: the source may forget everything before it once this point is on disk (for
    PostgreSQL the END of the last commit record). gsn, trx: the last ones assigned; 0 before any.
    commit_time_us: of the last transaction, microseconds since 1970 UTC; 0 before any.
    """

    position: int
    gsn: int = 0
    trx: int = 0
    commit_time_us: int = 0

    def continues(self, end: FlushPoint) -> bool:
        """Whether it follows that end: only the position may have moved on, without changes."""
        return (end.gsn, end.trx) == (self.gsn, self.trx) and end.position <= self.position


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A piece of the stream, in order.

    Rows of several relations interleave by gsn. `end` is set when the run ends where a
    transaction ends; None means that the transaction goes on in the next run, so that a giant
    transaction never has to fit in memory. `relations` are shapes that became current without
    rows of their own yet (a column added to a table that is not written).
    `transactions` are those that end in the run, in order and without gaps, whether their rows are
    in this run or in earlier ones: a batch of `penstock.codec.columns.TRANSACTIONS_SCHEMA`.
    """

    rows: tuple[Rows, ...] = ()
    markers: tuple[Marker, ...] = ()
    relations: tuple[Relation, ...] = ()
    transactions: pa.RecordBatch | None = None
    end: FlushPoint | None = None
