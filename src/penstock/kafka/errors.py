"""Errors of topics, of the broker and of the schema registry."""

from __future__ import annotations

from penstock.model import PenstockError

START = "start the consumer again: penstock consume FILE NAME."
AGAIN = "then start the consumer again: penstock consume FILE NAME."


class TopicOptionInvalid(PenstockError):
    """An option of the consumer is unknown, or has a value that it cannot have. Fields: option."""

    code = "KF01"
    retry = "never"

    @staticmethod
    def of(option: str, why: str) -> TopicOptionInvalid:
        """Return the error for one option."""
        return TopicOptionInvalid(
            f'option "{option}" {why}',
            hint="docs/kafka.md has the options and their values; correct the pipeline file, "
            + AGAIN,
            option=option,
        )


class BrokerUnreachable(PenstockError):
    """No broker answers. Fields: servers."""

    code = "KF02"
    retry = "backoff"

    @staticmethod
    def of(servers: str, why: str) -> BrokerUnreachable:
        """Return the error for these servers."""
        return BrokerUnreachable(
            f"no broker of {servers} answers: {why}",
            hint="penstock run retries automatically. Check that the brokers run and that "
            "bootstrap.servers and security.protocol are right; otherwise " + START,
            servers=servers,
        )


class TopicMissing(PenstockError):
    """A topic does not exist, and it may not be created. Fields: topic."""

    code = "KF03"
    retry = "operator"

    @staticmethod
    def of(topic: str, servers: str, *, config: str = "") -> TopicMissing:
        """Return the error for one topic.

        Args:
            topic: its name.
            servers: bootstrap servers.
            config: a setting that the topic needs.
        """
        more = f" --config {config}" if config else ""
        return TopicMissing(
            f"topic {topic} does not exist, and topic.creation.enable is false",
            hint=f"Create it: kafka-topics.sh --bootstrap-server {servers} --create --topic "
            f"{topic}{more}; {AGAIN}",
            topic=topic,
        )


class MessageTooLarge(PenstockError):
    """A message, or the rows of one batch, have more bytes than allowed. Fields: table, key,
    topic.
    """

    code = "KF04"
    retry = "operator"

    @staticmethod
    def of(table: str, key: str, topic: str, size: int, setting: str) -> MessageTooLarge:
        """Return the error for one message.

        Args:
            table: `schema.table`.
            key: of the message, shortened.
            topic: its topic.
            size: bytes of the message.
            setting: the setting that limits it.
        """
        return MessageTooLarge(
            f"the message of {table} with key {key} has {size} bytes, more than {setting} allows",
            hint=f"Raise {setting}, in the consumer's options for a setting of the producer "
            f"(producer.message.max.bytes) or for topic {topic} with kafka-configs.sh --alter "
            f"--add-config max.message.bytes=SIZE, {AGAIN}",
            table=table,
            key=key,
            topic=topic,
        )

    @staticmethod
    def of_batch() -> MessageTooLarge:
        """Return the error for rows that are over 2 GiB together."""
        return MessageTooLarge(
            "the messages of one batch have more than 2 GiB",
            hint="Leave the table with these values out of the consumer's tables, " + AGAIN,
        )


class KafkaDenied(PenstockError):
    """The broker refuses the user, or the user lacks a right. Fields: place."""

    code = "KF05"
    retry = "operator"

    @staticmethod
    def of(place: str, why: str, right: str) -> KafkaDenied:
        """Return the error.

        Args:
            place: the topic, group or transactional id.
            why: the broker's text.
            right: operations that are needed.
        """
        return KafkaDenied(
            f"the broker refuses access to {place}: {why}",
            hint=f"Grant the user {right} with kafka-acls.sh --add, or correct the sasl. and ssl. "
            "options, " + AGAIN,
            place=place,
        )


class ProducerFenced(PenstockError):
    """Another process uses the same transactional id. Fields: transactional_id."""

    code = "KF06"
    retry = "backoff"

    @staticmethod
    def of(transactional_id: str) -> ProducerFenced:
        """Return the error for this id."""
        return ProducerFenced(
            f"another process has begun to use the transactional id {transactional_id}: this one "
            "may write no more, and its open transaction is aborted",
            hint="End one of the two, or give each its own transactional.id and topic.prefix, "
            + AGAIN,
            transactional_id=transactional_id,
        )


