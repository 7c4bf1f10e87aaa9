"""Several nodes of a cluster with any faults of it and of the extractor: no change is lost or old.

`harness.ignite.cluster` has the model of the cluster.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.ignite.cluster import Cluster, Extraction, Record
from harness.twins.examples import examples
from penstock.codec.ignite.wal import Version
from penstock.engines.ignite.source import versions
from penstock.engines.ignite.source.versions import SLACK_MS

NAMES = (
    *("change", "change", "change", "remove", "deliver", "archive", "read", "read", "flush"),
    *("kill", "start", "wait", "wait long", "resend", "log resent"),
    *("restart", "crash in flush", "crash behind flush"),
)
STEPS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 5)), min_size=40, max_size=160)
CLUSTERS = st.tuples(st.integers(2, 4), st.integers(0, 2))


@contextmanager
def extraction(cluster: Cluster, **more: bool) -> Iterator[Extraction]:
    """Extract all nodes of a cluster."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "BLOCK_COUNT_MAX", 3)
        nodes = list(range(cluster.node_count))
        yield Extraction(cluster, Path(folder) / "versions.db", nodes, **more)


def play_steps(cluster: Cluster, extracted: Extraction, steps: list[tuple[str, int]]) -> None:
    """Do these steps at the cluster or at its extraction, each with its number."""
    value = iter(range(1 << 30))
    node_count = cluster.node_count
    actions: dict[str, Callable[[int], object]] = {
        "change": lambda key: cluster.change(key, next(value)),
        "remove": lambda key: cluster.change(key, None),
        "deliver": cluster.deliver,
        "archive": lambda node: cluster.archive(node % node_count),
        "read": lambda number: extracted.read(number % node_count, 1 + number),
        "flush": lambda _: extracted.flush(),
        "kill": lambda node: cluster.kill(node % node_count),
        "start": lambda node: cluster.start(node % node_count),
        "wait": lambda number: cluster.wait(number * 1000),
        "wait long": lambda number: cluster.wait(number * SLACK_MS),
        "resend": lambda _: cluster.resend(),
        "log resent": cluster.log_resent,
        "restart": lambda _: extracted.restart(),
        "crash in flush": lambda _: (extracted.begin_flush(), extracted.restart()),
        "crash behind flush": lambda _: extracted.flush_unknown(),
    }
    for name, number in steps:
        actions[name](number)


def check_order(extracted: Extraction, *, gives_copies: bool = False) -> None:
    """Check that no version of a key follows a newer one, and that only resent ones repeat."""
    by_key: dict[int, list[Record]] = {}
    for _, record in extracted.log:
        by_key.setdefault(record.key, []).append(record)
    for records in by_key.values():
        for first, second in pairwise(records):
            may_repeat = gives_copies or second.resent
            is_same = first.version == second.version
            assert first.version[:3] < second.version[:3] or (is_same and may_repeat)


def check_last(cluster: Cluster, extracted: Extraction) -> None:
    """Check that the log's last value of each key is the newest that can be read."""
    newest: dict[int, tuple[Version, int | None]] = {}
    for segments in cluster.archived:
        for record in (record for segment in segments for record in segment):
            if record.key not in newest or newest[record.key][0] < record.version:
                newest[record.key] = record.version, record.value
    assert extracted.last() == newest


def finish(cluster: Cluster, extracted: Extraction) -> None:
    """Archive everything that was logged by running nodes, and read it."""
    cluster.settle()
    for node in range(cluster.node_count):
        cluster.archive(node)
    extracted.read_all()


@given(cluster=CLUSTERS, steps=STEPS)
@examples(1)
def test_nothing_is_lost_or_old(cluster: tuple[int, int], steps: list[tuple[str, int]]) -> None:
    """All archived changes are read while nodes are dead; in the end the log equals the caches."""
    made = Cluster(*cluster)
    with extraction(made) as extracted:
        play_steps(made, extracted, steps)
        finish(made, extracted)
        check_order(extracted)
        check_last(made, extracted)
        for node in range(made.node_count):
            made.start(node)
        finish(made, extracted)
        check_order(extracted)
        assert extracted.last() == made.values


@given(cluster=CLUSTERS, steps=STEPS)
@examples(0.5)
def test_copies_are_given_too(cluster: tuple[int, int], steps: list[tuple[str, int]]) -> None:
    """The same version is repeated with includeBackups, never an older one."""
    made = Cluster(*cluster)
    with extraction(made, gives_copies=True) as extracted:
        play_steps(made, extracted, steps)
        finish(made, extracted)
        check_order(extracted, gives_copies=True)
        check_last(made, extracted)


@given(cluster=CLUSTERS, before=STEPS, between=STEPS, steps=STEPS)
@examples(0.5)
def test_a_node_is_taken_out_and_joins_again(
    cluster: tuple[int, int],
    before: list[tuple[str, int]],
    between: list[tuple[str, int]],
    steps: list[tuple[str, int]],
) -> None:
    """Changes from before it joined are skipped: no old one is read. A resend has the rest."""
    made = Cluster(*cluster)
    with extraction(made) as extracted:
        everyone = extracted.listed
        play_steps(made, extracted, before)
        extracted.restart(everyone[:-1])
        play_steps(made, extracted, between)
        extracted.restart(everyone)
        play_steps(made, extracted, steps)
        for node in everyone:
            made.start(node)
        finish(made, extracted)
        made.wait(10 * SLACK_MS)
        made.resend()
        finish(made, extracted)
        check_order(extracted)
        last = extracted.last()
        for key, (version, value) in made.values.items():
            if value is not None:
                assert last[key] == (version, value)
