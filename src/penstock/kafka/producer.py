"""Transactional producer: messages and the position are committed together.

A transaction begins with its first message. Its errors end the consumer, because the broker then
aborts the transaction, and the consumer begins again at the last committed position.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.host.faults import declare, point
from penstock.kafka.broker import Broker
from penstock.kafka.errors import (
    BrokerUnreachable,
    MessageTooLarge,
    ProducerFenced,
    TransactionTooLong,
)
from penstock.kafka.options import Options
from penstock.kafka.positions import load_position
from penstock.model import PenstockError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

declare(
    "kafka.begin.after",
    "kafka.produce.after",
    "kafka.position.before",
    "kafka.position.after",
    "kafka.commit.after",
)

QUEUE_MESSAGES = 200_000
QUEUE_KBYTES = 1_048_576
# Messages that may wait in the queue before more are added. So the queue is never full: a message
# that is refused there could be overtaken by the next one.
WAITING_MAX = 100_000
CHUNK = 10_000
FLUSH_BYTES = 256 * 1024 * 1024
TIMEOUT_MS_DEFAULT = 300_000
_KEY_SHOWN = 80


class TransactionalProducer:
    """Producer of one consumer."""

    def __init__(self, broker: Broker, options: Options, position_topic: str) -> None:
        """Set the options; nothing is connected yet.

        Args:
            broker: the broker.
            options: the consumer's.
            position_topic: topic of positions.
        """
        self._broker = broker
        self._options = options
        self._position_topic = position_topic
        self._timeout_ms = options.number("transaction.timeout.ms", TIMEOUT_MS_DEFAULT)
        self._wait_s = options.number("broker.wait.ms", 60_000) / 1000
        self._producer: Any = None
        self._begun_s = 0.0
        self._is_open = False
        self._bytes = 0
        self._refused: PenstockError | None = None
        self._tables: dict[str, str] = {}

    def begin(self) -> str | None:
        """Connect, end the transaction of an earlier process, and return the stored position.

        Raises BrokerUnreachable, KafkaDenied, TopicMissing, PositionTopicUnsafe.
        """
        from confluent_kafka import Producer

        self._producer = self._broker.client(
            Producer,
            {
                "linger.ms": 20,
                "batch.size": 1_000_000,
                # As Java's producers: the same key has the same partition.
                "partitioner": "murmur2_random",
                **self._options.producer,
                "transactional.id": self._broker.transactional_id,
                "transaction.timeout.ms": self._timeout_ms,
                "queue.buffering.max.messages": QUEUE_MESSAGES,
                "queue.buffering.max.kbytes": QUEUE_KBYTES,
                "delivery.report.only.error": True,
            },
        )
        self._retry("init_transactions", self._wait_s)
        return load_position(
            self._broker,
            self._position_topic,
            self._broker.transactional_id,
            wait_s=max(self._wait_s, 1.0),
        )

    # -- messages ----------------------------------------------------------------------------

    def send(self, topic: str, table: str, messages: Sequence[Any]) -> None:
        """Add messages to the transaction, in order.

        Raises MessageTooLarge, ProducerFenced, TransactionAborted.

        Args:
            topic: their topic.
            table: the table that they are of, for errors.
            messages: key, value and headers of each.
        """
        self._open()
        self._tables[topic] = table
        plain: list[dict[str, Any]] = []
        for key, value, headers in messages:
            if headers is None:
                # Rows without a key stay in order in one partition.
                plain.append(
                    {"key": key, "value": value}
                    if key is not None
                    else {"value": value, "partition": 0}
                )
                if len(plain) == CHUNK:
                    self._send_plain(topic, plain)
                    plain = []
                continue
            self._send_plain(topic, plain)
            plain = []
            self._send_one(topic, key, value, headers)
        self._send_plain(topic, plain)
        point("kafka.produce.after")

    def _send_plain(self, topic: str, messages: list[dict[str, Any]]) -> None:
        if not messages:
            return
        self._make_room(sum(_size(one.get("key"), one["value"]) for one in messages))
        sent = self._call(
            "produce_batch", topic, messages, on_delivery=self._note_failed, place=topic
        )
        if sent != len(messages):
            bad = next(one for one in messages if one.get("_error") is not None)
            raise self._error_of(bad["_error"], topic, bad.get("key"), bad["value"])

    def _send_one(self, topic: str, key: Any, value: Any, headers: Mapping[str, Any]) -> None:
        self._make_room(_size(key, value))
        self._call(
            "produce",
            topic,
            value,
            key,
            headers=dict(headers),
            on_delivery=self._note_failed,
            place=topic,
            message=(key, value),
        )

    def _make_room(self, size: int) -> None:
        """Wait until more messages fit into the producer's queue."""
        self._bytes += size
        if self._bytes > FLUSH_BYTES:
            self._drain(0)
            self._bytes = size
        elif len(self._producer) > WAITING_MAX:
            self._drain(WAITING_MAX)
        else:
            self._call("poll", 0, place="")
        self._check_refused()

    def _drain(self, left: int) -> None:
        deadline_s = self._begun_s + self._timeout_ms / 1000
        while len(self._producer) > left:
            if left:
                self._call("poll", 0.01, place="")
            else:
                self._call("flush", 1.0, place="")
            self._check_refused()
            if time.monotonic() > deadline_s:
                raise self._too_long()

    def _note_failed(self, error: KafkaError, message: Any) -> None:
        """Note the first message that was not delivered; the delivery report calls it."""
        if error is not None and self._refused is None and error.name() != "_PURGE_QUEUE":
            self._refused = self._error_of(
                error, message.topic(), message.key(), message.value() or b""
            )

    def _check_refused(self) -> None:
        if self._refused is not None:
            raise self._refused

    # -- transactions ------------------------------------------------------------------------

    def commit(self, place: str) -> None:
        """Commit the messages so far together with a position.

        Raises ProducerFenced, TransactionAborted, TransactionTooLong, BrokerUnreachable.
        """
        self._open()
        point("kafka.position.before")
        self._call(
            "produce",
            self._position_topic,
            place.encode(),
            self._broker.transactional_id.encode(),
            partition=0,
            on_delivery=self._note_failed,
            place=self._position_topic,
        )
        point("kafka.position.after")
        self._retry("commit_transaction", self._timeout_ms / 1000)
        self._is_open = False
        self._bytes = 0
        point("kafka.commit.after")

    def close(self) -> None:
        """Abort an open transaction and forget the client."""
        producer, self._producer = self._producer, None
        if producer is not None and self._is_open:
            from confluent_kafka import KafkaException

            self._is_open = False
            try:
                producer.purge()
                producer.abort_transaction(5.0)
            except KafkaException:
                return  # the broker aborts it after its timeout, or when the next one begins

    def _open(self) -> None:
        if not self._is_open:
            self._call("begin_transaction", place="")
            self._is_open = True
            self._refused = None
            self._begun_s = time.monotonic()
            point("kafka.begin.after")

    def _retry(self, method: str, wait_s: float) -> None:
        """Call a method of the producer until it succeeds or fails for good."""
        from confluent_kafka import KafkaException

        deadline_s = time.monotonic() + wait_s
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                getattr(self._producer, method)(min(max(left_s, 0.1), 10.0))
                return
            except KafkaException as raised:
                error = raised.args[0]
                if error.retriable() and left_s > 0:
                    continue
                with suppress(KafkaException):  # the same error again
                    self._producer.poll(0)
                self._check_refused()
                raise self._make_failure(error) from raised

    def _call(
        self, method: str, *arguments: Any, place: str, message: Any = None, **named: Any
    ) -> Any:
        from confluent_kafka import KafkaException

        try:
            return getattr(self._producer, method)(*arguments, **named)
        except KafkaException as raised:
            self._check_refused()
            if message is not None:
                raise self._error_of(raised.args[0], place, *message) from raised
            where = f"topic {place}" if place else ""
            raise self._make_failure(raised.args[0], where) from raised

    def _make_failure(self, error: KafkaError, place: str = "") -> PenstockError:
        found = self._broker.error(error, place or f"transactional id {self._id}")
        is_late = self._is_open and self._age_s() > 0.9 * self._timeout_ms / 1000
        if is_late and not isinstance(found, BrokerUnreachable):
            return self._too_long()
        if isinstance(found, ProducerFenced):
            self._is_open = False  # it is the other one's to abort
        return found

    def _age_s(self) -> float:
        return time.monotonic() - self._begun_s

    def _too_long(self) -> PenstockError:
        if self._broker.is_away:
            return BrokerUnreachable.of(self._broker.servers, "messages could not be delivered")
        return TransactionTooLong.of(self._age_s(), self._timeout_ms)

    @property
    def _id(self) -> str:
        return self._broker.transactional_id

    def _error_of(self, error: KafkaError, topic: str, key: Any, value: Any) -> PenstockError:
        if error.name() != "MSG_SIZE_TOO_LARGE":
            return self._broker.error(error, f"topic {topic}")
        shown = "null" if key is None else key.decode("utf-8", "backslashreplace")[:_KEY_SHOWN]
        return MessageTooLarge.of(
            self._tables.get(topic, topic),
            shown,
            topic,
            _size(key, value),
            "message.max.bytes",
        )


def _size(key: bytes | None, value: bytes | None) -> int:
    return len(key or b"") + len(value or b"")
