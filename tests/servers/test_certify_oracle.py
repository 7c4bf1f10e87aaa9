"""`make certify-oracle` on the model: cases, report, refusals, and its clean-up.

Not here: what a real database shows; the report of one is the purpose of the tool.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from certify.cases import Case
from certify_oracle.__main__ import FAILED, GOOD, INTERRUPTED, REFUSED, main
from certify_oracle.case import CASES, Bench
from certify_oracle.server import MARK, SCHEMA
from harness.servers.oracle_place import OraclePlace
from sim_oracle.session import TEST_USER

TESTS = Path(__file__).parents[1]
NOTHING_ELSE = ("--tests", "", "--soak-seconds", "0")
WAIT_S = 300.0


@pytest.fixture
def place() -> Iterator[OraclePlace]:
    """A model; afterwards nothing of the tool may be left in it."""
    place = OraclePlace()
    place.server.users[TEST_USER.lower()] = "secret"
    yield place
    assert {
        name for name in place.database.users if "CERTIFY" in name or "CONFORM" in name
    } == set()
    place.drop()


@pytest.fixture
def dsn(place: OraclePlace) -> str:
    """URL for the tool, whose texts are all known."""
    return place.url_of(TEST_USER.lower())


def command(url: str, build: Path, *options: str) -> list[str]:
    """Return the command line that the Makefile has."""
    return [sys.executable, "-m", "certify_oracle", url, "--build", str(build), *options]


def report_of(build: Path) -> dict[str, Any]:
    """Return the report as JSON."""
    found: dict[str, Any] = json.loads((build / "certify-oracle.json").read_text())
    return found


def test_all_cases_hold_on_the_model(
    dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every case passes; records have the form of the recorded facts."""
    code = main([dsn, "--build", str(tmp_path), *NOTHING_ELSE])
    out = capsys.readouterr().out
    report = report_of(tmp_path)
    assert {one["case"]: one["reason"] for one in report["cases"] if one["state"] != "passed"} == {}
    assert code == GOOD, out
    assert len(report["cases"]) >= 30
    assert [one["name"] for one in report["rights"] if not one["is_there"]] == []
    assert report["verdict"] != "certified", "suites and soak were not run"
    assert "secret" not in out + (tmp_path / "certify-oracle.json").read_text()
    lines = (tmp_path / "certify-oracle.jsonl").read_text().splitlines()
    rows = [one for one in map(json.loads, lines) if one["record"] == "row"]
    assert len(rows) > 500
    sample = (TESTS / "data" / "oracle_logminer_samples.jsonl").read_text().splitlines()
    known = next(one for one in map(json.loads, sample) if one["record"] == "row")
    assert set(known) - set(rows[0]) == {"SQL_UNDO", "expect"}
    assert all(set(one) == set(rows[0]) for one in rows)


