"""Topics of a real broker: what a reader of committed messages sees, and errors of the broker.

Kafka Connect's JsonConverter and Debezium's ExtractNewRecordState judge the messages.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from harness.kafka.broker import ROOT, Broker, running_broker
from harness.kafka.formats import AvroReader, ProtobufReader
from harness.kafka.reading import Message, read_all, read_committed
from harness.kafka.registry import RegistryServer
from harness.maven import copy_jars
from harness.pipelines.consume import FULL
from harness.pipelines.consumer import NAME, Feed
from harness.pipelines.log import ITEM, ITEM_2, Change, Row, commit_position, run_of, truncate
from penstock.kafka import Topics
from penstock.kafka.errors import (
    BrokerUnreachable,
    KafkaDenied,
    MessageTooLarge,
    PositionTopicUnsafe,
    ProducerFenced,
    TopicMissing,
    TopicOptionInvalid,
    TransactionTooLong,
)
from penstock.kafka.producer import TransactionalProducer
from penstock.model import Op
from record_catalog_queries import ECJ

PRICED = replace(ITEM_2, name="priced", source_id=5, version=1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that runs for all tests of this file."""
    with running_broker(tmp_path_factory.mktemp("broker")) as made:
        yield made


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    """A log with a registered consumer that begins at its start."""
    made = Feed(tmp_path)
    made.register()
    yield made
    made.close()


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """Prefix of the topics of one test."""
    return tmp_path.name.replace("[", "-").replace("]", "-")


def topics(broker: Broker, prefix: str, **options: Any) -> Topics:
    """Return a consumer with these options, written with _ for points."""
    given = {name.replace("_", "."): one for name, one in options.items()}
    return Topics(**{"bootstrap.servers": broker.servers, "topic.prefix": prefix, **given})


def write(feed: Feed, *changes: Change, rotate: bool = True) -> None:
    """Write changes as one transaction."""
    end = feed.writer.end
    rows, gsn = [], end.gsn
    for change in changes:
        gsn += 1 + (
            change.op is Op.UPDATE
            and change.before is not None
            and change.relation.key == (0,)
            and change.after is not None
            and change.before[0] != change.after[0]
        )
        rows.append(
            Row(gsn=gsn, trx=end.trx + 1, position=commit_position(end.trx + 1), change=change)
        )
    feed.writer.write(run_of(rows))
    if rotate:
        feed.writer.rotate()
    else:
        feed.writer.flush()


CHANGES = (
    Change(relation=PRICED, op=Op.INSERT, after=(1, 'a "b"', Decimal("-1.50"))),
    Change(relation=PRICED, op=Op.INSERT, after=(2, None, None)),
    Change(relation=PRICED, op=Op.UPDATE, before=None, after=(1, "c", Decimal("9999999999.99"))),
    Change(relation=PRICED, op=Op.UPDATE, before=(2,), after=(3, "moved", Decimal(0))),
    Change(relation=PRICED, op=Op.INSERT, after=(4, "gone", None)),
    Change(relation=PRICED, op=Op.DELETE, before=(4,), after=None),
    Change(relation=FULL, op=Op.INSERT, after=(1, "old")),
    Change(relation=FULL, op=Op.UPDATE, before=(1, "old"), after=(1, "été")),
)
ROWS = {
    1: {"id": 1, "note": "c", "price": Decimal("9999999999.99")},
    3: {"id": 3, "note": "moved", "price": Decimal("0.00")},
}


def gsns(found: list[Message]) -> list[int]:
    """Return the numbers of messages, without tombstones."""
    return [one.json()["source"]["gsn"] for one in found if one.value is not None]


@pytest.mark.promise
def test_committed_messages(broker: Broker, feed: Feed, prefix: str) -> None:
    """A reader sees each change once, also after a transaction that was aborted."""
    feed.write(3)
    feed.run(topics(broker, prefix))
    sent = TransactionalProducer.commit

    def fail(self: TransactionalProducer, _: str) -> None:
        self._producer.flush(10)
        raise RuntimeError("before the commit")

    feed.write(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionalProducer, "commit", fail)
        with pytest.raises(Exception, match="before the commit"):
            feed.run(topics(broker, prefix))
    assert TransactionalProducer.commit is sent
    feed.run(topics(broker, prefix))
    topic = f"{prefix}.public.item"
    assert gsns(read_committed(broker, [topic])) == [1, 2, 3, 4, 5]
    assert gsns(read_all(broker, [topic])) == [1, 2, 3, 4, 5, 4, 5]


