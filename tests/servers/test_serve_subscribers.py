"""Stock subscribers follow a served log, whatever the source: their tables become equal."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from harness.pipelines.based import fill
from harness.pipelines.end_to_end import Process
from harness.pipelines.pipeline import penstock
from harness.servers.engines import ENGINES, Place, insert, new_place
from harness.servers.subscribers import Served, Subscriber
from plugins.postgres import Server
from plugins.shared import SharedServers

ITEM = "create table {}item (id int primary key, n int, note varchar(200))"
OTHER = "create table {}other (k varchar(40) primary key, v bigint)"


@pytest.fixture(params=ENGINES)
def place(request: pytest.FixtureRequest, shared_servers: SharedServers) -> Iterator[Place]:
    """A source with two tables."""
    with new_place(shared_servers, request.param) as found:
        found.run(ITEM.format(""))
        found.run(OTHER.format(""))
        yield found


@pytest.fixture
def served_log(place: Place, tmp_path: Path) -> Iterator[Served]:
    """Served log of the source."""
    made = Served(place, tmp_path)
    try:
        made.extract()
        made.serve()
        yield made
    finally:
        made.close()
        place.forget_log()


@pytest.fixture
def subscriber(postgres: Server, served_log: Served) -> Iterator[Subscriber]:
    """Subscriber with a subscription."""
    prefix = f"{served_log.place.namespace}."
    made = Subscriber(postgres, served_log, ITEM.format(prefix), OTHER.format(prefix))
    try:
        yield made
    finally:
        made.drop()


def rows(place: Place, table: str) -> list[tuple[object, ...]]:
    """Return the rows of a source's table."""
    return sorted(place.run(f"select * from {table}"))


def wait_until_followed(subscriber: Subscriber) -> None:
    """Wait until the subscriber has the source's rows."""
    place = subscriber.served.place

    def equal() -> bool:
        return all(
            rows(place, table) == sorted(subscriber.run(f"select * from {place.namespace}.{table}"))
            for table in ("item", "other")
        )

    subscriber.until(equal, "tables are equal")


@pytest.mark.long
def test_a_subscriber_follows(served_log: Served, subscriber: Subscriber) -> None:
    """A subscriber follows rows, keys, TRUNCATE, the server's restarts and kills,
    disable and DROP.
    """
    place = served_log.place
    subscriber.subscribe()
    fill(place, 1)
    wait_until_followed(subscriber)
    place.run("truncate table other")
    fill(place, 101)
    wait_until_followed(subscriber)
    assert served_log.server is not None
    served_log.server.stop()
    fill(place, 201)
    served_log.serve()
    fill(place, 301)
    wait_until_followed(subscriber)
    for at in range(3):
        served_log.server.send(signal.SIGKILL)
        served_log.server.wait_for_end()
        fill(place, 401 + 100 * at)
        served_log.serve()
        wait_until_followed(subscriber)
    subscriber.run(f"alter subscription {subscriber.name} disable")
    fill(place, 801)
    subscriber.run(f"alter subscription {subscriber.name} enable")
    wait_until_followed(subscriber)
    assert served_log.query_catalog("select slot_name, active from pg_replication_slots") == [
        (subscriber.name, True)
    ]
    subscriber.run(f"drop subscription {subscriber.name}")
    assert served_log.query_catalog("select count(*) from pg_replication_slots") == [(0,)]


def test_two_subscribers(served_log: Served, subscriber: Subscriber, postgres: Server) -> None:
    """Each has its own pace and its own options."""
    prefix = f"{served_log.place.namespace}."
    other = Subscriber(postgres, served_log, ITEM.format(prefix), OTHER.format(prefix))
    try:
        subscriber.subscribe("p", "binary = true", "streaming = on")
        other.subscribe()
        fill(served_log.place, 1)
        wait_until_followed(subscriber)
        wait_until_followed(other)
        other.run(f"alter subscription {other.name} disable")
        fill(served_log.place, 101)
        wait_until_followed(subscriber)
        other.run(f"alter subscription {other.name} enable")
        wait_until_followed(other)
    finally:
        other.drop()


