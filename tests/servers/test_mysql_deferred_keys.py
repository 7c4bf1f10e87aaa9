"""Unique keys of tables that are read at several moments are created once the moments agree."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from harness.pipelines.bulk import run
from harness.pipelines.deferred_keys import Copy, Party
from harness.pipelines.end_to_end import LIVELY, Process
from harness.pipelines.loader import LocalKeeper, LogMaker
from harness.pipelines.loading import Running, until
from harness.pipelines.merge import ITEM, insert, update
from harness.pipelines.pipeline import write_pipeline
from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.control.pipeline.config import load_config
from penstock.control.run.bulk_load import add_table_foreign_keys, bulk_load
from penstock.control.run.extract_process import extract_changes
from penstock.control.run.table_copy import TableCopier
from penstock.engines.mysql.planner import MySQLPlanner
from penstock.extract.extractor import Ended
from penstock.load.deferred_keys import (
    DeferredKeyFlow,
    put_deferred_keys,
    read_deferred_keys,
)
from penstock.load.ledger import read_ledger
from penstock.load.session import Session
from penstock.model import TableName
from penstock.ports.deferred_keys import DEFERRED_KEYS_PART, DeferredKey, DeferredTable
from penstock.ports.handover import read_handover
from penstock.ports.registry import part
from penstock.ports.target import TargetDdlFailed
from plugins.mysql import MySQLServer, database_of
from plugins.mysql_loader import ITEMS, Target

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# Foreign keys are shown only to accounts with more rights than reading.
LEAST = ("select, references on *.*", "replication slave on *.*")
EARLY = ["ticket: number"]  # a table's only key identifies its rows
ALL = ["seat: guest", "ticket: guest,number", *EARLY]


@pytest.fixture
def account(mysql: MySQLServer) -> Iterator[str]:
    """An account that may not lock tables."""
    monitor = "binlog monitor" if mysql.is_mariadb else "replication client"
    with mysql.role(*LEAST, f"{monitor} on *.*") as url:
        yield url


@pytest.fixture(params=["postgres", "same"])
def copy(
    request: pytest.FixtureRequest, mysql: MySQLServer, mysql_url: str, target_url: str
) -> Iterator[Copy]:
    """Target of the copy: PostgreSQL, or a server of the source's kind."""
    if request.param == "postgres":
        yield Copy(target_url, database_of(mysql_url))
        return
    mysql.execute("set global local_infile = 1; drop database if exists wirekite")
    url = mysql.make_database("copy")
    yield Copy(url, database_of(url), mysql)
    mysql.drop_database(url)
    mysql.execute("drop database if exists wirekite")


@pytest.fixture
def party(mysql: MySQLServer, mysql_url: str, monkeypatch: pytest.MonkeyPatch) -> Party:
    """Source with row moves between the snapshots."""
    made = Party(mysql, mysql_url)
    made.between_snapshots(monkeypatch)
    return made


def write_file(folder: Path, account: str, party: Party, copy: Copy) -> Path:
    """Write the pipeline's file."""
    return write_pipeline(
        folder,
        f"{account.rstrip('/')}/{party.name}",
        copy.url,
        tables=[f"{party.name}.*"],
        sections={
            "target.map": {party.name: copy.schema},
            "dataLoader": {"chunkMegabytes": 1},
            "changeExtractor": {**LIVELY, "exitWhenIdle": True},
            "changeLoader": {"maxFilesPerBatch": 3},
            "spark": {"master": "local[2]"},
            "target.types": {"*": "error"},
        },
    )


def check(path: Path, party: Party, copy: Copy) -> None:
    """Check that the tables were read at several moments, and are equal, with all of their keys."""
    config = load_config(path)
    state = read_handover(config)
    assert state is not None
    assert "without a lock" in state.steps[0].text
    assert BinlogPosition.parse(state.settled) > BinlogPosition.parse(state.position)
    plan = read_ledger(config.layout.state).plan_of(TableName(party.name, "seat"))
    assert plan is not None
    assert len(plan.chunks) > 2
    for table in ("seat", "coat", "ticket"):
        assert copy.rows(table) == party.rows(table)
    assert copy.unique_keys() == ALL
    assert copy.foreign_keys() == 1


