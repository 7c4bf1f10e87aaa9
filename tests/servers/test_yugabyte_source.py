"""A YugabyteDB source: its engine against penstock's own server that speaks the dialect.

No server of YugabyteDB can run here. A PostgreSQL is extracted and served in the dialect; from
there a second pipeline extracts and loads into another database.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

import penstock
from harness.pipelines.based import ITEM, OTHER, Based, fill, rows
from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.pipeline import write_pipeline
from harness.servers.engines import FIRST, Place, new_place
from penstock.control.pipeline.config import load_config
from penstock.engines.yugabyte.engine import QUIET_S
from penstock.engines.yugabyte.reset import SlotReadLately, find_removals
from penstock.engines.yugabyte.slots import SlotPlace
from penstock.host.state_file import StateFile
from penstock.log.layout import DONE_NAME
from plugins.postgres import Server
from plugins.shared import SharedServers

BIG = "create table {}big (id int primary key, n int, body text)"


@pytest.fixture
def served_source(shared_servers: SharedServers, tmp_path: Path) -> Iterator[Based]:
    """A source with existing rows, extracted and served in the dialect, with a base."""
    with new_place(shared_servers, FIRST) as place:
        place.run(ITEM.format(""))
        place.run(OTHER.format(""))
        fill(place, 1, 20)
        place.run(BIG.format(""), "alter table big alter column body set storage external")
        place.run(
            "insert into big select n, 0, repeat('x', 20000) || n from generate_series(1, 9) n"
        )
        folder = tmp_path / "served"
        folder.mkdir()
        made = Based(place, folder)
        text = made.path.read_text().replace("[serve]", '[serve]\ndialect = "yugabyte"')
        made.path.write_text(text)
        try:
            made.extract()
            made.load()
            made.serve()
            yield made
        finally:
            made.close()
            place.forget_log()


class Second:
    """The pipeline that has the served log as its source, and its processes."""

    def __init__(self, served_source: Based, server: Server, folder: Path, **source: str) -> None:
        """Write the pipeline's file; source has parameters of the URL."""
        folder.mkdir()
        self.folder, self.server = folder, server
        self.url = server.make_database("yugabyte_target")
        query = "&".join(f"{key}={value}" for key, value in source.items())
        self.path = write_pipeline(
            folder,
            f"yugabytedb://repl:s3cret@127.0.0.1:{served_source.port}/shop?{query}",
            self.url,
            name="second",
            directory="second",
            tables=[f"{served_source.place.namespace}.*"],
            sections={"changeExtractor": {**LIVELY, "publication": "p"}},
        )
        self.path.write_text(self.path.read_text() + '\n[spark]\nmaster = "local[1]"\n')
        self.processes: list[Process] = []

    def start(self, command: str, *more: str) -> Process:
        """Start one of its commands."""
        process = Process(self.path, command, *more)
        self.processes.append(process)
        return process

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """Return rows of the target; none before the table exists."""
        with closing(psycopg.connect(self.url, autocommit=True)) as connection:
            if connection.execute("select to_regclass(%s)", (table,)).fetchone() == (None,):
                return []
            found = connection.execute(f"select * from {table}".encode()).fetchall()
        return sorted(found, key=repr)

    def until_equal(self, place: Place, process: Process) -> None:
        """Wait until both tables equal those of the first source."""
        for table in ("item", "other", "big"):
            name = f"{place.namespace}.{table}"
            process.until(
                lambda n=name, t=table: self.rows(n) == rows(place, t), f"{table} is equal"
            )

    def close(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.__exit__()
        self.server.drop_database(self.url)


@pytest.fixture
def lsn_type() -> str:
    """LSN type of the slot; tests set another one."""
    return "SEQUENCE"


@pytest.fixture
def second(
    served_source: Based, postgres: Server, tmp_path: Path, lsn_type: str
) -> Iterator[Second]:
    """Second pipeline, which is not started."""
    made = Second(served_source, postgres, tmp_path / "second", lsn_type=lsn_type)
    try:
        yield made
    finally:
        made.close()


def slot(served_source: Based, column: str) -> str:
    """Return a column of the second pipeline's slot, as the server shows it."""
    ((found,),) = served_source.query_catalog(
        f"select {column}::text from pg_replication_slots where slot_name <> 'probe'"
    )
    return str(found)


def read_confirmed(served_source: Based) -> str:
    """Return the position of the second pipeline's slot."""
    return slot(served_source, "confirmed_flush_lsn")


def end_of(served_source: Based, lsn_type: str) -> str:
    """Return the position at which a new slot of this kind begins: the log's end."""
    served_source.run_command(
        f"CREATE_REPLICATION_SLOT probe LOGICAL yboutput NOEXPORT_SNAPSHOT {lsn_type}"
    )
    ((found,),) = served_source.query_catalog(
        "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = 'probe'"
    )
    served_source.run_command("DROP_REPLICATION_SLOT probe")
    return str(found)


@pytest.mark.parametrize("lsn_type", ["SEQUENCE", "HYBRID_TIME"])
def test_tables_are_copied_and_followed_over_kills(
    served_source: Based, second: Second, lsn_type: str
) -> None:
    """Snapshot and stream join without loss, even over a killed extractor and a killed server."""
    place = served_source.place
    extractor = second.start("extract")
    handover = second.folder / "second" / "state" / "handover.json"
    extractor.until(lambda: handover.exists() and "captured" in handover.read_text(), "captured")
    fill(place, 100, 20)  # after the consistent point, before the tables are read
    loader = second.start("load")
    second.until_equal(place, loader)
    assert slot(served_source, "yb_lsn_type") == lsn_type
    for first in (200, 300):
        extractor.send(signal.SIGKILL)
        assert extractor.wait_for_end() != 0
        fill(place, first, 20)
        place.run("update big set n = n + 1")  # the long column is not sent: ABSENT, not NULL
        extractor = second.start("extract")
        second.until_equal(place, loader)
    for first in (500, 600):  # the server is killed, too
        assert served_source.server is not None
        served_source.server.send(signal.SIGKILL)
        assert served_source.server.wait_for_end() != 0
        fill(place, first, 20)
        place.run(f"update item set id = id + 2000000 where id = {first + 5}")
        served_source.serve()
        second.until_equal(place, loader)
    # The source is idle now: the slot's confirmed position still reaches the log's end.
    place.run("create table elsewhere (id int primary key)", "drop table elsewhere")
    extractor.until(
        lambda: read_confirmed(served_source) == end_of(served_source, lsn_type), "all is confirmed"
    )
    before = int(slot(served_source, "yb_restart_commit_ht"))
    extractor.until(
        lambda: int(slot(served_source, "yb_restart_commit_ht")) > before,
        "the restart time moves on",
    )
    loader.stop()
    extractor.stop()


def test_a_second_consumer_and_a_new_slot_are_refused(
    served_source: Based, second: Second, postgres: Server, tmp_path: Path
) -> None:
    """Neither may take over the first one's slot; a recreated slot is not a continuation."""
    second.path.write_text(second.path.read_text().replace('"data+change"', '"change"'))
    extractor = second.start("extract")
    state = second.folder / "second" / "state" / "slot.json"
    extractor.until(state.exists, "the stream has begun")
    other = Second(served_source, postgres, tmp_path / "other")
    try:
        other.path.write_text(other.path.read_text().replace('"data+change"', '"change"'))
        thief = other.start("extract")
        assert thief.wait_for_end() != 0
        assert thief.error["code"] == "PG74", thief.error
    finally:
        other.close()
    # A slot with a reader is not dropped.
    with pytest.raises(SlotReadLately, match="within the last minutes"):
        list(find_removals(load_config(second.path), None))
    fill(served_source.place, 400, 5)
    extractor.stop()
    # Dropped and created again under the same name: the stream id shows it.
    places = StateFile(state, SlotPlace)
    kept = places.load()
    assert kept is not None
    places.save(replace(kept, stream_id="of-before"))
    again = second.start("extract")
    assert again.wait_for_end() != 0
    assert again.error["code"] == "YB20", again.error  # from doctor, before a start
    assert again.error["hint"]
    # The next command that such errors name removes slot and publication.
    places.save(kept)
    reset = second.start("reset", "--yes")
    assert reset.wait_for_end() == 0, reset.err
    assert served_source.query_catalog("select slot_name from pg_replication_slots") == []


def test_it_ends_when_nothing_comes_any_more(served_source: Based, second: Second) -> None:
    """An extraction with exitWhenIdle ends with all changes, not between them; the
    log has no end.
    """
    text = second.path.read_text().replace('"data+change"', '"change"')
    text = text.replace("[changeExtractor]", "[changeExtractor]\nexitWhenIdle = true")
    second.path.write_text(text)
    extractor = second.start("extract")
    state = second.folder / "second" / "state" / "slot.json"
    extractor.until(state.exists, "the stream has begun")
    began = time.monotonic()
    count = 0
    while time.monotonic() - began < 1.5 * QUIET_S:
        served_source.place.run(f"insert into item values ({5000 + count}, 0, 'again')")
        count += 1
        assert extractor.running
        time.sleep(1)
    served_source.place.run("update item set id = id + 1000000 where id = 5000")
    assert extractor.wait_for_end() == 0, extractor.err
    log = second.folder / "second" / "log"
    assert (log / DONE_NAME).exists()
    found = penstock.read_log(second.folder / "second").table(
        f"{served_source.place.namespace}.item"
    )
    assert found.column("id").to_pylist() == [*range(5000, 5000 + count), 1_005_000]
    assert found.column("_op").to_pylist() == ["insert"] * count + ["update"]
    assert found.column("_before").to_pylist()[-1]["id"] == 5000, "an update of the key has it"
