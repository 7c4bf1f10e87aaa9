"""The consumer of topics and its broker are killed again and again while the log grows: a reader of
committed messages sees every change once, in order, and whole transactions.

The test writes the log; a transaction has rows of two tables.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from harness.kafka.broker import Broker, running_broker
from harness.kafka.forks import Fork, Forks
from harness.kafka.reading import Message, read_committed
from harness.pipelines.consume import FULL
from harness.pipelines.consumer import NAME, Feed
from harness.pipelines.log import ITEM, Change, Row, commit_position, run_of, truncate
from penstock.model import Op

POINTS = (
    "consume.read.after",
    "consume.answer.after",
    "kafka.begin.after",
    "kafka.produce.after",
    "kafka.position.before",
    "kafka.position.after",
    "kafka.commit.after",
    "consume.state.before",
    "consume.state.after",
    "consume.link.before",
    "consume.link.after",
)
BROKER = "broker"  # a kill of the broker
PREFIX = "shop"
TOPICS = (f"{PREFIX}.public.item", f"{PREFIX}.public.full")
BACKLOG_MAX = 40  # segments


class Growth:
    """Writes into the log while the consumer runs: small transactions, many segments."""

    def __init__(self, feed: Feed, seed: int, sizes: dict[int, int]) -> None:
        self._feed = feed
        self._sizes = sizes  # rows of each transaction
        self._random = random.Random(seed)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Growth:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.03):
            if len(self._feed.links()) < BACKLOG_MAX:  # kills are more frequent than reads
                self.once()

    def once(self) -> None:
        """Write one transaction, perhaps with a TRUNCATE in it."""
        chance, end = self._random, self._feed.writer.end
        trx = end.trx + 1
        rows = [
            Row(
                gsn=end.gsn + n,
                trx=trx,
                position=commit_position(trx),
                change=Change(
                    relation=chance.choice((ITEM, FULL)), op=Op.INSERT, after=(end.gsn + n, "x")
                ),
            )
            for n in range(1, chance.randint(2, 9))
        ]
        self._sizes[trx] = len(rows)
        markers = (truncate(rows[0].gsn, trx, "item"),) if chance.random() < 0.1 else ()
        self._feed.writer.write(run_of(rows, markers=markers))
        if chance.random() < 0.5:
            self._feed.writer.rotate()
        else:
            self._feed.writer.flush()


def check_messages(found: Sequence[Message], last: int) -> None:
    """Check that every gsn is there once, in order per topic, and every TRUNCATE once."""
    values = [(one.topic, one.json()) for one in found]
    rows = [value["source"]["gsn"] for _, value in values if value["op"] != "t"]
    assert sorted(rows) == list(range(1, last + 1)), "every change once"
    for topic in TOPICS:
        own = [value["source"]["gsn"] for name, value in values if name == topic]
        assert own == sorted(own), "in order"
    truncates = [value["source"]["gsn"] for _, value in values if value["op"] == "t"]
    assert len(truncates) == len(set(truncates)), "every TRUNCATE once"


def check_whole(found: Sequence[Message], sizes: dict[int, int]) -> None:
    """Check that what is visible has whole transactions only."""
    seen: dict[int, int] = {}
    for one in found:
        value = one.json()
        if value["op"] != "t":
            trx = value["source"]["txId"]
            seen[trx] = seen.get(trx, 0) + 1
    assert {trx: sizes[trx] for trx in seen} == seen, "whole transactions"


def pipeline(root: Path, broker: Broker) -> Path:
    """Write the pipeline file."""
    path = root / "shop.toml"
    path.write_text(
        f"""
