"""The consumer of topics against a broker in memory: transactions, positions, fencing, errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.kafka.memory import MemoryBroker, Record, error
from harness.pipelines.consumer import NAME, Feed
from harness.pipelines.log import ITEM, Change, Row, commit_position, run_of, truncate
from penstock.consume.classes import check_class
from penstock.consume.places import PlaceLost
from penstock.consume.position import ConsumerOfOtherLog
from penstock.kafka import Topics, producer
from penstock.kafka.broker import Broker
from penstock.kafka.errors import (
    BrokerUnreachable,
    KafkaDenied,
    MessageTooLarge,
    PositionTopicUnsafe,
    ProducerFenced,
    TopicMissing,
    TopicOptionInvalid,
    TopicShared,
    TransactionAborted,
    TransactionTooLong,
)
from penstock.kafka.options import parse
from penstock.model import Op, PenstockError

TOPIC = "shop.public.item"
POSITIONS = f"penstock.positions.penstock-shop-{NAME}"
REQUIRED = {"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "shop", "broker.wait.ms": 0}


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> MemoryBroker:
    """A broker without topics."""
    made = MemoryBroker()
    made.place(monkeypatch)
    return made


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    """A log with a registered consumer that begins at its start."""
    made = Feed(tmp_path)
    made.register()
    yield made
    made.close()


def topics(**options: Any) -> Topics:
    """Return a consumer with these options, whose names have _ in place of dots."""
    return Topics(**REQUIRED, **{name.replace("_", "."): one for name, one in options.items()})


def gsns(records: list[Record]) -> list[int]:
    """Return the numbers of messages, without tombstones."""
    return [json.loads(one.value)["source"]["gsn"] for one in records if one.value is not None]


def write(feed: Feed, *changes: Change, rotate: bool = True) -> None:
    """Write changes as one transaction."""
    end = feed.writer.end
    rows, gsn = [], end.gsn
    for change in changes:
        moved = change.op is Op.UPDATE and change.before is not None
        gsn += 1 + moved
        rows.append(
            Row(gsn=gsn, trx=end.trx + 1, position=commit_position(end.trx + 1), change=change)
        )
    feed.writer.write(run_of(rows))
    if rotate:
        feed.writer.rotate()
    else:
        feed.writer.flush()


@pytest.mark.promise
def test_messages_and_position_are_one_transaction(broker: MemoryBroker, feed: Feed) -> None:
    """Each transaction of Kafka has whole transactions of the source, and the place after them."""
    feed.write(2)
    feed.write(3)
    feed.write(1, rotate=False)
    feed.run(topics())
    assert gsns(broker.topics[TOPIC]) == [1, 2, 3, 4, 5, 6]
    for commit in broker.commits:
        *_, (topic, last) = commit
        assert (topic, last.key) == (POSITIONS, f"penstock-shop-{NAME}".encode())
        assert [name for name, _ in commit].count(POSITIONS) == 1
        numbers = gsns([one for name, one in commit if name == TOPIC])
        assert json.loads(last.value or b"")["gsn"] == max(numbers)
    assert broker.configs[POSITIONS] == {"cleanup.policy": "compact"}
    assert broker.configs[TOPIC] == {}
    (settings,) = broker.made
    assert settings["transactional.id"] == f"penstock-shop-{NAME}"
    assert settings["partitioner"] == "murmur2_random"


FAULTS = [
    ("begin_transaction", False),
    ("produce", False),
    ("commit_transaction", False),
    ("commit_transaction", True),
]


@pytest.mark.promise
@pytest.mark.parametrize(("call", "is_done"), FAULTS)
def test_a_failure_repeats_and_loses_nothing(
    broker: MemoryBroker, feed: Feed, call: str, is_done: bool
) -> None:
    """Whatever fails, and whether the broker did it or not, every change is there once."""
    if is_done:
        broker.loses_answer = {call}
    for number in range(1, 9):
        feed.write(2, rotate=number % 2 == 0)
        planned = error("_STATE") if call == "begin_transaction" else error("_FAIL")
        broker.fail = {call: lambda _, planned=planned: planned}
        if number % 2:
            with pytest.raises(PenstockError):
                feed.run(topics())
        broker.fail = {}
        if number % 3 == 0:
            feed.run(topics())
    broker.fail = {}
    feed.run(topics())
    assert gsns(broker.topics[TOPIC]) == list(range(1, 17))


def test_an_error_that_passes_is_tried_again(broker: MemoryBroker, feed: Feed) -> None:
    """A commit whose answer is late is asked for again; the transaction is committed once."""
    feed.write(2)
    broker.fail = {
        "commit_transaction": lambda count: (
            error("_TIMED_OUT", retriable=True) if count < 3 else None
        )
    }
    feed.run(topics())
    assert (gsns(broker.topics[TOPIC]), broker.calls["commit_transaction"]) == ([1, 2], 3)


@pytest.mark.promise
def test_a_zombie_cannot_commit(
    broker: MemoryBroker, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was overtaken may write no more: KF06, and nothing of it is visible."""
    feed.write(2)
    other: list[Topics] = []

    def overtake() -> None:
        if not other:
            other.append(topics())
            broker.epochs[f"penstock-shop-{NAME}"] += 1

    sent = producer.TransactionalProducer.send

    def send(self: Any, *arguments: Any) -> None:
        sent(self, *arguments)
        overtake()

    monkeypatch.setattr(producer.TransactionalProducer, "send", send)
    with pytest.raises(ProducerFenced, match="transactional id penstock-shop-"):
        feed.run(topics())
    assert broker.topics[TOPIC] == []
    feed.run(topics())
    assert gsns(broker.topics[TOPIC]) == [1, 2]


