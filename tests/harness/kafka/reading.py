"""Messages of topics as a consumer of committed transactions sees them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from harness.kafka.broker import Broker


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]

    def json(self) -> Any:
        """Return its value, read as JSON; None for a tombstone."""
        return None if self.value is None else json.loads(self.value)


def read_committed(broker: Broker, topics: Iterable[str], *, wait_s: float = 30.0) -> list[Message]:
    """Return all committed messages of topics, partition by partition, up to their present ends.

    A topic that does not exist has none.
    """
    return _read(broker, topics, "read_committed", wait_s)


def read_all(broker: Broker, topics: Iterable[str], *, wait_s: float = 30.0) -> list[Message]:
    """Return all messages, also of transactions that are open or aborted."""
    return _read(broker, topics, "read_uncommitted", wait_s)


def _read(broker: Broker, topics: Iterable[str], level: str, wait_s: float) -> list[Message]:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": broker.servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": level,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    found: list[Message] = []
    try:
        known = consumer.list_topics(timeout=10).topics
        places = [
            TopicPartition(name, number, 0)
            for name in topics
            if name in known
            for number in known[name].partitions
        ]
        waiting = {(one.topic, one.partition) for one in places}
        consumer.assign(places)
        deadline_s = time.monotonic() + wait_s
        while waiting:
            assert time.monotonic() < deadline_s, f"the end of {waiting} was not reached"
            message = consumer.poll(0.5)
            if message is None:
                continue
            if message.error() is not None:
                if message.error().code() == KafkaError._PARTITION_EOF:
                    waiting.discard((message.topic(), message.partition()))
                continue
            found.append(
                Message(
                    topic=message.topic(),
                    partition=message.partition(),
                    offset=message.offset(),
                    key=message.key(),
                    value=message.value(),
                    headers=dict(message.headers() or ()),
                )
            )
    finally:
        consumer.close()
    return sorted(found, key=lambda one: (one.topic, one.partition, one.offset))
