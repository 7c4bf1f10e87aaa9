"""Worlds of several logs for tests of merging: the commits of each log, and the right order.

The order is that of a model that knows everything from the start, one transaction at a time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.pipelines.log import ITEM, SOURCE, Change, Row, moves, number_rows, rows_of
from penstock.codec.columns import transactions_batch
from penstock.extract.extractor import ExtractOptions, Extractor
from penstock.log import Writer, WriterOptions, links, list_segments, open_chain
from penstock.merge.extraction import MergeEngine
from penstock.merge.inputs import InputPlace
from penstock.merge.order import Global
from penstock.model import FlushPoint, Marker, MarkerKind, Op, Relation, Run
from penstock.model.change import GLOBAL_PREFIX
from penstock.model.keeping import KEEP_NONE
from penstock.model.sections import MergeSection

JOIN_US, SKEW_US = 30, 8
Given = tuple[tuple[int, int], ...]  # for each part: its input, and its number there


@dataclass
class World:
    """Inputs with the commit time of each transaction and, for some, the global one of which it is
    a part.
    """

    inputs: list[list[tuple[int, Global | None]]]
    says_parts: bool = True

    @property
    def ids(self) -> set[str]:
        return {one.id for of in self.inputs for _, one in of if one is not None}


def world(rng: random.Random) -> World:
    """Return several inputs, with ties, clocks that step back a little, and transfers
    between them.
    """
    count, now = rng.randint(1, 5), 1000
    says = rng.random() < 0.5
    inputs: list[list[tuple[int, Global | None]]] = [[] for _ in range(count)]
    for number in range(rng.randint(5, 50)):
        now += rng.choice((0, 0, 1, 5))
        into = rng.sample(range(count), rng.randint(1, min(3, count)))
        if rng.random() < 0.5:
            into = into[:1]
        named = Global(id=f"g{number}", parts=len(into) if says else 0)
        late = 0
        for one in into:
            late += rng.choice((0, 0, 3, 20, 45)) if len(into) > 1 else 0
            at = now + late - rng.choice((0, 0, 0, 4))
            inputs[one].append((at, named if len(into) > 1 else None))
    for one, of in enumerate(inputs):
        # The order of a server's log is nearly that of its commit times, not quite.
        of.sort(key=lambda pair: pair[0] + rng.choice((0, 0, 3)))
        inputs[one] = [(at, named) for at, named in of]
    return World(inputs=inputs, says_parts=says)


def model(of: World) -> list[Given]:  # noqa: C901 - all of it in one place
    """Return the merged order, one transaction at a time, with everything known."""
    left = [list(enumerate(one, 1)) for one in of.inputs]
    high = [0] * len(left)
    blocked: dict[int, str] = {}
    given: list[Given] = []

    def part(index: int, name: str) -> tuple[int, int] | None:
        return next(
            ((at, trx) for trx, (at, one) in left[index] if one is not None and one.id == name),
            None,
        )

    def pop(index: int) -> int:
        trx, (at, _) = left[index].pop(0)
        high[index] = max(high[index], at)
        return trx

    def others(index: int) -> list[int]:
        at, named = left[index][0][1]
        assert named is not None
        found = [(i, part(i, named.id)) for i in range(len(left)) if i != index]
        return [i for i, pair in found if pair is not None and abs(pair[0] - at) <= JOIN_US]

    members: dict[str, set[int]] = {}
    while any(left):
        heads = [
            (max(high[i], one[0][1][0]), i)
            for i, one in enumerate(left)
            if one and i not in blocked
        ]
        at, index = min(heads)
        named = left[index][0][1][1]
        partners = others(index) if named is not None else []
        if named is None or not partners:
            given.append(((index, pop(index)),))
            continue
        if all(blocked.get(other) == named.id for other in partners):
            joined = sorted((*partners, index))
            given.append(tuple((i, pop(i)) for i in joined))
            for i in joined:
                high[i] = max(high[i], at)
            blocked = {i: name for i, name in blocked.items() if name != named.id}
            continue
        members[named.id] = {index, *partners}
        waits = {**blocked, index: named.id}

        def leads_to(name: str, goal: str, seen: set[str], waits: dict[int, str] = waits) -> bool:
            for i in members[name]:
                behind = waits.get(i, name)
                if behind == name:
                    continue
                if behind == goal:
                    return True
                if behind not in seen and leads_to(behind, goal, seen | {behind}):
                    return True
            return False

        if leads_to(named.id, named.id, set()):
            given.append(((index, pop(index)),))
            blocked = {i: name for i, name in blocked.items() if name != named.id}
        else:
            blocked = waits
    return given


# -- logs of such worlds ---------------------------------------------------------------------------

BASE_US = 1_700_000_000_000_000
OWN = replace(ITEM, name="own", source_id=7)


@dataclass
class LogOf:
    """The log of one input, written step by step as its extractor would; it may fall behind."""

    directory: Path
    transactions: list[tuple[int, Global | None]]
    rows: list[list[Change]]
    numbered: list[list[Row]] = field(default_factory=list)
    written: int = 0
    writer: Writer | None = None

    def __post_init__(self) -> None:
        self.numbered = number_rows(self.rows, keys_have_two=True)
        links.enable(self.links)

    @property
    def links(self) -> Path:
        return self.directory / "cdc" / "merge-all"

    @property
    def place(self) -> InputPlace:
        return InputPlace(name=self.directory.name, log=self.directory / "log", links=self.links)

    def open_writer(self) -> Writer:
        if self.writer is None:
            self.writer = Writer.open(
                self.directory / "log",
                log_id=None,
                source=SOURCE,
                options=WriterOptions(consumers=self.directory / "cdc", keeping=KEEP_NONE),
            )
        return self.writer

    def write(self, count: int, *, rotates: bool = False) -> None:
        """Write so many more transactions, in one run, and make them durable."""
        first = self.written
        chosen = range(first, min(first + count, len(self.transactions)))
        writer = self.open_writer()
        if chosen:
            writer.write(self._run(chosen))
            writer.flush()
            self.written = chosen[-1] + 1
        if rotates:
            writer.rotate()

    def _run(self, chosen: range) -> Run:
        rows = [row for at in chosen for row in self.numbered[at]]
        markers, lines = [], []
        gsn = next((r[-1].gsn for r in reversed(self.numbered[: chosen[0]]) if r), 0)
        for at in chosen:
            time_us, named = self.transactions[at]
            trx, position = at + 1, (at + 1) * 100
            if named is not None:
                prefix = GLOBAL_PREFIX + (f"/{named.parts}" if named.parts else "")
                markers.append(
                    Marker(
                        kind=MarkerKind.MESSAGE,
                        gsn=gsn,
                        trx=trx,
                        position=position,
                        commit_time_us=BASE_US + time_us,
                        data={"prefix": prefix, "content": named.id, "transactional": True},
                    )
                )
            gsn = self.numbered[at][-1].gsn if self.numbered[at] else gsn
            lines.append((position, position + 50, BASE_US + time_us, 700 + trx))
        return Run(
            rows=rows_of(rows),
            markers=tuple(markers),
            transactions=transactions_batch(lines),
            end=FlushPoint(
                position=lines[-1][1], gsn=gsn, trx=chosen[-1] + 1, commit_time_us=lines[-1][2]
            ),
        )

    def end(self) -> None:
        """Write all of it, and finish the log."""
        self.write(len(self.transactions), rotates=True)
        self.open_writer().finish()
        self.close()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None


def rows_for(rng: random.Random, of: World, relation_of: Sequence[Relation]) -> list[list[Any]]:
    """Return rows of each input's transactions: inserts, key changes and deletes; none in some."""
    found: list[list[Any]] = []
    for index, transactions in enumerate(of.inputs):
        relation = relation_of[index]
        of_input = []
        for trx in range(1, len(transactions) + 1):
            key = index * 10_000 + trx * 10
            some = [
                Change(relation=relation, op=Op.INSERT, after=(key + n, f"{index}/{trx}"))
                for n in range(rng.randint(0, 3))
            ]
            if some and rng.random() < 0.3:
                moved = Change(
                    relation=relation, op=Op.UPDATE, before=(key,), after=(key + 9, "moved")
                )
                some.append(moved)
            if some and rng.random() < 0.2:
                some.append(Change(relation=relation, op=Op.DELETE, after=None, before=(key + 1,)))
            of_input.append(some)
        found.append(of_input)
    return found


