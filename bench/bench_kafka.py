"""The change log into topics of Kafka: CPU of the consumer beside that of the client alone.

Ten columns, frames of 5,000 rows, JSON envelope without schemas; a real broker on this machine,
whose CPU is not counted. To measure the limit, confluent-kafka sends the same keys and
values, created beforehand, in transactions of the same size. By estimate a message of 1 kB takes 2
us to create and 4 us to checksum and send, uncompressed: 160,000 events per second of CPU.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.bench_log import runs, write
from bench.harness import Comparison, Contender, Measurement, arguments
from harness.kafka.broker import Broker, running_broker
from penstock.consume.application import Application, ApplicationOptions
from penstock.consume.batches import batches_of
from penstock.consume.registration import register
from penstock.consume.report import Report
from penstock.kafka import Topics
from penstock.kafka.envelope import Style, TableMessages, find_moved
from penstock.kafka.json_format import JsonFormat
from penstock.kafka.modes import Modes
from penstock.log import list_segments, open_segment
from penstock.log.links import LogPlace
from penstock.model.sections import Start

BATCH_ROWS = 5_000
NAME = "kafka"
_numbers = itertools.count(1)


def consume(root: Path, broker: Broker, rows: int, **options: Any) -> Measurement:
    """Measure a consumer that begins at the beginning and ends when all is committed."""
    number = next(_numbers)
    place = LogPlace(log=root / "log", consumers=root / f"cdc{number}")
    register(place, NAME, start=Start.BEGINNING)
    report = Report(NAME, root / "run", directory=place.consumers / NAME)
    topics = Topics(
        **{
            "bootstrap.servers": broker.servers,
            "topic.prefix": f"bench{number}",
            "transactional.id": f"bench{number}",
            **options,
        }
    )
    application = Application(
        topics,
        directory=place.consumers / NAME,
        log_directory=place.log,
        report=report,
        options=ApplicationOptions(check_frequency_ms=10),
        stop=lambda: report._state == "waiting",
    )
    started, cpu_started = time.perf_counter(), time.process_time()
    application.run()
    return Measurement(
        elapsed_s=time.perf_counter() - started,
        cpu_s=time.process_time() - cpu_started,
        extra={"events_per_cpu_s": rows / (time.process_time() - cpu_started)},
    )


def batches(root: Path) -> Iterator[Any]:
    """Yield the batches of the log."""
    for file in list_segments(root / "log"):
        with open_segment(file.path) as segment:
            for piece in batches_of(segment, takes=lambda _: True, gsn_after=0):
                yield from piece.events


def messages(root: Path) -> list[Any]:
    """Return the messages of the log."""
    style = Style(prefix="bench", modes=Modes(engine="postgresql"))
    found: list[Any] = []
    made: TableMessages | None = None
    for one in batches(root):
        made = made or TableMessages(one.relation, "bench.t", style, JsonFormat(has_schemas=False))
        found += made.of_batch(one, find_moved(one.batch, one.relation), None)
    return found


def make_only(root: Path, rows: int) -> Measurement:
    """Measure reading the log and making the messages, without sending them."""
    started, cpu_started = time.perf_counter(), time.process_time()
    assert len(messages(root)) == rows
    cpu_s = time.process_time() - cpu_started
    return Measurement(
        elapsed_s=time.perf_counter() - started,
        cpu_s=cpu_s,
        extra={"events_per_cpu_s": rows / cpu_s},
    )


def send_alone(broker: Broker, pairs: list[tuple[bytes, bytes]]) -> Measurement:
    """Measure the client alone: the same bytes, with the same settings and transactions."""
    from confluent_kafka import Producer

    from penstock.kafka.topics import EVENTS_MAX

    number = next(_numbers)
    producer = Producer(
        {
            "bootstrap.servers": broker.servers,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "partitioner": "murmur2_random",
            "transactional.id": f"alone{number}",
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 1_048_576,
            "delivery.report.only.error": True,
        }
    )
    broker.create_topic(f"alone{number}")
    producer.init_transactions(30)
    started, cpu_started = time.perf_counter(), time.process_time()
    for start in range(0, len(pairs), EVENTS_MAX):
        producer.begin_transaction()
        for at in range(start, min(start + EVENTS_MAX, len(pairs)), 10_000):
            chunk = [{"key": key, "value": value} for key, value in pairs[at : at + 10_000]]
            assert producer.produce_batch(f"alone{number}", chunk) == len(chunk)
            producer.poll(0)
        producer.commit_transaction(60)
    cpu_s = time.process_time() - cpu_started
    return Measurement(
        elapsed_s=time.perf_counter() - started,
        cpu_s=cpu_s,
        extra={"events_per_cpu_s": len(pairs) / cpu_s},
    )


def main() -> None:
    """Measure the client alone first: the ratios are against it."""
    chosen = arguments(__doc__, rows=300_000)
    with (
        tempfile.TemporaryDirectory() as name,
        running_broker(Path(name) / "broker") as broker,
    ):
        root = Path(name)
        write(root / "log", runs(chosen.rows, BATCH_ROWS), "lz4")
        pairs = [(key, value) for key, value, _ in messages(root)]
        size = sum(len(key) + len(value) for key, value in pairs) / len(pairs)
        print(f"{len(pairs)} messages of {size:.0f} bytes")
        ways: dict[str, Any] = {
            "the client alone": lambda: send_alone(broker, pairs),
            "messages only, not sent": lambda: make_only(root, chosen.rows),
            "penstock, JSON": lambda: consume(root, broker, chosen.rows),
            "penstock, flat JSON": lambda: consume(root, broker, chosen.rows, form="flat"),
        }
        contenders = [
            Contender(name=way, run=run, unit_count=chosen.rows, unit="events")
            for way, run in ways.items()
        ]
        Comparison(bench="kafka", contenders=contenders).run(chosen.rounds).print_table()


if __name__ == "__main__":
    main()
