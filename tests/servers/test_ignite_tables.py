"""Single caches of a running pipeline on a real node: created later, added, copied
again, removed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.ignite.target import node_url, people_in, people_of, pipeline, rows_in, written_to
from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.pipeline import penstock, write_pipeline
from penstock.consume import CdcConsumer
from penstock.consume import run as run_consumer
from plugins.ignite_live import LiveNode

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def state_of(path: Path, cache: str) -> str:
    """Return the state of a cache in `penstock table ls`."""
    lines = map(json.loads, penstock("table", "ls", path, "--json").out.splitlines())
    return next((str(one["state"]) for one in lines if one["table"] == cache), "")


def give_command(word: str, path: Path, cache: str) -> None:
    """Give a command for a single cache."""
    done = penstock("table", word, path, cache)
    assert done.code == 0, done.err


def cities_in(url: str) -> list[tuple[Any, ...]]:
    """Return the rows of the SQL table in PostgreSQL."""
    if rows_in(url, '"SQL_PUBLIC_CITY"') is None:
        return []
    with psycopg.connect(url, autocommit=True) as sql:
        return sql.execute('select * from public."SQL_PUBLIC_CITY" order by 1').fetchall()


@pytest.mark.long
def test_caches_that_are_made_later(live_node: LiveNode, target_url: str, tmp_path: Path) -> None:
    """One cache of objects and one of SQL get tables, rows and changes, and earlier caches
    continue.
    """
    live_node.create("first")
    live_node.ask("fill", "first", 0, 100, 20)
    live_node.create("unused")  # it has no columns until it has a row
    live_node.await_linked()
    path = pipeline(tmp_path, node_url(live_node), target_url, tables=["*", "!not_*"])
    with Process(path) as run:
        run.until(lambda: len(people_in(target_url, "first")) == 100, "the first one is there")
        live_node.create("later", partitions=4)
        live_node.ask("fill", "later", 0, 500, 20)
        live_node.sql("create table city (id int primary key, name varchar(60), founded date)")
        live_node.sql("insert into city values (1, 'Berlin', '1237-10-28')")
        live_node.ask("person", "unused", 1, "Ann", 1)
        live_node.create("not_wanted")
        live_node.ask("person", "not_wanted", 1, "Ann", 1)
        live_node.ask("remove", "later", 7)
        live_node.ask("person", "first", 3, "Bob", 4)
        live_node.await_linked()
        for cache in ("first", "later", "unused"):
            run.until(
                lambda cache=cache: people_in(target_url, cache) == people_of(live_node, cache),
                f"{cache} is equal",
            )
        run.until(lambda: len(cities_in(target_url)) == 1, "the table of SQL is there")
        live_node.ask("remove", "later", 8)
        live_node.ask("person", "later", 9, "Eve", 5)
        live_node.sql("alter table city add column people int")
        live_node.sql("update city set people = 3 where id = 1")
        live_node.await_linked()
        run.until(
            lambda: people_in(target_url, "later") == people_of(live_node, "later"),
            "changes of the later one follow",
        )
        run.until(
            lambda: [row[-1] for row in cities_in(target_url)] == [3], "a column that is added"
        )
        assert rows_in(target_url, "not_wanted") is None
        run.stop()
    # Caches created while no process ran are found at the start.
    live_node.create("meanwhile")
    live_node.ask("person", "meanwhile", 1, "Ann", 1)
    live_node.await_linked()
    with Process(path) as run:
        run.until(
            lambda: people_in(target_url, "meanwhile") == people_of(live_node, "meanwhile") != [],
            "the one that was made meanwhile",
        )
        run.stop()


@pytest.mark.long
def test_commands_for_single_caches(live_node: LiveNode, target_url: str, tmp_path: Path) -> None:
    """Add, pause, resume, resync and remove work as for a table of any other source."""
    for cache in ("kept", "audit"):
        live_node.create(cache)
        live_node.ask("fill", cache, 0, 200, 20)
    live_node.await_linked()
    path = pipeline(tmp_path, node_url(live_node), target_url, tables=["kept"])

    def equal(cache: str) -> bool:
        return people_in(target_url, cache) == people_of(live_node, cache)

    with Process(path) as run:
        run.until(lambda: equal("kept"), "rows are there")
        give_command("add", path, "public.audit")
        run.until(lambda: equal("audit"), "it is added")
        live_node.ask("person", "audit", 3, "Ann", 1)
        live_node.ask("remove", "audit", 4)
        live_node.await_linked()
        run.until(lambda: equal("audit"), "its changes follow")
        run.until(lambda: state_of(path, "public.audit") == "following", "it is with the others")
        give_command("pause", path, "public.audit")
        run.until(lambda: state_of(path, "public.audit") == "paused", "it is paused")
        live_node.ask("person", "audit", 5, "Bob", 1)
        live_node.ask("person", "kept", 5, "Bob", 1)
        live_node.await_linked()
        run.until(lambda: equal("kept"), "the other one goes on")
        assert not equal("audit")
        give_command("resume", path, "public.audit")
        run.until(lambda: equal("audit"), "what waited is applied")
        with psycopg.connect(target_url, autocommit=True) as sql:
            sql.execute("delete from public.kept where _key % 2 = 0")
            sql.execute("update public.kept set name = 'wrong'")
        give_command("resync", path, "public.kept")
        run.until(lambda: equal("kept"), "its rows are copied again")
        live_node.ask("person", "kept", 6, "Eve", 1)
        live_node.await_linked()
        run.until(lambda: equal("kept"), "and its changes follow")
        give_command("remove", path, "public.audit")
        run.until(lambda: state_of(path, "public.audit") == "removed", "it is removed")
        live_node.ask("person", "audit", 6, "late", 1)
        live_node.ask("person", "kept", 7, "late", 1)
        live_node.await_linked()
        run.until(lambda: equal("kept"), "the other one goes on")
        assert ("6", "late", "1") not in people_in(target_url, "audit")
        give_command("add", path, "public.audit")
        run.until(lambda: equal("audit"), "it is back")
        run.stop()


class Seen(CdcConsumer):
    """A consumer that keeps current rows by key, and the ops that came for each key."""

    def __init__(self) -> None:
        """Begin without rows."""
        self.rows: dict[Any, tuple[str, str, str]] = {}
        self.ops: dict[Any, str] = {}

    def on_events(self, events: Any) -> bool:
        """Apply each event as it is."""
        for event in events:
            key = str(event.key[0])
            self.ops[key] = self.ops.get(key, "") + event.op
            if event.value is None:
                self.rows.pop(key, None)
            else:
                assert event.op != "I" or key not in self.rows, f"{key} came twice"
                self.rows[key] = (key, event.value["name"], str(event.value["age"]))
        return True


def test_a_consumer_begins_with_the_rows(live_node: LiveNode, tmp_path: Path) -> None:
    """All rows come as inserts while the cache is written; then the changes after them."""
    live_node.create("people", partitions=4)
    live_node.ask("fill", "people", 0, 300, 20)
    live_node.await_linked()
    consumer = {"class": "none:None", "start": "snapshot", "direct": False}
    consumer |= {"keepBinary": False, "checkFrequency": 50}
    path = write_pipeline(
        tmp_path,
        node_url(live_node),
        None,
        tables=["people"],
        sections={"changeExtractor": LIVELY, "consumers.seen": consumer},
    )
    seen = Seen()

    def consume(until: Callable[[], bool]) -> None:
        """Run the consumer until a condition holds, or for so long."""
        deadline = time.monotonic() + 120
        run_consumer(path, "seen", seen, stop=lambda: until() or time.monotonic() > deadline)

    with Process(path, "extract") as extract, written_to(live_node, "people", 400) as end:
        consume(lambda: any(ops.startswith("IU") for ops in seen.ops.values()))
        end()
        live_node.await_linked()
        wanted = people_of(live_node, "people")
        consume(lambda: sorted(seen.rows.values()) == wanted)
        assert extract.running, extract.err
    assert sorted(seen.rows.values()) == wanted
    assert sum(ops.startswith("I") for ops in seen.ops.values()) >= 250
