"""Bulk loads that are interrupted: what the load process retries, and how often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.pipeline import pipeline
from penstock.control.run import load_process
from penstock.engines.lake.format import LakeFailed
from penstock.host.errors import ConnectionLost, ServerUnreachable
from penstock.load.bulk import BulkResult
from penstock.load.loader_state import read_loader_state
from penstock.load.session import SparkLost
from penstock.model import PenstockError


class Sessions:
    """Fake factory that counts the requested sessions."""

    renewed = 0
    is_lost = False

    def renew(self) -> None:
        """Return another session."""
        self.renewed += 1
        self.is_lost = False


def loading(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, errors: list[PenstockError]
) -> tuple[load_process._Load, Sessions, list[float]]:
    """Return a load process whose bulk load raises these errors in turn, then succeeds."""
    sessions = Sessions()
    waits: list[float] = []
    config = pipeline(tmp_path, "postgresql://u@h/d", "postgresql://u@h/d")
    actions: Any = type("Actions", (), {"word": lambda _: "RUN"})()
    stop: Any = type(
        "Stop", (), {"__call__": lambda _: False, "wait": lambda _, s: waits.append(s)}
    )
    load = load_process._Load(config, sessions, actions, stop())  # type: ignore[arg-type]

    def once(*_: object) -> BulkResult:
        if errors:
            error = errors.pop(0)
            sessions.is_lost = isinstance(error, SparkLost | LakeFailed)
            raise error
        return BulkResult()

    monkeypatch.setattr(load, "bulk_load_once", once)
    return load, sessions, waits


def test_lost_connections_and_sessions_are_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A new session starts only if the old one died, a pause happens only if the network failed."""
    errors = [ConnectionLost("cut"), ServerUnreachable("away"), SparkLost("dead")]
    errors.append(LakeFailed("the commit of a lake found Spark stopped"))
    load, sessions, waits = loading(monkeypatch, tmp_path, errors)
    assert load.bulk_load(None, ()) == BulkResult()  # type: ignore[arg-type]
    assert (sessions.renewed, len(waits)) == (2, 2)


def test_not_for_ever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The last error is raised."""
    errors: list[PenstockError] = [ConnectionLost(f"cut {n}") for n in range(99)]
    load, _, waits = loading(monkeypatch, tmp_path, errors)
    with pytest.raises(ConnectionLost, match=f"cut {load_process.BULK_ATTEMPTS_MAX - 1}"):
        load.bulk_load(None, ())  # type: ignore[arg-type]
    assert len(waits) == load_process.BULK_ATTEMPTS_MAX - 1


def test_a_server_that_is_away_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The wait has no limit; meanwhile the status says that the load is retried."""
    errors: list[PenstockError] = [ServerUnreachable(f"away {n}") for n in range(99)]
    load, _, waits = loading(monkeypatch, tmp_path, errors)
    assert load.bulk_load(None, ()) == BulkResult()  # type: ignore[arg-type]
    assert len(waits) == 99
    assert max(waits) <= 5.0
    state = read_loader_state(load.config.layout.run)
    assert state is not None
    assert (state.state, state.problem) == ("copying", "away 98")


def test_what_somebody_has_to_mend_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error is raised at once."""
    load, _, waits = loading(monkeypatch, tmp_path, [OtherError("no")])
    with pytest.raises(OtherError):
        load.bulk_load(None, ())  # type: ignore[arg-type]
    assert waits == []


class OtherError(PenstockError):
    """Any other error."""
