"""Time until a change was visible: the histogram, and what is measured."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from penstock.load.loader_state import (
    LoaderState,
    read_loader_state,
    write_loader_state,
)
from penstock.load.plan import SegmentView
from penstock.load.sql_target import _heartbeats
from penstock.model import FlushPoint, Marker, MarkerKind
from penstock.model.histogram import LATENCY_BOUNDS_S, Histogram
from penstock.ports.target import Applied


def observe_values(values: list[float]) -> Histogram:
    """Return a histogram of these values."""
    found = Histogram()
    for value in values:
        found.observe(value)
    return found


def test_buckets_are_those_of_prometheus() -> None:
    """Buckets are cumulative, an upper bound belongs to its bucket, and the last one counts all."""
    values = [0.0, 0.01, 0.0101, 3600.0, 3601.0, 9999.0]
    found = observe_values(values)
    assert found.cumulative() == [
        *((str(bound), sum(value <= bound for value in values)) for bound in LATENCY_BOUNDS_S),
        ("+Inf", 6),
    ]
    assert found.count == 6
    assert found.sum == pytest.approx(sum(values))
    assert found.last == 9999.0


def test_a_quantile_is_in_the_bucket_of_the_true_one() -> None:
    """The quantile is as exact as the buckets are; without values there is none."""
    assert Histogram().quantile(0.5) is None
    chance = random.Random(1)
    values = [chance.expovariate(1.0) for _ in range(2000)]
    found = observe_values(values)
    for share in (0.01, 0.5, 0.9, 0.99):
        true = sorted(values)[round(share * len(values)) - 1]
        told = found.quantile(share)
        assert told is not None
        low = max((bound for bound in LATENCY_BOUNDS_S if bound < true), default=0.0)
        high = min(bound for bound in LATENCY_BOUNDS_S if bound >= true)
        assert low <= told <= high
    assert observe_values([9999.0]).quantile(0.5) == LATENCY_BOUNDS_S[-1]


def test_two_clocks_give_nothing_below_zero() -> None:
    """The source's clock may be ahead."""
    state = LoaderState(pid=1)
    after = Applied(trx=2, commit_time_us=6_000_000)
    batch = SimpleNamespace(heartbeats=(6_000_000,), before=Applied(trx=1), after=after)
    state.note_latency(batch, now_us=1_000_000)
    for found in (state.heartbeats, state.commits):
        assert (found.sum, found.last, found.cumulative()[0][1]) == (0.0, 0.0, 1)


def test_buckets_in_another_unit() -> None:
    """A consumer's histogram has its own bounds, in milliseconds; the page has seconds."""
    found = Histogram((100, 500))
    found.observe(100)
    found.observe(501)
    assert found.cumulative(1000) == [("0.1", 1), ("0.5", 1), ("+Inf", 2)]


def test_counts_of_other_bounds_are_refused() -> None:
    """A state file that another release has written may hold them."""
    with pytest.raises(ValueError, match="2 counts for 2 bounds"):
        Histogram((100, 500), [1, 2])


def test_it_is_kept_in_the_loaders_file(tmp_path: Path) -> None:
    """Each process begins with its own."""
    state = LoaderState(pid=1)
    state.heartbeats.observe(0.2)
    write_loader_state(tmp_path, state)
    again = read_loader_state(tmp_path)
    assert again == state
    assert LoaderState(pid=2).heartbeats.count == 0
    assert msgspec.json.decode(b'{"pid": 3}', type=LoaderState).commits.count == 0


def test_heartbeats_of_a_batch_are_those_of_its_transactions() -> None:
    """Heartbeats that were applied before, or are after the batch's end, do not count."""

    def heartbeat(trx: int, kind: MarkerKind = MarkerKind.HEARTBEAT) -> Marker:
        data = {"sent_us": trx * 10}
        return Marker(kind=kind, gsn=0, trx=trx, position=trx, commit_time_us=0, data=data)

    markers = (*map(heartbeat, range(1, 7)), heartbeat(4, MarkerKind.TRUNCATE))
    view = SegmentView(
        number=0,
        path=Path("0.ckt"),
        start=FlushPoint(position=0),
        end=FlushPoint(position=9),
        relations=(),
        frames=(),
        trx_from=lambda _: 0,
        markers=markers,
    )
    before = Applied(trx=2)
    assert _heartbeats([view], before, replace(before, trx=4)) == (30, 40)
    assert _heartbeats([view], before, replace(before, trx=2)) == ()
