"""Kafka: the change log in topics, in Debezium's form, exactly once.

`confluent-kafka` is imported when a consumer starts; the formats need no package.
"""

from penstock.kafka.topics import Topics

__all__ = ["Topics"]
