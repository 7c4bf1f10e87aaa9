"""Positions in Kafka: the last message of the consumer's key in a compacted topic.

The message is part of the transaction whose events it follows. It is read after the producer has
begun: its predecessor is fenced then, and the predecessor's transaction is committed or aborted.
The topic has one partition, and other consumers may share it. A reader of committed messages stops
before an open transaction of another consumer, so it is read up to the end of all messages.
"""

from __future__ import annotations

import time
from typing import Any

from penstock.kafka.broker import AWAY, COMPACT, REQUEST_S, Broker
from penstock.kafka.errors import BrokerUnreachable

_PARTITION = 0


def load_position(broker: Broker, topic: str, key: str, *, wait_s: float) -> str | None:
    """Return the last committed position of a key; None if there is none.

    The topic is created if it does not exist. Raises TopicMissing, PositionTopicUnsafe,
    KafkaDenied, BrokerUnreachable.

    Args:
        broker: the broker.
        topic: of positions.
        key: the transactional id.
        wait_s: seconds to wait at most, for other consumers' transactions as well.
    """
    from confluent_kafka import Consumer, KafkaException

    broker.ensure_topic(topic, COMPACT)
    broker.check_compacted(topic)
    consumer = broker.client(
        Consumer,
        {
            "group.id": f"penstock-{key}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        },
    )
    try:
        end = _end_of_all(broker, topic)
        return _read(consumer, topic, key, end, wait_s)
    except KafkaException as error:
        raise broker.error(error.args[0], f"position topic {topic}") from error
    finally:
        consumer.close()


def _end_of_all(broker: Broker, topic: str) -> int:
    """Return the offset after the last message, committed or not."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    place = TopicPartition(topic, _PARTITION)
    futures = broker.admin.list_offsets(
        {place: OffsetSpec.latest()},
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        request_timeout=REQUEST_S,
    )
    return int(futures[place].result().offset)


def _read(consumer: Any, topic: str, key: str, end: int, wait_s: float) -> str | None:
    from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

    if end == 0:
        return None
    consumer.assign([TopicPartition(topic, _PARTITION, OFFSET_BEGINNING)])
    found: str | None = None
    reached = 0
    deadline_s = time.monotonic() + wait_s
    while time.monotonic() < deadline_s:
        message = consumer.poll(0.1)
        if message is None:
            continue
        error = message.error()
        if error is None:
            if message.key() == key.encode():
                value = message.value()
                found = None if value is None else value.decode()
        elif error.code() == KafkaError._PARTITION_EOF:
            # The place of the next message: markers of transactions have offsets, too.
            reached = message.offset()
            if reached >= end:
                return found
        elif error.name() not in AWAY:
            raise KafkaException(error)
    raise BrokerUnreachable.of(
        topic, f"positions were read up to {reached} of {end} in {wait_s:.0f} s"
    )
