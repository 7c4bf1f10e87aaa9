"""A random history of transactions, and the changefeed of it as several nodes would send it.

Tables: parent, child (refers to parent; at times with a column note), and mark, whose only row says
which resolved timestamp a state belongs to. The feed repeats messages, sends those of one span in
any order (each key's first ones in the order of their times), and has gaps between resolved
timestamps. When a column is added or dropped, every row of its table is sent again, as by a
backfill.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

STEP_NS = 1_000_000
REPEATED_NS = 50_000_000
"""Time span in which a feed repeats messages: less than the retireOffset of tests."""
TABLES = ("parent", "child", "mark")
DDL = (
    "create table parent (id int primary key, n int not null)",
    "create table child (id int primary key, parent_id int not null references parent (id), "
    "n int not null)",
    "create table mark (id int primary key, n int not null)",
)
Rows = dict[str, dict[int, dict[str, Any]]]


COLUMNS = {"parent": ("id", "n"), "child": ("id", "parent_id", "n", "note"), "mark": ("id", "n")}


def plain(rows: Rows) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of each table as tuples, ordered by id; a missing note is None."""
    return {
        name: [tuple(map(rows[name][key].get, COLUMNS[name])) for key in sorted(rows[name])]
        for name in TABLES
    }


@dataclass(slots=True)
class History:
    """Maker of spans: transactions between two resolved timestamps.

    Attributes:
        start_ns: Time of the first transaction.
        states: Model at each resolved timestamp so far; the first is empty.
        has_note: Set it so that the next span adds or drops the column note of child.
        time_ns: Set it so that the next span is later.
    """

    seed: int
    start_ns: int
    states: list[dict[str, list[tuple[Any, ...]]]] = field(default_factory=list)
    has_note: bool = False
    time_ns: int = 0
    _noted: bool = False
    _random: random.Random = field(init=False)
    _rows: Rows = field(init=False)
    _time: tuple[int, int] = field(init=False)
    _number: int = 0

    def __post_init__(self) -> None:
        """Begin without transactions."""
        self._random = random.Random(self.seed)
        self._rows = {name: {} for name in TABLES}
        self._time = (self.start_ns, 0)
        self.states.append(plain(self._rows))

    def span(self) -> tuple[list[dict[str, Any]], str]:
        """Return messages of some transactions in the order of their times, and the resolved
        timestamp.
        """
        messages: list[dict[str, Any]] = []
        if self.time_ns > self._time[0]:
            self._time = (self.time_ns, 0)
        if self.has_note is not self._noted:
            messages += self._backfill()
        for _ in range(self._random.randint(1, 12)):
            messages += self._transaction()
        self._number += 1
        messages += self._build_messages({"mark": {1: {"id": 1, "n": self._number}}}, self._next())
        self.states.append(plain(self._rows))
        nanos, logical = self._time
        if self._random.random() < 0.5:  # a gap; otherwise the mark's own time
            nanos, logical = nanos + STEP_NS // 2, 0
            self._time = (nanos, logical)
        return messages, f"{nanos}.{logical:010}"

    def _next(self) -> str:
        """Return the next transaction's time: often of the same nanosecond."""
        nanos, logical = self._time
        tied = self._random.random() < 0.3
        self._time = (nanos, logical + 1) if tied else (nanos + STEP_NS, 0)
        return f"{self._time[0]}.{self._time[1]:010}"

    def _transaction(self) -> list[dict[str, Any]]:
        """Return a transaction of some operations, as the last image of each row that
        it touched.
        """
        choose, touched = self._random, {name: {} for name in TABLES}
        rows = {name: dict(self._rows[name]) for name in TABLES}

        def put(table: str, key: int, row: dict[str, Any] | None) -> None:
            touched[table][key] = row
            if row is None:
                del rows[table][key]
            else:
                rows[table][key] = row

        for _ in range(choose.randint(1, 6)):
            parents, children = sorted(rows["parent"]), sorted(rows["child"])
            doing = choose.random()
            if doing < 0.3 or not parents:
                key = choose.randint(1, 60)
                put("parent", key, {"id": key, "n": choose.randint(0, 999)})
            elif doing < 0.75 or not children:
                key = choose.randint(1, 200)
                row = {"id": key, "parent_id": choose.choice(parents), "n": choose.randint(0, 999)}
                if self._noted:
                    row["note"] = choose.choice([None, "x" * 2000, "ä"])
                put("child", key, row)
            elif doing < 0.9:
                put("child", choose.choice(children), None)
            else:
                gone = choose.choice(parents)
                for key, row in list(rows["child"].items()):
                    if row["parent_id"] == gone:
                        put("child", key, None)
                put("parent", gone, None)
        return self._build_messages(touched, self._next())

    def _build_messages(self, touched: Rows, time: str) -> list[dict[str, Any]]:
        messages = []
        for table, changes in touched.items():
            for key, after in changes.items():
                before = self._rows[table].get(key)
                if after is None and before is None:
                    continue  # it was created and deleted within the transaction
                message = {"after": after, "before": before, "key": [key], "topic": table}
                messages.append({**message, "updated": time})
                if after is None:
                    del self._rows[table][key]
                else:
                    self._rows[table][key] = after
        return messages

    def _backfill(self) -> list[dict[str, Any]]:
        """Add the column note, null in every row, or drop it; all rows have one time."""
        self._noted = self.has_note
        rows = {}
        for key, row in self._rows["child"].items():
            rows[key] = {name: value for name, value in row.items() if name != "note"}
            if self._noted:
                rows[key]["note"] = None
        return self._build_messages({"child": rows}, self._next())


class Feed:
    """Sends a history like a changefeed. Its own random numbers leave the history unchanged."""

    def __init__(self, seed: int) -> None:
        """Begin without sent messages."""
        self._random = random.Random(seed)
        self._sent: list[dict[str, Any]] = []

    def bodies(self, messages: list[dict[str, Any]]) -> Iterator[str]:
        """Yield requests for the messages of a span, and for some that were sent before."""
        waiting: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for message in messages:
            waiting.setdefault((message["topic"], message["key"][0]), []).append(message)
        while waiting:
            batch: list[dict[str, Any]] = []
            for _ in range(self._random.randint(1, 8)):
                if not waiting:
                    break
                key = self._random.choice(list(waiting))
                batch.append(waiting[key].pop(0))
                if not waiting[key]:
                    del waiting[key]
            self._sent += batch
            if self._random.random() < 0.3:
                batch += self._again(5)
            yield json.dumps({"payload": batch, "length": len(batch)})
            if self._random.random() < 0.1:
                again = self._again(10)
                yield json.dumps({"payload": again, "length": len(again)})
        self._sent = self._sent[-500:]

    def _again(self, count: int) -> list[dict[str, Any]]:
        """Return some earlier messages, none of them so old that it may be retired."""
        times = [int(one["updated"].partition(".")[0]) for one in self._sent]
        young = [
            one
            for one, time in zip(self._sent, times, strict=True)
            if time > max(times) - REPEATED_NS
        ]
        return self._random.sample(young, min(len(young), count))
