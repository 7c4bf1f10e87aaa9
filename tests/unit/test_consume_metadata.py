"""Metadata of tables for consumers: before the tables' events, and when they are dropped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.consumer import Feed, Noting
from harness.pipelines.log import make_drop_marker
from penstock.consume.metadata import MetadataNotDrained


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    """A log with a registered consumer that begins at its start."""
    made = Feed(tmp_path)
    made.register()
    yield made
    made.close()


def test_tables_are_told_before_their_events(feed: Feed) -> None:
    """Metadata comes in the published order, once per version, also over a restart."""
    feed.write(1)

    class Told(Noting):
        def on_mappings(self, mappings: Iterator[Any]) -> None:
            self.seen += [("mapping", m.type_id, m.type_name) for m in mappings]

        def on_types(self, types: Iterator[Any]) -> None:
            self.seen += [("type", t.table, t.version) for t in types]

        def on_cache_change(self, caches: Iterator[Any]) -> None:
            self.seen += [("cache", c.table, c.columns, c.key) for c in caches]

        def on_cache_destroy(self, caches: Iterator[int]) -> None:
            self.seen += [("gone", number) for number in caches]

    told = Told()
    feed.run(told)
    assert told.seen == [
        "start",
        ("mapping", 1, "public.item"),
        ("type", "public.item", 1),
        ("cache", "public.item", ("id", "note"), ("id",)),
        1,
        "stop",
    ]
    again = Told()
    feed.run(again, gone=lambda: frozenset({"public.item"}))
    assert again.seen == ["start", ("gone", 1), "stop"]


@pytest.mark.parametrize("made_again", [False, True])
def test_a_table_that_was_dropped_is_told_at_its_place(feed: Feed, made_again: bool) -> None:
    """The drop is told after the last event, once, over a restart too; then a new table is told."""
    if made_again:
        feed.write(2)
        feed.write(2, markers=(make_drop_marker(2, 2, "item"),))
    else:
        feed.write(2, markers=(make_drop_marker(2, 1, "item"),))

    class Told(Noting):
        def on_cache_change(self, caches: Iterator[Any]) -> None:
            self.seen += [("cache", c.table) for c in caches]

        def on_cache_destroy(self, caches: Iterator[int], gsn: int) -> None:
            self.seen += [("gone", number, gsn) for number in caches]

    told = Told()
    feed.run(told)
    again = [("cache", "public.item"), 3, 4] if made_again else []
    assert told.seen == ["start", ("cache", "public.item"), 1, 2, ("gone", 1, 2), *again, "stop"]
    feed.run(last := Told())
    assert last.seen == ["start", "stop"]


@pytest.mark.parametrize(
    ("callback", "text"),
    [
        ("on_mappings", "Consumer should handle all changed mappings"),
        ("on_types", "Consumer should handle all changed types"),
        ("on_cache_change", "Consumer should handle all cache change events"),
    ],
)
def test_a_metadata_iterator_must_be_drained(feed: Feed, callback: str, text: str) -> None:
    """The errors have the published texts; no event of the segment is passed on."""
    feed.write(1)
    noting = Noting()
    setattr(noting, callback, lambda _items: None)
    with pytest.raises(MetadataNotDrained) as caught:
        feed.run(noting)
    assert caught.value.message == text
    assert noting.gsns == []
