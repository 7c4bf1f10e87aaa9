"""`penstock table add --enable` on Oracle's model: supplemental logging of a table without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.pipelines.late_table import follow_late
from harness.pipelines.pipeline import Ran, penstock, write_pipeline
from harness.servers.engines import FIRST, new_place
from harness.servers.oracle_place import OraclePlace
from plugins.shared import SharedServers

LATE = 'CREATE TABLE "late" ("id" NUMBER(10) PRIMARY KEY, "n" NUMBER(10))'
LOG_LATE = 'ALTER TABLE "SHOP"."late" ADD SUPPLEMENTAL LOG DATA (ALL) COLUMNS'
LOGGED = "SELECT TABLE_NAME, LOG_GROUP_TYPE FROM ALL_LOG_GROUPS ORDER BY 1, 2"
ALL = "ALL COLUMN LOGGING"
NAME = "SHOP.late"


@pytest.fixture
def place() -> Iterator[OraclePlace]:
    """Database with the logged table item, and the table late, which logs nothing."""
    with OraclePlace() as place:
        place.run("create table item (id int primary key, n int)")
        place.run_unchanged(LATE)
        yield place


def add(folder: Path, place: OraclePlace, *options: str, name: str = NAME) -> Ran:
    """Run `penstock table add` for a pipeline of item without a target."""
    path = write_pipeline(folder, place.url, None, tables=["SHOP.item"])
    return penstock("table", "add", *options, path, name, "--json")


def test_a_table_is_enabled(place: OraclePlace, tmp_path: Path) -> None:
    """Without the flag the command names the statement; with it the columns are logged."""
    refused = add(tmp_path, place)
    assert refused.code == 1
    assert LOG_LATE in refused.out + refused.error["error"] + refused.error["hint"]
    assert place.run_unchanged(LOGGED) == [("item", ALL)]
    ran = add(tmp_path, place, "--enable")
    assert ran.code == 0, ran.err
    assert place.run_unchanged(LOGGED) == [("item", ALL), ("late", ALL)]


def test_a_table_that_is_logged_is_left_as_it_is(place: OraclePlace, tmp_path: Path) -> None:
    """The server is not asked to log its columns again."""
    place.run_unchanged(LOG_LATE)
    ran = add(tmp_path, place, "--enable")
    assert ran.code == 0, ran.err
    assert LOG_LATE not in place.server.statements


def test_a_user_without_rights_gets_the_statement(place: OraclePlace, tmp_path: Path) -> None:
    """The error has the statement for the owner of the table, and nothing is requested."""
    place.server.fail_next(1031, "ADD SUPPLEMENTAL LOG DATA")
    error = add(tmp_path, place, "--enable").error
    assert error["code"] == "HS28"
    assert NAME in error["error"]
    assert LOG_LATE in error["hint"]
    listed = penstock("table", "ls", tmp_path / "shop.toml", "--json")
    assert NAME not in listed.out


def test_a_table_that_does_not_exist_is_refused(place: OraclePlace, tmp_path: Path) -> None:
    """A misspelt name is an error before the server is asked."""
    assert add(tmp_path, place, "--enable", name="SHOP.nothing").code == 1
    assert not [one for one in place.server.statements if "ADD SUPPLEMENTAL" in one]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_enabled_table_is_copied_and_followed(
    shared_servers: SharedServers, tmp_path: Path
) -> None:
    """Rows from before, between and after the command are in the target; nothing is restarted."""
    with OraclePlace() as source, new_place(shared_servers, FIRST) as target:

        def make_late() -> None:
            source.run_unchanged(LATE)

        follow_late(tmp_path, source, target, make_late)
