"""A pipeline with a base that is served: extractor, load process and server are processes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from harness.pipelines.end_to_end import Process
from harness.servers.engines import Place, insert
from harness.servers.subscribers import WAIT_S, Served, Subscriber
from penstock.base.manifest import Manifest, load_manifest

ITEM = "create table {}item (id int primary key, n int, note varchar(200))"
OTHER = "create table {}other (k varchar(40) primary key, v bigint)"


class Based(Served):
    """A served log with a base: the load process runs, too."""

    def __init__(self, place: Place, folder: Path, *, target: str = "", **more: Any) -> None:
        """Write the file; target is a database, empty for none."""
        super().__init__(place, folder, **more)
        text = self.path.read_text().replace("[pipeline]", '[pipeline]\nmode = "data+change"', 1)
        text += '\n[spark]\nmaster = "local[2]"\n'
        self.path.write_text(text + (f'\n[target]\nurl = "{target}"\n' if target else ""))
        self.loader: Process | None = None

    @property
    def manifest(self) -> Path:
        """Manifest of the base."""
        return self.folder / "shop" / "base" / "BASE.json"

    def load(self) -> Process:
        """Start the load process, and wait until it has a base."""
        self.loader = Process(self.path, "load")
        self.loader.until(self.manifest.exists, "the base is read")
        return self.loader

    def listen_at(self, port: int) -> None:
        """Let it serve at a port in all processes."""
        self.port = port
        self.path.write_text(self.path.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))

    def read_manifest(self) -> Manifest:
        """Return the manifest of the present base."""
        found = load_manifest(self.manifest.parent)
        assert found is not None
        return found

    def moved_on(self, segment: int | None = None) -> None:
        """Wait until the base has moved forward, or past a segment."""
        assert self.loader is not None
        behind = self.read_manifest().segment if segment is None else segment
        self.loader.until(lambda: self.read_manifest().segment > behind, "the base moves on")

    def equal(self, *tables: str) -> None:
        """Wait until the server, from base and log, answers with the source's rows."""
        deadline = time.monotonic() + WAIT_S
        for table in tables:
            query = f"select * from {self.place.namespace}.{table}"
            while sorted(self.query_catalog(query), key=repr) != rows(self.place, table):
                assert time.monotonic() < deadline, f"{table} is not as at the source"
                time.sleep(0.2)

    def close(self) -> None:
        """End all processes."""
        if self.loader is not None:
            self.loader.__exit__()
        super().close()


def fill(place: Place, first: int, count: int = 20) -> None:
    """Insert, update, move and delete rows in several transactions."""
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
    """Return the rows of a source's table."""
    return sorted(place.run(f"select * from {table}"), key=repr)


def wait_until_followed(subscriber: Subscriber, *tables: str) -> None:
    """Wait until the subscriber has the source's rows, and no copy is running."""
    place = subscriber.served.place

    def equal() -> bool:
        copied = subscriber.run("select count(*) from pg_subscription_rel where srsubstate <> 'r'")
        return copied == [(0,)] and all(
            rows(place, table)
            == sorted(subscriber.run(f"select * from {place.namespace}.{table}"), key=repr)
            for table in tables
        )

    subscriber.until(equal, "tables are equal")
