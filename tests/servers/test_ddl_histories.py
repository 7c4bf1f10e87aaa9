"""A draw of random histories of rows and DDL, for each pair of servers: equal at the end.

`python tests/fuzz_ddl.py` runs any number of them, and shortens the script of one that differs
(docs/development.md).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.ddl_arena import DIFFERENT, EQUAL, REFUSED, authors, run_histories
from harness.pipelines.ddl_followers import NAMES
from harness.pipelines.ddl_lake_java import LAKES
from harness.pipelines.ddl_model import FEATURES
from harness.pipelines.ddl_script import read_script
from harness.pipelines.ddl_types import MARIADB, MYSQL, ORACLE, POSTGRES, SQLSERVER
from plugins.draw import SEED, commit
from plugins.mysql import running
from plugins.postgres import first_server
from plugins.shared import SharedServers
from plugins.sqlserver import shared_server

KINDS = (POSTGRES, MYSQL, MARIADB)
COUNT = 8
SIMULATED = (
    (SQLSERVER, POSTGRES),
    (SQLSERVER, MYSQL),
    (POSTGRES, SQLSERVER),
    (MARIADB, SQLSERVER),
)
OF_ORACLE = ((ORACLE, POSTGRES), (POSTGRES, ORACLE), (ORACLE, MARIADB))
COUNT_SIMULATED = 3  # the simulator reads and rewrites each statement
COUNT_LAKE = 4  # each table has a commit of its own per batch
REFUSALS_MAX = 1  # of COUNT; at most 2 of 100 are refused, for reasons in docs/schema-changes.md


class Running:
    """Servers that the tests of this process share."""

    def __init__(self, shared: SharedServers, postgres_version: int) -> None:
        self._shared = shared
        self._version = postgres_version

    def get(self, kind: str) -> Any:
        """Return the server of this kind."""
        if kind == POSTGRES:
            return first_server(self._shared, self._version)
        if kind == SQLSERVER:
            return shared_server(self._shared)
        return self._shared.get(kind, lambda: running(kind))


@pytest.mark.promise
@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
def test_source_and_target_are_equal_at_the_end(
    source: str, target: str, shared_servers: SharedServers, postgres_version: int, tmp_path: Path
) -> None:
    """Source and target are equal after the histories of this commit's seed, or a table is
    refused by name.
    """
    _play_draw(Running(shared_servers, postgres_version), tmp_path, (source, target), COUNT)


@pytest.mark.promise
@pytest.mark.timeout(900)
@pytest.mark.parametrize("pair", SIMULATED, ids="-".join)
def test_a_simulated_side_is_equal_at_the_end(
    pair: tuple[str, str], shared_servers: SharedServers, postgres_version: int, tmp_path: Path
) -> None:
    """The same with a SQL Server on one side; altered tables get a second capture instance."""
    _play_draw(Running(shared_servers, postgres_version), tmp_path, pair, COUNT_SIMULATED)


@pytest.mark.promise
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(pair, id="-".join(pair), marks=[pytest.mark.long] if number else [])
        for number, pair in enumerate(OF_ORACLE)
    ],
)
def test_a_side_of_oracle_is_equal_at_the_end(
    pair: tuple[str, str], shared_servers: SharedServers, postgres_version: int, tmp_path: Path
) -> None:
    """The same with Oracle's model on one side."""
    _play_draw(Running(shared_servers, postgres_version), tmp_path, pair, COUNT_SIMULATED)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("target", LAKES)
@pytest.mark.parametrize("source", [*KINDS, pytest.param(ORACLE, marks=pytest.mark.long)])
def test_source_and_lake_are_equal_at_the_end(
    source: str, target: str, shared_servers: SharedServers, postgres_version: int, tmp_path: Path
) -> None:
    """The same with a lake as the target, as delta-rs, pyiceberg or Spark reads it."""
    _play_draw(Running(shared_servers, postgres_version), tmp_path, (source, target), COUNT_LAKE)


def _play_draw(servers: Running, folder: Path, pair: tuple[str, str], count: int) -> None:
    seed = os.environ.get(SEED) or commit() or "0"
    outcomes = run_histories(
        servers, folder, pair, lambda: authors(pair, seed, count, FEATURES), seed
    )
    wrong = [
        f"history {seed}.{number}: {one.end} {one.code} {one.reason}\n"
        + "\n".join([*one.lines, one.script.text])
        for number, one in enumerate(outcomes)
        if one.end != EQUAL
    ]
    shown = "\n\n".join(wrong)
    assert all(one.end != DIFFERENT for one in outcomes), shown
    assert len(wrong) <= REFUSALS_MAX, shown


REFUSED_BY_LAKES = ("pg_infinity_of_old_rows",)  # unless [target.types] has a choice
SCRIPTS = sorted((Path(__file__).parents[1] / "data" / "ddl").glob("*.sql"))


@pytest.mark.long  # 36 pipelines, one to three minutes each
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("begins_at_once", [False, True], ids=["after", "beside"])
@pytest.mark.parametrize("target", [*KINDS, *LAKES])
@pytest.mark.parametrize("source", KINDS)
def test_statements_that_once_went_wrong_are_followed(
    source: str,
    target: str,
    shared_servers: SharedServers,
    postgres_version: int,
    tmp_path: Path,
    *,
    begins_at_once: bool,
) -> None:
    """Source and target are equal after every script, after and beside the bulk load.

    Beside a target of the same kind, the log's other readers have the same rows, too.
    """
    _play_scripts(
        Running(shared_servers, postgres_version),
        tmp_path,
        (source, target),
        begins_at_once=begins_at_once,
    )


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("begins_at_once", [False, True], ids=["after", "beside"])
@pytest.mark.parametrize("pair", SIMULATED, ids="-".join)
def test_statements_are_followed_with_a_simulated_side(
    pair: tuple[str, str],
    shared_servers: SharedServers,
    postgres_version: int,
    tmp_path: Path,
    *,
    begins_at_once: bool,
) -> None:
    """The same with a SQL Server on one side."""
    servers = Running(shared_servers, postgres_version)
    _play_scripts(servers, tmp_path, pair, begins_at_once=begins_at_once)


def _play_scripts(
    servers: Running, folder: Path, pair: tuple[str, str], *, begins_at_once: bool
) -> None:
    """Play the scripts of a source. Raises AssertionError with those that differ."""
    source, target = pair
    read = {one.stem: read_script(one.read_text(), source) for one in SCRIPTS}
    scripts = {name: script for name, script in read.items() if script is not None}
    outcomes = run_histories(
        servers,
        folder,
        pair,
        lambda: list(scripts.values()),
        0,
        begins_at_once=begins_at_once,
        also=NAMES if source == target else (),
    )
    wrong = [
        "\n".join([f"{name}: {one.end} {one.code} {one.reason}", *one.lines])
        for name, one in zip(scripts, outcomes, strict=True)
        if one.end != (REFUSED if target in LAKES and name in REFUSED_BY_LAKES else EQUAL)
    ]
    assert not wrong, "\n\n".join(wrong)
