"""One fenced position for every writer: whatever two instances do, no row is lost or goes back.

There are requests, sweeps, windows row by row and through a log, in all modes; an instance is
killed between any two steps, or the other one works there; rows and resolved timestamps are
repeated, and late.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.feeds.interleaved import IN_TRANSACTION, MODES, POINTS, World
from harness.twins.examples import examples
from penstock.feeds.apply import sequencer
from penstock.host import faults

feeds = st.sampled_from(["a", "b"])
modes = st.sampled_from(MODES)
instances = st.integers(0, 1)
keys = st.integers(1, 3)
Step = Callable[[World], None]

simple: st.SearchStrategy[Step] = st.one_of(
    st.builds(lambda n, k, a: lambda w: w.change(n, k, a), feeds, keys, st.integers(0, 9)),
    st.builds(lambda n, m, c: lambda w: w.send(n, m, c), feeds, modes, st.integers(1, 4)),
    st.builds(lambda n, m, c: lambda w: w.send(n, m, c), feeds, modes, st.integers(1, 4)),
    st.builds(lambda n, m, p: lambda w: w.send_again(n, m, p), feeds, modes, st.integers(0, 9)),
    st.builds(lambda n, m, k: lambda w: w.break_promise(n, m, k), feeds, modes, keys),
    st.builds(lambda n: lambda w: w.resolve(n, 0), feeds),
    st.builds(lambda n: lambda w: w.resolve(n, 0), feeds),
    st.builds(lambda n, b: lambda w: w.resolve(n, b), feeds, st.integers(1, 3)),
    st.builds(lambda i: lambda w: w.take_over(i), instances),
    st.builds(lambda i, m: lambda w: w.round(i, m), instances, modes),
    st.builds(lambda i, m: lambda w: w.round(i, m), instances, modes),
    st.builds(lambda i: lambda w: w.extract(i), instances),
    st.builds(lambda i: lambda w: w.load(i), instances),
    st.just(lambda w: w.mark()),
)


def _kill_at(point: str) -> Step:
    return lambda world: world.plan.append((point, world.kill))


def _work_at(point: str, others: list[Step]) -> Step:
    def work(world: World) -> None:
        def act() -> None:
            for other in others:
                other(world)

        world.plan.append((point, act))

    return work


steps = st.one_of(
    simple,
    simple,
    simple,
    st.builds(_kill_at, st.sampled_from(POINTS)),
    st.builds(
        _work_at,
        st.sampled_from([one for one in POINTS if one not in IN_TRANSACTION]),
        st.lists(simple, min_size=1, max_size=6),
    ),
)


@examples(2)
@given(st.lists(steps, max_size=40))
def test_nothing_is_lost_and_nothing_goes_back(done: list[Step]) -> None:
    """The target equals the source in the end, and every row is marked."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        world = World(stack)
        patch.setattr(faults, "point", world.point)
        patch.setattr(sequencer, "FLUSH_ROWS", 1)
        for step in done:
            step(world)
        world.settle()