@pytest.mark.promise
def test_a_position_of_another_log_is_refused(
    broker: MemoryBroker, feed: Feed, tmp_path: Path
) -> None:
    """The log is compared before any change is left out; another id begins from the beginning."""
    other = Feed(tmp_path / "other")
    other.register()
    other.write(5)
    other.run(topics())
    other.close()
    feed.write(7)
    with pytest.raises(ConsumerOfOtherLog):
        feed.run(topics())
    assert gsns(broker.topics[TOPIC]) == [1, 2, 3, 4, 5]
    feed.run(topics(transactional_id="second"))
    assert gsns(broker.topics[TOPIC])[5:] == [1, 2, 3, 4, 5, 6, 7]


def test_a_position_that_is_gone_is_an_error(broker: MemoryBroker, feed: Feed) -> None:
    """A topic of positions that was created again has lost the place."""
    feed.write(2)
    feed.run(topics())
    broker.topics[POSITIONS] = []
    feed.write(2)
    with pytest.raises(PlaceLost):
        feed.run(topics())


def test_the_newest_position_of_the_key_counts(broker: MemoryBroker, feed: Feed) -> None:
    """Consumers may share the topic of positions."""
    feed.write(2)
    options = {"position_topic": "positions"}
    feed.run(topics(**options))
    broker.topics["positions"].insert(0, Record(b"another", b"{}", 0, {}))
    broker.topics["positions"].append(Record(b"another", b"{}", 0, {}))
    feed.write(1)
    feed.run(topics(**options))
    assert gsns(broker.topics[TOPIC]) == [1, 2, 3]


def test_a_topic_of_positions_that_forgets_is_refused(broker: MemoryBroker, feed: Feed) -> None:
    """KF08 names the command that fixes it."""
    broker.topics[POSITIONS] = []
    broker.configs[POSITIONS] = {"cleanup.policy": "delete"}
    with pytest.raises(PositionTopicUnsafe) as unsafe:
        feed.run(topics())
    assert "--add-config cleanup.policy=compact" in unsafe.value.hint


