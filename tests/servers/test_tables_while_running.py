"""`penstock table add, remove, pause, resume, resync` on a running pipeline within one PostgreSQL.

Customers never stop writing: a command for one table must not affect another, and both sides are
equal in the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest

from harness.pipelines.end_to_end import Pair
from harness.pipelines.pipeline import penstock
from harness.pipelines.tables import LATE, SETUP, Customers, count, line, reach, request
from plugins.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, postgres: Server) -> Iterator[Pair]:
    """Pipeline of all tests here: `*.*` would match the tables that `add` is to add."""
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
    """The table is created in the target, its rows copied, its changes followed; no restart."""
    pair.run(LATE.format(name="late"))
    with Customers(pair, "item", "late"):
        request(pair, "add", "public.late")
        reach(pair, "public.late", "following")
        pair.settle()
    pair.check("late", "item", "bag", "other")
    assert pair.process is not None
    assert not any("again" in event for event in pair.process.events)


def is_held(pair: Pair, table: str) -> bool:
    """Return whether a copy into the target waits for a lock that the test holds."""
    return bool(
        count(
            pair,
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
            f" and datname = current_database() and query like '%{table}%'",
        )
    )


def test_no_table_waits_for_a_copy_and_newer_images_win(pair: Pair) -> None:
    """Rows are changed while their older images are copied; other tables continue."""
    pair.run(
        "create table big (id int primary key, n int, t text);"
        "insert into big select g, 0, repeat(md5(g::text), 10) from generate_series(1, 60000) as g"
    )
    pair.target.execute("create table big (id int primary key, n int, t text)")
    assert pair.process is not None
    with psycopg.connect(pair.target_url) as holder:
        holder.execute("lock table big in share mode")
        request(pair, "add", "public.big")
        pair.process.until(lambda: is_held(pair, "big"), "the copy waits for the lock")
        pair.run("update big set n = n + 1 where id % 3 = 0")
        pair.run("delete from big where id % 5 = 0")
        pair.run("update big set id = -id where id % 7 = 0")
        pair.run("insert into big values (0, 0, 'new'); update big set n = 9 where id = 0")
        pair.run("update big set id = 70000 where id = 1; insert into big values (1, 5, 'again')")
        for _ in range(3):
            pair.run("update item set n = n + 1")
            pair.settle()
        assert is_held(pair, "big")
        assert line(pair, "public.big")["state"] == "copying"
        wrong = pair.differences("item")
        assert not wrong, wrong[:5]
    reach(pair, "public.big", "following")
    pair.run("update big set n = n + 1 where id % 2 = 0")
    pair.check("big", "item")


def test_what_sends_no_rows_reaches_tables_in_table_sync(pair: Pair) -> None:
    """TRUNCATE, new columns and a rewrite happen to a paused table and to one that is
    copied again.
    """
    pair.run(
        "create table shape (id int primary key, n int);"
        "insert into shape select g, 0 from generate_series(1, 100) as g"
    )
    pair.run(LATE.format(name="swap"))
    request(pair, "add", "public.shape", "public.swap")
    reach(pair, "public.shape", "following")
    reach(pair, "public.swap", "following")
    request(pair, "pause", "public.shape", "public.swap")
    reach(pair, "public.shape", "paused")
    reach(pair, "public.swap", "paused")
    for name in ("shape", "swap"):
        pair.run(f"insert into {name} (id, n) values (-1, 1); truncate {name}")
        pair.run(f"insert into {name} (id, n) select g, g from generate_series(1, 200) as g")
        pair.run(f"alter table {name} add column more int default 7")
        pair.run(f"update {name} set more = n where id % 2 = 0")
        pair.run(f"alter table {name} alter column n type bigint using n * 2")
        pair.run(f"delete from {name} where id % 10 = 0")
    pair.settle()
    request(pair, "resync", "public.swap")
    request(pair, "resume", "public.shape", "public.swap")
    pair.run("truncate swap; insert into swap (id, n) values (1, 1), (2, 2)")
    pair.run("alter table swap add column last text default 'x'")
    pair.run("insert into swap (id, n) values (3, 3)")
    reach(pair, "public.shape", "following")
    reach(pair, "public.swap", "following")
    pair.run("insert into swap (id, n, last) values (4, 4, 'y')")
    pair.check("shape", "swap", "item")


def test_a_paused_table_waits_and_loses_nothing(pair: Pair) -> None:
    """Segments are kept despite removeFiles; afterwards each change is applied once, in order."""
    with Customers(pair, "item"):
        request(pair, "pause", "public.item", "public.bag")
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
        request(pair, "resume", "public.item", "public.bag")
        reach(pair, "public.item", "following")
        reach(pair, "public.bag", "following")
    pair.check("item", "bag", "other")
    assert kept > 1
    assert pair.process is not None
    pair.process.until(
        lambda: len(list((pair.directory / "log").glob("*.ckt"))) <= 1, "segments removed"
    )


def test_a_table_is_copied_again(pair: Pair) -> None:
    """Rows that were changed or deleted in the target are correct again."""
    pair.settle()
    pair.target.execute("delete from item where id % 2 = 0")
    pair.target.execute("update item set t = 'wrong'")
    pair.target.execute("delete from bag")
    # Before the customers write: deleting a row of `bag` that does not exist is an error.
    request(pair, "resync", "public.item", "public.bag")
    with Customers(pair, "item"):
        reach(pair, "public.item", "following")
        reach(pair, "public.bag", "following")
    pair.check("item", "bag", "other")


def test_a_removed_table_stays_as_it_is_and_can_be_added_again(pair: Pair) -> None:
    """A removed table leaves the publication; added again, its rows replace the target's."""
    pair.run(LATE.format(name="goes"))
    request(pair, "add", "public.goes")
    reach(pair, "public.goes", "following")
    published = "select count(*) from pg_publication_tables where tablename = 'goes'"
    with Customers(pair, "item", "goes"):
        request(pair, "remove", "public.goes")
        reach(pair, "public.goes", "removed")
        assert pair.process is not None
        pair.process.until(
            lambda: pair.source.execute(published).fetchone() == (0,), "not published any more"
        )
        before = count(pair, "select sum(n) + count(*) from goes")
        pair.settle()
        assert count(pair, "select sum(n) + count(*) from goes") == before
        request(pair, "add", "public.goes")
        reach(pair, "public.goes", "following")
    pair.check("goes", "item", "other")


