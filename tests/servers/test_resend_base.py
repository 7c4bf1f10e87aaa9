"""`penstock resend` with a log that has a base: rows come from there, not from the source."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.bank_engines import session
from harness.pipelines.based import ITEM, OTHER, WAIT_S, Based, fill, rows
from harness.pipelines.end_to_end import Process
from harness.pipelines.pipeline import penstock
from harness.servers.engines import ENGINES, Place, insert, new_place
from penstock.consume import CdcConsumer, run
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.running import processes
from penstock.control.pipeline.table_requests import (
    read_answers,
    read_requests,
    removed_tables,
)
from penstock.model import TableName
from plugins.postgres import Server
from plugins.shared import SharedServers


@pytest.fixture(params=ENGINES)
def based_source(
    request: pytest.FixtureRequest, shared_servers: SharedServers, tmp_path: Path
) -> Iterator[Based]:
    """A source with existing rows, extracted, with a base."""
    with new_place(shared_servers, request.param) as place:
        place.run(ITEM.format(""), OTHER.format(""))
        fill(place, 1, 50)
        made = Based(place, tmp_path)
        try:
            made.extract()
            made.load()
            yield made
        finally:
            made.close()
            place.forget_log()


class View(CdcConsumer):
    """A consumer with a table's rows by key, dropped when they are resent.

    Attributes:
        resent: Keys that came again.
    """

    def __init__(self) -> None:
        """Begin without rows."""
        self.rows: dict[Any, dict[str, Any]] = {}
        self.resent: set[Any] = set()
        self.reloads = 0

    def on_events(self, events: Any) -> bool:
        """Apply each event as it is; check that a row is created once."""
        for event in events:
            if event.value is None:
                del self.rows[event.key]
                continue
            assert (event.key in self.rows) is (event.op != "I")
            self.rows[event.key] = {**self.rows.get(event.key, {}), **event.value}
            if event.resent:
                self.resent.add(event.key)
        return True

    def on_reload(self, table: str) -> None:
        """Drop the rows, which follow again."""
        self.reloads += table.endswith(".item")
        self.rows.clear()


def with_view(based_source: Based) -> None:
    """Register a consumer of item."""
    table = f"{based_source.place.namespace}.item"
    based_source.path.write_text(
        based_source.path.read_text()
        + '\n[consumers.view]\nclass = "shop_app:View"\nstart = "snapshot"\n'
        + f'keepBinary = false\ncheckFrequency = 50\ntables = ["{table}"]\n'
    )


def read_wanted(place: Place) -> dict[Any, Any]:
    """Return the rows that the view should have."""
    names = ("id", "n", "note")
    return {(row[0],): dict(zip(names, row, strict=True)) for row in rows(place, "item")}


def extracts(based_source: Based) -> bool:
    """Return whether an extractor is at work: without one the command is refused."""
    return any(
        one.name == "extract" and one.pid for one in processes(load_config(based_source.path))
    )


def resent(based_source: Based) -> None:
    """Run the command, and check that it succeeds."""
    with Process(
        based_source.path, "resend", "--tables", f"{based_source.place.namespace}.item"
    ) as process:
        assert process.wait_for_end() == 0, process.err


def until_seen(based_source: Based, view: View) -> None:
    """Run the consumer until it has all rows of the source."""
    expected = read_wanted(based_source.place)
    deadline = threading.Event()
    timer = threading.Timer(WAIT_S, deadline.set)
    timer.start()

    def is_done() -> bool:
        assert not deadline.is_set(), "not in time"
        return view.rows == expected

    run(based_source.path, "view", view, stop=is_done)
    timer.cancel()


@pytest.mark.long
def test_the_source_is_not_read(based_source: Based) -> None:
    """No session reads the table at the source, but its rows come, each once."""
    place = based_source.place
    with_view(based_source)
    view = View()
    deadline = threading.Event()
    timer = threading.Timer(WAIT_S, deadline.set)
    timer.start()

    def is_done() -> bool:
        assert not deadline.is_set(), "not in time"
        return bool(view.rows) and view.rows == expected

    expected = read_wanted(place)
    run(based_source.path, "view", view, stop=is_done)
    if place.url.startswith("postgresql"):
        scans = "select seq_scan + coalesce(idx_scan, 0) from pg_stat_user_tables"
        before = place.run(f"{scans} where relname = 'item'")
        resent(based_source)
        time.sleep(1.5)  # a session reports its scans within a second, or at its end
        assert place.run(f"{scans} where relname = 'item'") == before
    else:
        with session(place.url, place.namespace) as holder:
            holder.execute("lock tables item write")
            resent(based_source)
            holder.execute("unlock tables")
    run(based_source.path, "view", view, stop=lambda: is_done() and view.reloads == 1)
    assert view.resent == set(expected)
    timer.cancel()


@pytest.mark.long
@pytest.mark.parametrize("point", ["extract.resend.rows", "extract.resend.before"])
def test_killed_meanwhile(based_source: Based, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next extractor carries the request out: all rows of the base, and the later changes."""
    place = based_source.place
    with_view(based_source)
    view = View()
    assert based_source.extractor is not None
    based_source.extractor.stop()
    monkeypatch.setenv("PENSTOCK_FAULT", f"{point}:1:kill")
    dying = based_source.extract()
    monkeypatch.delenv("PENSTOCK_FAULT")
    dying.until(lambda: extracts(based_source), "it runs")
    command = Process(based_source.path, "resend", "--tables", f"{place.namespace}.item")
    with command:
        assert dying.wait_for_end() < 0
        fill(place, 500, 20)
        based_source.extract()
        assert command.wait_for_end() == 0, command.err
    until_seen(based_source, view)
    log = (based_source.folder / "shop" / "run" / "extract.log").read_text()
    assert "table sent again from the base" in log
    assert "table read again" not in log
    held = based_source.manifest.parent / "held" / "extract"
    assert not held.exists() or not list(held.iterdir())
    based_source.serve()
    based_source.equal("item", "other")


