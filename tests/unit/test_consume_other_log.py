"""Consumers whose state or links belong to another log: no event is given, no link removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

import pytest

from harness.pipelines.consumer import NAME, Feed, Noting
from harness.pipelines.log import SOURCE
from penstock.consume.position import (
    POSITION_FILE,
    ConsumerOfOtherLog,
    ConsumerState,
    Position,
)
from penstock.log import Writer
from penstock.log.layout import load_state


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


def _log_id(feed: Feed) -> str:
    state = load_state(feed.root / "log")
    assert state is not None
    return state.log_id


@pytest.mark.parametrize("segment", [0, 1, 2, 3, 7])
def test_a_state_of_another_log_removes_and_gives_nothing(feed: Feed, segment: int) -> None:
    """Whatever its position is, the links below it belong to the log that is there now."""
    for _ in range(3):
        feed.write(2)
    other = Position(segment=segment, gsn=1, log_id="another")
    ConsumerState(feed.directory).save(other)
    noting = Noting()
    with pytest.raises(ConsumerOfOtherLog) as caught:
        feed.run(noting)
    state = feed.directory / "state" / POSITION_FILE
    assert caught.value.message == (
        f"the saved state in {state} belongs to change log another, and this one is {_log_id(feed)}"
    )
    assert f"penstock consumers remove FILE {NAME} --yes" in caught.value.hint
    assert (read_saved(feed), noting.gsns) == (other, [])
    assert feed.links() == ["0.ckt", "1.ckt", "2.ckt"]


def test_a_state_of_another_log_is_refused_before_the_first_link(feed: Feed) -> None:
    """Without a link, too, it does not wait for a segment that may never arrive."""
    feed.write(1, rotate=False)
    ConsumerState(feed.directory).save(Position(segment=7, gsn=1, log_id="another"))
    with pytest.raises(ConsumerOfOtherLog):
        feed.run(Noting())


@pytest.mark.parametrize("gsn", [0, 9])
def test_a_state_that_its_segment_cannot_have_is_refused(feed: Feed, gsn: int) -> None:
    """A log that was restored from a copy keeps its id, but not its numbers."""
    feed.write(2)
    feed.write(2)
    other = Position(segment=1, gsn=gsn, log_id=_log_id(feed))
    ConsumerState(feed.directory).save(other)
    noting = Noting()
    with pytest.raises(ConsumerOfOtherLog, match="has gsn 2 to 4"):
        feed.run(noting)
    assert (read_saved(feed), noting.gsns) == (other, [])


def test_links_of_another_log_are_refused_without_a_state(feed: Feed) -> None:
    """The links would hide the new log's segments of the same numbers."""
    feed.write(1)
    ConsumerState(feed.directory).drop()
    rmtree(feed.root / "log")
    Writer.open(feed.root / "log", log_id=None, source=SOURCE).close()
    noting = Noting()
    with pytest.raises(ConsumerOfOtherLog, match=r"the segment .*0\.ckt belongs to"):
        feed.run(noting)
    assert (noting.gsns, feed.links()) == ([], ["0.ckt"])


@pytest.mark.parametrize("has_state", [True, False])
def test_a_log_that_is_created_anew_stops_a_consumer_at_work(feed: Feed, has_state: bool) -> None:
    """The new segments have numbers that the consumer has passed, so it would read none of them."""
    for _ in range(2):
        feed.write(1)
    if not has_state:
        ConsumerState(feed.directory).drop()
    created = []

    class Creating(Noting):
        def alive(self) -> bool:
            if self.gsns and not created:
                feed.close()
                rmtree(feed.root / "log")
                Writer.open(feed.root / "log", log_id=None, source=SOURCE).close()
                created.append(True)
            return True

    with pytest.raises(ConsumerOfOtherLog):
        feed.run(Creating(answer=lambda _: has_state), stop=lambda: False)
    assert created


def test_a_state_without_a_log_id_is_compared_by_its_numbers(feed: Feed) -> None:
    """The state was saved before there was a log."""
    feed.write(2)
    other = Position(segment=0, gsn=7, log_id="")
    ConsumerState(feed.directory).save(other)
    with pytest.raises(ConsumerOfOtherLog, match="is of another log"):
        feed.run(Noting())
    assert read_saved(feed) == other
