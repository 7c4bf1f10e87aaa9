"""Processes of a pipeline that tests kill at a point: whose fault has happened.

Not here: kills of real processes (tests/faults).
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.faults.kills import Half


def test_a_late_worker_is_not_taken_for_the_next_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker that outlives its loader may reach the loader's point once more, and may not repeat
    the fault.
    """
    plans: list[dict[str, str]] = []

    def start(*_: Any, env: dict[str, str], **__: Any) -> None:
        plans.append(env)

    monkeypatch.setattr(subprocess, "Popen", start)
    load = Half("load", tmp_path / "bank.toml")
    load.start("load.copy.after:1:kill")
    first = Path(plans[0]["PENSTOCK_FAULT_ONCE"]) / "load.copy.after:1"
    first.touch()
    assert load.has_reached
    load.start("load.apply.after:1:kill")
    assert not load.has_reached
    assert first.exists(), "the fault would happen again in a worker of the first process"
    (first.parent / "load.copy.after:2").touch()
    assert not load.has_reached
    (Path(plans[1]["PENSTOCK_FAULT_ONCE"]) / "load.apply.after:1").touch()
    assert load.has_reached
    load.start()
    assert "PENSTOCK_FAULT" not in plans[2]
