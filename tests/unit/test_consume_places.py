"""Consumers that store their place with their data: each effect once, whole transactions, and no
place of another log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.pipelines.consume import write
from harness.pipelines.consumer import NAME, Feed
from harness.pipelines.log import inserts, number_rows, run_of, truncate
from penstock.consume import BatchIterator, CdcLog, PlaceKeeper, batches_of
from penstock.consume.classes import ConsumerClassInvalid, ConsumerFailed
from penstock.consume.direct import check_delivers_directly
from penstock.consume.places import PlaceLost, PlaceUnreadable
from penstock.consume.position import ConsumerOfOtherLog, ConsumerState, Position, SegmentsMissed
from penstock.log import links
from penstock.model.sections import Start


@dataclass
class Store:
    """Data and place, committed together."""

    place: str | None = None
    commits: list[list[Any]] = field(default_factory=list)

    @property
    def gsns(self) -> list[int]:
        """Numbers of all committed changes."""
        return [one for group in self.commits for one in group if isinstance(one, int)]


class Keeper(PlaceKeeper):
    """A consumer that keeps gsns in a store. It fails at the nth commit, before or after it."""

    def __init__(self, store: Store, *, fail_at: int = 0, after: bool = False) -> None:
        self.store, self.fail_at, self.after = store, fail_at, after
        self.open: list[Any] = []
        self.commits = 0
        self.log: CdcLog | None = None

    def load_place(self, log: CdcLog) -> str | None:
        self.log = log
        return self.store.place

    def on_batches(self, batches: BatchIterator) -> bool:
        for batch in batches:
            self.open += batch.batch.column("gsn").to_pylist()
            if batches.is_at_commit:
                return True
        return batches.is_at_commit

    def on_truncate(self, table: str, gsn: int) -> None:
        self.open.append((table, gsn))

    def store_place(self, place: str) -> None:
        self.commits += 1
        if self.commits == self.fail_at and not self.after:
            raise RuntimeError("before the commit")
        self.store.place = place
        if self.open:
            self.store.commits.append(self.open)
        self.open = []
        if self.commits == self.fail_at:
            raise RuntimeError("after the commit")


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    """A log with a registered consumer that begins at its start."""
    made = Feed(tmp_path)
    made.register()
    yield made
    made.close()


@pytest.mark.promise
@pytest.mark.parametrize("after", [False, True])
def test_each_change_once_over_failures(feed: Feed, after: bool) -> None:
    """A failure before or after each commit repeats nothing and loses nothing."""
    store = Store()
    for count in (2, 3, 1):
        feed.write(count)
    feed.write(2, rotate=False)
    for fail_at in (1, 2, 1, 3):
        with pytest.raises(ConsumerFailed):
            feed.run(Keeper(store, fail_at=fail_at, after=after))
        feed.write(1)
    keeper = Keeper(store)
    feed.run(keeper)
    assert store.gsns == list(range(1, 13))
    assert keeper.log is not None
    assert (keeper.log.consumer, keeper.log.source["engine"]) == (NAME, "postgresql")
    saved = ConsumerState(feed.directory).load()
    assert store.place is not None
    assert msgspec.json.decode(store.place, type=Position) == saved


def test_a_place_of_another_log_is_refused(feed: Feed, tmp_path: Path) -> None:
    """The place is refused before anything is left out because of it."""
    other = Feed(tmp_path / "other")
    other.register()
    other.write(5)
    store = Store()
    other.run(Keeper(store))
    other.close()
    feed.write(9)
    with pytest.raises(ConsumerOfOtherLog, match="is of another log"):
        feed.run(Keeper(store))
    assert store.gsns == [1, 2, 3, 4, 5]


def test_a_place_that_is_lost_or_old_ends_the_consumer(feed: Feed) -> None:
    """CN22: changes between it and the saved state may be missing where it was stored."""
    store = Store()
    feed.write(2)
    feed.run(Keeper(store))
    old = store.place
    feed.write(2)
    feed.run(Keeper(store))
    for place in (None, old):
        store.place = place
        with pytest.raises(PlaceLost):
            feed.run(Keeper(store))
    store.place = "{"
    with pytest.raises(PlaceUnreadable):
        feed.run(Keeper(store))
    assert store.gsns == [1, 2, 3, 4]


def test_a_consumer_that_is_registered_again_continues_at_its_place(feed: Feed) -> None:
    """The saved state begins from the beginning, and nothing is delivered twice."""
    store = Store()
    feed.write(2)
    feed.run(Keeper(store))
    feed.write(3)
    feed.register(Start.BEGINNING, "second")
    directory = feed.root / "cdc" / "second"
    (feed.root / "cdc" / NAME).rename(feed.root / "away")
    directory.rename(feed.root / "cdc" / NAME)
    feed.run(Keeper(store))
    assert store.gsns == [1, 2, 3, 4, 5]


def test_a_gap_is_passed_when_the_operator_says_so(feed: Feed) -> None:
    """After the saved state was removed the consumer goes on with its first link."""
    store = Store()
    feed.write(2)
    feed.run(Keeper(store))
    feed.write(2)
    feed.write(2)
    feed.write(2)
    gone = sorted(feed.directory.glob("*.ckt"))[-3:-1]
    for path in gone:
        path.unlink()
    (feed.directory / gone[0].name).unlink(missing_ok=True)
    with pytest.raises(SegmentsMissed):
        feed.run(Keeper(store))
    links.release(feed.directory, through=int(gone[-1].stem), log_id="")
    ConsumerState(feed.directory).drop()
    feed.run(Keeper(store))
    assert store.gsns == [1, 2, 7, 8]
    feed.write(1)
    feed.run(Keeper(store))
    assert store.gsns == [1, 2, 7, 8, 9]


@pytest.mark.promise
def test_a_truncate_is_committed_with_its_transaction(feed: Feed) -> None:
    """Rows before and after it in the same transaction are in the same commit; one on its own is
    committed as well.
    """
    store = Store()
    feed.write(3, markers=(truncate(2, 1, "item"),))
    feed.run(Keeper(store))
    assert store.commits == [[1, 2, ("public.item", 2), 3]]
    feed.write(2, markers=(truncate(3, 2, "item"),))
    with pytest.raises(ConsumerFailed):
        feed.run(Keeper(store, fail_at=1))
    feed.run(Keeper(store))
    assert store.commits[1:] == [[("public.item", 3), 4, 5]]
    feed.write(1, markers=(truncate(6, 3, "item"),), rotate=False)
    feed.run(Keeper(store))
    assert store.commits[2:] == [[6, ("public.item", 6)]]
    feed.run(Keeper(store))
    assert len(store.commits) == 3


def test_a_node_s_directory_is_refused() -> None:
    """A consumer that stores its place needs a log with numbers."""
    with pytest.raises(ConsumerClassInvalid, match="needs a change log"):
        check_delivers_directly(Keeper(Store()))


def test_a_commit_is_seen_in_the_log(tmp_path: Path) -> None:
    """A run that ends in a transaction is not at a commit; its last run is."""
    rows = [row for group in number_rows([inserts(5)]) for row in group]
    cut = [rows[:2], rows[2:4], [replace(rows[4], trx=2)]]
    runs = [run_of(one, ended=at > 0) for at, one in enumerate(cut)]
    with write(tmp_path, *runs) as segment:
        (piece,) = batches_of(segment, takes=lambda _: True, gsn_after=0)
        seen = [(one.ends_run, piece.events.is_at_commit) for one in piece.events]
    assert seen == [(True, False), (True, True), (True, True)]