def test_a_truncate_is_a_message(broker: MemoryBroker, feed: Feed) -> None:
    """TRUNCATE stands between the rows before and after it, in one transaction with them."""
    feed.write(3, markers=(truncate(2, 1, "item"),))
    feed.run(topics())
    ops = [json.loads(one.value or b"")["op"] for one in broker.topics[TOPIC]]
    assert ops == ["c", "c", "t", "c"]
    assert len(broker.commits) == 1
    feed.write(1, markers=(truncate(4, 2, "item"),), rotate=False)
    feed.run(topics(skipped_operations="t"))
    assert gsns(broker.topics[TOPIC]) == [1, 2, 2, 3, 4]


def test_key_changes_have_headers_and_stay_in_order(broker: MemoryBroker, feed: Feed) -> None:
    """Messages with headers are sent one by one, between the others."""
    write(
        feed,
        Change(relation=ITEM, op=Op.INSERT, after=(1, "a")),
        Change(relation=ITEM, op=Op.UPDATE, before=(1,), after=(2, "b")),
        Change(relation=ITEM, op=Op.DELETE, before=(2,), after=None),
        Change(relation=ITEM, op=Op.INSERT, after=(3, "c")),
    )
    feed.run(topics())
    seen = [
        (
            json.loads(one.key or b"")["id"],
            json.loads(one.value)["op"] if one.value else None,
            {name: json.loads(each) for name, each in one.headers.items()},
        )
        for one in broker.topics[TOPIC]
    ]
    assert seen == [
        (1, "c", {}),
        (1, "d", {"__debezium.newkey": {"id": 2}}),
        (1, None, {}),
        (2, "c", {"__debezium.oldkey": {"id": 1}}),
        (2, "d", {}),
        (2, None, {}),
        (3, "c", {}),
    ]
    assert gsns(broker.topics[TOPIC]) == [1, 2, 3, 4, 5]


def test_large_segments_are_several_transactions(broker: MemoryBroker, feed: Feed) -> None:
    """Kafka's transactions end between transactions of the source."""
    for count in (3, 2, 4, 1):
        write(
            feed,
            *(Change(relation=ITEM, op=Op.INSERT, after=(n, "x")) for n in range(count)),
            rotate=False,
        )
    feed.writer.rotate()
    feed.run(topics(transaction_events_max=3))
    found = [gsns([one for name, one in commit if name == TOPIC]) for commit in broker.commits]
    assert found == [[1, 2, 3], [4, 5, 6, 7, 8, 9], [10]]


@pytest.mark.promise
def test_a_large_transaction_is_not_divided(broker: MemoryBroker, feed: Feed) -> None:
    """A transaction of the source over several runs is in one of Kafka, whatever its size."""
    rows = [
        Row(
            gsn=n,
            trx=1 if n < 7 else 2,
            position=commit_position(1 if n < 7 else 2),
            change=Change(relation=ITEM, op=Op.INSERT, after=(n, "x")),
        )
        for n in range(1, 9)
    ]
    feed.writer.write(run_of(rows[:3], ended=False))
    feed.writer.write(run_of(rows[3:6]))
    feed.writer.write(run_of(rows[6:]))
    feed.writer.rotate()
    feed.run(topics(transaction_events_max=2))
    found = [gsns([one for name, one in commit if name == TOPIC]) for commit in broker.commits]
    assert found == [[1, 2, 3, 4, 5, 6], [7, 8]]


