"""Tables that are created later at the source and that a pattern matches, within one PostgreSQL.

The tests share a pipeline and run in any order: each has its own tables, sets its policy, and drops
the tables that it has left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.pipelines.end_to_end import Pair, Process
from harness.pipelines.pipeline import penstock
from harness.pipelines.tables import Customers, line, reach, request
from plugins.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ITEM = "create table item (id int primary key, n int not null, t text)"
OTHERS = """
    create table bag (v int, t text); alter table bag replica identity full;
    create table other (id int generated always as identity primary key, at timestamptz);
"""
BORN = """
    create table {name} (id int primary key, n int not null, t text);
    insert into {name} select g, 0, 'born ' || g from generate_series(1, 500) as g
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, postgres: Server) -> Iterator[Pair]:
    """One pipeline for all tests here."""
    made = Pair(tmp_path_factory.mktemp("new"), postgres, tables=("public.*", "!public.not_*"))
    try:
        made.run(ITEM)
        made.run(OTHERS)
        made.start()
        made.settle()
        yield made
    finally:
        made.close()


def halt_with(pair: Pair, word: str) -> None:
    """End the pipeline if it runs, and write this `newTables` into its file."""
    assert pair.process is not None
    if pair.process.running:
        pair.stop()
    pair.options["sections"]["source"] = {"newTables": word}
    pair.write()


def start_with(pair: Pair, word: str) -> Process:
    """Start the pipeline with this `newTables`."""
    halt_with(pair, word)
    return pair.start()


def left_out(pair: Pair, name: str, code: str) -> bool:
    """Return whether the table is left out for that reason, and status says so."""
    found = line(pair, name)
    if found.get("state") != "left out":
        return False
    assert found["code"] == code, found
    ran = penstock("status", pair.path, "--json")
    assert ran.result["apart"][name] == "left out"
    assert ran.result["apart_errors"][name]["hint"]
    assert name in penstock("status", pair.path).out
    return True


def test_a_new_table_is_added_while_others_flow(pair: Pair) -> None:
    """A table is added as by `table add`; one that cannot be followed is left out with a reason."""
    process = start_with(pair, "add")
    with Customers(pair, "item") as customers:
        pair.run("create table keyless (id int)")
        pair.run("create table not_wanted (id int)")
        pair.run(BORN.format(name="born"))
        customers.tables.append("born")
        reach(pair, "public.born", "following")
        process.until(lambda: left_out(pair, "public.keyless", "PG12"), "keyless left out")
        pair.settle()
    pair.run("insert into keyless values (1); update keyless set id = 2")  # it is not published
    pair.check("born", "item", "bag", "other")
    assert not line(pair, "public.not_wanted")
    assert not any("again" in event for event in process.events)
    pair.run("drop table keyless")


def test_a_table_made_while_nothing_ran_is_added_at_the_start(pair: Pair) -> None:
    """A table that could not be followed earlier, and can be now, is added as well."""
    process = start_with(pair, "add")
    pair.run("create table unkeyed (id int)")
    process.until(lambda: left_out(pair, "public.unkeyed", "PG12"), "unkeyed left out")
    pair.stop()
    pair.run(BORN.format(name="meanwhile"))
    pair.run("alter table meanwhile add column more int default 7; update meanwhile set n = 1")
    pair.run("alter table unkeyed add primary key (id)")
    pair.start()
    with Customers(pair, "item"):
        reach(pair, "public.meanwhile", "following")
        reach(pair, "public.unkeyed", "following")
    pair.check("meanwhile", "unkeyed", "item", "bag", "other")
    told = penstock("verify", pair.path, "--json")
    assert (told.code, told.result["equal"], told.result["left_out"]) == (0, True, {}), told.out


def test_a_table_that_goes_again_is_forgotten_and_a_renamed_one_is_new(pair: Pair) -> None:
    """The rows are copied to the new name; the old one stays in the target."""
    process = start_with(pair, "add")
    pair.run(BORN.format(name="named"))
    reach(pair, "public.named", "following")
    pair.run("create table brief (id int)")
    process.until(lambda: left_out(pair, "public.brief", "PG12"), "brief left out")
    pair.run("drop table brief")
    process.until(lambda: not line(pair, "public.brief"), "brief is forgotten")
    pair.run("alter table named rename to renamed")
    reach(pair, "public.renamed", "following")
    pair.run("update renamed set n = n + 1")
    pair.check("renamed")
    assert line(pair, "public.named")["state"] == "dropped"


def test_a_renamed_table_stops_a_pipeline_that_adds_none(pair: Pair) -> None:
    """The table is named; as the hint says, the next start follows it once its new name is
    captured.
    """
    start_with(pair, "add")
    pair.run(BORN.format(name="moving"))
    reach(pair, "public.moving", "following")
    process = start_with(pair, "leave")
    pair.run("alter table moving rename to moved")
    assert process.wait_for_end() == 1
    assert process.error["code"] == "PG46", process.err
    assert "public.moved" in process.error["hint"]
    pair.run("update moved set n = n + 1")
    start_with(pair, "add")
    reach(pair, "public.moved", "following")
    pair.run("update moved set n = n + 1")
    pair.check("moved")
    pair.stop()
    pair.run("alter table moved rename to moving")
    pair.start()
    assert pair.process is not None
    pair.process.until(lambda: not pair.differences("moving"), "moving is read again")
    pair.check("moving")


def test_a_new_table_is_left_out(pair: Pair) -> None:
    """Status has a warning until the table is added."""
    halt_with(pair, "leave")
    pair.run(BORN.format(name="early"))
    process = pair.start()
    pair.run(BORN.format(name="late"))
    for name in ("public.early", "public.late"):
        process.until(lambda one=name: left_out(pair, one, "CT69"), "left out")
    request(pair, "add", "public.late")
    reach(pair, "public.late", "following")
    pair.run("update late set n = n + 1")
    pair.check("late", "item")
    told = penstock("verify", pair.path, "--json")
    assert told.result["left_out"] == {"public.early": "left out"}
    pair.run("drop table early")
    process.until(lambda: not line(pair, "public.early"), "early is forgotten")


def test_a_new_table_stops_the_pipeline_where_that_is_wanted(pair: Pair) -> None:
    """An added table has its rows and its changes: nothing is lost."""
    process = start_with(pair, "leave")
    pair.run(BORN.format(name="before"))
    process.until(lambda: left_out(pair, "public.before", "CT69"), "left out")
    halt_with(pair, "stop")
    request(pair, "add", "public.before")  # a table left out earlier stops nothing once it is added
    process = pair.start()
    reach(pair, "public.before", "following")
    pair.run(BORN.format(name="halt"))
    assert process.wait_for_end() == 1
    assert process.error["code"] == "CT68", process.err
    assert "table add shop.toml public.halt" in process.error["hint"]
    report = penstock("doctor", pair.path, "--json")
    assert report.code == 1
    assert '"CT68"' in report.out
    again = penstock("run", pair.path, "--json")
    assert (again.code, again.error["code"]) == (1, "CT68")
    told = penstock("verify", pair.path, "--json")  # the others are compared, and this one is named
    assert (told.code, list(told.result["not_compared"])) == (1, ["public.halt"]), told.err
    assert "public.item" in [one["table"] for one in told.result["tables"] if one["equal"]]
    ran = penstock("table", "pause", pair.path, "public.nowhere", "--json")
    assert (ran.code, ran.error["code"]) == (1, "CT60")
    request(pair, "add", "public.halt")
    pair.start()
    reach(pair, "public.halt", "following")
    pair.run("update halt set n = n + 1")
    pair.check("halt", "before", "item")
