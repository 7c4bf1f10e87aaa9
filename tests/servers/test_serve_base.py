"""Subscribers copy existing rows from the log's base, at the point where their streams begin."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.based import ITEM, OTHER, Based, fill, rows, wait_until_followed
from harness.pipelines.end_to_end import Process
from harness.servers.engines import ENGINES, Place, insert, new_place
from harness.servers.subscribers import Subscriber
from penstock.consume import CdcConsumer, run
from penstock.host.server_process import free_port
from plugins.postgres import Server
from plugins.shared import SharedServers


@pytest.fixture(params=ENGINES)
def based_source(
    request: pytest.FixtureRequest, shared_servers: SharedServers, tmp_path: Path
) -> Iterator[Based]:
    """A source with existing rows, extracted, based and served."""
    with new_place(shared_servers, request.param) as place:
        place.run(ITEM.format(""))
        place.run(OTHER.format(""))
        fill(place, 1, 50)
        made = Based(place, tmp_path)
        try:
            made.extract()
            made.load()
            made.serve()
            yield made
        finally:
            made.close()
            place.forget_log()


@pytest.mark.long
def test_a_subscriber_copies_and_follows(based_source: Based, postgres: Server) -> None:
    """Writes come meanwhile; files were moved forward; a later table is added with REFRESH."""
    place = based_source.place
    prefix = f"{place.namespace}."
    late = "create table {}late (id int primary key, at timestamp)"
    subscriber = Subscriber(
        postgres, based_source, ITEM.format(prefix), OTHER.format(prefix), late.format(prefix)
    )
    ended = threading.Event()

    def write() -> None:
        first = 1000
        while not ended.is_set():
            fill(place, first, 20)
            first += 20

    writer = threading.Thread(target=write)
    try:
        writer.start()
        subscriber.run(
            f"create subscription {subscriber.name} "
            f"connection '{based_source.connection()}' publication p"
        )
        wait_until_copied(subscriber)
        based_source.moved_on()
        ended.set()
        writer.join()
        wait_until_followed(subscriber, "item", "other")
        place.run(late.format(""))
        insert(place, "late", [(n, "2024-02-29 12:00:00") for n in range(5)])
        subscriber.until(
            lambda: based_source.query_catalog(
                "select 1 from pg_publication_tables where tablename = 'late'"
            ),
            "the new table is published",
        )
        subscriber.run(f"alter subscription {subscriber.name} refresh publication")
        insert(place, "late", [(9, "2001-01-01 00:00:00")])
        wait_until_followed(subscriber, "item", "other", "late")
    finally:
        ended.set()
        writer.join()
        subscriber.drop()


def wait_until_copied(subscriber: Subscriber) -> None:
    """Wait until all tables are copied."""
    left = "select count(*) from pg_subscription_rel where srsubstate <> 'r'"
    subscriber.until(lambda: subscriber.run(left) == [(0,)], "all tables are copied")


class Seen(CdcConsumer):
    """A consumer that keeps rows by key; each row is created once."""

    def __init__(self) -> None:
        """Begin without rows."""
        self.rows: dict[Any, dict[str, Any]] = {}

    def on_events(self, events: Any) -> bool:
        """Apply each event as it is."""
        for event in events:
            if event.value is None:
                del self.rows[event.key]
                continue
            assert (event.key in self.rows) is (event.op != "I")
            self.rows[event.key] = {**self.rows.get(event.key, {}), **event.value}
        return True


@pytest.mark.long
def test_a_new_consumer_begins_with_the_rows_of_the_base(
    based_source: Based, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is not read again; changes before and after come once."""
    place = based_source.place
    consumer = (
        "\n[consumers.seen]\n"
        'class = "shop_app:Seen"\nstart = "snapshot"\nkeepBinary = false\ncheckFrequency = 50\n'
        f'tables = ["{place.namespace}.item"]\n'
    )
    based_source.path.write_text(based_source.path.read_text() + consumer)
    fill(place, 200, 20)

    def unread(*_: Any) -> None:
        raise AssertionError("the source is read")

    monkeypatch.setattr("penstock.control.run.consumer_snapshot._read", unread)
    seen = Seen()

    def read_wanted() -> dict[Any, Any]:
        names = ("id", "n", "note")
        return {(row[0],): dict(zip(names, row, strict=True)) for row in rows(place, "item")}

    until = time.monotonic() + 90

    def is_done() -> bool:
        assert time.monotonic() < until, "not in time"
        return bool(seen.rows) and seen.rows == read_wanted()

    run(based_source.path, "seen", seen, stop=is_done)
    fill(place, 300, 20)
    run(based_source.path, "seen", seen, stop=is_done)


@pytest.fixture(params=[kind for kind in ENGINES if kind.startswith("pg")])
def place(request: pytest.FixtureRequest, shared_servers: SharedServers) -> Iterator[Place]:
    """A source with existing rows."""
    with new_place(shared_servers, request.param) as found:
        found.run(ITEM.format(""), OTHER.format(""))
        fill(found, 1, 50)
        yield found
        found.forget_log()


@pytest.mark.long
@pytest.mark.parametrize("with_target", [False, True])
def test_run_keeps_the_base(
    place: Place, postgres: Server, tmp_path: Path, with_target: bool
) -> None:
    """`penstock run` reads the base and moves it forward, beside a target and without one."""
    target = postgres.make_database("target") if with_target else ""
    made = Based(place, tmp_path, target=target)
    made.listen_at(free_port())
    try:
        with Process(made.path, "run") as process:
            process.until(made.manifest.exists, "the base is read", 300)
            fill(place, 100, 20)
            segment = made.read_manifest().segment
            process.until(lambda: made.read_manifest().segment > segment, "it moves on", 300)
            fill(place, 200, 20)
            made.equal("item", "other")
            process.stop()
    finally:
        made.close()
        if with_target:
            postgres.drop_database(target)
