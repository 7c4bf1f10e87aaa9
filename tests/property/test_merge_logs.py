"""Logs of any world, merged by the extractor's loop: the rows and their numbers after a crash."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from harness.pipelines.log import ITEM
from harness.pipelines.merged import (
    OPTIONS,
    OWN,
    SECTION,
    SKEW_US,
    LogOf,
    World,
    expected_rows,
    merge,
    merged_rows,
    model,
    rows_for,
    world,
)
from penstock.extract import extractor
from penstock.host import faults
from penstock.log import list_segments
from penstock.log.reader import check

POINTS = (
    "extract.write.after",
    "extract.flush.before",
    "log.flush.before",
    "log.flush.after",
    "merge.shapes.before",
    "merge.state.before",
    "merge.state.after",
    "extract.acknowledge.after",
    "log.footer.before",
    "log.state.before",
    "log.rename.before",
    "extract.rotate.after",
)


def logs_of(of: World, rng: random.Random, folder: Path) -> list[LogOf]:
    """Return a log for each input: the first two share a table."""
    relations = [ITEM if index < 2 else replace(OWN, name=f"own{index}") for index in range(9)]
    rows = rows_for(rng, of, relations)
    return [
        LogOf(folder / f"s{index}", transactions, rows[index])
        for index, transactions in enumerate(of.inputs)
    ]


def after(looks: int) -> Callable[[], bool]:
    """Return a stop after so many looks: inputs that have not ended may keep it from being idle."""
    left = iter([False] * looks)
    return lambda: next(left, True)


@pytest.mark.parametrize("seed", range(6))
def test_rows_and_numbers_are_the_models(seed: int, tmp_path: Path) -> None:
    """Logs are written in any portions; every segment of the inputs is released at the end."""
    rng = random.Random(seed)
    of = world(rng)
    logs = logs_of(of, rng, tmp_path)
    while any(log.written < len(log.transactions) for log in logs):
        rng.choice(logs).write(rng.randint(1, 6), rotates=rng.random() < 0.5)
    for log in logs:
        log.end()
    merge(logs, tmp_path / "all").run()
    assert merged_rows(tmp_path / "all") == expected_rows(model(of), logs)
    assert check(tmp_path / "all" / "log") == []
    for log in logs:
        assert len(list_segments(log.links)) <= 1  # the last one may be continued


@pytest.mark.parametrize("seed", range(8))
def test_a_log_is_split_at_any_moment(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes of the two that continue follow its end, also if their clocks are behind; the order
    does not depend on when the file was changed, nor on crashes.
    """
    monkeypatch.setattr(extractor, "WAIT_S", 0.02)
    rng = random.Random(seed)
    drawn = world(rng)
    while len(drawn.inputs) < 2 or len(drawn.inputs[0]) < 4:
        drawn = world(rng)
    plain = [[(at, None) for at, _ in of] for of in drawn.inputs]
    first, cut = plain[0], rng.randint(1, len(plain[0]) - 2)
    end_us = max(at for at, _ in first[:cut])
    behind = [(at - rng.choice((0, SKEW_US)), None) for at, _ in first[cut:]]
    halves = [behind[::2], behind[1::2]]
    parts = [first[:cut], *plain[1:], *halves]
    logs = logs_of(World(inputs=parts), rng, tmp_path)
    parent, children = logs[0], logs[-2:]
    before = logs[:-2]
    for log in before:
        log.write(rng.randint(0, 5), rotates=rng.random() < 0.5)
    for _ in range(2):
        with faults.arming(f"{rng.choice(POINTS)}:2:error=EIO"), suppress(OSError):
            merge(before, tmp_path / "all", stop=after(rng.randint(1, 20))).run()
        for log in before:
            log.write(rng.randint(0, 5))
    section = replace(SECTION, split={"s0": tuple(log.directory.name for log in children)})
    parent.write(len(parts[0]), rotates=True)
    parent.close()
    for log in logs[1:]:
        log.write(rng.randint(1, 5), rotates=True)
        with faults.arming(f"{rng.choice(POINTS)}:2:error=EIO"), suppress(OSError):
            merge(logs, tmp_path / "all", section=section, stop=after(rng.randint(1, 20))).run()
    for log in logs[1:]:
        log.end()
    merge(logs, tmp_path / "all", section=section).run()
    floored = [[(max(at, end_us + 1), None) for at, _ in half] for half in halves]
    expected = model(World(inputs=[*parts[:-2], *floored]))
    assert merged_rows(tmp_path / "all") == expected_rows(expected, logs)


@pytest.mark.parametrize("seed", range(10))
def test_the_same_transactions_get_the_same_numbers_after_any_crash(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends at any point, repeatedly; meanwhile the inputs grow."""
    monkeypatch.setattr(extractor, "WAIT_S", 0.02)
    rng = random.Random(seed)
    of = world(rng)
    logs = logs_of(of, rng, tmp_path)
    options = replace(OPTIONS, operation_count_max=7, events_per_flush=3)
    crashes = 0
    while any(log.written < len(log.transactions) for log in logs) or crashes < 4:
        for log in rng.sample(logs, rng.randint(0, len(logs))):
            log.write(rng.randint(1, 8), rotates=rng.random() < 0.5)
        fault = f"{rng.choice(POINTS)}:{rng.randint(1, 4)}:error=EIO"
        with faults.arming(fault), suppress(OSError):
            merge(logs, tmp_path / "all", options=options, stop=after(rng.randint(1, 30))).run()
        crashes += 1
    for log in logs:
        log.end()
    merge(logs, tmp_path / "all", options=options).run()
    assert merged_rows(tmp_path / "all") == expected_rows(model(of), logs)
