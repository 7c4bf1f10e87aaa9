"""Histories of a table: the content of its source's log, and its final rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from harness.pipelines.changes import Change, relation
from penstock.model import Identity, Relation

WIDTH = 4  # columns of the test table, the key first
KEYS = st.integers(0, 6)
VALUES = st.one_of(st.none(), st.integers(0, 3))
Row = tuple[Any, ...]


@dataclass
class History:
    """A source table that is written, and its log.

    Attributes:
        rows: Rows by key.
    """

    relation: Relation
    rows: dict[int, Row] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def log(self, op: str, **images: Any) -> None:
        self.changes.append(Change(op=op, gsn=len(self.changes) + 1, **images))

    def insert(self, row: Row) -> None:
        self.rows[row[0]] = row
        self.log("I", after=row)

    def delete(self, key: int) -> None:
        self.log("D", before=self.rows.pop(key))

    def update(self, key: int, row: Row, toasted: frozenset[int]) -> None:
        old = self.rows.pop(key)
        self.rows[row[0]] = row
        full = self.relation.identity is Identity.FULL
        same = frozenset(i for i in toasted if old[i] == row[i] and i not in self.relation.key)
        self.log(
            "U",
            after=row,
            before=old if full or key != row[0] else None,
            absent=frozenset() if full else same,
        )


@st.composite
def histories(draw: st.DrawFn, identity: Identity) -> tuple[dict[int, Row], History]:
    """Return a table with rows, and its later changes."""
    columns = [("k", "integer", "int32")] + [(f"c{i}", "text", "string") for i in range(1, WIDTH)]
    history = History(relation(*columns, identity=identity))
    value = st.one_of(st.none(), st.sampled_from("xyz"))
    rest = st.tuples(*[value] * (WIDTH - 1))
    start = {key: (key, *draw(rest)) for key in draw(st.sets(KEYS))}
    history.rows = dict(start)
    for _ in range(draw(st.integers(0, 25))):
        key = draw(KEYS)
        if key not in history.rows:
            history.insert((key, *draw(rest)))
            continue
        action = draw(st.sampled_from(["update", "update", "move", "swap", "delete"]))
        toasted = draw(st.frozensets(st.integers(1, WIDTH - 1)))
        old = history.rows[key]
        changed = tuple(
            old[i] if i in toasted else new for i, new in enumerate(draw(rest), start=1)
        )
        # There is one more place than rows: one is always free.
        places = range(max(12, len(history.rows) + 1))
        free = [k for k in places if k not in history.rows]
        if action == "delete":
            history.delete(key)
        elif action == "update":
            history.update(key, (key, *changed), toasted)
        elif action == "move":
            history.update(key, (draw(st.sampled_from(free)), *changed), toasted)
        else:
            other = draw(st.sampled_from(sorted(history.rows)))
            if other != key:  # by a third key, as an immediate unique index requires
                everything = frozenset(range(1, WIDTH))
                spare = draw(st.sampled_from(free))
                history.update(key, (spare, *old[1:]), everything)
                history.update(other, (key, *history.rows[other][1:]), everything)
                history.update(spare, (other, *old[1:]), everything)
    return start, history


Step = tuple[str, Row, Row]
STEPS = st.lists(
    st.tuples(st.sampled_from("IUD"), st.tuples(VALUES, VALUES), st.tuples(VALUES, VALUES)),
    max_size=40,
)


def keyless(start: Counter[Row], steps: list[Step]) -> tuple[Relation, list[Change], Counter[Row]]:
    """Return a table without key, its possible changes, and the final count of each row."""
    shape = relation(
        ("a", "integer", "int32"), ("b", "integer", "int32"), key=(), identity=Identity.FULL
    )
    rows = Counter(start)
    changes: list[Change] = []
    for op, old, new in steps:
        if op != "I" and not rows[old]:
            continue
        if op != "I":
            rows[old] -= 1
        if op != "D":
            rows[new] += 1
        changes.append(
            Change(
                op=op,
                gsn=len(changes) + 1,
                after=new if op != "D" else None,
                before=old if op != "I" else None,
            )
        )
    return shape, changes, Counter({row: count for row, count in rows.items() if count})
