"""State of a server: one file per log; a change takes effect only if it could be saved."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.log import ITEM, inserts, number_rows
from harness.servers.catalog_compare import FixedState
from harness.servers.serve import (
    Running,
    open_source_log,
    saved_slots,
    settings_of,
    write_base,
    write_log,
)
from harness.servers.serve_client import START, Raw, wait_until
from penstock.codec.postgres.pgwire_server import Refused
from penstock.host.files import DiskFull
from penstock.host.state_file import CheckpointCorrupt
from penstock.log import links
from penstock.serve.catalog.answers import Session
from penstock.serve.catalog.catalog import Catalog
from penstock.serve.catalog.grammar import split
from penstock.serve.catalog.publications import Publication
from penstock.serve.saved_state import FILE_NAME, SavedState, ServedOtherLog, Shapes
from penstock.serve.settings import YUGABYTE
from penstock.serve.slots import Slots
from penstock.serve.snapshots import Snapshots


def catalog_of(state: SavedState) -> Catalog:
    """Return a catalogue with one table."""
    made = Catalog(state, database="shop", users=["repl"], state=FixedState())
    made.set_relations([ITEM])
    return made


def run_query(catalog: Catalog, sql: str) -> list[Any]:
    """Return the rows of the last statement, in a session of its own."""
    session = Session(user="repl", database="shop", process_id=7)
    rows: list[Any] = []
    for statement in split(sql):
        rows = list(catalog.answer(statement, session).rows)
    return rows


async def slot_in(state: SavedState) -> None:
    """Create and save a slot."""
    slots = Slots(state, slots_max=3)
    slots.create("s", "pgoutput", 0x1000000)
    await slots.save()
    slots.close()


def publication_in(state: SavedState) -> None:
    """Create a publication, as a client does."""
    run_query(catalog_of(state), "create publication p for table item")


def test_all_parts_are_in_one_file(tmp_path: Path) -> None:
    """Each is there after a restart, whichever was written last."""
    state = SavedState(tmp_path, log_id="a")
    publication_in(state)
    Shapes(state).begin([ITEM])
    asyncio.run(slot_in(state))
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    again = SavedState(tmp_path, log_id="a")
    assert run_query(catalog_of(again), "select pubname from pg_publication") == [("p",)]
    assert Shapes(again).all() == [ITEM]
    assert [one.saved.name for one in Slots(again, slots_max=3).all()] == ["s"]


@pytest.mark.parametrize("makes", [slot_in, publication_in])
def test_what_clients_made_on_another_log_is_refused(
    makes: Callable[[SavedState], Any], tmp_path: Path
) -> None:
    """A publication would publish nothing until this log is as long as that one was."""
    if (found := makes(SavedState(tmp_path, log_id="a"))) is not None:
        asyncio.run(found)
    with pytest.raises(ServedOtherLog) as caught:
        SavedState(tmp_path, log_id="b")
    assert FILE_NAME in str(caught.value.message)
    (tmp_path / FILE_NAME).rename(tmp_path / "away")
    assert SavedState(tmp_path, log_id="b").load("slots", dict) is None


def test_what_nobody_made_is_forgotten_with_its_log(tmp_path: Path) -> None:
    """Shapes and the pipeline file's publications get the positions of this log."""
    state = SavedState(tmp_path, log_id="a")
    made = catalog_of(state)
    publication = Publication(name="f", oid=99, owner="repl", patterns=("public.*",))
    made.model.take_from_file({"f": ("public.*",)}, {"f": publication}, 5000)
    Shapes(state).begin([ITEM])
    other = SavedState(tmp_path, log_id="b")
    assert Shapes(other).all() == []
    again = catalog_of(other)
    again.model.take_from_file({"f": ("public.*",)}, {"f": publication}, 7)
    assert [one.position for one in again.model.publications.versions] == [7]


