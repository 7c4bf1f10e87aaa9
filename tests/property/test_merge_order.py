"""Order of a merged log, compared with a model that knows all inputs completely from the start.

However the inputs arrive, and however often the merging process is killed, the order is the
model's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from harness.pipelines.merged import JOIN_US, SKEW_US, Given, World, model, world
from penstock.merge import order as merging
from penstock.merge.order import Global, InputQueue, Order, Reached, Round, TransactionLate

END_US = 10**6


@dataclass
class Merging:
    """Successive lives of a merging process; what it returned is durable at random."""

    world: World
    rng: random.Random
    weight_max: float = 10.0
    given: list[Given] = field(default_factory=list)
    durable: list[Reached] = field(default_factory=list)
    kept: int = 0

    def start(self) -> None:
        self.given = self.given[: self.kept]
        reached = self.durable or [Reached() for _ in self.world.inputs]
        self.queues = [InputQueue(str(i), one, skew_us=SKEW_US) for i, one in enumerate(reached)]
        self.order = Order(
            self.queues, join_us=JOIN_US, skew_us=SKEW_US, weight_max=self.weight_max
        )

    def read(self, index: int) -> None:
        """Read more of an input; after its last transaction a heartbeat shows that no more will
        come.
        """
        queue, of = self.queues[index], self.world.inputs[index]
        begin = queue.read_trx
        count = self.rng.randint(1, 4)
        found = of[begin : begin + count]
        if not found:
            found = [(END_US + begin, None)]
        times = np.array([at for at, _ in found], np.int64)
        named = {trx: one for trx, (_, one) in enumerate(found, begin + 1) if one is not None}
        queue.append(times, np.ones(len(times)), named)

    def take(self, found: Round) -> None:
        ends = [queue.trx for queue in self.queues]
        counts = np.bincount(found.which, minlength=len(ends))
        at = [end - int(count) for end, count in zip(ends, counts, strict=True)]
        groups: dict[int, list[tuple[int, int]]] = {}
        for index, group in zip(found.which.tolist(), found.group.tolist(), strict=True):
            at[index] += 1
            groups.setdefault(group, []).append((index, at[index]))
        self.given += map(tuple, groups.values())

    def run(self, *, crashes: int = 0, looks_ahead: bool = True) -> list[Given]:
        self.start()
        while True:
            if crashes and self.rng.random() < 0.05:
                crashes -= 1
                self.start()
                continue
            found = self.order.next()
            if found is not None:
                self.take(found)
                if self.rng.random() < 0.3:
                    self.kept, self.durable = len(self.given), [q.position for q in self.queues]
                continue
            if all(
                queue.read_trx > len(of) and queue.trx >= len(of)
                for queue, of in zip(self.queues, self.world.inputs, strict=True)
            ):
                return self.rows()
            at_once = looks_ahead and self.rng.random() < 0.3
            everyone = range(len(self.queues))
            for index in everyone if at_once else self.order.holding:
                self.read(index)

    def rows(self) -> list[Given]:
        """Return what was given out, without heartbeats after the ends."""
        sizes = [len(of) for of in self.world.inputs]
        return [one for one in self.given if all(trx <= sizes[i] for i, trx in one)]


def differing(change: Callable[[pytest.MonkeyPatch], None] | None = None, seeds: int = 150) -> int:
    """Return in how many of these runs the order is not the model's."""
    found = 0
    with pytest.MonkeyPatch.context() as patch:
        if change is not None:
            change(patch)
        for seed in range(seeds):
            of = world(random.Random(seed))
            expected = model(of)
            for again in range(4):
                run = Merging(of, random.Random(seed * 7 + again))
                run.weight_max = (1.0, 10.0, 1000.0)[again % 3]
                found += run.run(crashes=3 * (again % 2)) != expected
    return found


def test_the_order_is_the_models_however_inputs_arrive_and_however_often_it_is_killed() -> None:
    """There are 600 runs over 150 worlds."""
    assert differing() == 0


def test_a_watermark_of_the_furthest_input_is_found() -> None:
    """The runs detect a merge that uses the latest resolved time in place of the earliest."""

    def latest(patch: pytest.MonkeyPatch) -> None:
        def limit(order: Order) -> tuple[int, int]:
            known = [
                (queue.resolved_us, index)
                for index, queue in enumerate(order.queues)
                if index not in order._blocked
            ]
            return max(known, default=(merging.NEVER, 0))

        patch.setattr(Order, "_limit", limit)

    assert differing(latest, seeds=30) > 60


def test_parts_that_are_not_waited_for_are_found() -> None:
    """The runs detect a merge that joins the parts that happen to be there."""

    def at_once(patch: pytest.MonkeyPatch) -> None:
        real = Order._others

        def others(order: Order, *given: object) -> tuple[list[int], list[int], int]:
            found, _, told = real(order, *given)  # type: ignore[arg-type]
            return found, [], told

        patch.setattr(Order, "_others", others)

    assert differing(at_once, seeds=30) > 5


def test_each_inputs_order_is_kept_and_parts_that_can_be_are_joined() -> None:
    """Each transaction is there once; of two transfers that cross, one is joined."""
    joined = 0
    for seed in range(100):
        of = world(random.Random(seed))
        given = Merging(of, random.Random(seed)).run()
        for index, inside in enumerate(of.inputs):
            numbers = [trx for one in given for i, trx in one if i == index]
            assert numbers == list(range(1, len(inside) + 1))
        joined += sum(len(one) > 1 for one in given)
    assert joined > 50
    crossing = World(
        inputs=[
            [(10, Global(id="p", parts=2)), (14, Global(id="q", parts=2))],
            [(11, Global(id="q", parts=2)), (13, Global(id="p", parts=2))],
        ]
    )
    run = Merging(crossing, random.Random(1))
    assert run.run() == model(crossing) == [((1, 1),), ((0, 1), (1, 2)), ((0, 2),)]
    assert (run.order.joined_count, run.order.unjoined_count) == (1, 2)


def test_a_commit_that_is_earlier_than_its_log_had_said_is_an_error() -> None:
    """Within clockSkewSeconds it keeps its place in its log; beyond that nothing is reordered."""
    queue = InputQueue("s0", Reached(), skew_us=SKEW_US)
    ones = np.ones(2)
    queue.append(np.array([100, 100 - SKEW_US]), ones, {})
    assert queue.at.tolist() == [100, 100]
    with pytest.raises(TransactionLate) as caught:
        queue.append(np.array([101, 101 - SKEW_US - 1]), ones, {})
    assert caught.value.fields["trx"] == 4


def test_an_input_that_joins_gives_only_what_is_later() -> None:
    """After a restart the input still knows what it has to skip."""
    queue = InputQueue("new", Reached(skips_us=50), skew_us=SKEW_US)
    assert queue.resolved_us == 50
    assert queue.append(np.array([10, 20]), np.ones(2), {}) == 2
    queue = InputQueue("new", queue.position, skew_us=SKEW_US)
    assert queue.append(np.array([50, 51, 49]), np.ones(3), {}) == 1
    assert (queue.trx, queue.at.tolist()) == (3, [51, 51])
    assert replace(queue.position, floor_us=0, seen_us=0).skips_us == 0
