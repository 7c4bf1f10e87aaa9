"""`make certify-sqlserver` on the simulated server: cases, report, refusals, and its clean-up.

Not here: what a real server shows; the report of one is the purpose of the tool.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from certify.cases import Case
from certify_sqlserver.__main__ import CASE_MODULES, FAILED, GOOD, INTERRUPTED, REFUSED, main
from certify_sqlserver.case import CASES, Bench
from certify_sqlserver.server import DATABASE, LOGIN, LOGIN_PASSWORD, MARK
from penstock.engines.sqlserver.connect import connect
from penstock.host.errors import LoginRefused
from plugins.sqlserver import PASSWORD, SimServer, as_test

TESTS = Path(__file__).parents[1]
NOTHING_ELSE = ("--tests", "", "--soak-seconds", "0")
# Cases that the simulator cannot carry out, with reasons.
NOT_SIMULATED: dict[str, str] = {}
WAIT_S = 300.0
SUITES_S = 25.0  # after which the suites have a database


def run_tool(url: str, build: Path, *options: str) -> tuple[int, str]:
    """Run the tool as a process; return its exit code and what it printed."""
    done = subprocess.run(
        command(url, build, *options), env=environment(), capture_output=True, text=True,
        timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def command(url: str, build: Path, *options: str) -> list[str]:
    """Return the command line that the Makefile has."""
    return [sys.executable, "-m", "certify_sqlserver", url, "--build", str(build), *options]


def environment() -> dict[str, str]:
    """Return the environment that the Makefile has."""
    return {**os.environ, "PYTHONPATH": str(TESTS)}


def report_of(build: Path) -> dict[str, Any]:
    """Return the report as JSON."""
    found: dict[str, Any] = json.loads((build / "certify-sqlserver.json").read_text())
    return found


def names_of(server: SimServer) -> set[str]:
    """Return the databases that the tool has left on the server."""
    rows = server.postgres("select datname from pg_database", "postgres")
    return {str(name) for (name,) in rows if str(name).startswith("penstock_certify")}


@pytest.fixture
def dsn(sqlserver: SimServer) -> Iterator[str]:
    """URL for the tool; afterwards nothing may be left on the server."""
    yield as_test(sqlserver.url("master"))
    assert names_of(sqlserver) == set()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_cases_hold_on_the_simulator(dsn: str, sqlserver: SimServer, tmp_path: Path) -> None:
    """Every case passes or is named here; records have the form of the recorded facts."""
    left_out = [f"--leave-out={name}={why}" for name, why in NOT_SIMULATED.items()]
    code, out = run_tool(dsn, tmp_path, *NOTHING_ELSE, *left_out)
    report = report_of(tmp_path)
    assert {one["case"]: one["reason"] for one in report["cases"] if one["state"] != "passed"} == {}
    assert code == GOOD, out
    assert len(report["cases"]) >= 40
    assert report["lacks"] == ""
    assert [one["name"] for one in report["rights"] if not one["is_there"]] == []
    assert report["verdict"] != "certified", "suites and soak were not run"
    with pytest.raises(LoginRefused):
        connect(sqlserver.url("master", LOGIN, LOGIN_PASSWORD))
    assert PASSWORD not in out + (tmp_path / "certify-sqlserver.json").read_text()
    records = read_records(tmp_path)
    assert {one["case"] for one in records} == {one["case"] for one in report["cases"]}
    rows = [one for one in records if one["record"] == "row"]
    assert len(rows) > 100
    sample = (TESTS / "data" / "sqlserver_cdc_samples.jsonl").read_text().splitlines()
    known = next(one for one in map(json.loads, sample) if one["record"] == "row")
    wanted = {name for name in known if name.startswith("__$")}
    wanted |= {"record", "case", "seq", "capture_instance", "expect"}
    assert all(wanted <= set(one) for one in rows)
    assert {"kind", "position", "lsn_text"} <= set(rows[0]["expect"]) & set(known["expect"])


def read_records(build: Path) -> list[dict[str, Any]]:
    """Return the records of a run."""
    lines = (build / "certify-sqlserver.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_every_case_is_known() -> None:
    """Cases that are named here exist, and each says what it is about."""
    for name in CASE_MODULES:
        __import__(f"certify_sqlserver.{name}")
    assert set(NOT_SIMULATED) <= set(CASES)
    assert all(one.about and one.assumes for one in CASES.values())


def test_a_wrong_assumption_fails(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report names the assumption, the code that depends on it, and what was seen."""

    def run(bench: Bench) -> None:
        bench.table("c_planted", "id int NOT NULL PRIMARY KEY")
        bench.sql("INSERT INTO dbo.c_planted VALUES (1)")
        seen = [row["__$operation"] for row in bench.changes("c_planted")]
        bench.holds("operations", seen == [1], seen)

    planted = Case(name="planted", about="planted", assumes=("operations",), run=run)
    monkeypatch.setitem(CASES, "planted", planted)
    code = main([dsn, "--build", str(tmp_path), *NOTHING_ELSE, "--case", "planted"])
    out = capsys.readouterr().out
    assert code == FAILED
    assert "assumption operations: an insert is operation 2" in out
    assert "engines/sqlserver/source/change_rows.py" in out
    assert "the server showed: [2]" in out
    assert "verdict: NOT certified" in out