class TransactionAborted(PenstockError):
    """A transaction could not be committed. Nothing of it is visible, and it is sent again."""

    code = "KF07"
    retry = "backoff"

    @staticmethod
    def of(why: str) -> TransactionAborted:
        """Return the error with the broker's reason."""
        return TransactionAborted(
            f"the broker aborted the transaction: {why}",
            hint="penstock run retries automatically, from the last committed position. Otherwise "
            "look at the brokers' logs, " + AGAIN,
        )


class PositionTopicUnsafe(PenstockError):
    """The topic of positions would forget the position. Fields: topic, policy."""

    code = "KF08"
    retry = "operator"

    @staticmethod
    def of(topic: str, servers: str, policy: str) -> PositionTopicUnsafe:
        """Return the error for a topic with this cleanup.policy."""
        return PositionTopicUnsafe(
            f"topic {topic} has cleanup.policy={policy}: it would forget the position",
            hint=f"Set it: kafka-configs.sh --bootstrap-server {servers} --alter --topic {topic} "
            f"--add-config cleanup.policy=compact; {AGAIN}",
            topic=topic,
            policy=policy,
        )


class ValueOutOfRange(PenstockError):
    """A value does not fit the type that it has in messages. Fields: table, column."""

    code = "KF09"
    retry = "operator"

    @staticmethod
    def of(table: str, column: str, why: str, option: str) -> ValueOutOfRange:
        """Return the error for a column, with the option that helps."""
        return ValueOutOfRange(
            f"a value of {table}, column {column}, {why}",
            hint=f"Set {option} in the consumer's options, {AGAIN}",
            table=table,
            column=column,
        )


class TopicShared(PenstockError):
    """Two tables have the same topic. Fields: topic, tables."""

    code = "KF10"
    retry = "operator"

    @staticmethod
    def of(topic: str, tables: list[str]) -> TopicShared:
        """Return the error for two tables."""
        return TopicShared(
            f"{' and '.join(tables)} would both be sent to topic {topic}",
            hint="Leave one of them out of the consumer's tables, or set topic.names to a pattern "
            "that tells them from each other, " + AGAIN,
            topic=topic,
            tables=tables,
        )


class TransactionTooLong(PenstockError):
    """A transaction took longer than the broker allows. Fields: seconds."""

    code = "KF11"
    retry = "operator"

    @staticmethod
    def of(seconds: float, limit_ms: int) -> TransactionTooLong:
        """Return the error for a transaction of this age."""
        return TransactionTooLong(
            f"a transaction was open for {seconds:.0f} s, and transaction.timeout.ms is {limit_ms}",
            hint="Raise transaction.timeout.ms in the consumer's options, and the brokers' "
            "transaction.max.timeout.ms if it is lower, " + AGAIN,
            seconds=seconds,
        )


class RegistryUnreachable(PenstockError):
    """The schema registry does not answer, or has an error of its own. Fields: url."""

    code = "KF12"
    retry = "backoff"

    @staticmethod
    def of(url: str, why: str) -> RegistryUnreachable:
        """Return the error for this registry."""
        return RegistryUnreachable(
            f"the schema registry at {url} does not answer: {why}",
            hint="penstock run retries automatically. Check schema.registry.url; otherwise "
            + START,
            url=url,
        )


class SchemaRefused(PenstockError):
    """The schema registry refuses a schema or the user. Fields: subject, status."""

    code = "KF13"
    retry = "operator"

    @staticmethod
    def of(subject: str, status: int, why: str) -> SchemaRefused:
        """Return the error for one subject."""
        return SchemaRefused(
            f"the schema registry refuses the schema of {subject} ({status}): {why}",
            hint="If the table's change is wanted, set the subject's compatibility to NONE: PUT "
            f"/config/{subject}; else leave the table out of the consumer's tables, " + AGAIN,
            subject=subject,
            status=status,
        )