def test_boundaries(broker: MemoryBroker, feed: Feed) -> None:
    """BEGIN and END are in a topic of their own, and events name their transaction."""
    feed.write(2)
    feed.write(1)
    feed.run(topics(provide_transaction_metadata=True))
    values = [json.loads(one.value or b"") for one in broker.topics["shop.transaction"]]
    assert [(one["status"], one["id"], one["event_count"]) for one in values] == [
        ("BEGIN", "1", None),
        ("END", "1", 2),
        ("BEGIN", "2", None),
        ("END", "2", 1),
    ]
    blocks = [json.loads(one.value or b"")["transaction"] for one in broker.topics[TOPIC]]
    assert [(one["id"], one["total_order"]) for one in blocks] == [("1", 1), ("1", 2), ("2", 1)]


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "name", "kind"),
    [
        ("init_transactions", "_ALL_BROKERS_DOWN", BrokerUnreachable),
        ("init_transactions", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", KafkaDenied),
        ("describe_topics", "TOPIC_AUTHORIZATION_FAILED", KafkaDenied),
        ("describe_configs", "TOPIC_AUTHORIZATION_FAILED", KafkaDenied),
        ("list_offsets", "_TRANSPORT", BrokerUnreachable),
        ("create_topics", "CLUSTER_AUTHORIZATION_FAILED", KafkaDenied),
        ("produce", "TOPIC_AUTHORIZATION_FAILED", KafkaDenied),
        ("commit_transaction", "INVALID_TXN_STATE", TransactionAborted),
        ("commit_transaction", "INVALID_PRODUCER_EPOCH", ProducerFenced),
        ("commit_transaction", "_TIMED_OUT", BrokerUnreachable),
    ],
)
def test_errors_of_the_broker(
    broker: MemoryBroker, feed: Feed, call: str, name: str, kind: type[PenstockError]
) -> None:
    """Each is a condition with its place and the next step; nothing of the transaction stays."""
    feed.write(2)
    broker.fail = {call: lambda _: error(name)}
    with pytest.raises(kind) as raised:
        feed.run(topics())
    assert raised.value.hint
    assert broker.commits == []


def test_a_missing_topic_names_the_command(broker: MemoryBroker, feed: Feed) -> None:
    """KF03 if topics may not be created; a topic that is there is used."""
    feed.write(1)
    options = {"topic_creation_enable": False}
    with pytest.raises(TopicMissing) as missing:
        feed.run(topics(**options))
    assert f"--create --topic {POSITIONS} --config cleanup.policy=compact" in missing.value.hint
    broker.topics[POSITIONS], broker.configs[POSITIONS] = [], {"cleanup.policy": "compact"}
    with pytest.raises(TopicMissing, match=TOPIC):
        feed.run(topics(**options))
    broker.topics[TOPIC] = []
    feed.run(topics(**options))
    assert gsns(broker.topics[TOPIC]) == [1]


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_message_that_is_too_large_names_its_row(
    broker: MemoryBroker, feed: Feed, is_moved: bool
) -> None:
    """KF04 has the table, the key and the setting."""
    write(
        feed,
        Change(relation=ITEM, op=Op.INSERT, after=(1, "a")),
        Change(
            relation=ITEM,
            op=Op.UPDATE,
            before=(1,) if is_moved else None,
            after=(2, "x" * 1_000_000),
        ),
    )
    with pytest.raises(MessageTooLarge) as large:
        feed.run(topics())
    assert (large.value.fields["table"], large.value.fields["key"]) == ("public.item", '{"id":2}')
    assert "message.max.bytes" in large.value.hint
    assert broker.commits == []
    assert broker.aborted == 1


def test_a_report_of_a_message_that_was_not_delivered(broker: MemoryBroker) -> None:
    """A broker that refuses a message later ends the transaction with the row's place."""
    options = parse(REQUIRED)
    made = producer.TransactionalProducer(Broker(options, "id"), options, "positions")
    made.begin()
    broker.topics[TOPIC] = []
    made.send(TOPIC, "public.item", [(b"1", b"a", None)])

    class Report:
        def topic(self) -> str:
            return TOPIC

        def key(self) -> bytes:
            return b"1"

        def value(self) -> bytes:
            return b"a"

    made._note_failed(error("MSG_SIZE_TOO_LARGE"), Report())
    with pytest.raises(MessageTooLarge, match=r"public\.item"):
        made.send(TOPIC, "public.item", [(b"1", b"a", None)])


