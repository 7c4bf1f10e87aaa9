"""Lag of a merged log: the age of the oldest commit of any log that is not merged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.log import ITEM, Change
from harness.pipelines.merged import BASE_US, LogOf
from penstock.control.pipeline.config import load_config
from penstock.host.files import FileMissing
from penstock.host.state_file import StateFile
from penstock.log import list_segments
from penstock.merge.inputs import MergeInput
from penstock.merge.lag import MergeLagReader
from penstock.merge.order import Reached
from penstock.merge.state import STATE_FILE, InputState, MergeState
from penstock.model import FlushPoint, Op
from penstock.ports.config import Config
from penstock.ports.lag import LogEnd

END = LogEnd(end=FlushPoint(position=7), has_writer=True)


def log_at(folder: Path, name: str, *times: int, rows: int = 1) -> LogOf:
    """Write a log with transactions at these times, each with so many rows."""
    some = [
        [Change(relation=ITEM, op=Op.INSERT, after=(n * 10 + at, name)) for at in range(rows)]
        for n in range(len(times))
    ]
    log = LogOf(folder / name, [(at, None) for at in times], some)
    log.end()
    return log


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A merge of three logs."""
    for name in ("s0", "s1", "s2"):
        (tmp_path / f"{name}.toml").write_text(
            f'[pipeline]\nname = "{name}"\ndirectory = "{name}"\n'
            '[source]\nurl = "postgresql://u@h/d"\ntables = ["public.*"]\n'
        )
    path = tmp_path / "all.toml"
    path.write_text(
        '[pipeline]\nname = "all"\ndirectory = "all"\n'
        '[merge]\nlogs = ["s0.toml", "s1.toml", "s2.toml"]\n'
    )
    return load_config(path)


def since(config: Config) -> int | None:
    """Return the start of the wait, counted from the beginning of the test's time."""
    found = MergeLagReader(config, "test").state(END)
    assert found.unread is not None
    assert found.position == 7 + (found.unread.commit_us is not None)
    assert (found.confirmed, found.slot_exists, found.slot_active) == (7, True, True)
    us = found.unread.commit_us
    return None if us is None else us - BASE_US


def save_merged(config: Config, *found: InputState) -> None:
    """Save the merge's place in its logs."""
    file = StateFile(config.layout.state / STATE_FILE, list[MergeState])
    file.save([MergeState(trx=1, inputs=found)])


def test_the_lag_is_that_of_the_log_that_is_furthest_behind(tmp_path: Path, config: Config) -> None:
    """The lag is not that of the most advanced log, whose commits were merged long ago."""
    logs = [log_at(tmp_path, f"s{n}", *at) for n, at in enumerate([(30, 90), (10, 20), (50, 60)])]
    assert since(config) == 10
    (config.layout.state).mkdir(parents=True, exist_ok=True)
    state = InputState(name="s1", number=2, segment=0, reached=Reached(trx=1))
    save_merged(config, replace(state, name="s0", reached=Reached(trx=1)), state)
    assert since(config) == 20
    save_merged(config, *(replace(state, name=f"s{n}", reached=Reached(trx=2)) for n in range(3)))
    assert since(config) is None
    for log in logs:
        assert len(list_segments(log.links)) == 1  # looking removes nothing


def test_what_has_no_rows_is_not_waited_for(tmp_path: Path, config: Config) -> None:
    """Heartbeats move the logs on for ever."""
    log_at(tmp_path, "s0", 10, 20, rows=0)
    log = LogOf(
        tmp_path / "s1",
        [(30, None), (40, None)],
        [[], [Change(relation=ITEM, op=Op.INSERT, after=(1, "a"))]],
    )
    log.end()
    assert since(config) == 40


def test_a_log_that_has_ended_lags_no_more(tmp_path: Path, config: Config) -> None:
    """All of it is merged, whatever its files say."""
    log_at(tmp_path, "s0", 10, 20)
    config.layout.state.mkdir(parents=True, exist_ok=True)
    save_merged(config, InputState(name="s0", number=1, segment=0, is_over=True))
    facts(tmp_path / "s0", lag_bytes=5, watermark_us=BASE_US + 3)
    assert since(config) is None


def facts(directory: Path, **found: Any) -> None:
    """Write what an extractor reports about itself."""
    (directory / "run").mkdir(parents=True, exist_ok=True)
    (directory / "run" / "extract.json").write_text(json.dumps(found))


def test_a_source_that_is_ahead_of_its_log_counts(tmp_path: Path, config: Config) -> None:
    """The log has everything that was committed before its extractor's watermark."""
    log_at(tmp_path, "s0", 50)
    facts(tmp_path / "s1", lag_bytes=5, watermark_us=BASE_US + 30)
    facts(tmp_path / "s2", lag_bytes=0, watermark_us=BASE_US + 3)
    assert since(config) == 30


def test_what_is_merged_meanwhile_is_looked_up_again(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment is gone when it is opened: then the state says that it is merged."""
    log_at(tmp_path, "s0", 10, 20)
    config.layout.state.mkdir(parents=True, exist_ok=True)
    state = InputState(name="s0", number=1, segment=0, reached=Reached(trx=1))
    real = MergeInput.read
    misses = iter([True])

    def read(source: MergeInput) -> Any:
        if source.name == "s0" and next(misses, False):
            save_merged(config, state)
            raise FileMissing("it is merged", path="0.ckt")
        return real(source)

    monkeypatch.setattr(MergeInput, "read", read)
    assert since(config) == 20
