"""Consumers with `start = "snapshot"` on real servers: rows at one point, then each
later change.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.pipeline import write_pipeline
from harness.servers.engines import ENGINES, Place, new_place
from penstock.consume import CdcConsumer, run
from penstock.host import faults
from plugins.shared import SharedServers

ROWS = 300


class Seen(CdcConsumer):
    """A consumer that keeps rows by key in memory, and a list of the events that came."""

    def __init__(self) -> None:
        """Begin without rows."""
        self.rows: dict[Any, dict[str, Any]] = {}
        self.came: list[tuple[int, str, Any]] = []

    def on_events(self, events: Any) -> bool:
        """Apply each event as it is."""
        for event in events:
            self.came.append((event.gsn, event.op, event.key))
            if event.value is None:
                del self.rows[event.key]
            else:
                if event.op == "I":
                    assert event.key not in self.rows, f"{event.key} came twice"
                else:
                    assert event.key in self.rows, f"{event.key} was missing"
                self.rows[event.key] = {**self.rows.get(event.key, {}), **event.value}
        return True


@pytest.fixture(params=ENGINES)
def place(request: pytest.FixtureRequest, shared_servers: SharedServers) -> Iterator[Place]:
    """A database of each engine."""
    with new_place(shared_servers, request.param) as made:
        yield made
        made.forget_log()


@contextmanager
def pipeline(place: Place, folder: Path) -> Iterator[tuple[Path, Callable[[], bool]]]:
    """Create a table with rows, its extraction and a writer; yield the file and how writing is
    ended.
    """
    place.run("create table item (id int primary key, n int, note varchar(60))")
    values = ",".join(f"({n}, 0, 'row {n}')" for n in range(ROWS))
    place.run(f"insert into item values {values}")
    path = write_pipeline(
        folder,
        place.url,
        None,
        tables=[f"{place.namespace}.item"],
        sections={
            "changeExtractor": LIVELY,
            "consumers.seen": {
                "class": "shop_app:Seen",
                "start": "snapshot",
                "keepBinary": False,
                "checkFrequency": 50,
            },
        },
    )
    ended = threading.Event()
    errors: list[BaseException] = []

    def write() -> None:
        try:
            number = 0
            while not ended.is_set():
                number += 1
                key = number % ROWS
                place.run(
                    f"update item set n = n + 1 where id = {key}",
                    f"insert into item values ({10_000 + number}, 1, 'new')",
                    f"delete from item where id = {10_000 + number - 20}",
                )
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=write)
    with Process(path, "extract") as extract:
        thread.start()

        def end() -> bool:
            ended.set()
            thread.join(30)
            assert errors == []
            assert extract.running
            return True

        try:
            yield path, end
        finally:
            end()


def equal(seen: Seen, place: Place) -> bool:
    """Return whether the consumer's rows are the source's."""
    rows = place.run("select id, n, note from item")
    return seen.rows == {
        (row[0],): dict(zip(("id", "n", "note"), row, strict=True)) for row in rows
    }


def consume(path: Path, seen: Seen, until: Callable[[], bool], within_s: float = 60) -> None:
    """Run the consumer until a condition holds."""
    deadline = time.monotonic() + within_s

    def stop() -> bool:
        assert time.monotonic() < deadline, "not in time"
        return until()

    run(path, "seen", seen, stop=stop)


@pytest.mark.promise
def test_rows_come_first_then_every_change_behind_them(place: Place, tmp_path: Path) -> None:
    """No row is missing or repeated while the source is written, and versions only increase."""
    seen = Seen()
    with pipeline(place, tmp_path) as (path, end):
        consume(path, seen, lambda: len([c for c in seen.came if c[0] > 0]) > 100)
        end()
        consume(path, seen, lambda: equal(seen, place))
    creations = [one for one in seen.came if one[0] < 0]
    assert len(creations) >= ROWS
    assert {op for _, op, _ in creations} == {"I"}
    gsns = [gsn for gsn, _, _ in seen.came]
    assert gsns == sorted(gsns)
    assert list((tmp_path / "shop" / "cdc" / "seen" / "snapshot").iterdir()) == []


@pytest.mark.parametrize(
    "fault",
    [
        "consume.snapshot.rows",
        "consume.snapshot.made",
        "consume.snapshot.placed",
        "consume.snapshot.ready",
    ],
)
def test_what_is_killed_in_the_middle_leaves_nothing_or_goes_on(
    place: Place, tmp_path: Path, fault: str
) -> None:
    """The snapshot is killed at each step of its creation, and the consumer never sees a part."""
    seen = Seen()
    with pipeline(place, tmp_path) as (path, end):
        with faults.arming(f"{fault}:1:error"), pytest.raises(faults.FaultInjected):
            consume(path, seen, lambda: False)
        assert seen.came == []
        end()
        consume(path, seen, lambda: equal(seen, place))


def test_a_crash_among_its_rows_goes_on_behind_the_saved_one(place: Place, tmp_path: Path) -> None:
    """Saved rows do not come again, and the later ones do."""

    class Fails(Seen):
        def on_events(self, events: Any) -> bool:
            """Save some rows, then fail."""
            if len(self.came) >= 50:
                raise RuntimeError("no more")
            for event in events:
                self.came.append((event.gsn, event.op, event.key))
                assert event.value is not None
                self.rows[event.key] = dict(event.value)
                if len(self.came) % 25 == 0:
                    break
            return True

    first, second = Fails(), Seen()
    with pipeline(place, tmp_path) as (path, end):
        with pytest.raises(Exception, match="no more"):
            consume(path, first, lambda: False)
        assert len(first.came) == 50
        second.rows = first.rows
        end()
        consume(path, second, lambda: equal(second, place))
    assert second.came[0][0] == first.came[-1][0] + 1


@pytest.mark.promise
def test_rows_of_a_source_where_nothing_happens_come_at_once(place: Place, tmp_path: Path) -> None:
    """The consumer gets existing rows without waiting for a change."""
    place.run("create table item (id int primary key, n int, note varchar(60))")
    place.run("insert into item values (1, 1, 'a'), (2, 2, 'b')")
    keys = {"class": "shop_app:Seen", "start": "snapshot", "keepBinary": False}
    sections = {"changeExtractor": LIVELY, "consumers.seen": keys}
    tables = [f"{place.namespace}.item"]
    path = write_pipeline(tmp_path, place.url, None, tables=tables, sections=sections)
    seen = Seen()
    with Process(path, "extract"):
        consume(path, seen, lambda: equal(seen, place), within_s=20)
        assert len(seen.came) == 2
        place.run("update item set n = 3 where id = 1", "delete from item where id = 2")
        consume(path, seen, lambda: equal(seen, place))
    assert [op for _, op, _ in seen.came] == ["I", "I", "U", "D"]
