"""Repetition of all events that a consumer has not confirmed, whatever is between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.consumer import Feed, Noting
from harness.pipelines.log import SOURCE, inserts, number_rows, run_of, truncate
from penstock.consume.api import CdcConsumer
from penstock.consume.classes import ConsumerFailed
from penstock.consume.position import ConsumerState, Position
from penstock.consume.snapshot import Made, Snapshot
from penstock.log import Writer


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    """A log with a registered consumer that begins at its start."""
    made = Feed(tmp_path)
    made.register()
    yield made
    made.close()


def read_saved(feed: Feed) -> Position | None:
    """Return the consumer's saved position."""
    return ConsumerState(feed.directory).load()


def test_a_marker_does_not_confirm_the_events_before_it(feed: Feed) -> None:
    """After False and on_truncate, a restart repeats the events, and the marker with them."""
    feed.write(2, markers=(truncate(2, 1, "item"),))
    before = read_saved(feed)
    noting = Noting(answer=lambda _: False)
    feed.run(noting)
    assert noting.seen == ["start", 1, 2, ("truncate", "public.item"), "stop"]
    assert read_saved(feed) == before
    again = Noting()
    feed.run(again)
    assert again.seen == noting.seen


def test_a_marker_alone_is_saved(feed: Feed) -> None:
    """Before it every event is confirmed: it is not repeated."""
    feed.write(2)
    feed.run(Noting())
    feed.write(1, markers=(truncate(2, 2, "item"),))
    failing = Noting(answer=lambda _: False)
    feed.run(failing)
    assert ("truncate", "public.item") in failing.seen
    again = Noting()
    feed.run(again)
    assert again.seen == ["start", 3, "stop"]


def test_a_move_over_other_rows_does_not_confirm_the_events_before_it(feed: Feed) -> None:
    """The end of the work confirms none either, where a position that moved alone is saved."""
    feed.write(1)
    feed.write(1, rotate=False)
    before = read_saved(feed)
    feed.run(Noting(answer=lambda _: False))
    assert read_saved(feed) == before
    assert feed.links() == ["0.ckt"]


def test_the_last_true_confirms_all_events_before_it(feed: Feed) -> None:
    """After False and True, links of confirmed segments are removed; no event is repeated."""
    for _ in range(3):
        feed.write(1)
    answers = iter([False, False, True])
    first = Noting(answer=lambda _: next(answers))
    feed.run(first)
    assert first.gsns == [1, 2, 3]
    assert feed.links() == ["2.ckt"]
    again = Noting()
    feed.run(again)
    assert again.gsns == []


def test_a_link_goes_only_once_its_segment_is_confirmed(feed: Feed) -> None:
    """Each True releases the segments before its own, and no part of its own."""
    for _ in range(3):
        feed.write(1)
    held: list[list[str]] = []

    class Looking(Noting):
        def on_events(self, events: Iterator[object]) -> bool:
            held.append(feed.links())
            return super().on_events(events)  # type: ignore[arg-type]

    feed.run(Looking())
    assert held == [
        ["0.ckt", "1.ckt", "2.ckt"],
        ["0.ckt", "1.ckt", "2.ckt"],
        ["1.ckt", "2.ckt"],
    ]


def test_parts_of_events_are_not_taken_for_parts_of_batches(feed: Feed) -> None:
    """A rewritten class gets the half-read segment again."""
    feed.write(2)
    position = read_saved(feed)
    assert position is not None
    half = replace(position, entries=9, unit="on_events")
    ConsumerState(feed.directory).save(half)
    gsns: list[int] = []

    class Batched(CdcConsumer):
        def on_batches(self, batches: Iterator[Any]) -> bool:
            gsns.extend(gsn for one in batches for gsn in one.batch.column("gsn").to_pylist())
            return True

    feed.run(Batched())
    assert gsns == [1, 2]


def test_a_snapshot_stays_until_the_consumer_is_past_it(feed: Feed) -> None:
    """The snapshot's numbers differ from those of the links: no link goes, a restart continues."""
    for _ in range(3):
        feed.write(1)
    snapshot = Snapshot(feed.directory)
    snapshot.want()
    with Writer.open(snapshot.folder, log_id=None, source=SOURCE) as writer:
        for trx in number_rows([inserts(1), inserts(1)]):
            writer.write(run_of(trx))
            writer.rotate()
        rows_log = writer.log_id
    position = read_saved(feed)
    assert position is not None
    snapshot.begin(Made(log_id=rows_log, ordinal="1", begin=replace(position, segment=2, gsn=2)))

    class Once(Noting):
        def on_events(self, events: Iterator[Any]) -> bool:
            if self.gsns:
                raise RuntimeError("enough")
            return super().on_events(events)

    with pytest.raises(ConsumerFailed, match="enough"):
        feed.run(Once())
    assert feed.links() == ["0.ckt", "1.ckt", "2.ckt"]
    assert list(snapshot.folder.glob("*.ckt"))
    again = Noting()
    feed.run(again)
    assert again.gsns == [2, 3]
    assert feed.links() == ["2.ckt"]
