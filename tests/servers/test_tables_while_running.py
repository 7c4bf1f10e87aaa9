"""`penstock table add, remove, pause, resume, resync` on a pipeline at work, PostgreSQL to itself.

Customers never stop writing: what is told of a table must not be seen at another one, and both
sides are equal in the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_end_to_end import Pair
from fix_pipeline import penstock
from fix_postgres import Server
from fix_tables import LATE, SETUP, Customers, count, line, reach, wish

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, postgres: Server) -> Iterator[Pair]:
    """One pipeline for all tests here: `*.*` would take what `add` is to add."""
    made = Pair(
        tmp_path_factory.mktemp("tables"),
        postgres,
        tables=("public.fence", "public.item", "public.bag", "public.other"),
        sections={"changeLoader": {"removeFiles": True}},
    )
    try:
        made.run(SETUP)
        made.start()
        made.settle()
        yield made
    finally:
        made.close()


def test_a_table_is_added_while_others_flow(pair: Pair) -> None:
    """Made in the target, its rows copied, its changes of all the time followed; no restart."""
    pair.run(LATE.format(name="late"))
    with Customers(pair, "item", "late"):
        wish(pair, "add", "public.late")
        reach(pair, "public.late", "following")
        pair.settle()
    pair.check("late", "item", "bag", "other")
    assert pair.process is not None
    assert not any("again" in event for event in pair.process.events)


def test_a_paused_table_waits_and_loses_nothing(pair: Pair) -> None:
    """Its segments are kept with removeFiles; afterwards each change is applied once, in order."""
    with Customers(pair, "item"):
        wish(pair, "pause", "public.item", "public.bag")
        reach(pair, "public.item", "paused")
        reach(pair, "public.bag", "paused")
        stands = count(pair, "select sum(n) + count(*) from item")
        bag = count(pair, "select count(*) from bag where t = 'new'")
        others = count(pair, "select count(*) from other")
        time.sleep(3)
        pair.settle()
        assert count(pair, "select sum(n) + count(*) from item") == stands
        assert count(pair, "select count(*) from bag where t = 'new'") == bag
        assert count(pair, "select count(*) from other") > others
        assert line(pair, "public.item")["behind_rows"] > 0
        kept = len(list((pair.directory / "log").glob("*.ckt")))
        wish(pair, "resume", "public.item", "public.bag")
        reach(pair, "public.item", "following")
        reach(pair, "public.bag", "following")
    pair.check("item", "bag", "other")
    assert kept > 1
    assert pair.process is not None
    pair.process.until(
        lambda: len(list((pair.directory / "log").glob("*.ckt"))) <= 1, "segments removed"
    )


def test_a_table_is_copied_again(pair: Pair) -> None:
    """Rows that somebody has changed or taken away in the target are right again."""
    pair.settle()
    pair.target.execute("delete from item where id % 2 = 0")
    pair.target.execute("update item set t = 'wrong'")
    pair.target.execute("delete from bag")
    with Customers(pair, "item"):
        wish(pair, "resync", "public.item", "public.bag")
        reach(pair, "public.item", "following")
        reach(pair, "public.bag", "following")
    pair.check("item", "bag", "other")


def test_a_removed_table_stays_as_it_is_and_can_be_added_again(pair: Pair) -> None:
    """It leaves the publication; added again its rows are copied over what the target has."""
    pair.run(LATE.format(name="goes"))
    wish(pair, "add", "public.goes")
    reach(pair, "public.goes", "following")
    published = "select count(*) from pg_publication_tables where tablename = 'goes'"
    with Customers(pair, "item", "goes"):
        wish(pair, "remove", "public.goes")
        reach(pair, "public.goes", "removed")
        assert pair.process is not None
        pair.process.until(
            lambda: pair.source.execute(published).fetchone() == (0,), "not published any more"
        )
        before = count(pair, "select sum(n) + count(*) from goes")
        pair.settle()
        assert count(pair, "select sum(n) + count(*) from goes") == before
        wish(pair, "add", "public.goes")
        reach(pair, "public.goes", "following")
    pair.check("goes", "item", "other")


def test_what_can_not_be_added_is_told_and_disturbs_nobody(pair: Pair) -> None:
    """A table that is not there, one that is taken, and a target table with rows of others."""
    ran = penstock("table", "add", pair.path, "public.nowhere", "--json")
    assert (ran.code, ran.error["code"]) == (1, "PG42")
    ran = penstock("table", "add", pair.path, "public.item", "--json")
    assert (ran.code, ran.error["code"]) == (1, "CT61")
    ran = penstock("table", "pause", pair.path, "public.nowhere", "--json")
    assert (ran.code, ran.error["code"]) == (1, "CT60")
    pair.run("create table theirs (id int primary key)")
    pair.target.execute("create table theirs (id int primary key)")
    pair.target.execute("insert into theirs values (1)")
    wish(pair, "add", "public.theirs")
    assert pair.process is not None
    pair.process.until(
        lambda: line(pair, "public.theirs").get("code") == "LD43", "the refusal is shown"
    )
    pair.check("item")
    wish(pair, "resync", "public.theirs")
    reach(pair, "public.theirs", "following")
    pair.check("theirs")


def test_wishes_of_a_stopped_pipeline_are_carried_out_at_its_start(pair: Pair) -> None:
    """Also a table that is added and written to while nothing runs."""
    pair.stop()
    pair.run(LATE.format(name="meanwhile"))
    for what, name in (("add", "meanwhile"), ("pause", "item"), ("resync", "bag")):
        ran = penstock("table", what, pair.path, f"public.{name}")
        assert "at its next start" in ran.out
    pair.run("update meanwhile set n = n + 1")
    pair.target.execute("delete from bag")
    pair.start()
    with Customers(pair, "item", "meanwhile"):
        reach(pair, "public.meanwhile", "following")
        reach(pair, "public.bag", "following")
        reach(pair, "public.item", "paused")
    wish(pair, "resume", "public.item")
    reach(pair, "public.item", "following")
    pair.check("meanwhile", "bag", "item", "other", "late")
    assert Path(pair.path).exists()
