"""Slots that hold too much or lose what they need, orphans of copies and their users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from harness.pipelines.log import ITEM, inserts, number_rows
from harness.servers.serve import Running, settings_of, write_log
from harness.servers.serve_client import START, Raw, wait_until
from penstock.serve import serving

GROUPS = number_rows([inserts(1), *(inserts(500, first=1 + 500 * at) for at in range(4))])
SYNC = "pg_16396_sync_16384_7710562921208483796"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shorter interval of the server's looks."""
    monkeypatch.setattr(serving, "_LOOK_S", 0.1)


def create_slots(running: Running, *names: str) -> None:
    """Create slots at the log's end."""
    client = Raw(running)
    for name in names:
        client.query(f"CREATE_REPLICATION_SLOT {name} LOGICAL pgoutput NOEXPORT_SNAPSHOT")
        assert client.message()[0] == b"T"
        client.until(b"Z")
    client.close()


def rows(running: Running) -> dict[str, Any]:
    """Return what a DBA sees, by slot."""
    return {one.slot_name: one for one in running.serving.slot_rows()}


def test_a_slot_that_holds_too_much_is_lost(tmp_path: Path) -> None:
    """The stream ends, the segments are removed, and the slot is refused by name from then on."""
    write_log(tmp_path / "log", GROUPS[:1])
    with Running(tmp_path, settings=settings_of(keep_bytes=20_000)) as running:
        create_slots(running, "s")
        client = Raw(running)
        client.query(START)
        assert client.message()[0] == b"W"
        write_log(tmp_path / "log", GROUPS[1:], per_segment=1, links=tmp_path / "cdc")
        wait_until(lambda: rows(running)["s"].wal_status == "lost")
        while (message := client.message())[0] != b"E":
            pass
        assert b"C55000\0" in message[1]
        client.until(b"Z")
        client.query(START)
        assert b"C55000\0" in client.message()[1]
        client.close()
        wait_until(lambda: not list((tmp_path / "cdc" / "serve").glob("*.ckt")))
    with Running(tmp_path) as running:
        assert rows(running)["s"].invalidation_reason == "wal_removed"


def test_a_slot_whose_segments_are_gone_is_lost(tmp_path: Path) -> None:
    """The slot is lost whichever process removed them."""
    write_log(tmp_path / "log", GROUPS[:1], per_segment=1)
    with Running(tmp_path) as running:
        create_slots(running, "s")
    write_log(tmp_path / "log", GROUPS[1:], per_segment=1, links=tmp_path / "cdc")
    for folder in ("log", "cdc/serve"):
        for number in range(4):
            (tmp_path / folder / f"{number}.ckt").unlink(missing_ok=True)
    with Running(tmp_path) as running:
        wait_until(lambda: rows(running)["s"].wal_status == "lost")
        client = Raw(running)
        client.query(START)
        assert b"C55000\0" in client.message()[1]
        client.close()


def test_orphans_of_copies_go_and_those_asked_for_stay(tmp_path: Path) -> None:
    """After a restart, too, their age starts at zero: no client could ask meanwhile."""
    write_log(tmp_path / "log", GROUPS[:1])
    with Running(tmp_path) as running:
        create_slots(running, "kept", SYNC, SYNC.replace("16384", "16385"))
    with Running(tmp_path, settings=settings_of(sync_slot_s=1.5)) as running:
        client = Raw(running)

        def is_gone() -> bool:
            client.query(f"START_REPLICATION SLOT {SYNC} LOGICAL 0/0 (proto_version '1')")
            assert b"C22023\0" in client.until(b"Z")[0][1]
            client.query(
                f"START_REPLICATION SLOT {SYNC} LOGICAL 0/0 (proto_version '1', "
                "publication_names 'none')"
            )
            assert b"C42704\0" in client.until(b"Z")[0][1]
            return len(rows(running)) < 3

        assert len(rows(running)) == 3
        wait_until(is_gone)
        assert sorted(rows(running)) == ["kept", SYNC]
        client.close()
        wait_until(lambda: sorted(rows(running)) == ["kept"])


def test_a_slot_is_dropped_by_a_function(tmp_path: Path) -> None:
    """The drop is durable and frees what the slot held; a streaming slot is not dropped."""
    write_log(tmp_path / "log", GROUPS[:1])
    with Running(tmp_path, relations=[ITEM]) as running:
        create_slots(running, "s", "t")
        write_log(tmp_path / "log", GROUPS[1:], per_segment=1, links=tmp_path / "cdc")
        client = Raw(running)
        client.query(START)
        assert client.message()[0] == b"W"
        with psycopg.connect(running.url(), autocommit=True) as connection:
            connection.execute("select pg_drop_replication_slot('t')")
            with pytest.raises(psycopg.errors.ObjectInUse):
                connection.execute("select pg_drop_replication_slot('s')")
            with pytest.raises(psycopg.errors.UndefinedObject):
                connection.execute("select pg_drop_replication_slot('t')")
            client.close()
            wait_until(lambda: not running.serving.senders)
            assert list((tmp_path / "cdc" / "serve").glob("*.ckt"))
            connection.execute(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
            )
            assert not list((tmp_path / "cdc" / "serve").glob("*.ckt"))
    with Running(tmp_path) as running:
        assert rows(running) == {}