def test_keys_tombstones_and_headers(broker: Broker, feed: Feed, prefix: str) -> None:
    """The messages of each row are in one partition, in order, also with several partitions."""
    write(feed, *CHANGES)
    feed.run(topics(broker, prefix, topic_creation_default_partitions=3))
    found = read_committed(broker, [f"{prefix}.public.priced"])
    assert {one.partition for one in found} <= {0, 1, 2}
    by_key: dict[Any, list[Any]] = {}
    for one in found:
        shown = None if one.value is None else one.json()["op"]
        headers = {name: json.loads(value) for name, value in one.headers.items()}
        by_key.setdefault(json.loads(one.key or b"")["id"], []).append((shown, headers))
    assert by_key == {
        1: [("c", {}), ("u", {})],
        2: [("c", {}), ("d", {"__debezium.newkey": {"id": 3}}), (None, {})],
        3: [("c", {"__debezium.oldkey": {"id": 2}})],
        4: [("c", {}), ("d", {}), (None, {})],
    }


@pytest.mark.promise
def test_a_second_process_fences_the_first(broker: Broker, feed: Feed, prefix: str) -> None:
    """The first one ends with KF06, and its messages stay invisible."""
    feed.write(2)
    first = topics(broker, prefix)
    sent = TransactionalProducer.send

    def send(self: TransactionalProducer, *arguments: Any) -> None:
        sent(self, *arguments)
        self._producer.flush(10)
        patch.setattr(TransactionalProducer, "send", sent)
        other = topics(broker, prefix, transactional_id=f"penstock-{prefix}-{NAME}")
        from penstock.consume import CdcLog

        other.load_place(CdcLog(consumer=NAME, log_id="", source={}))
        other.stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionalProducer, "send", send)
        with pytest.raises(ProducerFenced):
            feed.run(first)
    assert read_committed(broker, [f"{prefix}.public.item"]) == []
    feed.run(topics(broker, prefix))
    assert gsns(read_committed(broker, [f"{prefix}.public.item"])) == [1, 2]


def test_a_position_is_read_past_the_transaction_of_another(
    broker: Broker, feed: Feed, prefix: str
) -> None:
    """A shared topic of positions is read to its end: an open transaction of another consumer must
    not hide the newest position.
    """
    from confluent_kafka import Producer

    feed.write(2)
    options = {"position_topic": f"{prefix}.positions", "broker_wait_ms": 3000}
    feed.run(topics(broker, prefix, **options))
    other = Producer({"bootstrap.servers": broker.servers, "transactional.id": f"{prefix}-other"})
    other.init_transactions(10)
    other.begin_transaction()
    other.produce(f"{prefix}.positions", b"{}", b"other", partition=0)
    other.flush(10)
    feed.write(1)
    with pytest.raises(BrokerUnreachable, match="positions were read up to"):
        feed.run(topics(broker, prefix, **options))
    other.abort_transaction(10)
    feed.run(topics(broker, prefix, **options))
    assert gsns(read_committed(broker, [f"{prefix}.public.item"])) == [1, 2, 3]


# -- judges ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Class path of the judge."""
    out = tmp_path_factory.mktemp("classes")
    path = ":".join(map(str, copy_jars("kafka")))
    compiler = ["java", "-jar", str(ECJ), "-17", "-nowarn", "-cp", path, "-d", str(out)]
    subprocess.run([*compiler, str(ROOT / "tests/kafka/Judge.java")], check=True)
    return f"{out}:{path}"