def expected_rows(given: Sequence[Given], logs: Sequence[LogOf]) -> list[tuple[Any, ...]]:
    """Return the expected merged log: number, transaction, operation and image of each row."""
    found, gsn = [], 0
    for trx, parts in enumerate(given, 1):
        for index, number in parts:
            for row in logs[index].numbered[number - 1]:
                gsn += 1 + moves(row.change)
                change = row.change
                found.append((gsn, trx, change.relation.name, int(change.op), change.after))
    return found


def merged_rows(directory: Path) -> list[tuple[Any, ...]]:
    """Return the content of a merged log, as `expected_rows`; all segments are closed."""
    found: list[tuple[Any, ...]] = []
    for segment in open_chain(list_segments(directory / "log")):
        with segment:
            for one in segment.in_order():
                if isinstance(one, Marker):
                    continue
                relation, at, batch = one
                after = batch.column("after")[at].as_py()
                image = tuple(after.values()) if after is not None else None
                gsn, trx, op = (batch.column(place)[at].as_py() for place in range(3))
                found.append((gsn, trx, relation.name, op, image))
    return found


SECTION = MergeSection(logs=(), join_seconds=JOIN_US / 1e6, clock_skew_seconds=SKEW_US / 1e6)
OPTIONS = ExtractOptions(
    exit_when_idle=True, idle_wait_s=0.05, flush_interval_s=0.05, apply_interval_s=0.0001
)


def merge(
    logs: Sequence[LogOf],
    directory: Path,
    *,
    section: MergeSection = SECTION,
    options: ExtractOptions = OPTIONS,
    **more: Any,
) -> Extractor:
    """Return the extractor of a merge of these logs, which does not run yet."""
    engine = MergeEngine(
        name="all",
        scheme="merged-postgresql",
        types="postgresql",
        places=[one.place for one in logs],
        section=section,
    )
    return Extractor(engine, directory, options=options, **more)


FACTS: dict[str, Any] = {
    "watermark_us": 2_000_000,
    "held_by": ["s1"],
    "held_s": 12.0,
    "clock_skew_us": 7_000_000,
    "clock_skew_max_us": 5_000_000,
    "joined_count": 3,
    "unjoined_count": 1,
    "left_out_count": 2,
    "inputs": [
        {"name": "s0", "trx": 5, "behind": 4, "resolved_us": 1_000_000},
        {"name": "s1", "trx": 6, "behind": 0, "resolved_us": 0},
        {"name": "s2", "number": 3, "is_over": True},
    ],
}
"""Possible content of run/merge.json."""
