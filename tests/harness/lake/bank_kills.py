"""Points at which a loader into a lake is killed while a bank works, and a story of such kills.

Not here: the bank and its readers (`bank.py`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.lake.bank import LakeBank

KINDS = ("delta", "iceberg-3", "iceberg-2")
BATCH_POINTS = (
    "lake.stage.recorded",
    "lake.apply.begun",
    "lake.lookup.after",
    "lake.commit.before",
    "lake.commit.after",
    "lake.batch.before",
    "lake.batch.written",
    "lake.batch.after",
    "lake.state.after",
)
COMPACT_POINTS = (
    "lake.compact.before",
    "lake.compact.written",
    "lake.compact.committed",
    "lake.compact.after",
)
FILL_POINTS = ("lake.fill.before", "lake.fill.written", "lake.fill.after")
"""Points of a new column's values in existing rows, which Iceberg 3 keeps in its metadata."""

EXPIRE_POINTS = ("lake.expire.before", "lake.expire.after")
"""Points of the removal of earlier versions, which is due once an hour."""

BULK_POINTS = (
    "lake.bulk.begin",
    "lake.bulk.commit.before",
    "lake.bulk.commit.after",
    "lake.bulk.marked",
)
WORKER_POINTS = ("lake.bulk.file", "bulk.chunk.copied", "bulk.chunk.committed")
"""Points in a Spark worker, which a loader with a JVM of its own has."""

ELSEWHERE = {
    # Catalogues that commit several tables in one step, and tags: tests/lake/test_several_tables.py
    *("lake.together.before", "lake.together.after"),
    *("iceberg.together.before", "iceberg.together.after", "lake.tag.before", "lake.tag.after"),
    # tests/lake/test_history_core.py
    *("lake.history.before", "lake.history.after", "lake.history.copied", "lake.history.done"),
    *("lake.repair.commit.before", "lake.repair.commit.after"),  # tests/lake/test_repair.py
    *("lake.alter.before", "lake.alter.after"),  # by Spark's MERGE: tests/lake/test_merge.py
}
"""Points that a loader into Delta or a Hadoop catalogue does not pass, without such options."""

FORMAT_POINTS = {
    "delta": ("delta.commit.before", "delta.commit.after"),
    "iceberg": ("iceberg.commit.before", "iceberg.commit.after"),
}


def points_of(kind: str) -> tuple[str, ...]:
    """Return the points that a batch passes in a format, with those that need no preparation."""
    return (*BATCH_POINTS, *FORMAT_POINTS[kind.partition("-")[0]])


def fills(kind: str) -> bool:
    """Return whether existing rows get the values of a new column by new files."""
    return kind != "iceberg-3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One kill and what the source does before.

    Attributes:
        action: `kill`, `moment`, `zombie`, `empty`, `column`, `expire`, `resend` or `resync`.
        point: `name:nth`; of a random moment the seconds after the start.
    """

    action: str
    point: str


WEIGHTS = {
    "kill": 40,
    "compact": 20,
    "moment": 15,
    "zombie": 8,
    "empty": 5,
    "column": 5,
    "resend": 4,
    "expire": 4,
    "resync": 3,
}


def draw(choose: random.Random, kind: str, count: int) -> Iterator[Step]:
    """Yield the kills of a story: those of the bulk load first."""
    first = min(2, count)
    for point in sorted(choose.sample(BULK_POINTS, first), key=BULK_POINTS.index):
        yield Step(action="kill", point=f"{point}:{choose.randint(1, 2)}")
    every = points_of(kind)
    for action in choose.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count - first):
        nth = choose.choice((1, 1, 2, 3, 5))
        point = f"{choose.choice(every)}:{nth}"
        if action == "compact":
            point = f"{choose.choice(COMPACT_POINTS)}:1"
        elif action == "moment":
            point = f"{choose.uniform(0.5, 12.0):.1f}"
        elif action == "zombie":
            point = f"{choose.choice(every)}:1"
        elif action == "column" and fills(kind):
            point = f"{choose.choice(FILL_POINTS)}:1"
        elif action == "expire":
            point = f"{choose.choice(EXPIRE_POINTS)}:{choose.randint(1, 3)}"
        elif action == "resync":
            point = f"{choose.choice(BULK_POINTS)}:1"
        yield Step(action="kill" if action == "compact" else action, point=point)


def carry_out(bank: LakeBank, steps: Sequence[Step], *, timeout_s: float = 240.0) -> Counter[str]:
    """Carry out the kills of a story; return how often each outcome was seen."""
    outcomes: Counter[str] = Counter()
    is_loaded = False
    for number, step in enumerate(steps):
        is_in_bulk = step.action == "kill" and step.point.partition(":")[0] in BULK_POINTS
        if not (is_loaded or is_in_bulk):
            is_loaded = True
            bank.until_loaded()
        outcome = _carry_out(bank, step, timeout_s)
        outcomes[f"{step.action}: {outcome}"] += 1
        bank.tell(number, step.action, step.point, outcome)
        bank.check()
    return outcomes


def _carry_out(bank: LakeBank, step: Step, timeout_s: float) -> str:
    if step.action == "moment":
        return bank.kill_after(float(step.point))
    if step.action == "zombie":
        return bank.revive(step.point, timeout_s)
    if step.action == "empty":
        bank.teller.truncate()
    elif step.action == "column":
        bank.teller.add_column()
    elif step.action == "expire":
        bank.make_expiry_due()
    elif step.action == "resend":
        bank.resend()
    elif step.action == "resync":
        bank.resync()
    return "at its point" if bank.kill_at(step.point, timeout_s) else "elsewhere"
