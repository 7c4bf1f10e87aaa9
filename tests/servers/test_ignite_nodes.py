"""A cluster of real nodes as one source: writers continue while nodes die and come back."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.ignite.source import extract, fold_rows, rows_of
from harness.pipelines.end_to_end import Process
from penstock.control.pipeline.config import load_config
from plugins.ignite_live import LiveFailed, LiveNode, LiveNodes

CACHES = {"both": "ATOMIC", "ledger": "TRANSACTIONAL"}
KEY_COUNT = 60


def pipeline(folder: Path, *nodes: LiveNode, more: str = "") -> Path:
    """Write a pipeline file over these nodes, without a target. more: sections."""
    mode = 'mode = "change"\n' if more else ""
    file = folder / "nodes.toml"
    urls = ", ".join(f'"{node.url}"' for node in nodes)
    file.write_text(
        f'[pipeline]\nname = "nodes"\ndirectory = "{folder / "pipeline"}"\n{mode}[source]\n'
        f'url = [{urls}]\ntables = ["*"]\n{more}'
    )
    return file


class Writer:
    """A writer that puts and removes through one node, and leaves out the keys that it is told."""

    def __init__(self, node: LiveNode, seed: int) -> None:
        self._node = node
        self._chance = random.Random(seed)
        self._number = 0

    def write(self, count: int) -> None:
        """Make so many changes, some in transactions; those that fail as a node dies
        may be stored.
        """
        for _ in range(count):
            self._number += 1
            with suppress(LiveFailed):
                self._write(f"{self._node.consistent_id} {self._number}")

    def _write(self, text: str) -> None:
        node, chance = self._node, self._chance
        key = chance.randrange(KEY_COUNT)
        if chance.random() < 0.2:
            node.ask("remove", chance.choice(list(CACHES)), key)
        elif chance.random() < 0.3:
            node.ask("tx", "begin", text)
            try:
                for more in range(3):
                    node.ask("tx", "put", text, "ledger", (key + more) % KEY_COUNT, text)
            finally:
                node.ask("tx", "commit" if chance.random() < 0.8 else "rollback", text)
        else:
            node.ask("put", chance.choice(list(CACHES)), key, text)


@contextmanager
def running(work: Callable[[], object]) -> Iterator[None]:
    """Repeat something in the background; raise its error at the end."""
    is_over, errors = threading.Event(), []

    def loop() -> None:
        try:
            while not is_over.is_set():
                work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    if errors:
        raise errors[0]


def wait_until_settled(*nodes: LiveNode) -> None:
    """Wait until all nodes are up and nothing is being rebalanced."""
    first = nodes[0]
    first.until(lambda: first.ask("nodes") == len(nodes), "a node is not there")
    first.until(lambda: first.ask("settled"), "it was not rebalanced")


def check(file: Path, node: LiveNode) -> None:
    """Check that the log has the result of a scan of the caches, and each change once."""
    rows = rows_of(load_config(file))
    tables = fold_rows(rows)
    for cache in CACHES:
        found = {key: row["_val"] for (key,), row in tables.get(cache, {}).items()}
        assert found == scan_cache(node, cache)
    last: dict[tuple[str, int], dict[str, int]] = {}
    for row in rows:  # the texts of one writer increase for each key
        if row.op == "U":
            writer, number = row.values["_val"].split(" ")
            before = last.setdefault((row.table, row.values["_key"]), {})
            assert before.get(writer, 0) < int(number)
            before[writer] = int(number)


@pytest.mark.long
def test_nodes_die_stop_and_come_back(ignite_nodes: LiveNodes, tmp_path: Path) -> None:
    """One node is killed under writers and comes back, then the other stops: nothing is lost or
    old.
    """
    one, two = ignite_nodes.start("node-1"), ignite_nodes.start("node-2")
    wait_until_settled(one, two)
    one.ask("baseline")
    for cache, atomicity in CACHES.items():
        one.create(cache, atomicity=atomicity, backups=1)
    wait_until_settled(one, two)
    file = pipeline(tmp_path, one, two)
    first, second = Writer(one, 1), Writer(two, 2)
    with running(lambda: extract(file, flush_rows=20)):
        first.write(60)
        second.write(60)
        with running(lambda: first.write(5)):
            two.kill()
            time.sleep(2)
        wait_until_settled(one)
        first.write(60)
        two.start()
        wait_until_settled(one, two)
        second.write(60)
        with running(lambda: second.write(5)):
            one.stop()
        wait_until_settled(two)
        second.write(60)
        two.await_linked()
    extract(file)
    check(file, two)
    one.start()
    wait_until_settled(two, one)
    first.write(30)
    second.write(30)
    for node in (one, two):
        node.await_linked()
    extract(file)
    check(file, two)


@pytest.mark.long
def test_nodes_into_postgres(ignite_nodes: LiveNodes, tmp_path: Path, target_url: str) -> None:
    """Spark loads a scan's rows, while one of three nodes dies and comes back, and in the end."""
    nodes = [ignite_nodes.start(f"node-{number}") for number in (1, 2, 3)]
    wait_until_settled(*nodes)
    nodes[0].ask("baseline")
    for cache, atomicity in CACHES.items():
        nodes[0].create(cache, atomicity=atomicity, backups=1)
    wait_until_settled(*nodes)
    file = pipeline(
        tmp_path, *nodes, more=f'[target]\nurl = "{target_url}"\n[spark]\nmaster = "local[2]"\n'
    )
    first, third = Writer(nodes[0], 3), Writer(nodes[2], 4)
    for cache in CACHES:
        with psycopg.connect(target_url) as made:
            made.execute(f'create table public."{cache}" (_key int primary key, _val text)')
    with psycopg.connect(target_url, autocommit=True) as target, Process(file) as run:

        def is_equal() -> bool:
            return all(
                read_target(target, cache) == scan_cache(nodes[0], cache) for cache in CACHES
            )

        first.write(60)
        third.write(60)
        with running(lambda: first.write(5)):
            nodes[1].kill()
            time.sleep(1)
        wait_until_settled(nodes[0], nodes[2])
        third.write(40)
        for node in (nodes[0], nodes[2]):
            node.await_linked()
        run.until(is_equal, "the target has what the caches have without the dead node")
        nodes[1].start()
        wait_until_settled(*nodes)
        with running(lambda: third.write(5)):
            nodes[0].ask("destroy", "both")
            nodes[0].create("both", backups=1)
            first.write(20)
        for node in nodes:
            node.await_linked()
        run.until(is_equal, "the target has what the caches have")
        run.stop()


