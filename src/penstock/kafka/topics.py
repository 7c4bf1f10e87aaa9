"""Consumer that writes every change into topics of Kafka, exactly once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import structlog

from penstock.consume.api import CdcLog, PlaceKeeper
from penstock.consume.batches import CdcBatch
from penstock.kafka.avro_format import AvroFormat
from penstock.kafka.broker import Broker
from penstock.kafka.envelope import Format, Style, TableMessages, find_moved
from penstock.kafka.errors import TopicShared
from penstock.kafka.json_format import JsonFormat
from penstock.kafka.modes import Modes
from penstock.kafka.options import DEFAULT_NAMES, Options, parse
from penstock.kafka.producer import TransactionalProducer
from penstock.kafka.protobuf_format import ProtobufFormat
from penstock.kafka.registry import Registry
from penstock.kafka.transactions import KEY, VALUE, TransactionCounts
from penstock.model import Relation, TableName

logger = structlog.get_logger(__name__)
EVENTS_MAX = 100_000
# Rows that become messages at once: it bounds the memory of their texts.
ROWS_MAX = 20_000
BYTES_MAX = 64 * 1024 * 1024
_UNFIT = re.compile(r"[^a-zA-Z0-9._-]")


class Topics(PlaceKeeper):
    """Consumer of the pipeline file: `class = "penstock.kafka:Topics"`.

    Each table has a topic. The messages of whole transactions, and the position after them, are
    one transaction of Kafka.
    """

    def __init__(self, **options: Any) -> None:
        """Check the options; docs/kafka.md has them. Raises TopicOptionInvalid."""
        self._options: Options = parse(options)
        self._prefix = self._options.text("topic.prefix")
        self._producer: TransactionalProducer | None = None
        self._format: Format | None = None
        self._style: Style | None = None
        self._tables: dict[tuple[TableName, int], TableMessages] = {}
        self._topics: dict[str, TableName] = {}
        self._relations: dict[TableName, Relation] = {}
        self._events = 0
        self._skips_truncate = self._options.text("skipped.operations", "none") == "t"
        self._counts: TransactionCounts | None = None
        if self._options.flag("provide.transaction.metadata", default=False):
            self._counts = TransactionCounts()

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        parse(options)

    # -- position ----------------------------------------------------------------------------

    def load_place(self, log: CdcLog) -> str | None:
        options = self._options
        name = options.text("transactional.id", f"penstock-{self._prefix}-{log.consumer}")
        self._broker = Broker(options, name)
        self._style = _style(options, log)
        self._format = self._make_format()
        topic = options.text("position.topic", f"penstock.positions.{name}")
        self._producer = TransactionalProducer(self._broker, options, topic)
        place = self._producer.begin()
        logger.info("producer begins", transactional_id=name, place=place)
        return place

    def _make_format(self) -> Format:
        converter = self._options.text("converter", "json")
        if converter == "avro":
            return AvroFormat(Registry(self._options))
        if converter == "protobuf":
            return ProtobufFormat(Registry(self._options))
        return JsonFormat(has_schemas=self._options.flag("schemas.enable", default=False))

    def store_place(self, place: str) -> None:
        if self._counts is not None:
            self._send_boundaries(self._counts.end())
        self._open_producer.commit(place)
        self._events = 0

    def stop(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._broker.close()

    @property
    def _open_producer(self) -> TransactionalProducer:
        assert self._producer is not None, "load_place was called"
        return self._producer

    # -- changes -----------------------------------------------------------------------------

    def on_batches(self, batches: Any) -> bool:
        limit = self._options.number("transaction.events.max", EVENTS_MAX)
        run: list[CdcBatch] = []
        for batch in batches:
            run.append(batch)
            if self._counts is None or batch.ends_run:
                self._send_run(run)
                run = []
            if self._events >= limit and batch.ends_run and batches.is_at_commit:
                return True
        return bool(batches.is_at_commit)

    def on_truncate(self, table: str, gsn: int) -> None:
        if self._skips_truncate:
            return
        relation = self._relations.get(_name(table))
        if relation is None:
            # No shape of it was seen since the start: it has no columns to tell.
            schema, _, name = table.partition(".")
            relation = Relation(schema=schema, name=name, columns=())
        messages = self._messages_of(relation)
        topic = self._topic_of(relation)
        self._open_producer.send(topic, table, [(None, messages.of_truncate(gsn), None)])
        self._events += 1

    def on_types(self, types: Iterator[Any]) -> None:
        for one in types:
            self._relations[_name(one.table)] = one.relation

    def _send_run(self, run: list[CdcBatch]) -> None:
        moved = [find_moved(one.batch, one.relation) for one in run]
        orders: list[Any] = [None] * len(run)
        if self._counts is not None:
            orders, boundaries = self._counts.of_run(
                [one.table for one in run], [one.batch for one in run], moved
            )
            self._send_boundaries(boundaries)
        for one, is_moved, order in zip(run, moved, orders, strict=True):
            self._send_batch(one, is_moved, order)

    def _send_batch(self, given: CdcBatch, moved: Any, orders: Any) -> None:
        messages = self._messages_of(given.relation)
        topic = self._topic_of(given.relation)
        for start, size in _parts(given.batch):
            end = start + size
            part = CdcBatch(
                relation=given.relation,
                batch=given.batch.slice(start, size),
                resent=given.resent,
            )
            own = None
            if orders is not None:
                own = type(orders)(orders.total[start:end], orders.collection[start:end])
            found = messages.of_batch(part, moved[start:end], own)
            self._open_producer.send(topic, given.table, found)
        self._events += given.batch.num_rows

    def _messages_of(self, relation: Relation) -> TableMessages:
        name = TableName(relation.schema, relation.name)
        self._relations[name] = relation
        place = name, relation.version
        found = self._tables.get(place)
        if found is None:
            assert self._style is not None, "load_place was called"
            assert self._format is not None, "load_place was called"
            topic = self._topic_of(relation)
            found = TableMessages(relation, topic, self._style, self._format)
            self._tables = {known: one for known, one in self._tables.items() if known[0] != name}
            self._tables[place] = found
        return found

    def _topic_of(self, relation: Relation) -> str:
        """Return the topic of a table; create it if it is not there."""
        names = self._options.text("topic.names", DEFAULT_NAMES)
        topic = names.format(
            prefix=self._prefix,
            schema=_UNFIT.sub("_", relation.schema),
            table=_UNFIT.sub("_", relation.name),
        )
        name = TableName(relation.schema, relation.name)
        owner = self._topics.get(topic)
        if owner is None:
            self._broker.ensure_topic(topic)
            self._topics[topic] = name
        elif owner != name:
            raise TopicShared.of(topic, [".".join(owner), ".".join(name)])
        return topic

    def _send_boundaries(self, boundaries: list[tuple[str, dict[str, Any]]]) -> None:
        if not boundaries:
            return
        topic = self._options.text("transaction.topic", f"{self._prefix}.transaction")
        if topic not in self._topics:
            self._broker.ensure_topic(topic)
            self._topics[topic] = TableName("", topic)
        assert self._format is not None, "load_place was called"
        encode = self._format.encode_one
        messages = [
            (
                encode(KEY, {"id": name}, f"{topic}-key"),
                encode(VALUE, value, f"{topic}-value"),
                None,
            )
            for name, value in boundaries
        ]
        self._open_producer.send(topic, topic, messages)


def _style(options: Options, log: CdcLog) -> Style:
    flavour = log.source.get("flavour", "")
    engine = log.source.get("engine", "")
    if flavour.lower() == "mariadb":
        engine = "mariadb"
    modes = Modes(
        decimals=options.text("decimal.handling.mode", "precise"),
        times=options.text("time.precision.mode"),
        binaries=options.text("binary.handling.mode", "bytes"),
        unsigned=options.text("bigint.unsigned.handling.mode", "long"),
        placeholder=options.text("unavailable.value.placeholder", "__debezium_unavailable_value"),
        engine=engine,
    )
    return Style(
        prefix=options.text("topic.prefix"),
        modes=modes,
        is_flat=options.text("form", "envelope") == "flat",
        deletes=options.text("delete.tombstone.handling.mode", "tombstone"),
        has_tombstones=options.flag("tombstones.on.delete", default=True),
        has_orders=options.flag("provide.transaction.metadata", default=False),
        database=log.source.get("database", ""),
    )


def _name(table: str) -> TableName:
    schema, _, name = table.partition(".")
    return TableName(schema, name)


def _parts(batch: Any) -> Iterator[tuple[int, int]]:
    """Yield start and length of parts whose texts do not need too much memory."""
    per_row = max(1, batch.nbytes // max(1, batch.num_rows))
    step = max(1, min(ROWS_MAX, BYTES_MAX // per_row))
    for start in range(0, batch.num_rows, step):
        yield start, min(step, batch.num_rows - start)
