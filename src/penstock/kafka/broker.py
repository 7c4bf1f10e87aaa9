"""The broker: its clients, topics, and errors as conditions of penstock.

`confluent_kafka` is imported when a consumer starts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import structlog

from penstock.kafka.errors import (
    BrokerUnreachable,
    KafkaDenied,
    PositionTopicUnsafe,
    ProducerFenced,
    TopicMissing,
    TopicOptionInvalid,
    TransactionAborted,
)
from penstock.kafka.options import Options
from penstock.model import PenstockError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

logger = structlog.get_logger(__name__)
REQUEST_S = 10.0
AWAY_S = 30.0
COMPACT = {"cleanup.policy": "compact"}
AWAY = ("_ALL_BROKERS_DOWN", "_TRANSPORT", "_TIMED_OUT", "_RESOLVE", "_MSG_TIMED_OUT")
_DENIED = (
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED",
    "_AUTHENTICATION",
    "_SSL",
)
_FENCED = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "FENCED_INSTANCE_ID")
RIGHTS = {
    "topic": "WRITE, DESCRIBE and CREATE on the topics with its prefix",
    "position": "READ, WRITE, DESCRIBE, DESCRIBE_CONFIGS and CREATE on the topic",
    "transactional id": "WRITE and DESCRIBE on the transactional id",
}


def translate(error: KafkaError, place: str, servers: str, transactional_id: str) -> PenstockError:
    """Return the condition for an error of the client.

    Args:
        error: the client's.
        place: what was accessed: `topic NAME` and the like.
        servers: bootstrap servers.
        transactional_id: of the producer.
    """
    name, why = error.name(), error.str()
    if name in _FENCED:
        return ProducerFenced.of(transactional_id)
    if name in _DENIED:
        return KafkaDenied.of(place, why, _right(place))
    if name in AWAY:
        return BrokerUnreachable.of(servers, why)
    if name == "UNKNOWN_TOPIC_OR_PART" or name == "_UNKNOWN_TOPIC":
        return TopicMissing.of(place.removeprefix("topic "), servers)
    return TransactionAborted.of(f"{why} ({name})")


def _right(place: str) -> str:
    for kind, right in RIGHTS.items():
        if place.startswith(kind):
            return right
    return RIGHTS["topic"]


class Broker:
    """Settings of all clients, and the administration of topics."""

    def __init__(self, options: Options, transactional_id: str) -> None:
        """Set the options; nothing is connected yet.

        Args:
            options: the consumer's.
            transactional_id: of the producer.
        """
        self.servers = options.text("bootstrap.servers")
        self.transactional_id = transactional_id
        self._options = options
        self._admin: Any = None
        self._told_s = 0.0
        self._away_s = 0.0

    def settings(self) -> dict[str, Any]:
        """Return the settings of every client."""
        return {
            "bootstrap.servers": self.servers,
            "client.id": f"penstock-{self.transactional_id}",
            "error_cb": self._note_error,
            "log.connection.close": False,
            **self._options.client,
        }

    def _note_error(self, error: KafkaError) -> None:
        """Report that brokers are away; clients try again themselves."""
        now_s = time.monotonic()
        if error.name() in AWAY:
            self._away_s = now_s
        if error.name() in AWAY and now_s - self._told_s > REQUEST_S:
            self._told_s = now_s
            logger.warning("no broker answers; trying again", servers=self.servers, why=error.str())

    @property
    def is_away(self) -> bool:
        """Return whether a client could not reach a broker within the last half minute."""
        return self._away_s > 0 and time.monotonic() - self._away_s < AWAY_S

    def client(self, kind: Any, settings: Mapping[str, Any]) -> Any:
        """Return a client of the broker. Raises TopicOptionInvalid for an unknown setting."""
        from confluent_kafka import KafkaException

        try:
            return kind({**self.settings(), **settings})
        except (KafkaException, ValueError, TypeError) as error:
            raise TopicOptionInvalid.of(
                "producer.", f"is refused by the client: {error}"
            ) from error

    @property
    def admin(self) -> Any:
        """Client for administration."""
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            self._admin = self.client(AdminClient, {})
        return self._admin

    def close(self) -> None:
        """Forget the client for administration, which ends its threads."""
        self._admin = None

    def error(self, error: KafkaError, place: str) -> PenstockError:
        """Return the condition for an error of the client at a place."""
        return translate(error, place, self.servers, self.transactional_id)

    # -- topics ------------------------------------------------------------------------------

    def describe(self, names: Iterable[str]) -> dict[str, int]:
        """Return the numbers of partitions of the topics that exist."""
        from confluent_kafka import KafkaException, TopicCollection

        wanted = list(names)
        found: dict[str, int] = {}
        futures = self.admin.describe_topics(
            TopicCollection(wanted), request_timeout=self._wait_s()
        )
        for name, future in futures.items():
            try:
                found[name] = len(future.result().partitions)
            except KafkaException as error:
                if error.args[0].name() not in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
                    raise self.error(error.args[0], f"topic {name}") from error
        return found

    def _wait_s(self) -> float:
        return max(1.0, self._options.number("broker.wait.ms", 60_000) / 1000)

    def ensure_topic(self, name: str, config: Mapping[str, str] | None = None) -> int:
        """Return the number of partitions of a topic; create it if it is missing and that is
        wanted.

        Raises TopicMissing, KafkaDenied, BrokerUnreachable.

        Args:
            name: the topic.
            config: for a topic of penstock's own, which has one partition.
        """
        found = self.describe([name])
        if name in found:
            return found[name]
        options = self._options
        if not options.flag("topic.creation.enable", default=True):
            needed = ",".join(f"{key}={value}" for key, value in (config or {}).items())
            raise TopicMissing.of(name, self.servers, config=needed)
        partitions = 1 if config else options.number("topic.creation.default.partitions", -1)
        self._create(name, partitions, config or {})
        deadline_s = time.monotonic() + self._wait_s()
        while name not in (found := self.describe([name])):
            if time.monotonic() > deadline_s:
                raise BrokerUnreachable.of(self.servers, f"topic {name} does not appear")
            time.sleep(0.05)
        return found[name]

    def _create(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewTopic

        copies = self._options.number("topic.creation.default.replication.factor", -1)
        topic = NewTopic(
            name, num_partitions=partitions, replication_factor=copies, config=dict(config)
        )
        for future in self.admin.create_topics([topic]).values():
            try:
                future.result()
            except KafkaException as error:
                if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                    raise self.error(error.args[0], f"topic {name}") from error
        logger.info("topic created", topic=name)

    def check_compacted(self, name: str) -> None:
        """Check that a topic keeps the last message of each key. Raises PositionTopicUnsafe."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource, ResourceType

        resource = ConfigResource(ResourceType.TOPIC, name)
        for future in self.admin.describe_configs([resource]).values():
            try:
                policy = future.result()["cleanup.policy"].value
            except KafkaException as error:
                raise self.error(error.args[0], f"position topic {name}") from error
            if policy != "compact":
                raise PositionTopicUnsafe.of(name, self.servers, policy)
