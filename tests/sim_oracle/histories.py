"""Seeded random histories over the model, which use all that it can do."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from sim_oracle.columns import Row, Value
from sim_oracle.database import Database
from sim_oracle.errors import Blocked, OraError
from sim_oracle.tables import Table
from sim_oracle.transactions import Transaction

TEXTS = (
    "x",
    "it's",
    "a||b",
    " and ",
    "','",
    "''",
    "NULL",
    'where "A" IS NULL',
    "; commit; --",
    "line\nline\ttab",
    "O''Neil",
    "é你😀",
    "') || UNISTR('",
    " ",
)
KEYS = 40
PLAIN = {
    "ID": "NUMBER(10)",
    "A": "VARCHAR2(4000)",
    "N": "NVARCHAR2(60)",
    "B": "NUMBER",
    "D": "DATE",
    "T": "TIMESTAMP(6)",
    "Z": "TIMESTAMP(6) WITH TIME ZONE",
    "I": "INTERVAL DAY(5) TO SECOND(6)",
    "Y": "INTERVAL YEAR(4) TO MONTH",
    "R": "RAW(64)",
}


_LOB_TABLES: dict[str, dict[str, Any]] = {
    "LOB_LOCATOR": {"lob_layout": "locator"},
    "LOB_BLOCK": {"lob_layout": "block"},
    "LOB_BASIC": {"lob_storage": "BASICFILE"},
}


@dataclass(slots=True)
class Habits:
    """Habits of a history.

    Attributes:
        threads: Redo threads.
        lates: Ways in which records of a transaction are written.
        has_lobs: Whether there is a table with LOBs.
        has_ddl: Whether there are DDL statements.
        open_max: Open transactions at most.
        switches: Chance of a log switch at a step.
        disturbances: Chance of switches between a statement of a reader and the next.
    """

    threads: int = 2
    lates: tuple[str, ...] = ("no", "rows", "whole")
    has_lobs: bool = True
    has_ddl: bool = True
    open_max: int = 5
    switches: float = 0.05
    disturbances: float = 0.0


@dataclass(slots=True, eq=False)
class _Open:
    """An open transaction of a history, and how deep its savepoints are."""

    transaction: Transaction
    depth: int = 0
    children: list[Transaction] = field(default_factory=list)


class History:
    """A random history.

    Attributes:
        database: The model.
        safe_scn: Logs that end before it may be purged.
        before_ddl: Called before a DDL statement, so that a reader can read what is older.
    """

    def __init__(self, seed: int, habits: Habits | None = None) -> None:
        self.random = random.Random(seed)
        self.habits = habits or Habits()
        self.database = Database()
        self.database.settings.has_exclusive_start = self.random.random() < 0.5
        self.database.logs.archive_lag = self.random.choice([0, 1])
        for number in range(2, self.habits.threads + 1):
            self.database.add_thread(number, sequence=70)
        self.safe_scn = 0
        self.before_ddl: Callable[[], None] = lambda: None
        self._open: list[_Open] = []
        self._columns = 0
        self._add_tables()

    def _add_tables(self) -> None:
        database = self.database
        database.add_table("SHOP", "PLAIN", dict(PLAIN), key=["ID"])
        keyed = {"ID": "NUMBER(10)", "A": "VARCHAR2(200)", "B": "NUMBER(12,2)"}
        database.add_table("SHOP", "KEYED", dict(keyed), key=["ID"], supplemental="PRIMARY KEY")
        database.add_table("SHOP", "NO KEY", dict(keyed))
        parts = {"ID": "NUMBER(10)", "REGION": "VARCHAR2(10)", "A": "VARCHAR2(200)"}
        database.add_table(
            "SHOP",
            "PARTS",
            parts,
            key=["ID"],
            partitions=("P1", "P2", "P3"),
            partition_by="REGION",
        )
        database.add_table("SHOP", "SCRATCH", dict(keyed), is_temporary=True)
        if self.habits.has_lobs:
            lobs = {"ID": "NUMBER(10)", "A": "VARCHAR2(200)", "C": "CLOB", "L": "BLOB"}
            for name, flags in _LOB_TABLES.items():
                database.add_table("SHOP", name, dict(lobs), key=["ID"], **flags)

    # ------------------------------------------------------------------ values

    def _text(self, size: int) -> str:
        choice = self.random.random()
        if size >= 4000 and choice < 0.15:
            # Quotes all over the place of the cut, some before it.
            return "q" * self.random.randrange(40) + "'" * 3900
        if size >= 4000 and choice < 0.2:
            return "é" * 1500 + "'"
        return self.random.choice(TEXTS)

    def _value(self, column: Any) -> Value:  # noqa: C901 - one case per type
        rng, kind = self.random, column.kind
        if kind != "NUMBER" and rng.random() < 0.2:
            return None
        if kind == "NUMBER":
            if column.scale == 2:
                return Decimal(rng.randrange(-10_000, 10_000)) / 100
            return rng.choice([None, 0, 1, -7, Decimal("-.5"), Decimal("1E-20"), 10**38 - 1])
        if kind in ("VARCHAR2", "NVARCHAR2"):
            return self._text(column.length or 0)
        if kind == "DATE":
            return datetime(1990 + rng.randrange(60), 2, 28, 13, rng.randrange(60), 59)  # noqa: DTZ001
        if kind == "TIMESTAMP":
            return datetime(2026, 3, 29, 1, 30, 0, rng.randrange(10**6))  # noqa: DTZ001
        if kind == "TIMESTAMP WITH TIME ZONE":
            return datetime(2026, 3, 29, 1, 30, 0, rng.randrange(10**6), tzinfo=UTC)
        if kind == "INTERVAL DAY TO SECOND":
            return timedelta(seconds=rng.randrange(-(10**6), 10**6), milliseconds=123)
        if kind == "INTERVAL YEAR TO MONTH":
            return rng.randrange(-500, 500)
        if kind == "RAW":
            return rng.randbytes(rng.randrange(1, 20))
        if kind == "CLOB":
            return rng.choice(["short", "it's", "l'ong 😀 " * rng.randrange(130, 400)])
        if kind == "BLOB":
            return rng.randbytes(rng.choice([1, 20, 1500, 2500]))
        raise AssertionError(kind)

    def _row(self, table: Table) -> Row:
        row: Row = {"ID": self.random.randrange(KEYS)}
        for column in table.version.columns[1:]:
            row[column.name] = self._value(column)
        if "REGION" in row:
            row["REGION"] = self.random.choice("abcdef")
        return row

    # ------------------------------------------------------------------ steps

    def step(self) -> None:
        """Do one thing."""
        rng, database = self.random, self.database
        database.tick(rng.randrange(3))
        choice = rng.random()
        if choice < 0.02:
            database.beat()
        if choice < self.habits.switches:
            self.switch()
        elif choice < self.habits.switches + 0.02:
            database.commit_empty(1)
        elif choice < self.habits.switches + 0.04:
            database.flush()
        elif self.habits.has_ddl and choice < self.habits.switches + 0.05:
            self._change_schema()
        elif self.habits.threads > 1 and choice < self.habits.switches + 0.06:
            self._stop_or_start()
        elif len(self._open) < self.habits.open_max and rng.random() < 0.3:
            self._begin()
        elif self._open:
            self._work(rng.choice(self._open))

    def switch(self) -> None:
        """Switch the log of one thread or of all; old archives may go."""
        if self.random.random() < 0.3:
            self.database.archive_current()
        else:
            threads = self.database.logs.threads.values()
            self.database.switch(
                self.random.choice([one for one in threads if one.status == "OPEN"]).number
            )
        how = self.random.choice(["rman", "delete", "expired", "rm"])
        if self.safe_scn:
            self.database.logs.purge(self.safe_scn - 1, "delete" if how == "rm" else how)

    def disturb(self) -> None:
        """Perhaps reuse all online logs: called between the statements of a reader."""
        if self.random.random() < self.habits.disturbances:
            for number, thread in self.database.logs.threads.items():
                for _ in range(4 if thread.status == "OPEN" else 0):
                    self.database.switch(number)

    def _stop_or_start(self) -> None:
        """Stop the last instance, which rolls its transactions back, or start it again."""
        number = self.habits.threads
        if self.database.logs.threads[number].status == "CLOSED":
            self.database.open_thread(number)
            return
        self.database.close_thread(number)
        self._open = [one for one in self._open if one.transaction.is_open]

    def _begin(self) -> None:
        rng = self.random
        threads = self.database.logs.threads.values()
        thread = rng.choice([one.number for one in threads if one.status == "OPEN"])
        transaction = self.database.begin(thread, late=rng.choice(self.habits.lates))
        transaction.shuffle = random.Random(rng.random())
        self._open.append(_Open(transaction))

    def _change_schema(self) -> None:
        rng = self.random
        chosen = [self.database.table("SHOP", name) for name in ("KEYED", "PARTS")]
        table = rng.choice(chosen)
        if table.locks:
            return
        self.before_ddl()
        if rng.random() < 0.4:
            self.database.truncate(table)
        elif len(table.version.columns) < 8:
            self._columns += 1
            name, kind = f"X{self._columns}", rng.choice(["NUMBER(12,2)", "VARCHAR2(50)"])
            self.database.add_column(table, name, kind)
        else:
            self.database.drop_column(table, table.version.columns[-1].name)

    def _work(self, one: _Open) -> None:
        rng, transaction = self.random, one.transaction
        choice = rng.random()
        try:
            if choice < 0.1:
                one.depth += 1
                transaction.savepoint(f"S{one.depth}")
            elif choice < 0.2 and one.depth:
                depth = rng.randrange(1, one.depth + 1)
                transaction.rollback_to(f"S{depth}")
                one.depth = depth
            elif choice < 0.3:
                self._end(one)
            elif choice < 0.32 and not one.children and transaction.start_scn:
                one.children = [
                    self.database.begin(transaction.thread, parent=transaction) for _ in range(2)
                ]
            elif one.children:
                self._change(rng.choice([transaction, *one.children]))
            else:
                self._change(transaction)
        except (Blocked, OraError):
            pass  # a real session would wait, or has its error

    def _end(self, one: _Open) -> None:
        self._open.remove(one)
        if self.random.random() < 0.25:
            one.transaction.rollback()
        else:
            one.transaction.commit(same_scn=self.random.random() < 0.5)

    def finish(self) -> None:
        """End all open transactions and let every thread write its SCN."""
        while self._open:
            self._end(self._open[-1])
        self.database.tick()
        self.database.beat()
        self.database.beat()

    # ------------------------------------------------------------------ changes

    def _change(self, transaction: Transaction) -> None:
        rng = self.random
        tables = [one for one in self.database.tables.values() if one.version.owner == "SHOP"]
        table = rng.choice(tables)
        free = [row_id for row_id in table.rows if table.locks.get(row_id) in (None, transaction)]
        choice = rng.random()
        if not free or choice < 0.35:
            transaction.insert(table, self._row(table), direct=rng.random() < 0.05)
        elif choice < 0.42:
            rows = [self._row(table) for _ in range(rng.randrange(2, 6))]
            transaction.insert_many(table, rows, save_exceptions=rng.random() < 0.5)
        elif choice < 0.72:
            self._update(transaction, table, rng.choice(free))
        elif choice < 0.78 and table.name in ("PLAIN", "KEYED"):
            self._shift_keys(transaction, table, free)
        elif choice < 0.9:
            transaction.delete(table, rng.choice(free))
        elif choice < 0.96:
            transaction.delete_many(table, rng.sample(free, min(len(free), rng.choice([3, 30]))))
        else:
            transaction.select_for_update(table, rng.choice(free))

    def _update(self, transaction: Transaction, table: Table, row_id: str) -> None:
        rng, full = self.random, self._row(table)
        names = [name for name in full if name != "ID"]
        chosen = rng.sample(names, rng.randrange(1, len(names) + 1))
        if rng.random() < 0.2:
            chosen.append("ID")
        transaction.update(table, row_id, {name: full[name] for name in chosen})

    def _shift_keys(self, transaction: Transaction, table: Table, free: list[str]) -> None:
        chosen = self.random.sample(free, min(len(free), 4))
        changes: list[tuple[str, Row]] = []
        for row_id in chosen:
            number = table.rows[row_id]["ID"]
            assert isinstance(number, int)
            changes.append((row_id, {"ID": number + 1}))
        transaction.update_many(table, changes)
