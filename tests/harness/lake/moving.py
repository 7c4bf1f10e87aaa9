"""Source of a partitioned table for tests: its rows move between partitions at most changes."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from pathlib import Path

from harness.lake.applying import Row
from harness.pipelines.changes import Change, relation
from harness.pipelines.loader import LogMaker
from penstock.model import MarkerKind, Relation, TableName

ORDERS = TableName("public", "orders")
SHAPE = relation(
    ("id", "bigint", "int64"),
    ("region", "text", "string"),
    ("at", "timestamp without time zone", "timestamp"),
    ("day", "date", "date"),
    ("amount", "numeric(12,2)", "decimal(12,2)"),
    ("note", "text", "string"),
    name="orders",
)
REGIONS = (
    None,
    "eu",
    "u s/a",
    "50%",
    "über=ñ",
    "a'b\"c",
    "__HIVE_DEFAULT_PARTITION",
    "../x",
    "日本",
)
MOMENTS = (
    None,
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001 - the column has no zone
    dt.datetime(1970, 1, 1),  # noqa: DTZ001
    dt.datetime(1965, 3, 2, 4, 5, 6),  # noqa: DTZ001
    dt.datetime(2024, 2, 29, 12, 30),  # noqa: DTZ001
    dt.datetime(2024, 3, 1),  # noqa: DTZ001
)
DAYS = (None, dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2024, 2, 29))
AMOUNTS = (None, Decimal("-0.01"), Decimal("0.00"), Decimal("-123.45"), Decimal("99999.99"))


class Orders:
    """Source table whose rows change their partition at most changes; it writes its log.

    Attributes:
        rows: By key.
    """

    def __init__(self, log: Path, seed: int, *, shape: Relation = SHAPE) -> None:
        """Begin with an empty table."""
        log.mkdir(exist_ok=True)
        self.random = random.Random(seed)
        self.log = LogMaker(log)
        self.shape = shape
        self.rows: dict[int, Row] = {}

    @property
    def content(self) -> list[Row]:
        """All rows, in order."""
        return sorted(self.rows.values(), key=repr)

    def write(self, transactions: int, changes: int = 12) -> None:
        """Commit transactions in one segment."""
        for _ in range(transactions):
            made = [(self.shape, self._change()) for _ in range(changes)]
            self.log.transaction(*made)
        self.log.close_segment()

    def truncate(self) -> None:
        """Remove all rows."""
        self.rows.clear()
        self.log.transaction((MarkerKind.TRUNCATE, [ORDERS]))
        self.log.close_segment()

    def put(self, *rows: Row) -> None:
        """Insert or update these rows in a transaction of a segment of its own."""
        changes = []
        for row in rows:
            old = self.rows.get(row[0])
            op = "I" if old is None else "U"
            changes.append((self.shape, Change(op=op, gsn=0, after=row, before=old)))
            self.rows[row[0]] = row
        self.log.transaction(*changes)
        self.log.close_segment()

    def _change(self) -> Change:
        choose = self.random
        key = choose.randint(1, 40)
        old = self.rows.get(key)
        if old is not None and choose.random() < 0.2:
            del self.rows[key]
            return Change(op="D", gsn=0, before=old)
        new = (
            key,
            choose.choice(REGIONS),
            choose.choice(MOMENTS),
            choose.choice(DAYS),
            choose.choice(AMOUNTS),
            choose.choice((None, "", "text")),
        )
        if old is None:
            self.rows[key] = new
            return Change(op="I", gsn=0, after=new)
        # A column that was not sent may be one by which the table is partitioned.
        absent = frozenset(choose.sample(range(1, 6), choose.choice((0, 0, 1, 2))))
        new = tuple(old[i] if i in absent else value for i, value in enumerate(new))
        if choose.random() < 0.1 and (other := choose.randint(41, 60)) not in self.rows:
            del self.rows[key]
            key, new = other, (other, *new[1:])
        self.rows[key] = new
        return Change(op="U", gsn=0, after=new, before=old, absent=absent)
