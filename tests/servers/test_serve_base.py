"""Subscribers copy what there was from the log's base, at the point where their streams begin."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fix_end_to_end import Process
from fix_engines import ENGINES, Place, insert, new_place
from fix_postgres import Server
from fix_shared import SharedServers
from fix_subscribers import Served, Subscriber

ITEM = "create table {}item (id int primary key, n int, note varchar(200))"
OTHER = "create table {}other (k varchar(40) primary key, v bigint)"


class Based(Served):
    """Served with a base: the load process runs, too."""

    def __init__(self, place: Place, folder: Path, **more: Any) -> None:
        super().__init__(place, folder, **more)
        text = self.path.read_text().replace("[pipeline]", '[pipeline]\nmode = "data+change"', 1)
        self.path.write_text(text + '\n[spark]\nmaster = "local[2]"\n')
        self.loader: Process | None = None

    @property
    def manifest(self) -> Path:
        """Of the base."""
        return self.folder / "shop" / "base" / "BASE.json"

    def load(self) -> Process:
        """Start the load process, and wait until it has a base."""
        self.loader = Process(self.path, "load")
        self.loader.until(self.manifest.exists, "the base is read")
        return self.loader

    def close(self) -> None:
        """End all."""
        if self.loader is not None:
            self.loader.__exit__()
        super().close()


def fill(place: Place, first: int, count: int) -> None:
    """Rows inserted, updated, moved and deleted, in several transactions."""
    insert(place, "item", [(n, n * n, f"note\t{n}") for n in range(first, first + count)])
    insert(place, "other", [(f"k{n}", n * 10_000_000_000) for n in range(first, first + count)])
    place.run(
        f"update item set note = null where id = {first}",
        f"update item set id = id + 1000000 where id = {first + 1}",
        f"delete from item where id = {first + 2}",
        f"update other set v = v + 1 where k = 'k{first + 3}'",
        f"delete from other where k = 'k{first + 4}'",
    )


def rows(place: Place, table: str) -> list[tuple[object, ...]]:
    """The rows of a source's table."""
    return sorted(place.run(f"select * from {table}"), key=repr)


def followed(subscriber: Subscriber, *tables: str) -> None:
    """Wait until the subscriber has what the source has, and no copy is under way."""
    place = subscriber.served.place

    def equal() -> bool:
        copied = subscriber.run("select count(*) from pg_subscription_rel where srsubstate <> 'r'")
        return copied == [(0,)] and all(
            rows(place, table)
            == sorted(subscriber.run(f"select * from {place.namespace}.{table}"), key=repr)
            for table in tables
        )

    subscriber.until(equal, "tables are equal")


@pytest.fixture(params=ENGINES)
def based(
    request: pytest.FixtureRequest, shared_servers: SharedServers, tmp_path: Path
) -> Iterator[Based]:
    """A source with rows of before, extracted, based and served."""
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


def test_a_subscriber_copies_and_follows(based: Based, postgres: Server) -> None:
    """With writes meanwhile; and a table that is made later, with REFRESH."""
    place = based.place
    prefix = f"{place.namespace}."
    subscriber = Subscriber(postgres, based, ITEM.format(prefix), OTHER.format(prefix))
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
            f"create subscription {subscriber.name} connection '{based.connection()}' publication p"
        )
        subscriber.until(
            lambda: (
                subscriber.run("select count(*) from pg_subscription_rel where srsubstate <> 'r'")
                == [(0,)]
            ),
            "all tables are copied",
        )
        ended.set()
        writer.join()
        followed(subscriber, "item", "other")
    finally:
        ended.set()
        writer.join()
        subscriber.drop()