def judge(classes: str, found: list[Message], mode: str = "tombstone") -> list[tuple[Any, Any]]:
    """Return the records that Debezium makes of messages with schemas: keys and rows."""
    lines = [
        "\t".join(
            (one.topic, *("-" if data is None else base64.b64encode(data).decode()
                          for data in (one.key, one.value)))
        )
        for one in found
    ]  # fmt: skip
    done = subprocess.run(
        ["java", "-cp", classes, "Judge", mode],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [line for line in done.stdout.splitlines() if line != "dropped"]
    return [tuple(json.loads(each) for each in line.split("\t")) for line in rows]


def state_of(records: list[tuple[Any, Any]]) -> dict[int, Any]:
    """Return the rows that are left when records are applied."""
    rows: dict[int, Any] = {}
    for key, row in records:
        if row is None:
            rows.pop(key["id"], None)
        else:
            rows[key["id"]] = {
                name: Decimal(int.from_bytes(base64.b64decode(value), "big", signed=True)).scaleb(
                    -2
                )
                if name == "price" and isinstance(value, str)
                else value
                for name, value in row.items()
            }
    return rows


@pytest.mark.long
@pytest.mark.promise
def test_debezium_makes_the_same_rows(
    broker: Broker, feed: Feed, prefix: str, classes: str, tmp_path: Path
) -> None:
    """Connect's converter reads the messages, and Debezium's transformation gives the rows; flat
    messages of penstock give the same.
    """
    write(feed, *CHANGES)
    feed.run(topics(broker, prefix, schemas_enable=True))
    found = read_committed(broker, [f"{prefix}.public.priced"])
    assert state_of(judge(classes, found)) == ROWS
    other = Feed(tmp_path / "flat")
    other.register()
    write(other, *CHANGES)
    other.run(topics(broker, f"{prefix}-flat", schemas_enable=True, form="flat"))
    other.close()
    rows = [
        (
            json.loads(one.key or b"")["payload"],
            None if one.value is None else one.json()["payload"],
        )
        for one in read_committed(broker, [f"{prefix}-flat.public.priced"])
    ]
    assert state_of(rows) == ROWS
    assert judge(classes, found) == rows
    full = read_committed(broker, [f"{prefix}.public.full"])
    assert state_of(judge(classes, full)) == {1: {"id": 1, "note": "été"}}


@pytest.mark.parametrize("kind", [AvroReader, ProtobufReader])
def test_formats_with_a_registry(broker: Broker, feed: Feed, prefix: str, kind: Any) -> None:
    """Messages have ids of the registry's schemas; a column that is added has a new id."""
    with RegistryServer() as registry:
        converter = "avro" if kind is AvroReader else "protobuf"
        options = {
            "converter": converter,
            "schema_registry_url": registry.url,
            "provide_transaction_metadata": True,
        }
        write(feed, *CHANGES)
        feed.write(1, markers=(truncate(feed.writer.end.gsn, feed.writer.end.trx + 1, "item"),))
        feed.run(topics(broker, prefix, **options))
        reader = kind()
        reader.ids.schemas = {
            number: (text, kind_) for number, (kind_, text) in registry.schemas.items()
        }
        rows: dict[int, Any] = {}
        for one in read_committed(broker, [f"{prefix}.public.priced"]):
            key = reader.read(one.key)["id"]
            value = None if one.value is None else reader.read(one.value)
            if value is not None and value["after"] is not None:
                rows[key] = value["after"]
            elif value is None:
                rows.pop(key, None)
        assert rows == ROWS
        ops = [
            reader.read(one.value)["op"]
            for one in read_committed(broker, [f"{prefix}.public.item"])
        ]
        assert ops == ["t", "c"]
        bounds = [
            reader.read(one.value) for one in read_committed(broker, [f"{prefix}.transaction"])
        ]
        assert [(one["status"], one["event_count"]) for one in bounds] == [
            ("BEGIN", None),
            ("END", 9),
            ("BEGIN", None),
            ("END", 1),
        ]
        assert f"{prefix}.public.priced-value" in registry.subjects
        assert f"{prefix}.public.priced-key" in registry.subjects


# -- errors of the broker ----------------------------------------------------------------------


def test_a_topic_that_takes_less_than_the_producer(broker: Broker, feed: Feed, prefix: str) -> None:
    """KF04 has the row, if the broker refuses its message."""
    broker.create_topic(f"{prefix}.public.item", max_message_bytes="2000")
    write(feed, Change(relation=ITEM, op=Op.INSERT, after=(7, "x" * 5000)))
    with pytest.raises(MessageTooLarge) as large:
        feed.run(topics(broker, prefix))
    assert large.value.fields["table"] == "public.item"
    write(feed, Change(relation=ITEM, op=Op.INSERT, after=(8, "x" * 2_000_000)))
    with pytest.raises(MessageTooLarge, match='"id":8'):
        feed.run(topics(broker, f"{prefix}-b"))


def test_missing_topics(broker: Broker, feed: Feed, prefix: str) -> None:
    """KF03 has the command, and it helps."""
    feed.write(1)
    options = {"topic_creation_enable": False, "broker_wait_ms": 2000}
    for _ in range(2):
        with pytest.raises(TopicMissing) as missing:
            feed.run(topics(broker, prefix, **options))
        command = missing.value.hint.partition("Create it: kafka-topics.sh ")[2].partition(";")[0]
        broker.run_tool("org.apache.kafka.tools.TopicCommand", *command.split())
    feed.run(topics(broker, prefix, **options))
    assert gsns(read_committed(broker, [f"{prefix}.public.item"])) == [1]


def test_a_topic_of_positions_that_forgets(broker: Broker, feed: Feed, prefix: str) -> None:
    """KF08 has the command, and it helps."""
    broker.create_topic(f"{prefix}.positions")
    feed.write(1)
    options = {"position_topic": f"{prefix}.positions"}
    with pytest.raises(PositionTopicUnsafe) as unsafe:
        feed.run(topics(broker, prefix, **options))
    command = unsafe.value.hint.partition("Set it: kafka-configs.sh ")[2].partition(";")[0]
    broker.run_tool("kafka.admin.ConfigCommand", *command.split())
    feed.run(topics(broker, prefix, **options))


def test_the_broker_s_own_timeout(broker: Broker, feed: Feed, prefix: str) -> None:
    """KF11 if a transaction is older than the broker allows; a wrong setting is KF01."""
    import time

    feed.write(1)
    sent = TransactionalProducer.send

    def send(self: TransactionalProducer, *arguments: Any) -> None:
        sent(self, *arguments)
        self._producer.flush(10)
        time.sleep(14)  # the broker looks every ten seconds

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionalProducer, "send", send)
        with pytest.raises(TransactionTooLong):
            feed.run(topics(broker, prefix, transaction_timeout_ms=1000))
    assert read_committed(broker, [f"{prefix}.public.item"]) == []
    with pytest.raises(TopicOptionInvalid):
        feed.run(topics(broker, prefix, producer_compression_type="none-such"))