@pytest.mark.long
def test_rows_of_two_nodes_and_the_changes_behind(
    ignite_nodes: LiveNodes, tmp_path: Path, target_url: str
) -> None:
    """Bulk load and changes of several nodes under writers end equal to a scan."""
    one, two = ignite_nodes.start("node-1"), ignite_nodes.start("node-2")
    wait_until_settled(one, two)
    one.ask("baseline")
    for cache, atomicity in CACHES.items():
        one.create(cache, atomicity=atomicity, backups=1)
    wait_until_settled(one, two)
    first, second = Writer(one, 5), Writer(two, 6)
    first.write(100)
    file = tmp_path / "nodes.toml"
    urls = ", ".join(f'"{node.url}&address={node.address}"' for node in (one, two))
    file.write_text(
        f'[pipeline]\nname = "nodes"\ndirectory = "p"\nmode = "data+change"\n[source]\n'
        f'url = [{urls}]\ntables = ["*"]\n[target]\nurl = "{target_url}"\n'
        '[target.types]\n"*" = "error"\n[spark]\nmaster = "local[2]"\n'
    )
    with psycopg.connect(target_url, autocommit=True) as target, Process(file) as run:
        with running(lambda: second.write(5)):
            run.until(lambda: has_tables(target), "the tables are made")
        first.write(40)
        for node in (one, two):
            node.await_linked()
        run.until(
            lambda: all(read_target(target, cache) == scan_cache(one, cache) for cache in CACHES),
            "the target has what the caches have",
        )
        run.stop()


def has_tables(target: psycopg.Connection[Any]) -> bool:
    """Return whether every cache has a table."""
    found = target.execute("select count(*) from pg_tables where tablename = any(%s)", ([*CACHES],))
    return found.fetchone() == (len(CACHES),)


def scan_cache(node: LiveNode, cache: str) -> dict[int, str]:
    """Return the result of a scan of the cache."""
    return {key[1]: value[1] for key, value, _ in node.scan(cache)}


def read_target(target: psycopg.Connection[Any], cache: str) -> dict[int, str]:
    """Return the target's rows."""
    return dict(target.execute(f'select _key, _val from public."{cache}"').fetchall())
