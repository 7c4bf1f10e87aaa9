"""Consumers for tests: a log written manually, and a consumer that records its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.pipelines.log import SOURCE, Row, inserts, number_rows, run_of
from penstock.consume.api import CdcConsumer
from penstock.consume.application import Application, ApplicationOptions
from penstock.consume.events import CdcEvent
from penstock.consume.registration import register
from penstock.consume.report import Report
from penstock.log import Writer, WriterOptions
from penstock.log.links import LogPlace
from penstock.model import Marker
from penstock.model.keeping import Keeping
from penstock.model.sections import Start

NAME = "search"


class Noting(CdcConsumer):
    """A consumer that records GSNs and callbacks, in order.

    Attributes:
        take: Number of events that a call reads.
        answer: Function that gives a call's return value.
    """

    def __init__(
        self, take: int | None = None, answer: Callable[[int], bool] | None = None
    ) -> None:
        self.take = take
        self.answer = answer or (lambda _: True)
        self.gsns: list[int] = []
        self.seen: list[Any] = []
        self.markers: list[int] = []  # gsns of on_truncate and on_reload
        self.calls = 0

    def start(self, metrics: Any) -> None:
        self.metrics = metrics
        self.seen.append("start")

    def on_events(self, events: Iterator[CdcEvent]) -> bool:
        self.calls += 1
        count = 0
        while self.take is None or count < self.take:
            event = next(events, None)
            if event is None:
                break
            count += 1
            self.gsns.append(event.gsn)
            self.seen.append(event.gsn)
        return self.answer(self.calls)

    def on_truncate(self, table: str, gsn: int) -> None:
        self.markers.append(gsn)
        self.seen.append(("truncate", table))

    def on_reload(self, table: str, gsn: int) -> None:
        self.markers.append(gsn)
        self.seen.append(("reload", table))

    def stop(self) -> None:
        self.seen.append("stop")


@dataclass
class Feed:
    """A log below a directory, with a writer, and one consumer's directory beside it."""

    root: Path
    keeping: Keeping | None = None
    rows: list[list[Row]] = field(default_factory=list)

    def __post_init__(self) -> None:
        options = WriterOptions(consumers=self.root / "cdc", keeping=self.keeping)
        self.writer = Writer.open(self.root / "log", log_id=None, source=SOURCE, options=options)
        self._count = 0

    @property
    def place(self) -> LogPlace:
        """Place of the log and its consumers."""
        return LogPlace(log=self.root / "log", consumers=self.root / "cdc")

    @property
    def directory(self) -> Path:
        """Directory of the consumer."""
        return self.root / "cdc" / NAME

    def register(self, start: Start = Start.NOW, name: str = NAME) -> None:
        """Register the consumer."""
        register(self.place, name, start=start)

    def write(
        self, count: int = 2, *, markers: tuple[Marker, ...] = (), rotate: bool = True
    ) -> None:
        """Write one transaction of so many inserts, make it durable, and close the segment."""
        done = [inserts(2)] * 0
        numbers = number_rows([*done, inserts(count, first=self._count)])[0]
        end = self.writer.end
        shifted = [
            Row(
                gsn=row.gsn + end.gsn,
                trx=end.trx + 1,
                position=(end.trx + 1) * 100,
                change=row.change,
            )
            for row in numbers
        ]
        self._count += count
        self.writer.write(run_of(shifted, markers=markers))
        if rotate:
            self.writer.rotate()
        else:
            self.writer.flush()

    def close(self) -> None:
        """Close the writer; the open segment stays open."""
        self.writer.close()

    def links(self) -> list[str]:
        """Return the names of the consumer's links."""
        return sorted((p.name for p in self.directory.glob("*.ckt")), key=lambda n: int(n[:-4]))

    def run(self, consumer: CdcConsumer, **options: Any) -> Report:
        """Run the application until it waits for more, or fails."""
        report = Report(NAME, self.root / "run", directory=self.directory)
        stop = options.pop("stop", lambda: report._state == "waiting")
        application = Application(
            consumer,
            directory=self.directory,
            log_directory=self.root / "log",
            report=report,
            options=ApplicationOptions(check_frequency_ms=10, **options),
            stop=stop,
        )
        try:
            application.run()
        finally:
            report.note_end()
        return report


PLAIN = '''
from penstock.consume import CdcConsumer


class Plain(CdcConsumer):
    """Writes what it is given into a file, one line for each call."""

    def __init__(self, file, fail_at=0):
        self.name, self.fail_at = file, fail_at

    def start(self, metrics):
        self.file = open(self.name, "a", buffering=1)
        self.count = metrics.counter("rows_seen", "Rows that came.")
        self.file.write("start\\n")

    def on_events(self, events):
        for event in events:
            if event.gsn == self.fail_at:
                raise RuntimeError("told to fail")
            self.count.add()
            self.file.write(f"{event.gsn}\\n")
            print("seen", event.gsn)
        return True

    def stop(self):
        self.file.write("stop\\n")
        self.file.close()
'''


def plain_pipeline(root: Path, extra: str = "", *, name: str = NAME) -> Path:
    """Write a pipeline file over `Feed(root)`'s log, whose consumer records into noted.txt. No
    server.
    """
    (root / "plain_consumer.py").write_text(PLAIN)
    path = root / "shop.toml"
    path.write_text(
        f"""
[pipeline]
name = "shop"
directory = "."
[source]
url = "postgresql://unused@127.0.0.1:1/none"
tables = ["public.*"]
[consumers.{name}]
class = "plain_consumer:Plain"
options = {{ file = "{root / "noted.txt"}" }}
start = "beginning"
checkFrequency = 20
{extra}
"""
    )
    return path


def read_notes(root: Path) -> list[str]:
    """Return the records of `Plain`."""
    path = root / "noted.txt"
    return path.read_text().splitlines() if path.exists() else []