@pytest.mark.long
def test_a_broker_that_denies(tmp_path: Path, feed: Feed, prefix: str) -> None:
    """KF05 has the place and the rights."""
    settings = {
        "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow_everyone_if_no_acl_found": "true",
    }
    feed.write(1)
    with running_broker(tmp_path / "denying", **settings) as broker:
        broker.deny("TOPIC", f"{prefix}.", "WRITE")
        with pytest.raises(KafkaDenied, match=rf"{prefix}\.public\.item") as denied:
            feed.run(topics(broker, prefix, broker_wait_ms=3000))
        assert "kafka-acls.sh" in denied.value.hint
        broker.deny("TOPIC", "penstock.positions", "READ")
        with pytest.raises(KafkaDenied, match=r"penstock\.positions"):
            feed.run(topics(broker, prefix, broker_wait_ms=3000))
        broker.deny("TRANSACTIONAL_ID", "penstock-", "WRITE")
        with pytest.raises(KafkaDenied, match="transactional id"):
            feed.run(topics(broker, prefix, broker_wait_ms=3000))


@pytest.mark.long
def test_a_broker_that_is_away(tmp_path: Path, feed: Feed, prefix: str) -> None:
    """KF02 after broker.wait.ms; a pause in the middle is passed, and nothing is twice."""
    with running_broker(tmp_path / "away") as broker:
        feed.write(2)
        feed.run(topics(broker, prefix))
        broker.pause()
        feed.write(2)
        with pytest.raises(BrokerUnreachable):
            feed.run(topics(broker, prefix, broker_wait_ms=2000))
        broker.resume()
        feed.run(topics(broker, prefix))
        broker.kill()
        with pytest.raises(BrokerUnreachable):
            feed.run(topics(broker, prefix, broker_wait_ms=1000))
        broker.start()
        feed.write(1)
        feed.run(topics(broker, prefix))
        assert gsns(read_committed(broker, [f"{prefix}.public.item"])) == [1, 2, 3, 4, 5]
