"""An update that changes the key: two numbers in the log, two events of a consumer, one merge."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.end_to_end import Process
from harness.pipelines.mysql_pipe import load_log
from harness.pipelines.pipeline import penstock, write_pipeline
from harness.servers.engines import ENGINES, FIRST, Place, new_place
from plugins.shared import SharedServers

# Saves after each event; killed before the second event of a changed key while a file exists.
CLASS = """
import json, os, signal
from penstock.consume import CdcConsumer


class Keys(CdcConsumer):
    def __init__(self, folder):
        self.folder = folder

    def start(self, metrics):
        self.file = open(f"{self.folder}/noted.txt", "a", buffering=1)
        self.file.write("null\\n")

    def on_events(self, events):
        event = next(events, None)
        if event is None:
            return True
        if event.op == "I" and event.before is not None and os.path.exists(f"{self.folder}/die"):
            os.unlink(f"{self.folder}/die")
            os.kill(os.getpid(), signal.SIGKILL)
        said = [event.version, event.op, event.key, event.value is None]
        self.file.write(json.dumps(said) + "\\n")
        return True

    def stop(self):
        self.file.close()
"""
TABLE = "create table item (id int primary key, code int not null, n int)"
SHAPES = {
    "default": ("id", ()),
    "full": ("id", ("alter table item replica identity full",)),
    "index": (
        "code",
        (
            "create unique index by_code on item (code)",
            "alter table item replica identity using index by_code",
        ),
    ),
}
CASES = [(FIRST, shape) for shape in SHAPES] + [(kind, "default") for kind in ENGINES[1:]]


class Shop:
    """A source and a target with two tables, and a consumer beside the load."""

    def __init__(self, source: Place, target: Place, folder: Path, shape: str) -> None:
        self.source, self.target, self.folder = source, target, folder
        self.key, more = SHAPES[shape]
        for place in (source, target):
            place.run(TABLE, "create table other (id int primary key)", *more)
        (folder / "keys_consumer.py").write_text(CLASS)
        self.path = write_pipeline(
            folder,
            source.url,
            target.url,
            mode="change",
            tables=[f"{source.namespace}.*"],
            sections={
                "changeExtractor": {"exitWhenIdle": True, "idleWaitSeconds": 0.7},
                "target.map": {source.namespace: target.namespace},
                "consumers.keys": {
                    "class": "keys_consumer:Keys",
                    "keepBinary": False,
                    "checkFrequency": 20,
                },
            },
        )
        with self.path.open("a") as file:
            file.write(f"options = {{ folder = {json.dumps(str(folder))} }}\n")

    def extract(self) -> None:
        """Extract until the source is idle."""
        ran = penstock("extract", self.path, "--json")
        assert ran.code == 0, ran

    def read_events(self) -> list[Any]:
        """Return the events that came, with None for each start."""
        path = self.folder / "noted.txt"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def consume(self) -> int:
        """Consume until all is read, or the consumer dies; return the exit code."""
        with Process(self.path, "consume", "keys") as process:
            return process.wait_for_end()


@pytest.fixture(params=CASES, ids="-".join)
def shop(
    request: pytest.FixtureRequest, shared_servers: SharedServers, tmp_path: Path
) -> Iterator[Shop]:
    """A shop on a server of each engine, and in PostgreSQL with each replica identity."""
    kind, shape = request.param
    with new_place(shared_servers, kind) as source, new_place(shared_servers, kind) as target:
        own = "schema if exists wirekite cascade"
        is_schema = target.namespace == "public"
        target.run(f"drop {own if is_schema else 'database if exists wirekite'}")
        yield Shop(source, target, tmp_path, shape)
        source.forget_log()


def test_a_changed_key_is_two_events_with_two_gsns(shop: Shop) -> None:
    """The first event has value None; a consumer killed between them continues with the second."""
    shop.extract()
    key = shop.key
    shop.source.run(
        "insert into item values (1, 1, 0), (5, 5, 0)",
        f"update item set {key} = 2 where {key} = 1",
        f"update item set n = 7 where {key} = 2",
        "insert into other values (1)",
        f"update item set {key} = 12 where {key} = 2",
        f"delete from item where {key} = 5",
    )
    shop.extract()
    load_log(shop.path)
    query = "select id, code, n from item order by id"
    assert shop.target.run(query) == shop.source.run(query)
    assert len(shop.target.run(query)) == 1
    (shop.folder / "die").touch()
    assert shop.consume() == -signal.SIGKILL
    told = [[1, "I", [1], False], [2, "I", [5], False], [3, "D", [1], True]]
    assert shop.read_events() == [None, *told]
    assert shop.consume() == 0
    assert shop.read_events() == [
        None,
        *told,
        None,
        [4, "I", [2], False],
        [5, "U", [2], False],
        [6, "I", [1], False],
        [7, "D", [2], True],
        [8, "I", [12], False],
        [9, "D", [5], True],
    ]