def test_a_part_that_is_something_else_is_refused(tmp_path: Path) -> None:
    """The error names the file."""
    SavedState(tmp_path, log_id="a").save("slots", {"slots": 7})
    with pytest.raises(CheckpointCorrupt, match=FILE_NAME):
        Slots(SavedState(tmp_path, log_id="a"), slots_max=3)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Return a switch: True fills the disk for the state file."""
    real = SavedState.save
    is_full = False

    def save(state: SavedState, name: str, part: object) -> None:
        if is_full:
            raise DiskFull("no space left", path="state")
        real(state, name, part)

    monkeypatch.setattr(SavedState, "save", save)

    def switch(full: bool) -> None:
        nonlocal is_full
        is_full = full

    return switch


def test_a_publication_that_is_not_saved_is_not_in_force(
    tmp_path: Path, full_disk: Callable[[bool], None]
) -> None:
    """No publication is created, altered, dropped or commented; the next change saves none."""
    made = catalog_of(SavedState(tmp_path, log_id="a"))
    run_query(made, "create publication p for table item; comment on publication p is 'old'")
    model = made.model
    before = model.publications.current(), list(model.publications.versions)
    full_disk(True)
    for sql in (
        "create publication q for all tables",
        "alter publication p set (publish = 'insert')",
        "drop publication p",
        "comment on publication p is 'new'",
    ):
        with pytest.raises(DiskFull):
            run_query(made, sql)
        assert (model.publications.current(), list(model.publications.versions)) == before
        assert model.comment(before[0]["p"].oid) == "old"
    full_disk(False)
    run_query(made, "create publication r for table item")
    again = catalog_of(SavedState(tmp_path, log_id="a"))
    names = run_query(again, "select pubname from pg_publication order by 1")
    assert names == [("p",), ("r",)]


def test_a_client_is_told_what_could_not_be_saved(
    tmp_path: Path, full_disk: Callable[[bool], None]
) -> None:
    """The error is not an internal one."""
    write_log(tmp_path / "log", number_rows([inserts(1)]))
    with (
        Running(tmp_path, relations=[ITEM]) as running,
        psycopg.connect(running.url(), autocommit=True) as connection,
    ):
        full_disk(True)
        with pytest.raises(psycopg.Error, match="no space left") as caught:
            connection.execute("create publication p for all tables")
        assert caught.value.sqlstate == "58000"
        full_disk(False)
        connection.execute("create publication p for all tables")


def test_oids_and_shapes_that_are_not_saved_are_saved_later(
    tmp_path: Path, full_disk: Callable[[bool], None]
) -> None:
    """An oid that a client may have seen is not assigned again."""
    state = SavedState(tmp_path, log_id="a")
    made = catalog_of(state)
    shapes = Shapes(state)
    full_disk(True)
    with pytest.raises(DiskFull):
        shapes.begin([ITEM])
    oid = made.model.oid("schema", "", "late")
    with pytest.raises(DiskFull):
        made.model.save_oids()
    full_disk(False)
    made.model.save_oids()
    assert shapes.begin([ITEM])
    again = SavedState(tmp_path, log_id="a")
    assert catalog_of(again).model.oid("schema", "", "late") == oid
    assert Shapes(again).all() == [ITEM]


def test_what_is_confirmed_while_the_file_is_written_is_not_saved_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No segment may be removed because of it before the next write."""
    real = SavedState.save
    writing, goes_on = threading.Event(), threading.Event()

    def save(state: SavedState, name: str, part: object) -> None:
        writing.set()
        assert goes_on.wait(20)
        real(state, name, part)

    async def confirm_meanwhile() -> None:
        slots = Slots(SavedState(tmp_path, log_id="a"), slots_max=3)
        slot = slots.create("s", "pgoutput", 0x1000000)
        monkeypatch.setattr(SavedState, "save", save)
        saving = asyncio.create_task(slots.save())
        await asyncio.to_thread(writing.wait, 20)
        slots.confirm(slot, 0x1000005)
        goes_on.set()
        await saving
        assert not slots.is_saved
        await slots.save()
        assert slots.is_saved
        slots.close()

    asyncio.run(confirm_meanwhile())
    saved = saved_slots(tmp_path)
    assert saved is not None
    assert saved.slots[0].confirmed == 0x1000005