def test_values_that_move_between_rows_while_tables_are_read(
    tmp_path: Path, account: str, party: Party, copy: Copy
) -> None:
    """Two rows have the same value until changes are applied up to the last snapshot."""
    path = write_file(tmp_path, account, party, copy)
    with (
        Process(path, "load") as load,
        party.moving(lambda: not load.running or copy.unique_keys() == ALL, 30),
    ):
        assert extract_changes(load_config(path)).ended is Ended.IDLE
        assert load.wait_for_end() == 0, load.err
    check(path, party, copy)


@pytest.mark.faults
def test_killed_while_keys_are_made(
    tmp_path: Path,
    account: str,
    party: Party,
    copy: Copy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a kill with unrecorded keys, and between two tables, the next run creates the rest."""
    once = tmp_path / "once"
    once.mkdir()
    path = write_file(tmp_path, account, party, copy)
    monkeypatch.setenv("PENSTOCK_FAULT", "load.keys.made:1:kill,load.keys.before:2:kill")
    monkeypatch.setenv("PENSTOCK_FAULT_ONCE", str(once))
    loads = [Process(path, "load")]
    with party.moving(lambda: "seat: guest" in copy.unique_keys(), 30), loads[0]:
        assert extract_changes(load_config(path)).ended is Ended.IDLE
        assert loads[0].wait_for_end() == -signal.SIGKILL
    for code in (-signal.SIGKILL, 0):
        with Process(path, "load") as load:
            assert load.wait_for_end() == code, load.err
    assert {one.name for one in once.iterdir()} == {"load.keys.made:1", "load.keys.before:2"}
    check(path, party, copy)


# -- a single table --------------------------------------------------------------------------------


class Sessions:
    """Pool with one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get(self) -> Session:
        """Return the session."""
        return self._session


def test_a_table_that_is_copied_again(
    tmp_path: Path,
    account: str,
    mysql: MySQLServer,
    mysql_url: str,
    copy: Copy,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All keys exist at one moment; keys of several moments are removed, and come back."""
    party = Party(mysql, mysql_url)
    mysql.execute("drop table coat", party.name)  # its foreign key would block the key
    config = load_config(write_file(tmp_path, mysql_url.rpartition("/")[0], party, copy))
    config.layout.state.mkdir(parents=True)
    table = TableName(party.name, "seat")
    with MySQLPlanner(config) as planner:
        bulk_load(config, spark, planner)
    assert copy.unique_keys() == ALL
    assert read_deferred_keys(config.layout.state) == ()
    party.between_snapshots(monkeypatch)
    config = load_config(write_file(tmp_path, account, party, copy))
    with TableCopier(config, Sessions(spark)) as copier:  # type: ignore[arg-type]
        until(lambda: copier.copy(table, 7, replaces=True) is not None)
        position = copier.copy(table, 7, replaces=True)
        assert position is not None
        copier.drop(table, 7)
    assert copy.unique_keys() == ALL[1:]
    guests = [guest for _, guest, _ in copy.rows("seat") if guest is not None]
    assert len(guests) > len(set(guests))
    (late,) = read_deferred_keys(config.layout.state)
    assert late.with_foreign_keys
    assert late.settled > position
    copy.execute("delete from seat where guest is not null")
    add_foreign_keys = partial(add_table_foreign_keys, config)
    DeferredKeyFlow(config.layout.state, copy.url, add_foreign_keys).create([late])
    assert copy.unique_keys() == ALL
    assert read_deferred_keys(config.layout.state) == ()


# -- the loader ------------------------------------------------------------------------------------


def add_deferred_keys(url: str, table: DeferredTable) -> list[str]:
    """Create the table's keys in the target; return a sentence for each that it cannot have."""
    return part(url, DEFERRED_KEYS_PART).add_deferred_keys(url, table)


def waiting(target: Target, settled: int, *columns: str) -> DeferredTable:
    """Return table t with a waiting unique key."""
    name = TableName(target.database, "t")
    text = f"alter table `{target.database}`.t add {{}} once ({', '.join(columns)})"
    key = DeferredKey(
        name="once",
        columns=columns,
        statement=text.format("unique key"),
        plain=text.format("key"),
    )
    return DeferredTable(source=TableName("public", "t"), target=name, settled=settled, keys=(key,))


@pytest.mark.parametrize("is_local", [True, False])
def test_what_was_read_and_staged_before_the_keys_is_not_used_after_them(
    my_target: Target, log: LogMaker, is_local: bool
) -> None:
    """A table with one unique key accepts rows that one with two cannot."""
    root = log.directory.parent
    my_target.execute(ITEMS)
    log.transaction(insert(ITEM, 1, "a", 1), insert(ITEM, 2, "a", 2))
    settled = log.transaction(update(ITEM, 2, "b", 2))
    log.close_segment()
    for count in range(9):
        one, two = "ba" if count % 2 == 0 else "ab"
        log.transaction(
            update(ITEM, 1, "t", 1), update(ITEM, 2, two, 2), update(ITEM, 1, one, count)
        )
        log.close_segment()
    put_deferred_keys(root / "state", [waiting(my_target, settled, "name")], instead_of=())
    keeper = LocalKeeper()
    keeper.is_local = is_local
    loader = Running(
        my_target.url,
        root,
        keeper,
        namespaces=my_target.namespaces,
        max_files_per_batch=1,
    )
    until(lambda: loader.error is not None or loader.loader.applied_position.segment == 9)
    loader.end(stop=True)
    assert my_target.execute("select id, name, n from t order by id") == [(1, "b", 8), (2, "a", 2)]
    assert Copy(my_target.url, my_target.database, my_target.server).unique_keys() == ["t: name"]
    assert read_deferred_keys(root / "state") == ()


def test_before_their_place_no_keys_are_made(my_target: Target, log: LogMaker) -> None:
    """The keys also wait if nothing comes any more: the next start waits again."""
    root = log.directory.parent
    my_target.execute(ITEMS)
    applied = log.transaction(insert(ITEM, 1, "a", 1), insert(ITEM, 2, "a", 2))
    log.close_segment()
    put_deferred_keys(root / "state", [waiting(my_target, applied + 1000, "name")], instead_of=())
    loader = Running(
        my_target.url,
        root,
        namespaces=my_target.namespaces,
    )
    until(lambda: loader.error is not None or loader.loader.applied_position.segment == 0)
    time.sleep(0.3)
    loader.end(stop=True)
    assert len(read_deferred_keys(root / "state")) == 1


def test_a_key_that_the_target_refuses(my_target: Target) -> None:
    """The error names the key and the way out, not the rows' values."""
    my_target.execute(ITEMS + "; insert into t values (1, 'secret', 1), (2, 'SECRET', 2)")
    table = waiting(my_target, 1, "name")
    with pytest.raises(
        TargetDdlFailed, match=r"key once of .*\.t: .* same values in name"
    ) as caught:
        add_deferred_keys(my_target.url, table)
    assert "secret" not in caught.value.message.lower()
    assert table.keys[0].plain in caught.value.hint
    my_target.execute(table.keys[0].plain)
    assert add_deferred_keys(my_target.url, table) == []
    (note,) = add_deferred_keys(my_target.url, waiting(my_target, 1, "name", "gone"))
    assert "lacks gone" in note


def test_a_key_that_postgresql_refuses(target_url: str) -> None:
    """The error for a key that PostgreSQL refuses names it and the way out, too."""
    run(target_url, "create table t (id int primary key, v text)", "insert into t values (1, 'a')")
    run(target_url, "insert into t values (2, 'a')")
    text = "create {}index once on public.t (v)"
    key = DeferredKey(
        name="once", columns=("v",), statement=text.format("unique "), plain=text.format("")
    )
    name = TableName("public", "t")
    table = DeferredTable(source=name, target=name, settled=1, keys=(key,))
    with pytest.raises(TargetDdlFailed, match=r"unique key once of public\.t: ") as caught:
        add_deferred_keys(target_url, table)
    assert key.plain in caught.value.hint
    run(target_url, key.plain)
    assert add_deferred_keys(target_url, table) == []
    run(target_url, "drop index once", "alter table t rename v to w")
    (note,) = add_deferred_keys(target_url, table)
    assert "lacks v" in note