def test_a_wrong_assumption_fails(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report names the assumption, the code that depends on it, and what was seen."""

    def run(bench: Bench) -> None:
        bench.holds("codes", False, [7])

    planted = Case(name="planted", about="planted", assumes=("codes",), run=run)
    monkeypatch.setitem(CASES, "planted", planted)
    code = main([dsn, "--build", str(tmp_path), *NOTHING_ELSE, "--case", "planted"])
    out = capsys.readouterr().out
    assert code == FAILED
    assert "assumption codes: an insert is operation code 1" in out
    assert "codec/oracle/mined_rows.py" in out
    assert "the server showed: [7]" in out
    assert "verdict: NOT certified" in out


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [("log_mode", "NOARCHIVELOG", "NOARCHIVELOG mode"), ("minimal_logging", "NO", "SUPPLEMENTAL")],
)
def test_a_database_that_cannot_be_mined_is_not_certified(
    place: OraclePlace, dsn: str, tmp_path: Path, setting: str, value: str, said: str
) -> None:
    """Cases are skipped with the reason, and are not counted as passed."""
    setattr(place.database.settings, setting, value)
    code = main([dsn, "--build", str(tmp_path), *NOTHING_ELSE, "--case", "two_sessions"])
    report = report_of(tmp_path)
    assert (code, report["cases"][0]["state"]) == (GOOD, "skipped")
    assert said in report["cases"][0]["reason"]
    assert report["verdict"] == "nothing failed, but not everything was run"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("oracle://", "oracel://"), "HS21"),
        (("secret", "wrong"), "HS23"),
        (("SHOPPDB", "NO"), "HS24"),
    ],
)
def test_a_mistyped_dsn_is_an_error(
    dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], code: str
) -> None:
    """A typed error with a hint; nothing is created, and the password is not shown."""
    exit_code = main([dsn.replace(*change), "--build", str(tmp_path), *NOTHING_ELSE])
    out = capsys.readouterr().out
    assert exit_code == REFUSED
    assert f"{code}: " in out
    assert "secret" not in out
    assert not list(tmp_path.iterdir())


def test_a_schema_of_others_is_not_touched(
    place: OraclePlace, dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A schema of this name without the mark is neither used nor dropped."""
    place.run_unchanged(f"CREATE USER {SCHEMA} NO AUTHENTICATION")
    place.run_unchanged(f"CREATE TABLE {SCHEMA}.theirs (id NUMBER)")
    assert main([dsn, "--build", str(tmp_path), *NOTHING_ELSE]) == REFUSED
    assert "CERTIFY1: " in capsys.readouterr().out
    assert place.run_unchanged(f"SELECT COUNT(*) FROM {SCHEMA}.theirs") == [(0,)]
    place.run_unchanged(f"DROP USER {SCHEMA} CASCADE")


def test_a_schema_of_an_earlier_run_is_replaced(
    place: OraclePlace, dsn: str, tmp_path: Path
) -> None:
    """The tool was killed; its next run drops what it finds with its mark."""
    place.run_unchanged(f"CREATE USER {SCHEMA} NO AUTHENTICATION")
    place.run_unchanged(f"CREATE TABLE {SCHEMA}.{MARK} (made_at DATE)")
    place.run_unchanged(f"CREATE TABLE {SCHEMA}.c_two (id NUMBER)")
    assert main([dsn, "--build", str(tmp_path), *NOTHING_ELSE, "--case", "two_sessions"]) == GOOD


def test_an_interrupt_leaves_nothing(place: OraclePlace, dsn: str, tmp_path: Path) -> None:
    """Ctrl-C in the middle of the cases; the report says that it is not complete."""
    with subprocess.Popen(
        command(dsn, tmp_path, *NOTHING_ELSE),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        guard = threading.Timer(WAIT_S, process.kill)
        guard.start()
        for printed in process.stdout:
            if printed.startswith("passed"):
                break
        os.kill(process.pid, signal.SIGINT)
        out = process.stdout.read()
        code = process.wait()
        guard.cancel()
    assert code == INTERRUPTED, out
    assert report_of(tmp_path)["verdict"] == "NOT certified"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_suites_run_on_the_given_database(place: OraclePlace, dsn: str, tmp_path: Path) -> None:
    """A test of each suite passes there, in a schema of its own."""
    chosen = "oracle and (changed_key_moves_its_row or what_was_rolled_back)"
    done = subprocess.run(
        command(dsn, tmp_path, "--case", "two_sessions", "--soak-seconds", "0", "--tests", chosen),
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    suites = report_of(tmp_path)["suites"]
    assert (suites["failed"], suites["problem"]) == ([], ""), done.stdout
    assert suites["passed"] >= 2
    assert done.returncode == GOOD


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_soak_of_seconds(place: OraclePlace, dsn: str, tmp_path: Path) -> None:
    """A pipeline between two schemas survives kills; all rows are equal."""
    done = subprocess.run(
        command(dsn, tmp_path, "--case", "two_sessions", "--soak-seconds", "6", "--tests", ""),
        capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout[-1000:] + done.stderr[-4000:]
    soak = report_of(tmp_path)["soak"]
    assert soak["problem"] == "", done.stdout
    assert soak["kills"] >= 1
    assert soak["rows"] > 0
    assert done.returncode == GOOD
