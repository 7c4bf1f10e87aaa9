"""Pipelines of every kind until their end: modes, separate halves, file disposal, a lesser role."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.end_to_end import Pair
from harness.pipelines.pipeline import penstock
from penstock.codec.postgres.lsn import Lsn
from penstock.log.layout import list_segments
from penstock.log.segment import open_segment
from plugins.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SLOT = "wirekite_replication_slot"
ITEM = "create table item (id int primary key, n int)"
# As Wirekite's guide prints them; the lag in PostgreSQL's words.
PROGRESS = """
SELECT source, mark, start_time, finish_time
FROM wirekite.wirekite_progress
WHERE operation = '{}'
ORDER BY start_time DESC
LIMIT 5;
"""
LAG = """
SELECT EXTRACT(EPOCH FROM (now() AT TIME ZONE 'utc') - MAX(finish_time)) AS lag_seconds
FROM wirekite.wirekite_progress
WHERE operation = 'CL' AND finish_time IS NOT NULL;
"""
SOURCE_LAG = f"""
SELECT slot_name,
       pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn) AS lag_bytes
FROM pg_replication_slots
WHERE slot_name = '{SLOT}';
"""
MakePair = Callable[..., Pair]


@pytest.fixture
def make_pair(postgres: Server, tmp_path: Path) -> Iterator[MakePair]:
    """Maker of pairs, which are closed afterwards."""
    made: list[Pair] = []

    def make(**options: Any) -> Pair:
        made.append(Pair(tmp_path, postgres, **options))
        return made[-1]

    yield make
    for pair in made:
        pair.close()


def rows(connection: Any, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    found: list[tuple[Any, ...]] = connection.execute(query.encode()).fetchall()
    return found


def work(pair: Pair, first: int, pieces: int = 5) -> None:
    """Run transactions over some time, so that several segments hold them."""
    for number in range(first, first + pieces):
        pair.run(f"insert into item values ({number}, 0); update item set n = n + 1")
        time.sleep(0.5)


def test_an_existing_slot_separate_halves_and_files_moved(make_pair: MakePair) -> None:
    """Mode change begins at the slot; extract runs, then load; each file's row has its mark."""
    pair = make_pair(
        mode="change",
        tables=("public.item",),
        sections={
            "changeExtractor": {"exitWhenIdle": True, "processCommits": True},
            "changeLoader": {
                "changeFileExtension": "chg",
                "doneDirectory": "finished",
                "maxFilesPerBatch": 3,
            },
        },
    )
    pair.run(ITEM)
    pair.target.execute(ITEM)
    pair.run("create publication wirekite_publication for table item")
    pair.run(f"select pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
    pair.run("insert into item values (1, 1)")  # after the slot: it must arrive
    extract = pair.start("extract")
    log = pair.directory / "log"
    extract.until(lambda: (log / "LOG.json").exists(), "the log is there")
    work(pair, 2, 10)
    assert extract.wait_for_end() == 0, extract.err
    assert (log / "CHANGE.DONE").exists()
    files = list_segments(log, "chg")
    assert len(files) > 3
    assert not list(log.glob("*.chg_"))
    marks = {}
    for file in files:
        with open_segment(file.path, extension="chg") as segment:
            marks[file.path.name] = (str(segment.end.gsn), str(Lsn(segment.end.position)))
    cat = penstock("log", "cat", pair.path)
    letters = {line.split("\t")[1] for line in cat.out.splitlines() if "\t" in line}
    assert {"B", "C", "I", "U"} <= letters, cat
    load = pair.start("load")
    assert load.wait_for_end() == 0, load.err
    assert pair.differences("item") == []
    assert not list_segments(log, "chg")
    finished = pair.folder / "finished"
    assert sorted(path.name for path in finished.glob("*.chg")) == sorted(marks)
    progress = rows(
        pair.target,
        "select operation, case operation when 'CL' then source else target end, mark,"
        " finish_time is not null from wirekite.wirekite_progress",
    )
    expected = [("CL", name, gsn, True) for name, (gsn, _) in marks.items()]
    expected += [("CE", name, position, True) for name, (_, position) in marks.items()]
    assert sorted(progress) == sorted(expected)
    for operation in ("CE", "CL"):
        assert len(rows(pair.target, PROGRESS.format(operation))) == min(5, len(marks))
    ((lag,),) = rows(pair.target, LAG)
    assert 0 <= lag < 60
    ((name, behind),) = rows(pair.source, SOURCE_LAG)
    assert (name, behind >= 0) == (SLOT, True)


def test_a_missing_slot_and_an_interrupted_run(make_pair: MakePair) -> None:
    """The slot is created at the present position; after SIGINT the run continues; files are
    removed.

    A table that the configuration names is dropped meanwhile: its last changes arrive.
    """
    sections = {"changeLoader": {"removeFiles": True}}
    pair = make_pair(mode="change", sections=sections, tables=("*.*", "public.leaving"))
    leaving = "create table leaving (id int primary key, t text)"
    pair.run(f"{ITEM}; {leaving}")
    for table in (ITEM, leaving, "create table fence (id int primary key)"):
        pair.target.execute(table.encode())
    pair.run("insert into item values (1, 1)")
    pair.target.execute("insert into item values (1, 1)")  # before the slot: not replicated
    run = pair.start()
    run.until(lambda: rows(pair.source, SOURCE_LAG), "the slot is there")
    work(pair, 2, 2)
    pair.check("item")
    lag = penstock("lag", pair.path, "--json")
    assert lag.code == 0, lag
    status = penstock("status", pair.path, "--json")
    assert status.code == 0, status
    assert status.result["bulk"] is None
    run.stop(signal.SIGINT)
    work(pair, 4, 2)
    pair.run("insert into leaving values (1, 'a'), (2, 'b'); update leaving set t = 'c' where id=1")
    pair.run("delete from leaving where id = 2; drop table leaving")
    pair.start()
    pair.check("item")
    assert rows(pair.target, "select * from leaving") == [(1, "c")]
    verified = penstock("verify", pair.path, "--json")
    assert (verified.code, verified.result["equal"]) == (0, True)
    pair.stop()
    assert not list_segments(pair.directory / "log")
    pair.write(sections={**pair.options["sections"], "changeExtractor": {"exitWhenIdle": True}})
    pair.run("insert into item values (100, 100)")
    last = pair.start()
    assert last.wait_for_end() == 0, last.err
    assert (pair.directory / "log" / "CHANGE.DONE").exists()
    assert pair.differences("item") == []
    pair.target.execute("update item set n = -1 where id = 3")
    verified = penstock("verify", pair.path, "--json")
    assert (verified.code, verified.result["equal"]) == (1, False)


FAMILY = """
    create table parent (id int primary key, n int unique);
    create table child (id int primary key, parent int not null references parent on delete cascade,
                        n int);
    create table toy (id int primary key, child int references child on delete set null);
    create table tree (id int primary key, above int references tree);
    create table hen (id int primary key, egg int);
    create table egg (id int primary key, hen int references hen);
    alter table hen add foreign key (egg) references egg deferrable initially deferred;
    insert into parent select g, g from generate_series(1, 10) g;
    insert into child select g, g, 0 from generate_series(1, 10) g;
    insert into toy select g, g from generate_series(1, 10) g;
    insert into tree values (1, null), (2, 1), (3, 2);
    insert into hen values (1, null); insert into egg values (1, 1); update hen set egg = 1;
"""


@pytest.mark.parametrize("mode", ["data+change", "change"])
def test_a_loader_role_without_the_right_to_replica_mode(
    make_pair: MakePair, postgres: Server, mode: str
) -> None:
    """An ordinary role satisfies foreign keys, cascades, cycles and uniqueness as well.

    In mode change the target's tables are not penstock's: their keys are checked at once.
    """
    role = f"loader_{secrets.token_hex(4)}"
    postgres.execute(f"create role {role} login password 'secret'")
    pair = make_pair(mode=mode, tables=("public.*",), target_user=(role, "secret"))
    database = pair.target.info.dbname
    postgres.execute(f"grant create on database {database} to {role}")
    pair.target.execute(f"grant all on schema public to {role}".encode())
    pair.run(FAMILY)
    if mode == "change":
        pair.target.execute(f"set role {role}".encode())
        pair.target.execute(f"{FAMILY}; create table fence (id int primary key)".encode())
        pair.target.execute("reset role")
    try:
        run = pair.start()
        run.until(lambda: rows(pair.source, SOURCE_LAG), "the slot is there")
        pair.settle()
        family(pair)
    finally:
        pair.close_process()
        pair.target.execute(f"drop owned by {role} cascade".encode())
        postgres.execute(f"revoke all on database {database} from {role}; drop role {role}")


def family(pair: Pair) -> None:
    """Make changes whose net effect needs an order."""
    tables = ("parent", "child", "toy", "tree", "hen", "egg")
    pair.run("insert into parent values (20, 20); insert into child values (20, 20, 0)")
    pair.run("delete from parent where id in (1, 2)")
    pair.run("update child set parent = 20 where id = 3; delete from parent where id = 3")
    pair.check(*tables)
    pair.run(
        "insert into parent values (30, 30); update child set parent = 30;"
        "delete from parent where id <> 30; insert into parent values (4, 4);"
        "update child set parent = 4 where id = 4; update toy set child = 20"
    )
    pair.run("delete from child where id < 8")
    pair.run("insert into tree values (9, 3); update tree set above = 9 where id = 2")
    pair.run("insert into tree values (10, 9); delete from tree where id = 10")
    pair.run(
        "begin; insert into hen values (2, 2); insert into egg values (2, 1);"
        "update egg set hen = 2; delete from hen where id = 1; insert into hen values (1, 1);"
        "commit"
    )
    pair.check(*tables)
    pair.run("update parent set n = 100 - n; update parent set n = 4 where id = 30")
    pair.run("truncate parent, child, toy; insert into parent values (1, 1)")
    pair.check(*tables)
