"""A slow, a failing and a disabled consumer beside the load, and the repair of a gap in links."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.pipelines.end_to_end import Pair
from harness.pipelines.pipeline import penstock
from plugins.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.slow]
LIMIT_BYTES = 60_000
# A view of one table in SQLite; slow while a file exists.
CLASS = """
import os, sqlite3, time
from penstock.consume import CdcConsumer


class View(CdcConsumer):
    def __init__(self, folder, name, fails=False):
        self.folder, self.name, self.fails = folder, name, fails

    def start(self, metrics):
        self.data = sqlite3.connect(f"{self.folder}/{self.name}.db", isolation_level=None)
        # The test reads beside it, and never waits for a writer then.
        self.data.execute("pragma journal_mode = wal")
        self.data.execute("pragma synchronous = off")
        self.data.execute("create table if not exists item (id integer primary key, n integer)")

    def on_events(self, events):
        if self.fails:
            raise RuntimeError("it always fails")
        for event in events:
            while os.path.exists(f"{self.folder}/slow"):
                time.sleep(0.05)
            if event.table != "public.item":
                continue
            self.data.execute("delete from item where id = ?", event.key)
            if event.value is not None:
                self.data.execute("insert into item values (?, ?)", (*event.key, event.value["n"]))
        return True

    def on_reload(self, table):
        if table == "public.item":
            self.data.execute("delete from item")

    def stop(self):
        self.data.close()
"""


@pytest.fixture
def pair(tmp_path: Path, own_postgres: Server) -> Iterator[Pair]:
    """A pipeline with three consumers; `slow` is stuck until its file is deleted."""
    made = Pair(tmp_path, own_postgres)
    made.run("create table public.item (id int primary key, n int)")
    (tmp_path / "view_consumer.py").write_text(CLASS)
    (tmp_path / "slow").touch()
    text = made.path.read_text()
    for name, fails in (("slow", "false"), ("failing", "true"), ("off", "false")):
        limit = f"cdcWalDirectoryMaxSize = {LIMIT_BYTES}\n" if name == "slow" else ""
        text += f'[consumers.{name}]\nclass = "view_consumer:View"\nkeepBinary = false\n{limit}'
        text += f'options = {{ folder = "{tmp_path}", name = "{name}", fails = {fails} }}\n'
    made.path.write_text(text)
    yield made
    made.close()


def rows_of(folder: Path, name: str) -> list[tuple[int, int]]:
    """Return the rows of a consumer's view."""
    data = sqlite3.connect(folder / f"{name}.db")
    try:
        return data.execute("select id, n from item order by id").fetchall()
    finally:
        data.close()


@pytest.mark.promise
def test_consumers_do_not_disturb_the_load_and_a_hole_is_mended(pair: Pair, tmp_path: Path) -> None:
    """The target is current while they are not, the disk is bounded, and at the end views are
    equal.
    """
    run = pair.start()
    pair.settle()
    assert penstock("consumers", "disable", pair.path, "off").code == 0
    links = tmp_path / "shop" / "cdc" / "slow"
    for turn in range(12):
        pair.run(
            "insert into item select g, 0 "
            f"from generate_series({turn * 50 + 1}, {turn * 50 + 50}) g"
        )
        pair.run(f"update item set n = {turn} where id % 3 = 0")
        pair.run(f"delete from item where id % 50 = {turn}")
        pair.settle()
        assert sum(path.stat().st_size for path in links.glob("*.ckt")) <= LIMIT_BYTES
    assert pair.differences("item") == []
    assert any("consume-failing failed" in text for text in run.events)
    off = {path.name for path in (tmp_path / "shop" / "cdc" / "off").glob("*.ckt")}
    run_log = (tmp_path / "shop" / "run" / "extract.log").read_text()
    assert "did not get a link to the segment" in run_log

    (tmp_path / "slow").unlink()
    run.until(
        lambda: any(
            "consume-slow failed: Found missed segments. Some events are missed. Exiting!" in text
            for text in run.events
        ),
        "the hole is met",
    )
    pair.run("insert into item values (9001, 0)")

    def goes_on() -> bool:
        """Return whether a change after the deletion arrives; if not, there is another gap.

        The deletion is refused while the consumer runs: then it only needs time.
        """
        penstock("delete-lost-segment-links", pair.path, "--consumer", "slow", "--yes")
        pair.run("update item set n = n + 1 where id = 9001")
        row = pair.source.execute("select id, n from item where id = 9001").fetchone()
        until = time.monotonic() + 10
        while not (arrived := row in rows_of(tmp_path, "slow")) and time.monotonic() < until:
            time.sleep(0.1)
        return arrived

    run.until(goes_on, "the consumer goes on after its last hole")
    assert penstock("resend", pair.path, "--tables", "public.item").code == 0
    pair.run("update item set n = n + 100 where id % 7 = 0")
    wanted = pair.source.execute("select id, n from item order by id").fetchall()
    run.until(lambda: rows_of(tmp_path, "slow") == wanted, "its view equals the source")
    pair.settle()
    assert pair.differences("item") == []
    assert {path.name for path in (tmp_path / "shop" / "cdc" / "off").glob("*.ckt")} == off
    pair.stop()
