"""Counts of doctor: done and skipped checks if no server answers."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from harness.pipelines.pipeline import pipeline
from harness.servers.checks import every_check
from penstock.control.doctor.doctor import examine
from penstock.model import PenstockError
from penstock.ports.checks import Checks, Looked, Side, checks_of
from plugins.doctor import AWAY


@pytest.mark.parametrize(("source", "target"), [*product(AWAY, AWAY)])
def test_what_asks_nobody_is_done_and_nothing_else(
    source: str, target: str, tmp_path: Path
) -> None:
    """There is a finding for each server; only checks of this machine are not skipped."""
    config = pipeline(tmp_path, source, target)
    report = examine(config, executors=True, on_finding=lambda _: None)
    here = [check for check in every_check() if check.side is Side.HOST]
    assert report.checks_done == len(here)
    at_source = [one for one in checks_of(source).CHECKS if one.side is Side.SOURCE]
    at_target = [one for one in checks_of(target).CHECKS if one.side is Side.TARGET]
    load = ["PK15", "PK16", "PK27", "PK17"]
    assert report.checks_skipped == len(at_source) + len(at_target) + len(load)
    away = [finding.side for finding in report.errors if finding.code == "HS22"]
    assert away == [Side.SOURCE, Side.TARGET]
    assert examine(config, sides=(Side.HOST, Side.SOURCE)).checks_skipped == len(at_source)


def test_a_check_that_fails_is_a_finding_and_skipped() -> None:
    """The failure has its own code; other checks are done, unwanted ones are not counted."""
    checks = Checks(Side.TARGET)

    @checks.check("XX01", "what fails")
    def fails(_: object) -> None:
        raise PenstockError("no", hint="Do.")

    @checks.check("XX02", "what does not")
    def passes(_: object) -> tuple[()]:
        return ()

    @checks.check("XX03", "what compares", needs_source=True)
    def compares(_: object) -> tuple[()]:
        return ()

    @checks.check("XX04", "what concerns changes", change_only=True)
    def follows(_: object) -> tuple[()]:
        return ()

    looked = Looked(has_change=False)
    looked.look(checks, None, source_known=False)
    assert (looked.done, looked.skipped) == (1, 2)
    assert [(one.code, one.side) for one in looked.findings] == [("XX01", Side.TARGET)]
    looked = Looked(only=["XX03", "XX04"])
    looked.look(checks, None)
    assert (looked.done, looked.skipped, looked.findings) == (2, 0, [])
