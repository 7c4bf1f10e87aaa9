"""A target that loses committed transactions: this is prevented, and handled where it happens."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from harness.pipelines.loader import LogMaker
from harness.pipelines.loading import TABLES, Running, add, check, until
from penstock.engines.postgres.target import apply, deferred_keys
from penstock.engines.postgres.target import bulk as bulk_load
from penstock.engines.postgres.target.bulk import PostgresBulk
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.engines.postgres.target.repair import PostgresRepair
from penstock.host.files import DirectoryLock
from penstock.load.loader_state import HOLD_LOCK, Hold, clear_hold, read_held, write_hold
from penstock.model import TableDefinition, TableName
from penstock.ports.deferred_keys import DeferredTable

SHOW = "show synchronous_commit"


@pytest.fixture(params=["off", "local", "remote_apply"])
def setting(request: pytest.FixtureRequest, target_url: str) -> str:
    """Setting of commits in the target's database."""
    with psycopg.connect(target_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'alter database "{name}" set synchronous_commit = {request.param}')  # type: ignore[arg-type]
    return str(request.param)


def test_commits_wait_for_the_disk(
    setting: str, target_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits wait for the disk, as files, plans and key notes follow; stricter settings stay."""
    found = []

    def look(connection: psycopg.Connection, *_: object) -> list[str]:
        found.append(connection.execute(SHOW).fetchone())
        return []

    table = TableName("public", "t")
    with psycopg.connect(target_url, autocommit=True) as connection:
        connection.execute("create table public.t (id int)")
    connection, _ = apply.connect_to_apply(target_url)
    look(connection)
    connection.close()
    bulk = PostgresBulk(target_url, {}, application_name="test", servers=None)
    look(bulk._connection)
    bulk.close()
    repair = PostgresRepair(target_url, None, {})
    look(repair._connection)
    repair.close()
    monkeypatch.setattr(bulk_load, "add_keys", look)
    monkeypatch.setattr(PostgresProgress, "made_tables", lambda _: {table})
    definition = TableDefinition(name=table, source_id=1, columns=())
    bulk_load.add_all_keys(target_url, [definition], {}, threads=1, stop=lambda: False)
    monkeypatch.setattr(deferred_keys, "_add", look)
    deferred_keys.add_deferred_keys(
        target_url, DeferredTable(source=table, target=table, settled=0, keys=())
    )
    assert found == [("on" if setting == "off" else setting,)] * 5


def test_a_hold_waits_for_what_the_target_has_lost(target_url: str, tmp_path: Path) -> None:
    """A target set back to its beginning is not expected at its earlier position."""
    log = LogMaker(tmp_path / "log")
    with psycopg.connect(target_url, autocommit=True) as connection:
        connection.execute(TABLES)
        for number in range(4):
            cut = add(log, number)
            log.close_segment()
        running = Running(target_url, tmp_path)
        until(lambda: running.loader.applied_position.gsn == 8)
        running.word.text = "PAUSE"
        until(lambda: running.loader.state.state == "paused")
        connection.execute("truncate public.t, public.bag")
        connection.execute(
            "update wirekite.wirekite_log set applied_segment = -1, applied_gsn = 0,"
            " applied_trx = 0, applied_position = 0"
        )
    assert running.loader._target is not None
    running.loader._target.close()
    state = tmp_path / "state"
    with DirectoryLock(state, HOLD_LOCK):
        write_hold(state, Hold(nonce="n", until=cut))
        running.word.text = "RUN"
        until(lambda: (held := read_held(state, "n")) is not None and held.reached == cut)
        check(target_url, 3)
        clear_hold(state)
    until(lambda: running.loader.applied_position.gsn == 8)
    running.end(stop=True)
    check(target_url, 4)
    log.writer.close()