def test_an_assumption_that_is_not_examined_fails(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A case that ends before it comes to all of its assumptions has not passed."""
    planted = Case(name="planted", about="", assumes=("jobs",), run=lambda _: None)
    monkeypatch.setitem(CASES, "planted", planted)
    assert main([dsn, "--build", str(tmp_path), *NOTHING_ELSE, "--case", "planted"]) == FAILED
    [one] = report_of(tmp_path)["cases"]
    assert "did not come to jobs" in one["reason"]


def test_a_server_without_agent_is_not_certified(
    sqlserver: SimServer, sqlserver_database: str, tmp_path: Path
) -> None:
    """Cases are skipped with the reason, and are not counted as passed."""
    sqlserver.execute("EXEC sim.stop_agent", sqlserver_database)
    url = as_test(sqlserver.url(sqlserver_database))
    code, out = run_tool(url, tmp_path, *NOTHING_ELSE, "--case", "update_pairs")
    [one] = report_of(tmp_path)["cases"]
    assert (code, one["state"]) == (GOOD, "skipped")
    assert "Agent does not run" in one["reason"]
    assert "0 passed, 0 failed, 1 skipped" in out
    assert "verdict: nothing failed, but not everything was run" in out
    assert names_of(sqlserver) == set()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("sqlserver://", "mssql://"), "HS21"),
        (("encrypt=no", "encrpyt=no"), "HS21"),
        ((PASSWORD.replace("#", "%23"), "wrong"), "HS23"),
        (("/master", "/nothing"), "HS31"),
    ],
)
def test_a_mistyped_dsn_is_an_error(
    dsn: str, tmp_path: Path, change: tuple[str, str], code: str
) -> None:
    """A typed error with a hint; nothing is created, and the password is not shown."""
    assert change[0] in dsn
    exit_code, out = run_tool(dsn.replace(*change), tmp_path, *NOTHING_ELSE)
    assert exit_code == REFUSED
    assert out.startswith(f"{code}: "), out
    assert len(out.strip().splitlines()) == 2, out
    assert PASSWORD not in out
    assert not list(tmp_path.iterdir())


def test_a_server_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """A port on which nothing listens."""
    url = "sqlserver://sa:secret@127.0.0.1:1/master?encrypt=no&connectTimeout=3"
    exit_code, out = run_tool(url, tmp_path, *NOTHING_ELSE)
    assert exit_code == REFUSED
    assert "127.0.0.1:1" in out
    assert "secret" not in out


def test_a_database_of_others_is_not_touched(sqlserver: SimServer, tmp_path: Path) -> None:
    """A database of this name without the mark is neither used nor dropped."""
    url = as_test(sqlserver.url("master"))
    sqlserver.execute(f"CREATE DATABASE [{DATABASE}]", "master")
    try:
        sqlserver.execute("CREATE TABLE dbo.theirs (id int)", DATABASE)
        exit_code, out = run_tool(url, tmp_path, *NOTHING_ELSE)
        assert exit_code == REFUSED
        assert out.splitlines()[-2].startswith("CERTIFY1: "), out
        tables = sqlserver.execute("SELECT name FROM sys.tables", DATABASE)
        assert tables == [("theirs",)]
    finally:
        sqlserver.drop_database(DATABASE)


def test_a_database_of_an_earlier_run_is_replaced(
    dsn: str, sqlserver: SimServer, tmp_path: Path
) -> None:
    """The tool was killed; its next run drops what it finds with its mark."""
    sqlserver.execute(f"CREATE DATABASE [{DATABASE}]", "master")
    sqlserver.execute(f"CREATE TABLE dbo.{MARK} (made_at datetime2(6) NOT NULL)", DATABASE)
    sqlserver.execute("CREATE TABLE dbo.c_pairs (id int)", DATABASE)
    exit_code, out = run_tool(dsn, tmp_path, *NOTHING_ELSE, "--case", "update_pairs")
    assert exit_code == GOOD, out


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (NOTHING_ELSE, "passed"),
        pytest.param(
            ("--case", "lsn_functions", "--tests", "sqlserver and test_a", "--soak-seconds", "0"),
            "suites",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_interrupt_leaves_nothing(
    dsn: str, tmp_path: Path, options: tuple[str, ...], line: str
) -> None:
    """Ctrl-C in the middle of the cases or suites; the report says that it is not complete."""
    with subprocess.Popen(
        command(dsn, tmp_path, *options),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        guard = threading.Timer(WAIT_S, process.kill)
        guard.start()
        for printed in process.stdout:
            if printed.startswith(line):
                break
        time.sleep(SUITES_S if line == "suites" else 0)
        process.send_signal(signal.SIGINT)
        out = process.stdout.read()
        code = process.wait()
        guard.cancel()
    assert code == INTERRUPTED, out
    assert "interrupted: the report is not complete" in out
    assert report_of(tmp_path)["verdict"] == "NOT certified"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_suites_run_on_the_given_server(dsn: str, tmp_path: Path) -> None:
    """A test of the suite of targets passes there, and one that needs a switch is skipped."""
    chosen = "sqlserver and (changed_key_moves_its_row or position_that_is_gone)"
    code, out = run_tool(
        dsn, tmp_path, "--case", "lsn_functions", "--soak-seconds", "0", "--tests", chosen
    )
    suites = report_of(tmp_path)["suites"]
    assert suites["failed"] == [], out
    assert suites["problem"] == ""
    assert suites["passed"] > 0
    assert code == GOOD, out


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_soak_of_seconds(dsn: str, tmp_path: Path) -> None:
    """A pipeline between two databases of the server survives kills; all rows are equal."""
    code, out = run_tool(
        dsn, tmp_path, "--case", "lsn_functions", "--soak-seconds", "6", "--tests", ""
    )
    soak = report_of(tmp_path)["soak"]
    assert soak["problem"] == "", out
    assert soak["kills"] >= 1
    assert soak["rows"] > 0
    assert soak["statements"] > 100
    assert code == GOOD
