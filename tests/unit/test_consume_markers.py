"""on_truncate and on_reload: their gsn, by which a consumer recognises a repeated one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.pipelines.consumer import Feed, Noting
from harness.pipelines.log import truncate
from penstock.consume.events import CdcEvent


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    """A log with a registered consumer that begins at its start."""
    made = Feed(tmp_path)
    made.register()
    yield made
    made.close()


def test_a_marker_that_comes_again_is_told_from_a_new_one(feed: Feed) -> None:
    """A consumer that keeps gsns with its data, without saved state, keeps the rows after it."""
    feed.write(3, markers=(truncate(2, 1, "item"),))

    class Keeping(Noting):
        rows: list[int] = []  # noqa: RUF012 - of all of its lives

        def on_events(self, events: Iterator[CdcEvent]) -> bool:
            self.rows += [one.gsn for one in events if one.gsn > max(self.rows, default=0)]
            return False

        def on_truncate(self, table: str, gsn: int) -> None:
            if gsn >= max(self.rows, default=0):
                self.rows.clear()

    for _ in range(3):
        feed.run(Keeping())
        assert Keeping.rows == [3]


def test_the_gsn_of_a_marker_may_be_left_out(feed: Feed) -> None:
    """A class may have on_truncate(self, table) and on_reload(self, table)."""
    feed.write(3, markers=(truncate(2, 1, "item"),))

    class Short(Noting):
        def on_truncate(self, table: str) -> None:  # type: ignore[override]
            self.seen.append(table)

    short = Short()
    feed.run(short)
    assert short.seen == ["start", 1, 2, "public.item", 3, "stop"]
