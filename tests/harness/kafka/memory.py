"""Broker in memory in place of confluent_kafka's clients: topics, transactions and fencing.

A transaction is visible when it is committed. Faults are planned by the name of a call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

DATA_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Record:
    """One committed message."""

    key: bytes | None
    value: bytes | None
    partition: int
    headers: dict[str, bytes]


@dataclass
class MemoryBroker:
    """State of the broker.

    Attributes:
        topics: committed messages by topic.
        configs: of each topic.
        epochs: of each transactional id.
        commits: topics and messages of each committed transaction.
        fail: errors by call: a function gets the number of the call and returns an error or None.
        loses_answer: calls that are done and then fail.
    """

    topics: dict[str, list[Record]] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    commits: list[list[tuple[str, Record]]] = field(default_factory=list)
    aborted: int = 0
    fail: dict[str, Callable[[int], KafkaError | None]] = field(default_factory=dict)
    loses_answer: set[str] = field(default_factory=set)
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    made: list[dict[str, Any]] = field(default_factory=list)

    def call(self, name: str, action: Callable[[], Any]) -> Any:
        """Do something, or fail as planned."""
        self.calls[name] += 1
        error = self.fail.get(name, lambda _: None)(self.calls[name])
        if error is not None and name not in self.loses_answer:
            raise KafkaException(error)
        found = action()
        if error is not None:
            raise KafkaException(error)
        return found

    def place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put the clients of this broker in place of the real ones."""
        import confluent_kafka.admin

        monkeypatch.setattr(confluent_kafka, "Producer", lambda known: Producer(self, known))
        monkeypatch.setattr(confluent_kafka, "Consumer", lambda known: Consumer(self, known))
        monkeypatch.setattr(confluent_kafka.admin, "AdminClient", lambda _: Admin(self))


def error(name: str, **flags: bool) -> KafkaError:
    """Return an error of the client by its name."""
    return KafkaError(getattr(KafkaError, name), f"planned {name}", **flags)


class Producer:
    """Producer of transactions."""

    def __init__(self, broker: MemoryBroker, known: dict[str, Any]) -> None:
        self._broker = broker
        self._id = known["transactional.id"]
        self._epoch = 0
        self._open: list[tuple[str, Record]] | None = None
        broker.made.append(known)

    def __len__(self) -> int:
        return 0

    def init_transactions(self, _: float) -> None:
        def begin() -> None:
            self._broker.epochs[self._id] += 1
            self._epoch = self._broker.epochs[self._id]

        self._broker.call("init_transactions", begin)

    def begin_transaction(self) -> None:
        assert self._open is None, "a transaction is open"
        self._broker.call("begin_transaction", lambda: None)
        self._open = []

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int = -1,
        headers: dict[str, bytes] | None = None,
        on_delivery: Any = None,
    ) -> None:
        def add() -> None:
            assert self._open is not None, "no transaction is open"
            if len(key or b"") + len(value or b"") > DATA_MAX:
                raise KafkaException(error("MSG_SIZE_TOO_LARGE"))
            assert topic in self._broker.topics, f"{topic} is not there"
            self._open.append((topic, Record(key, value, partition, headers or {})))

        self._broker.call("produce", add)

    def produce_batch(self, topic: str, messages: list[dict[str, Any]], on_delivery: Any) -> int:
        count = 0
        for one in messages:
            try:
                self.produce(topic, one["value"], one.get("key"), one.get("partition", -1))
                count += 1
            except KafkaException as raised:
                one["_error"] = raised.args[0]
        return count

    def poll(self, _: float) -> int:
        return 0

    def flush(self, _: float) -> int:
        return 0

    def purge(self) -> None:
        pass

    def commit_transaction(self, _: float) -> None:
        def commit() -> None:
            if self._epoch != self._broker.epochs[self._id]:
                raise KafkaException(error("_FENCED", fatal=True))
            if self._open is None:
                return  # it was committed, and the answer was lost
            for topic, record in self._open:
                self._broker.topics[topic].append(record)
            self._broker.commits.append(self._open)
            self._open = None

        self._broker.call("commit_transaction", commit)

    def abort_transaction(self, _: float) -> None:
        self._broker.aborted += 1
        self._open = None


class Consumer:
    """Reader of one topic from its beginning."""

    def __init__(self, broker: MemoryBroker, known: dict[str, Any]) -> None:
        assert known["isolation.level"] == "read_committed"
        self._broker = broker
        self._at = 0
        self._topic = ""

    def assign(self, places: list[Any]) -> None:
        self._topic = places[0].topic

    def poll(self, _: float) -> Any:
        records = self._broker.topics[self._topic]
        if self._at == len(records):
            eof = KafkaError(KafkaError._PARTITION_EOF)
            return SimpleNamespace(error=lambda: eof, offset=lambda: len(records))
        record = records[self._at]
        self._at += 1
        return SimpleNamespace(
            error=lambda: None, key=lambda: record.key, value=lambda: record.value
        )

    def close(self) -> None:
        pass


class _Done:
    def __init__(self, action: Callable[[], Any]) -> None:
        self._action = action

    def result(self) -> Any:
        return self._action()


class Admin:
    """Administration of topics."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    def describe_topics(self, names: Any, request_timeout: float) -> dict[str, Any]:
        return {name: _Done(lambda name=name: self._describe(name)) for name in names.topic_names}

    def _describe(self, name: str) -> Any:
        def find() -> Any:
            if name not in self._broker.topics:
                raise KafkaException(error("UNKNOWN_TOPIC_OR_PART"))
            return SimpleNamespace(partitions=[0])

        return self._broker.call("describe_topics", find)

    def create_topics(self, topics: list[Any]) -> dict[str, Any]:
        def create(topic: Any) -> None:
            self._broker.topics[topic.topic] = []
            self._broker.configs[topic.topic] = dict(topic.config)

        return {
            one.topic: _Done(
                lambda one=one: self._broker.call("create_topics", lambda: create(one))
            )
            for one in topics
        }

    def describe_configs(self, resources: list[Any]) -> dict[str, Any]:
        (one,) = resources
        policy = self._broker.configs[one.name].get("cleanup.policy", "delete")
        found = {"cleanup.policy": SimpleNamespace(value=policy)}
        return {one: _Done(lambda: self._broker.call("describe_configs", lambda: found))}

    def list_offsets(self, places: dict[Any, Any], **_: Any) -> dict[Any, Any]:
        ((place, _),) = places.items()
        end = len(self._broker.topics[place.topic])
        return {
            place: _Done(
                lambda: self._broker.call("list_offsets", lambda: SimpleNamespace(offset=end))
            )
        }
