"""Random histories of change tables: the log has every change once, in the source's order.

Transactions overlap, update keys, leave large values unchanged and span tables; instances are
enabled a second time, batches have any size, and the stream breaks anywhere.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.servers.change_table_log import LACKING, ChangeLog, Seen
from harness.servers.change_tables import ChangeServer, FakeTable
from harness.servers.change_writer import ChangeWriter, Transaction
from penstock.engines.sqlserver.source.change_rows import Keys
from penstock.engines.sqlserver.source.merging import order_of

TABLES = 4
COLUMNS = [("id", "int"), *((f"c{at}", "nvarchar(9)") for at in range(2, 12)), ("b", "ntext")]
Row = dict[str, Any]


@dataclass
class History:
    """Random transactions over some tables. expected: the committed ones, in order."""

    seed: int
    server: ChangeServer = field(default_factory=ChangeServer)
    expected: list[list[Seen]] = field(default_factory=list)
    rows: dict[int, dict[int, Row]] = field(default_factory=dict)
    open: list[Transaction] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Create the tables, empty."""
        self.random = random.Random(self.seed)
        self.writer = ChangeWriter(self.server)
        self.tables: list[FakeTable] = []
        for at in range(TABLES):
            table = self.server.add_table(f"t{at}", COLUMNS)
            self.server.capture(table, start=self.writer.next_lsn())
            self.tables.append(table)
            self.rows[table.object_id] = {}
        self.begin = self.writer.idle()

    def step(self) -> None:
        """Do one statement, commit, or something of the operator's."""
        draw = self.random.random()
        if draw < 0.05:
            self.writer.idle()
        elif draw < 0.3 and not self.open:
            self.switch()
        elif draw < 0.3 and self.open:
            self.commit()
        else:
            self.change()

    def commit(self) -> None:
        """Commit one of the open transactions, whichever began first."""
        transaction = self.open.pop(self.random.randrange(len(self.open)))
        if seen := transaction.commit():
            self.expected.append(seen)
        else:
            del self.server.commits[-1]  # a transaction without changes is not captured

    def switch(self) -> None:
        """Enable a table again, with the same columns."""
        table = self.random.choice(self.tables)
        instances = [one for one in self.server.instances if one.source_id == table.object_id]
        if len(instances) == 1:
            self.server.capture(
                table, start=self.writer.next_lsn(), instance=f"dbo_{table.name.name}_2"
            )

    def change(self) -> None:
        """Change rows of a table in an open transaction; rows belong to one transaction."""
        if not self.open or (len(self.open) < 3 and self.random.random() < 0.3):
            self.open.append(self.writer.begin())
        place = self.random.randrange(len(self.open))
        transaction = self.open[place]
        table = self.random.choice(self.tables)
        rows = self.rows[table.object_id]
        mine = [one for one in rows if one % 3 == place % 3]
        draw = self.random.random()
        if draw < 0.4 or not mine:
            number = 3 * self.random.randrange(1000) + place % 3
            if number not in rows:
                rows[number] = self.new_row(number)
                transaction.insert(table, rows[number])
        elif draw < 0.55:
            transaction.delete(table, rows.pop(self.random.choice(mine)))
        else:
            self.update(transaction, table, rows, mine, place)

    def update(
        self,
        transaction: Transaction,
        table: FakeTable,
        rows: dict[int, Row],
        mine: list[int],
        place: int,
    ) -> None:
        """Update some rows in one statement, sometimes their keys."""
        transaction.command += 1
        for number in self.random.sample(mine, min(len(mine), self.random.randrange(1, 4))):
            old = rows.pop(number)
            new = {name: self.value(name, old[name]) for name in old}
            moved = 3 * self.random.randrange(1000) + place % 3
            if self.random.random() < 0.3 and moved not in rows:
                new = {**self.new_row(moved)}
            transaction.update_more(table, old, new)
            rows[int(new["id"])] = new

    def new_row(self, number: int) -> Row:
        """Return a row of random values."""
        return {name: number if name == "id" else self.value(name, None) for name, _ in COLUMNS}

    def value(self, name: str, old: Any) -> Any:
        """Return a value, often the old one."""
        if name == "id" or self.random.random() < 0.6:
            return old
        return self.random.choice([None, "", "a", "bb", "\N{SNOWMAN}"])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 7, 5000]), st.sampled_from([1, 2, 5, 16_384]))
def test_any_history_is_in_the_log(seed: int, count: int, row_count: int) -> None:
    """The log misses, repeats and reorders nothing, however it was read."""
    history = History(seed)
    log = ChangeLog(history.server, begin=history.begin, count=count, row_count=row_count)
    for _ in range(history.random.randrange(20, 120)):
        history.step()
        draw = history.random.random()
        if draw < 0.05:
            log.follow(runs=history.random.randrange(1, 9))
        elif draw < 0.08:
            log.reconnect()
        elif draw < 0.12:
            log.follow()
    while history.open:
        history.commit()
    log.follow()
    assert log.transactions() == history.expected
    assert len(log.positions()) == len(set(log.positions())) == len(history.expected)


def test_histories_have_everything() -> None:
    """The generator makes each kind of change often."""
    kinds: dict[str, int] = {}
    for seed in range(30):
        history = History(seed)
        for _ in range(100):
            history.step()
        for seen in (one for some in history.expected for one in some):
            kind = seen.op + ("k" if seen.op == "u" and seen.before else "")
            kinds[kind] = kinds.get(kind, 0) + 1
            if seen.after is not None and LACKING in seen.after.values():
                kinds["absent"] = kinds.get("absent", 0) + 1
        kinds["second"] = kinds.get("second", 0) + len(history.server.instances) - TABLES
    assert min(kinds[name] for name in ("c", "d", "u", "uk", "absent", "second")) > 20


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 5), max_size=60), st.integers(1, 5))
def test_the_merge_orders_like_tuples(rows: list[tuple[int, ...]], parts: int) -> None:
    """One sort of columns gives the order that a heap of tuples would."""
    pieces = [sorted(rows[at::parts]) for at in range(parts)]
    keys = [keys_of(piece) for piece in pieces]
    flat = [row for piece in pieces for row in piece]
    assert [flat[at] for at in order_of(keys)] == sorted(rows)
    for piece, of_piece in zip(pieces, keys, strict=True):
        for bound in rows:
            low, high, *rest = bound
            wanted = sum(row <= bound for row in piece)
            assert of_piece.count_through((low, high, rest[0], rest[1], rest[2])) == wanted


def keys_of(rows: list[tuple[int, ...]]) -> Keys:
    """Return an order of changes."""
    columns = list(zip(*rows, strict=True)) or [()] * 5
    ints = [np.array(column, np.int64) for column in columns]
    return Keys(
        transactions=ints[0],
        commands=ints[1],
        high=ints[2].astype(np.uint64),
        low=ints[3].astype(np.uint64),
        operations=ints[4],
    )
