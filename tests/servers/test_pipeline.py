"""`penstock.Pipeline` on real servers: a run in a thread, beside which the others are asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from harness.pipelines.end_to_end import Pair
from penstock.control.pipeline.running import AlreadyRunning
from penstock.control.run.child_ends import HalfFailed
from penstock.control.status.lag_report import NotAppliedInTime
from penstock.control.tables.table_commands import TableNotTaken
from plugins.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

WITHIN_S = 200.0


@pytest.fixture
def pair(tmp_path: Path, postgres: Server) -> Iterator[Pair]:
    """Two databases, and a pipeline between them."""
    made = Pair(tmp_path, postgres)
    made.run("create table public.item (id int primary key, v text)")
    made.run("create table public.other (id int primary key)")
    made.run("insert into public.item select g, 'old' from generate_series(1, 100) g")
    yield made
    made.close()


def test_a_run_in_a_thread(pair: Pair) -> None:
    """The target is equal at each wait, while it runs; the next run goes on; damage is repaired."""
    pipeline = penstock.Pipeline(pair.path)
    events: list[dict[str, Any]] = []
    with pipeline.running(on_event=events.append) as run:
        with pytest.raises(AlreadyRunning):
            penstock.Pipeline(pair.path).run()
        run.wait_until_applied(timeout_s=WITHIN_S)
        assert count(pair) == 100
        for number in range(101, 111):
            pair.run(f"insert into public.item values ({number}, 'new')")
            status = pipeline.wait_until_applied(timeout_s=WITHIN_S)
            assert count(pair) == number
        assert set(status.running) >= {"extract", "load"}
        assert pipeline.lag().seconds is not None
        assert pipeline.verify().equal

        assert pipeline.tables.pause("public.item").is_running
        until_state(pipeline, "public.item", "paused")
        pair.run("insert into public.item values (111, 'later')")
        run.wait_until_applied(timeout_s=WITHIN_S)
        assert count(pair) == 110
        pipeline.tables.resume("public.item")
        until_state(pipeline, "public.item", "following")
        pair.target.execute("delete from public.item where id < 4")
        assert [table.missing for table in pipeline.verify().tables if not table.equal] == [3]
        assert [one.written for one in pipeline.verify(repair=True).repaired] == [3]
        assert pipeline.verify().equal
        with pytest.raises(TableNotTaken):
            pipeline.tables.remove("public.nothing")
    assert not run.is_alive
    assert pipeline.status().running == []
    assert {"checking", "stopping", "ended"} <= {event["type"] for event in events}
    assert not pipeline.tables.pause("public.other").is_running
    pipeline.tables.resume("public.other")

    pair.run("insert into public.item values (112, 'while stopped')")
    with pytest.raises(NotAppliedInTime, match="running: no process"):
        pipeline.wait_until_applied(timeout_s=1)
    with pipeline.running() as run:
        run.wait_until_applied(timeout_s=WITHIN_S)
        assert count(pair) == 112


def test_a_blocking_run_is_stopped_by_another_thread(pair: Pair) -> None:
    """`run` returns without an error; one that cannot go on raises the error of its process."""
    pipeline = penstock.Pipeline(pair.path)

    def stop_later() -> None:
        pipeline.wait_until_applied(timeout_s=WITHIN_S)
        pipeline.stop()

    stopper = threading.Thread(target=stop_later)
    stopper.start()
    pipeline.run()
    stopper.join()
    assert count(pair) == 100
    assert pipeline.status().running == []

    pair.target.execute("alter table public.item add constraint short check (length(v) < 10)")
    pair.run("insert into public.item values (200, 'far too long')")
    with pytest.raises(HalfFailed, match="short"), pipeline.running() as run:
        run.wait_until_applied(timeout_s=WITHIN_S)


def count(pair: Pair) -> int:
    """Return the number of rows in the target."""
    row = pair.target.execute("select count(*) from public.item").fetchone()
    assert row is not None
    return int(row[0])


def until_state(pipeline: penstock.Pipeline, table: str, state: str) -> None:
    """Wait until a table is in a state."""
    waited = threading.Event()
    for _ in range(400):
        if {str(line.table): line.state for line in pipeline.tables.list()}[table] == state:
            return
        waited.wait(0.25)
    raise AssertionError(f"{table} is not {state}")