def test_a_transaction_that_takes_too_long(
    broker: MemoryBroker, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KF11 names the setting, not another process."""
    feed.write(1)
    monkeypatch.setattr(producer.TransactionalProducer, "_age_s", lambda _: 1e6)
    broker.fail = {"commit_transaction": lambda _: error("INVALID_PRODUCER_EPOCH")}
    with pytest.raises(TransactionTooLong) as late:
        feed.run(topics())
    assert "transaction.timeout.ms" in late.value.hint
    monkeypatch.setattr(Broker, "is_away", True)
    with pytest.raises(BrokerUnreachable, match="could not be delivered"):
        feed.run(topics())


def test_two_tables_of_one_topic_are_refused(broker: MemoryBroker, feed: Feed) -> None:
    """KF10: their rows could not be told from each other."""
    made = topics(topic_names="{prefix}.{table}")
    feed.run(made)
    made._topic_of(ITEM)
    with pytest.raises(TopicShared, match=r"public\.item and other\.item"):
        made._topic_of(replace(ITEM, schema="other"))
    odd = topics()
    odd._broker = made._broker
    assert odd._topic_of(replace(ITEM, schema="a b", name="été")) == "shop.a_b._t_"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"topic.prefix": ""}, "topic.prefix"),
        ({"topic.prefix": "a b"}, "topic.prefix"),
        ({"unknown": 1}, "is not known"),
        ({"converter": "xml"}, "json, avro, protobuf"),
        ({"converter": "avro"}, "schema.registry.url"),
        ({"schema.registry.url": "http://a"}, "converter"),
        ({"converter": "avro", "schema.registry.url": "http://a", "schemas.enable": True}, "json"),
        ({"decimal.handling.mode": "exact"}, "precise, double, string"),
        ({"schemas.enable": "yes"}, "true or false"),
        ({"transaction.timeout.ms": 1}, "number from 1000"),
        ({"transaction.timeout.ms": True}, "number"),
        ({"topic.names": "{prefix}"}, "table"),
        ({"topic.names": "{table}.{other}"}, "in braces"),
        ({"topic.names": "{table} x"}, "letters"),
        ({"producer.acks": "0"}, "exactly-once"),
        ({"position.topic": 1}, "text"),
    ],
)
def test_options_are_checked(options: dict[str, Any], match: str, tmp_path: Path) -> None:
    """KF01 names the option, before anything is connected."""
    with pytest.raises(TopicOptionInvalid, match=match):
        Topics(**{**REQUIRED, **options})
    with pytest.raises(TopicOptionInvalid, match=match):
        check_class("penstock.kafka:Topics", {**REQUIRED, **options}, beside=tmp_path)


def test_options_may_be_nested_and_are_passed_on() -> None:
    """Points in a pipeline file may be tables; settings of clients and of the producer pass."""
    found = parse(
        {
            "bootstrap": {"servers": "a:1"},
            "topic": {"prefix": "shop", "creation": {"enable": False}},
            "sasl": {"mechanism": "PLAIN"},
            "security.protocol": "SASL_SSL",
            "producer": {"linger.ms": 5},
        }
    )
    assert found.text("topic.prefix") == "shop"
    assert not found.flag("topic.creation.enable", default=True)
    assert found.client == {"sasl.mechanism": "PLAIN", "security.protocol": "SASL_SSL"}
    assert found.producer == {"linger.ms": 5}


def test_a_wrong_setting_of_the_client_is_named() -> None:
    """The real client refuses it."""
    from confluent_kafka import Producer

    broker = Broker(parse({**REQUIRED, "producer.no.such": 1}), "id")
    with pytest.raises(TopicOptionInvalid, match=r"no\.such"):
        broker.client(Producer, {"no.such": 1})


def test_warnings_of_a_broker_that_is_away_are_few() -> None:
    """Warnings are told once in ten seconds."""
    import structlog

    broker = Broker(parse(REQUIRED), "id")
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            broker._note_error(error("_ALL_BROKERS_DOWN"))
        broker._note_error(error("_FAIL"))
    assert broker.is_away
    assert [one["event"] for one in logs] == ["no broker answers; trying again"]