@pytest.fixture(params=[kind for kind in ENGINES if kind.startswith("pg")])
def shop(
    request: pytest.FixtureRequest, shared_servers: SharedServers, tmp_path: Path
) -> Iterator[Served]:
    """A source whose publication has columns and rows of one table."""
    with new_place(shared_servers, request.param) as place:
        place.run(ITEM.format(""), "alter table item replica identity full")
        place.run(OTHER.format(""), "create table late (id int primary key)")
        text = (
            "[serve.publications.dear]\n"
            'tables = ["public.item (id, n) where (n >= 100 and n <> 121)"]\n'
            "[serve.publications.p]\n"
            'tables = ["public.other"]\n'
        )
        made = Served(place, tmp_path, publications=text)
        try:
            made.extract()
            made.serve()
            yield made
        finally:
            made.close()
            place.forget_log()


def test_columns_rows_and_publications_that_change(shop: Served, postgres: Server) -> None:
    """The file's and a client's publications take effect, and REFRESH."""
    subscriber = Subscriber(
        postgres,
        shop,
        "create table item (id int primary key, n int, note text default 'own')",
        OTHER.format(""),
        "create table late (id int primary key)",
    )
    try:
        subscriber.run("alter table item replica identity full")
        subscriber.subscribe("dear")
        fill(shop.place, 1)
        wanted = "select id, n from item where n >= 100 and n <> 121 order by id"
        subscriber.until(
            lambda: subscriber.run("select id, n from item order by id") == shop.place.run(wanted),
            "the rows that fulfil the condition",
        )
        shop.place.run(
            "update item set n = 5 where id = 15", "update item set n = 500 where id = 4"
        )
        subscriber.until(
            lambda: subscriber.run("select id, n from item order by id") == shop.place.run(wanted),
            "rows that moved in and out",
        )
        assert set(subscriber.run("select note from item")) == {("own",)}
        with psycopg.connect(shop.connection(), autocommit=True) as connection:
            connection.execute("create publication mine for table other")
            subscriber.run(f"alter subscription {subscriber.name} disable")
            # Until its worker has ended, it confirms changes that the old publication lacks.
            workers = "select pid from pg_stat_subscription where pid is not null"
            subscriber.until(lambda: not subscriber.run(workers), "the worker has ended")
            subscriber.run(
                f"alter subscription {subscriber.name} set publication mine with (refresh = false)"
            )
            subscriber.run(f"alter subscription {subscriber.name} enable")
            subscriber.run(
                f"alter subscription {subscriber.name} refresh publication with (copy_data = false)"
            )
            insert(shop.place, "other", [("mine", 1)])
            subscriber.until(
                lambda: ("mine", 1) in subscriber.run("select * from other"), "another publication"
            )
            connection.execute("alter publication mine add table late")
        subscriber.run(
            f"alter subscription {subscriber.name} refresh publication with (copy_data = false)"
        )
        shop.place.run("insert into late values (7)")
        subscriber.until(lambda: subscriber.run("select * from late") == [(7,)], "a table more")
    finally:
        subscriber.drop()


def test_run_serves_beside_its_extraction(place: Place, postgres: Server, tmp_path: Path) -> None:
    """The server is started, restarted after a kill, and does not keep an idle run from ending."""
    served = Served(place, tmp_path, exitWhenIdle=True, idleWaitSeconds=15)
    prefix = f"{place.namespace}."
    subscriber = None
    with Process(served.path) as run:
        log = tmp_path / "shop" / "run" / "serve.log"
        run.until(lambda: log.exists() and "127.0.0.1:" in log.read_text(), "it serves")
        try:
            served.port = int(re.findall(r"127.0.0.1:(\d+)", log.read_text())[-1])
            subscriber = Subscriber(postgres, served, ITEM.format(prefix), OTHER.format(prefix))
            subscriber.subscribe()
            fill(place, 1)
            wait_until_followed(subscriber)
            listed = penstock("consumers", "ls", served.path)
            assert listed.code == 0, listed.err
            subscriber.drop()
            subscriber = None
            assert run.wait_for_end() == 0, run.err
        finally:
            if subscriber is not None:
                subscriber.drop()
            place.forget_log()
