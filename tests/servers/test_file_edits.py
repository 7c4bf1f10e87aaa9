"""Tables that the pipeline file leaves out between two runs, within one PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.pipelines.end_to_end import Pair
from harness.pipelines.pipeline import penstock
from harness.pipelines.tables import line, reach
from penstock.engines.postgres.connect import connect
from plugins.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TABLE = """
    create table {name} (id int primary key, n int not null);
    insert into {name} select g, 0 from generate_series(1, 300) as g
"""
BOTH = ("public.fence", "public.item", "public.bag")


@pytest.fixture
def pair(tmp_path: Path, postgres: Server) -> Iterator[Pair]:
    """A pipeline of two tables, loaded and stopped."""
    made = Pair(tmp_path, postgres, tables=BOTH)
    try:
        for name in ("item", "bag"):
            made.run(TABLE.format(name=name))
        made.start()
        made.check("item", "bag")
        made.stop()
        yield made
    finally:
        made.close()


def test_a_table_that_the_file_leaves_out_for_a_while_loses_nothing(pair: Pair) -> None:
    """Changes made meanwhile are not in the log: a message says so, and the table is
    copied again.
    """
    pair.write(tables=BOTH[:2])
    process = pair.start()
    pair.run("delete from bag where id < 100; update bag set n = 1; update item set n = 1")
    pair.check("item")
    reach_removed(pair)
    assert any("public.bag is not captured any more" in text for text in process.events)
    pair.stop()
    pair.run("insert into bag values (1, 7)")
    pair.write()
    process = pair.start()
    said = "public.bag is captured again"
    process.until(lambda: any(said in text for text in process.events), "it is said")
    reach(pair, "public.bag", "following")
    pair.run("update bag set n = n + 1 where id % 2 = 0")
    pair.check("item", "bag")
    told = penstock("verify", pair.path, "--json")
    assert (told.code, told.result["equal"], told.result["left_out"]) == (0, True, {}), told.out
    pair.stop()


def reach_removed(pair: Pair) -> None:
    """Wait until the table is removed; check that `table ls` and status say why."""
    assert pair.process is not None
    pair.process.until(lambda: line(pair, "public.bag")["state"] == "removed", "bag is removed")
    assert line(pair, "public.bag")["code"] == "CT65"
    assert (
        '"public.bag"'
        in penstock("status", pair.path, "--json").result["apart_errors"]["public.bag"]["hint"]
    )


def test_a_file_that_comes_back_before_anything_ran_changes_nothing(pair: Pair) -> None:
    """The request was written but not carried out; then the table is copied once more."""
    pair.write(tables=BOTH[:2])
    assert penstock("doctor", pair.path, "--json").result
    pair.run("update bag set n = 2")
    pair.write()
    pair.start()
    pair.check("item", "bag")
    found = line(pair, "public.bag")
    assert (found["state"], found["code"]) == ("following", "")
    assert not found["wanted"]
    pair.stop()


def test_another_target_is_filled(pair: Pair) -> None:
    """A new target in mode data+change lacks the rows, so they are loaded into it."""
    old, pair.loader_url = pair.loader_url, pair.server.make_database("second")
    try:
        pair.write()
        pair.run("update item set n = 3")
        process = pair.start()
        pair.target.close()
        pair.target = connect(pair.loader_url, application_name="test")
        pair.check("item", "bag")
        assert process.running
        pair.stop()
    finally:
        pair.close_process()
        pair.server.drop_database(pair.loader_url)
        pair.loader_url = old