[pipeline]
name = "shop"
directory = "."
[source]
url = "postgresql://unused@127.0.0.1:1/none"
tables = ["public.*"]
[consumers.{NAME}]
class = "penstock.kafka:Topics"
start = "beginning"
checkFrequency = 20
[consumers.{NAME}.options]
bootstrap.servers = "{broker.servers}"
topic.prefix = "{PREFIX}"
broker.wait.ms = 90000
transaction.events.max = 20
"""
    )
    return path


def read_place(broker: Broker) -> int:
    """Return the gsn of the last committed position; 0 if there is none."""
    topic = f"penstock.positions.penstock-{PREFIX}-{NAME}"
    found = read_committed(broker, [topic])
    return int(json.loads(found[-1].value or b"")["gsn"]) if found else 0


def kill_at(root: Path, faults: Iterator[str | None], *, seed: int) -> int:
    """Kill the consumer or the broker once for each fault (None: the consumer, at a random
    moment), then let the consumer end; return the number of kills.
    """
    chance = random.Random(seed)
    feed = Feed(root)
    kills = 0
    sizes: dict[int, int] = {}
    with running_broker(root / "broker") as broker, Forks(root / "err") as forks:
        path = pipeline(root, broker)
        feed.register()
        try:
            for fault in faults:
                with Growth(feed, chance.randrange(10**9), sizes):
                    kill_once(forks, path, broker, fault, chance)
                kills += 1
                if kills % 10 == 0:
                    check_whole(read_committed(broker, TOPICS), sizes)
            Growth(feed, 0, sizes).once()
            process = forks.start("consume", str(path), NAME)
            wait_until_read(root, process, broker, feed.writer.end.gsn)
            process.terminate()
            assert process.wait(60) == 0, (root / "err").read_text()[-3000:]
            found = read_committed(broker, TOPICS, wait_s=60)
            check_messages(found, feed.writer.end.gsn)
            check_whole(found, sizes)
        finally:
            feed.close()
    return kills


def kill_once(
    forks: Forks, path: Path, broker: Broker, fault: str | None, chance: random.Random
) -> None:
    """Start the consumer, and kill it or the broker."""
    if fault not in (None, BROKER):
        spec = f"{fault}:{chance.randint(1, 4)}:kill"
        process = forks.start("consume", str(path), NAME, fault=spec)
        assert process.wait(120) == -9, (path.parent / "err").read_text()[-3000:]
        return
    process = forks.start("consume", str(path), NAME)
    time.sleep(chance.uniform(0.2, 2.5))
    if fault == BROKER:
        broker.kill()
        time.sleep(chance.uniform(0.0, 1.0))
        broker.start()
        time.sleep(chance.uniform(0.0, 2.0))
    process.kill()


def wait_until_read(root: Path, process: Fork, broker: Broker, last: int) -> None:
    """Wait until the position of the last change is committed."""
    deadline_s = time.monotonic() + 120
    while read_place(broker) < last:
        assert time.monotonic() < deadline_s, "it does not come to the end"
        assert process.poll() is None, (root / "err").read_text()[-3000:]
        time.sleep(0.3)


@pytest.mark.promise
@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.timeout(600)
def test_each_change_once_over_kills(tmp_path: Path) -> None:
    """The consumer is killed at four fault points and at a random moment, and the broker once."""
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    faults: list[str | None] = [*chance.sample(POINTS, 4), None, BROKER]
    chance.shuffle(faults)
    kill_at(tmp_path, iter(faults), seed=seed)


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_each_change_once_over_a_hundred_kills(tmp_path: Path) -> None:
    """A quarter of the kills are of the broker, the others at fault points and at any moment."""
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    faults: list[str | None] = [
        BROKER if n % 4 == 0 else chance.choice((*POINTS, None, None, None)) for n in range(100)
    ]
    chance.shuffle(faults)
    assert kill_at(tmp_path, iter(faults), seed=seed) == 100


def test_the_check_itself_finds_what_it_is_for() -> None:
    """The check finds a change that is lost, twice or out of order, and half a transaction."""

    def message(gsn: int, trx: int, op: str = "c") -> Message:
        value = {"op": op, "source": {"gsn": gsn, "txId": trx}}
        return Message(
            topic=TOPICS[0], partition=0, offset=gsn, key=None,
            value=json.dumps(value).encode(), headers={},
        )  # fmt: skip

    good = [message(1, 1), message(2, 1), message(2, 1, "t"), message(3, 2)]
    check_messages(good, 3)
    check_whole(good, {1: 2, 2: 1, 3: 9})
    for bad in (good[1:], [*good, good[-1]], [good[1], good[0], good[3]], [*good, good[2]]):
        with pytest.raises(AssertionError):
            check_messages(bad, 3)
    with pytest.raises(AssertionError):
        check_whole(good[1:], {1: 2, 2: 1})
