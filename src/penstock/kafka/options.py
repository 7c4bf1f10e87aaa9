"""Options of the consumer: names are those of Debezium, Kafka Connect and the producer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.kafka.errors import TopicOptionInvalid
from penstock.kafka.modes import BINARIES, DECIMALS, TIMES, UNSIGNED

CONVERTERS = ("json", "avro", "protobuf")
FORMS = ("envelope", "flat")
DELETES = ("tombstone", "rewrite")
DEFAULT_NAMES = "{prefix}.{schema}.{table}"
# Options that begin so are passed to every client of the broker.
CLIENT_PREFIXES = ("sasl.", "ssl.", "security.", "client.")
PRODUCER_PREFIX = "producer."
# Settings of the producer that exactly-once and order rest on.
_FIXED = (
    "acks",
    "enable.idempotence",
    "transactional.id",
    "transaction.timeout.ms",
    "queue.buffering.max.messages",
    "queue.buffering.max.kbytes",
    "delivery.report.only.error",
)
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "converter": CONVERTERS,
    "form": FORMS,
    "delete.tombstone.handling.mode": DELETES,
    "decimal.handling.mode": DECIMALS,
    "time.precision.mode": TIMES,
    "binary.handling.mode": BINARIES,
    "bigint.unsigned.handling.mode": UNSIGNED,
    "skipped.operations": ("none", "t"),
}
_TEXTS = (
    "bootstrap.servers",
    "topic.prefix",
    "topic.names",
    "transactional.id",
    "position.topic",
    "transaction.topic",
    "schema.registry.url",
    "schema.registry.user",
    "schema.registry.password",
    "unavailable.value.placeholder",
)
_FLAGS = (
    "auto.register.schemas",
    "schemas.enable",
    "tombstones.on.delete",
    "provide.transaction.metadata",
    "topic.creation.enable",
)
_NUMBERS = {
    "transaction.timeout.ms": 1000,
    "transaction.events.max": 1,
    "broker.wait.ms": 0,
    "topic.creation.default.partitions": -1,
    "topic.creation.default.replication.factor": -1,
}
_NAME = re.compile(r"[a-zA-Z0-9._-]+\Z")


@dataclass(frozen=True, slots=True)
class Options:
    """Checked options.

    Attributes:
        values: those that were set, by name.
        client: settings of every client.
        producer: further settings of the producer.
    """

    values: Mapping[str, Any]
    client: Mapping[str, str] = field(default_factory=dict)
    producer: Mapping[str, Any] = field(default_factory=dict)

    def text(self, name: str, default: str = "") -> str:
        """Return a text."""
        return str(self.values.get(name, default))

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a flag."""
        return bool(self.values.get(name, default))

    def number(self, name: str, default: int) -> int:
        """Return a number."""
        return int(self.values.get(name, default))


def parse(given: Mapping[str, Any]) -> Options:
    """Return the checked options. Raises TopicOptionInvalid.

    Args:
        given: from the pipeline file; tables in it are names with points.
    """
    values: dict[str, Any] = {}
    client: dict[str, str] = {}
    producer: dict[str, Any] = {}
    for name, value in _flatten(given):
        if name.startswith(CLIENT_PREFIXES):
            client[name] = value
        elif name.startswith(PRODUCER_PREFIX):
            setting = name.removeprefix(PRODUCER_PREFIX)
            if setting in _FIXED:
                raise TopicOptionInvalid.of(name, "cannot be set: exactly-once rests on it")
            producer[setting] = value
        else:
            values[name] = _check(name, value)
    for name in ("bootstrap.servers", "topic.prefix"):
        if not values.get(name):
            raise TopicOptionInvalid.of(name, "is required")
    if not _NAME.match(values["topic.prefix"]):
        raise TopicOptionInvalid.of("topic.prefix", "may have letters, digits, and the signs . _ -")
    _check_together(values)
    return Options(values, client, producer)


def _flatten(given: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found = []
    for name, value in given.items():
        if isinstance(value, Mapping):
            found += _flatten(value, f"{before}{name}.")
        else:
            found.append((before + name, value))
    return found


def _check(name: str, value: Any) -> Any:
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            raise TopicOptionInvalid.of(
                name, f"is {value!r}, not one of {', '.join(_CHOICES[name])}"
            )
        return value
    if name in _TEXTS:
        if not isinstance(value, str):
            raise TopicOptionInvalid.of(name, f"is {value!r}, not a text")
        return value
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise TopicOptionInvalid.of(name, f"is {value!r}, not true or false")
        return value
    if name in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int) or value < _NUMBERS[name]:
            raise TopicOptionInvalid.of(name, f"is {value!r}, not a number from {_NUMBERS[name]}")
        return value
    raise TopicOptionInvalid.of(name, "is not known")


def _check_together(values: Mapping[str, Any]) -> None:
    has_registry = bool(values.get("schema.registry.url"))
    needs_registry = values.get("converter", "json") != "json"
    if needs_registry and not has_registry:
        raise TopicOptionInvalid.of("schema.registry.url", "is required for avro and protobuf")
    if has_registry and not needs_registry:
        raise TopicOptionInvalid.of("schema.registry.url", "needs converter avro or protobuf")
    if values.get("schemas.enable") and needs_registry:
        raise TopicOptionInvalid.of("schemas.enable", "is for json alone")
    names = values.get("topic.names", DEFAULT_NAMES)
    try:
        shown = names.format(prefix="p", schema="s", table="t")
    except (KeyError, IndexError, ValueError) as error:
        raise TopicOptionInvalid.of(
            "topic.names", "may have {prefix}, {schema} and {table} in braces, and nothing else"
        ) from error
    if "{table}" not in names or not _NAME.match(shown):
        raise TopicOptionInvalid.of(
            "topic.names", "needs {table}; besides it may have letters, digits, and the signs . _ -"
        )