@pytest.mark.long
def test_rows_are_equal_with_writes_meanwhile(based_source: Based) -> None:
    """Consumer and base stay equal while rows change and the base moves forward."""
    place = based_source.place
    with_view(based_source)
    view = View()
    ended = threading.Event()

    def write() -> None:
        first = 1000
        while not ended.is_set():
            fill(place, first, 20)
            first += 20

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            resent(based_source)
        based_source.moved_on()
        resent(based_source)
    finally:
        ended.set()
        writer.join()
    until_seen(based_source, view)
    based_source.serve()
    based_source.equal("item", "other")
    log = (based_source.folder / "shop" / "run" / "extract.log").read_text()
    assert log.count("table sent again from the base") == 4
    assert "table read again" not in log


@pytest.fixture(params=ENGINES)
def copied_place(
    request: pytest.FixtureRequest, shared_servers: SharedServers, postgres: Server
) -> Iterator[tuple[Place, str]]:
    """A source with existing rows, and a target."""
    target = postgres.make_database("target")
    with new_place(shared_servers, request.param) as place:
        place.run(ITEM.format(""), OTHER.format(""))
        fill(place, 1, 50)
        yield place, target
        place.forget_log()
    postgres.drop_database(target)


def test_rows_of_an_added_table_are_those_of_the_source(
    copied_place: tuple[Place, str], tmp_path: Path
) -> None:
    """The base has the table from before it was removed, and lacks the changes in between."""
    place, target = copied_place
    made = Based(place, tmp_path, target=target)
    if not place.url.startswith("postgresql"):
        made.path.write_text(made.path.read_text() + '[target.types]\n"nul characters" = "error"\n')
    try:
        made.extract()
        made.load().stop()
        config, name = load_config(made.path), TableName(place.namespace, "item")
        assert made.extractor is not None
        ask(made, "remove", name)
        made.extractor.until(lambda: name in removed_tables(config), "it is not captured any more")
        insert(place, "item", [(n, n, "between") for n in range(500, 520)])
        ask(made, "add", name)
        made.extractor.until(lambda: is_captured(made, name), "it is captured")
        made.load().until(lambda: is_sent(made, name), "its rows are in the log again")
        made.serve()
        made.equal("item", "other")
    finally:
        made.close()


def ask(made: Based, what: str, table: TableName) -> None:
    """Run a `penstock table` command."""
    ran = penstock("table", what, made.path, str(table))
    assert ran.code == 0, ran.err


def is_captured(made: Based, table: TableName) -> bool:
    """Return whether a request to capture a table was carried out."""
    config = load_config(made.path)
    return read_answers(config).is_done(read_requests(config).of(table))


def is_sent(made: Based, table: TableName) -> bool:
    """Return whether the rows of a table were asked for, and are in the log."""
    config = load_config(made.path)
    request = read_requests(config).of(table)
    return bool(request.resend_id) and request not in read_answers(config).open_resends([request])


@pytest.mark.parametrize(
    "copied_place", [one for one in ENGINES if one.startswith("pg")], indirect=True
)
def test_a_renamed_table_is_in_the_base_once_it_is_captured(
    copied_place: tuple[Place, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then its changes have the old name in the log, and the base would not see them."""
    place, target = copied_place
    made = Based(place, tmp_path, target=target)
    try:
        monkeypatch.setenv("PENSTOCK_FAULT", "extract.capture.before:1:sleep=15")
        made.extract()
        monkeypatch.delenv("PENSTOCK_FAULT")
        loader = made.load()
        new_name = TableName(place.namespace, "thing")
        place.run("alter table item rename to thing")
        place.run("alter table thing add column twice int generated always as (n * 2) stored")
        loader.until(
            lambda: made.read_manifest().of(TableName(place.namespace, "item")) is None,
            "the old name is out of the base",
        )
        if not is_captured(made, new_name):
            assert made.read_manifest().of(new_name) is None
        insert(place, "thing", [(n, n, "later") for n in range(500, 520)])
        loader.until(lambda: is_sent(made, new_name), "its rows are in the log")
        loader.until(lambda: made.read_manifest().of(new_name) is not None, "it is in the base")
        place.run("alter table thing drop column twice")  # the log has no generated columns
        made.serve()
        made.equal("thing", "other")
    finally:
        made.close()
