"""A whole pipeline into topics: rows that existed, changes while it runs, and a restart."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.kafka.broker import Broker, running_broker
from harness.kafka.reading import read_committed
from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.pipeline import write_pipeline
from harness.servers.engines import Place, new_place
from plugins.shared import SharedServers


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that runs for all tests of this file."""
    with running_broker(tmp_path_factory.mktemp("broker")) as made:
        yield made


@pytest.fixture(params=["pg18", "mariadb"])
def place(request: pytest.FixtureRequest, shared_servers: SharedServers) -> Iterator[Place]:
    """A source with a table of a few rows."""
    with new_place(shared_servers, request.param) as made:
        made.run("create table item (id int primary key, n numeric(8,2), note varchar(40))")
        made.run("insert into item values (1, 1.5, 'a'), (2, null, null), (3, 3, 'c')")
        yield made
        made.forget_log()


class Topic:
    """The table's topic."""

    def __init__(self, broker: Broker, place: Place, prefix: str) -> None:
        self._broker = broker
        self.name = f"{prefix}.{place.namespace}.item"
        self.ops: list[str] = []

    def rows(self) -> dict[int, Any]:
        """Return the rows that the committed messages leave; each gsn is there once."""
        rows: dict[int, Any] = {}
        gsns: list[int] = []
        self.ops = []
        for one in read_committed(self._broker, [self.name]):
            key = json.loads(one.key or b"")["id"]
            value = one.json()
            if value is None:
                rows.pop(key, None)
                continue
            gsns.append(value["source"]["gsn"])
            self.ops.append(value["op"])
            if value["op"] != "d":
                rows[key] = (value["after"]["n"], value["after"]["note"])
        assert gsns == sorted(set(gsns)), "every change once, in order"
        return rows


def test_rows_and_changes_reach_the_topic(
    broker: Broker, place: Place, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A snapshot is followed by each change, over a restart of the run."""
    prefix = request.node.name.partition("[")[2].rstrip("]")
    path = write_pipeline(
        tmp_path,
        place.url,
        None,
        tables=[f"{place.namespace}.item"],
        sections={
            "changeExtractor": LIVELY,
            "consumers.kafka": {
                "class": "penstock.kafka:Topics",
                "start": "snapshot",
                "checkFrequency": 50,
            },
            "consumers.kafka.options": {
                "bootstrap.servers": broker.servers,
                "topic.prefix": prefix,
                "decimal.handling.mode": "string",
            },
        },
    )
    topic = Topic(broker, place, prefix)
    wanted = {1: ("1.50", "a"), 2: (None, None), 3: ("3.00", "c")}
    with Process(path) as run:
        run.until(lambda: topic.rows() == wanted, "the rows came")
        assert set(topic.ops) == {"r"}
        place.run("insert into item values (4, 4, 'd')", "update item set n = 9 where id = 1")
        place.run("delete from item where id = 2", "update item set id = 30 where id = 3")
        wanted = {1: ("9.00", "a"), 4: ("4.00", "d"), 30: ("3.00", "c")}
        run.until(lambda: topic.rows() == wanted, "the changes came")
        run.stop(signal.SIGINT)
    place.run("insert into item values (5, 5, 'while nothing runs')")
    wanted[5] = ("5.00", "while nothing runs")
    with Process(path) as run:
        run.until(lambda: topic.rows() == wanted, "it continues")
        run.stop(signal.SIGINT)