def test_what_cannot_be_added_is_reported_and_disturbs_nobody(pair: Pair) -> None:
    """The table does not exist, is already captured, or has foreign rows in the target."""
    ran = penstock("table", "add", pair.path, "public.nowhere", "--json")
    assert (ran.code, ran.error["code"]) == (1, "PG42")
    ran = penstock("table", "add", pair.path, "public.item", "--json")
    assert (ran.code, ran.error["code"]) == (1, "CT61")
    ran = penstock("table", "pause", pair.path, "public.nowhere", "--json")
    assert (ran.code, ran.error["code"]) == (1, "CT60")
    pair.run("create table keyless (id int)")
    ran = penstock("table", "add", pair.path, "public.keyless", "--json")
    assert (ran.code, ran.error["code"]) == (1, "PG12")
    pair.run("insert into keyless values (1); update keyless set id = 2")  # it is not published
    pair.run("create table theirs (id int primary key)")
    pair.target.execute("create table theirs (id int primary key)")
    pair.target.execute("insert into theirs values (1)")
    request(pair, "add", "public.theirs")
    assert pair.process is not None
    pair.process.until(
        lambda: line(pair, "public.theirs").get("code") == "LD43", "the refusal is shown"
    )
    pair.check("item")
    request(pair, "resync", "public.theirs")
    reach(pair, "public.theirs", "following")
    pair.check("theirs")


def test_requests_to_a_stopped_pipeline_are_carried_out_at_its_start(pair: Pair) -> None:
    """A table that is added and written while no process runs is covered, too."""
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
    request(pair, "resume", "public.item")
    reach(pair, "public.item", "following")
    pair.check("meanwhile", "bag", "item", "other")
    told = penstock("verify", pair.path, "--json")
    assert (told.code, told.result["equal"]) == (0, True), told.out + told.err
