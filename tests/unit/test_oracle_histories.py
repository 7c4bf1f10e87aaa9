"""Random histories of the model, through the whole source: each transaction once, with its rows."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from harness.servers.redo_log import RedoLog, Truth, check_log
from penstock.model import PenstockError
from sim_oracle.driver_servers import install
from sim_oracle.histories import Habits, History
from sim_oracle.session import Server

STEPS = 160
HABITS = (
    Habits(disturbances=0.05),
    Habits(threads=1),
    Habits(disturbances=0.3),
    Habits(threads=3, open_max=9),
)


def play(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    seed: int,
    *,
    steps: int = STEPS,
    habits: Habits | None = None,
    breaks: float = 0.0,
    spill_bytes: int | None = None,
) -> int:
    """Play a history while a log follows it, and check the log; return its transactions."""
    history = History(seed, habits or HABITS[seed % len(HABITS)])
    server = Server(history.database)
    address = install(monkeypatch, server)
    for _ in range(60):
        history.step()
    log = RedoLog(server, address, tmp_path, spill_bytes=spill_bytes)
    truth = Truth(history.database, {})
    truth.load(log.begin_scn)
    history.before_ddl = log.catch_up
    server.on_fetch = lambda _: history.disturb()
    rng = random.Random(seed)

    def follow(runs: int | None = None) -> None:
        for _ in range(9):
            try:
                log.follow(runs=runs)
            except PenstockError as error:
                if error.retry != "backoff":
                    raise
                log.reconnect()
            else:
                return
        raise AssertionError("it does not recover")

    for number in range(steps):
        history.step()
        if number % 12 == 0:
            follow(rng.randrange(1, 5) if rng.random() < breaks else None)
            if rng.random() < breaks:
                log.reconnect()
            elif rng.random() < breaks:
                log.engine.close()
                log.start()
            history.safe_scn = log.engine._marks.low_at(log.end.position)
    history.finish()
    follow()
    count = check_log(log, truth, after_scn=log.begin_scn)
    log.engine.close()
    return count


@pytest.mark.parametrize("seed", range(6))
def test_a_history_is_in_the_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    """The log has every committed transaction once, in commit order, with its rows."""
    assert play(monkeypatch, tmp_path, seed) > 5


@pytest.mark.parametrize("seed", range(12, 16))
def test_a_broken_stream_continues(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    """Streams and processes that end anywhere change nothing."""
    assert play(monkeypatch, tmp_path, seed, breaks=0.4) > 5


@pytest.mark.parametrize("seed", range(20, 23))
def test_a_history_through_side_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    """Transactions that do not fit into memory are read from files."""
    assert play(monkeypatch, tmp_path, seed, breaks=0.2, spill_bytes=1500) > 5