def test_a_slot_that_is_not_saved_is_not_there(
    tmp_path: Path, full_disk: Callable[[bool], None]
) -> None:
    """The name is free again; a slot that could not be altered is unchanged."""
    write_log(tmp_path / "log", number_rows([inserts(1)]))
    with Running(tmp_path) as running:
        client = Raw(running)
        full_disk(True)
        client.query("CREATE_REPLICATION_SLOT s LOGICAL pgoutput (SNAPSHOT 'nothing')")
        assert client.until(b"Z")[0][0] == b"E"
        assert running.serving.slots.all() == []
        full_disk(False)
        client.query("CREATE_REPLICATION_SLOT s LOGICAL pgoutput (SNAPSHOT 'nothing')")
        assert client.until(b"Z")[0][0] == b"T"
        full_disk(True)
        client.query("ALTER_REPLICATION_SLOT s (FAILOVER true)")
        assert client.until(b"Z")[0][0] == b"E"
        assert not running.serving.slots.get("s").saved.failover
        full_disk(False)
        client.close()
    saved = saved_slots(tmp_path / "state")
    assert saved is not None
    assert [one.name for one in saved.slots] == ["s"]


def test_no_slot_is_made_while_links_are_disabled(tmp_path: Path) -> None:
    """The slot would be lost at the next removal; the hint is a command."""
    write_log(tmp_path / "log", number_rows([inserts(1)]))
    links.disable_all(tmp_path / "cdc")
    create = "CREATE_REPLICATION_SLOT s LOGICAL pgoutput (SNAPSHOT 'nothing')"
    with Running(tmp_path) as running:
        client = Raw(running)
        client.query(create)
        kind, body = client.until(b"Z")[0]
        assert kind == b"E"
        assert b"C55000\0" in body
        assert b"penstock consumers enable FILE --all" in body
        assert running.serving.slots.all() == []
        links.enable_all(tmp_path / "cdc")
        client.query(create)
        assert client.until(b"Z")[0][0] == b"T"
        client.close()


def test_an_error_before_a_stream_begins_leaves_the_slot_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next client can stream from it without a restart."""
    write_log(tmp_path / "log", number_rows([inserts(1)]))
    with Running(tmp_path) as running:
        client = Raw(running)
        client.query("CREATE_REPLICATION_SLOT s LOGICAL pgoutput (SNAPSHOT 'nothing')")
        client.until(b"Z")
        real = Snapshots.slot_begins

        async def broken(_: Snapshots, slot: str) -> None:
            raise Refused("58030", f"no snapshot of {slot}")

        monkeypatch.setattr(Snapshots, "slot_begins", broken)
        client.query(START)
        assert client.until(b"Z")[0][0] == b"E"
        assert not running.serving.slots.get("s").owner
        monkeypatch.setattr(Snapshots, "slot_begins", real)
        client.query(START)
        assert client.message()[0] == b"W"
        client.close()


def test_a_temporary_slot_lets_go_of_its_snapshot(tmp_path: Path) -> None:
    """The snapshot, named by a time in this dialect, is released when the session ends."""
    write_log(tmp_path / "log", number_rows([inserts(1)]))
    with open_source_log(tmp_path) as log:
        log_id = log.head().log_id
    write_base(tmp_path, {ITEM: [(1, "a")]}, log_id)
    settings = settings_of(dialect=YUGABYTE)
    with Running(tmp_path, settings=settings, relations=[ITEM]) as running:
        client = Raw(running)
        client.query("CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL yboutput EXPORT_SNAPSHOT")
        assert client.until(b"Z")[0][0] == b"T"
        held = tmp_path / "base" / "held" / "serve"
        assert list(held.iterdir())
        client.close()
        wait_until(lambda: not running.serving.slots.all())
        wait_until(lambda: not list(held.iterdir()))
        with psycopg.connect(running.url(), autocommit=True) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
