"""Mode pause: a replica is stopped while the point of the handover is taken, and resumes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.pipelines.bulk import rows
from harness.pipelines.extract import log_changes, until
from harness.pipelines.pipeline import penstock, write_pipeline
from penstock.control.pipeline.config import load_config
from penstock.control.run.bulk_load import bulk_load, bulk_planner
from penstock.control.run.extract_process import extract_changes
from penstock.engines.mysql.planner import MySQLPlanner
from penstock.engines.mysql.replica import NotAReplica, ReplicaNotOurs
from penstock.extract.extractor import Ended
from penstock.load.session import Session
from penstock.ports.bulk import Point
from penstock.ports.config import Config
from penstock.ports.handover import HandoverPhase, read_handover
from plugins.doctor import find_by_code
from plugins.mysql import MySQLServer, follow_primary

pytestmark = pytest.mark.spark
Maker = Callable[..., MySQLServer]
TABLES = """
    create database shop; use shop;
    create table t (id int primary key, v varchar(9)); create table u (id int primary key);
    insert into t values (1, 'a'), (2, 'b'); insert into u values (1), (2)
"""


@pytest.fixture
def primary(own_mysql: Maker) -> MySQLServer:
    """A server with two tables."""
    server = own_mysql()
    server.execute(TABLES)
    return server


@pytest.fixture
def replica(own_mysql: Maker, primary: MySQLServer) -> MySQLServer:
    """A replica of the server, with all of its rows."""
    server = own_mysql(settings={"server_id": "2", "log_slave_updates": "ON"})
    follow_primary(server, primary)
    until(lambda: has(server, 2))
    return server


def has(server: MySQLServer, count: int) -> bool:
    """Return whether the server has so many rows in the last table that was created."""
    there = "select count(*) from information_schema.tables where table_schema = 'shop'"
    return server.value(there) == 2 and server.value("select count(*) from shop.u") == count


def applying(server: MySQLServer) -> list[str]:
    """Return whether each of the replica's SQL threads runs, in the server's words."""
    with server.connect() as connection, connection.cursor() as cursor:
        word = server.replica_word
        cursor.execute("show all slaves status" if server.is_mariadb else f"show {word} status")
        names = [column[0].lower() for column in cursor.description]
        return [row[names.index(f"{word}_sql_running")] for row in cursor.fetchall()]


def write_config(folder: Path, source: str, target: str, handover: str = "pause") -> Config:
    """Return a pipeline that pauses its source."""
    sections = {
        "pipeline": {"handover": handover},
        "changeExtractor": {"exitWhenIdle": True, "idleWaitSeconds": 2},
        "target.types": {"*": "error"},
    }
    return load_config(write_pipeline(folder, source, target, tables=["shop.*"], sections=sections))


def write(primary: MySQLServer, loaded: threading.Event) -> threading.Thread:
    """Write transactions over both tables until shortly after the end of the bulk load."""

    def work() -> None:
        number = 100
        while number < 120 or not loaded.wait(0.005):
            number += 1
            primary.execute(
                f"begin; insert into t values ({number}, 'x'); insert into u values ({number});"
                "commit",
                "shop",
            )
        primary.execute("insert into t values (99, 'end'); insert into u values (99)", "shop")

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def load_beside(config: Config, spark: Session, ended: threading.Event) -> threading.Thread:
    """Run the other half in a thread: it waits for the point and loads."""

    def load() -> None:
        try:
            until(lambda: (state := read_handover(config)) is not None and state.position, 60)
            with bulk_planner(config) as planner:
                bulk_load(config, spark, planner)
        finally:
            ended.set()

    thread = threading.Thread(target=load)
    thread.start()
    return thread


def both_halves(
    config: Config, spark: Session, primary: MySQLServer, *, later: bool = False
) -> None:
    """Load and extract while the primary is written; every row is in one of both, once.

    later: the load uses a point after the log's begin, and the loader skips the rows it has.
    """
    loaded = threading.Event()
    thread = load_beside(config, spark, loaded)
    writer = write(primary, loaded)
    try:
        outcome = extract_changes(config)
    finally:
        thread.join(90)
        loaded.set()
        writer.join(60)
    assert outcome.ended is Ended.IDLE
    logged = log_changes(config.directory)
    for table in ("t", "u"):
        first = {row[0] for row in rows(config.target.url, f"select id from shop.{table}")}
        then = {change.after["id"] for change in logged if change.table == table}
        assert first
        assert then
        assert later or not first & then
        assert first | then == {row[0] for row in primary.execute(f"select id from shop.{table}")}


def test_a_replica_stands_still_while_the_point_is_taken(
    primary: MySQLServer,
    replica: MySQLServer,
    target_url: str,
    tmp_path: Path,
    spark: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The replica resumes automatically: load and changes have each row of the primary once."""
    config = write_config(tmp_path, replica.url("shop"), target_url)
    seen: list[list[str]] = []
    take = MySQLPlanner.fresh_point

    def fresh_point(planner: MySQLPlanner) -> Point:
        seen.append(applying(replica))
        return take(planner)

    monkeypatch.setattr(MySQLPlanner, "fresh_point", fresh_point)
    before = replica.status()[0]
    both_halves(config, spark, primary)
    assert seen == [["No"]]
    assert applying(replica) == ["Yes"]
    assert replica.status()[0] > before, "a new binlog file was begun"
    state = read_handover(config)
    assert state is not None
    assert (state.phase, state.paused) == (HandoverPhase.DONE, False)
    assert [step.number for step in state.steps] == [1, 2, 3, 4]
    assert "SQL thread is stopped" in state.steps[0].text


@pytest.mark.parametrize("point", ["handover.paused", "snapshot.taken", "handover.captured"])
def test_what_a_killed_handover_has_stopped_goes_on_with_the_next_start(
    primary: MySQLServer,
    replica: MySQLServer,
    target_url: str,
    tmp_path: Path,
    spark: Session,
    point: str,
) -> None:
    """The stop is recorded before it happens, so that no other stop is undone."""
    config = write_config(tmp_path, replica.url("shop"), target_url)
    killed = penstock("extract", config.path, environment={"PENSTOCK_FAULT": f"{point}:1:kill"})
    assert killed.code == -9, killed.err
    state = read_handover(config)
    assert state is not None
    assert (state.paused, applying(replica)) == (True, ["No"])
    both_halves(config, spark, primary, later=point == "handover.captured")
    assert applying(replica) == ["Yes"]


def test_what_somebody_else_has_stopped_stays_stopped(
    primary: MySQLServer, replica: MySQLServer, target_url: str, tmp_path: Path, spark: Session
) -> None:
    """The operator who stopped the replica has to start it."""
    replica.execute(f"stop {replica.replica_word} sql_thread")
    config = write_config(tmp_path, replica.url("shop"), target_url)
    thread = load_beside(config, spark, threading.Event())
    first = penstock("extract", config.path)
    thread.join(60)
    assert first.code == 0, first.err
    assert applying(replica) == ["No"]
    replica.execute(f"start {replica.replica_word} sql_thread")
    primary.execute("insert into shop.t values (9, 'late')")
    until(lambda: replica.value("select count(*) from shop.t") == 3)
    then = penstock("extract", config.path)
    assert then.code == 0, then.err
    assert [c.after["id"] for c in log_changes(config.directory)] == [9]


def test_a_primary_and_an_account_without_the_right_are_refused(
    primary: MySQLServer, replica: MySQLServer, target_url: str, tmp_path: Path
) -> None:
    """The error names the cause, nothing is stopped or created; the printed right suffices."""
    config = write_config(tmp_path, primary.url("shop"), target_url)
    with pytest.raises(NotAReplica) as unfit:
        extract_changes(config, checked=True)
    assert [(f.what, f.command) for f in find_by_code(config, "MY042")] == [
        (unfit.value.message, unfit.value.hint)
    ]
    grants = ["select on shop.*", "reload on *.*", "replication slave on *.*"]
    monitor = "binlog monitor" if replica.is_mariadb else "replication client"
    grants.append(f"{monitor} on *.*")
    (tmp_path / "second").mkdir()
    with replica.role(*grants) as url:
        config = write_config(tmp_path / "second", f"{url.rstrip('/')}/shop", target_url)
        with pytest.raises(ReplicaNotOurs) as caught:
            extract_changes(config, checked=True)
        assert applying(replica) == ["Yes"]
        assert [(f.what, f.command) for f in find_by_code(config, "MY042")] == [
            (caught.value.message, caught.value.hint)
        ]
        rights = caught.value.hint.split("grant ")[1].split(" on ")[0]
        user = url.split("//")[1].split(":")[0]
        replica.execute(f"grant {rights} on *.* to `{user}`@'127.0.0.1'")
        assert find_by_code(config, "MY042") == []
        stopping = penstock(
            "extract", config.path, environment={"PENSTOCK_FAULT": "handover.paused:1:kill"}
        )
        assert stopping.code == -9, stopping.err
        assert applying(replica) == ["No"]
        replica.execute(f"start {replica.replica_word} sql_thread")


@pytest.mark.server("mariadb")
def test_named_connections_of_mariadb_stand_still_too(
    own_mysql: Maker, primary: MySQLServer, target_url: str, tmp_path: Path, spark: Session
) -> None:
    """The replica has several primaries; one that its operator has stopped stays stopped."""
    server = own_mysql(settings={"server_id": "2", "log_slave_updates": "ON"})
    server.execute(
        f"change master 'east' to master_host='127.0.0.1', master_port={primary.port}, "
        f"master_user='root', master_password='{primary.embedded.password}', "
        "master_use_gtid=slave_pos; start slave 'east';"
        "change master 'west' to master_host='127.0.0.1', master_port=1, master_user='x'"
    )
    until(lambda: has(server, 2))
    config = write_config(tmp_path, server.url("shop"), target_url)
    both_halves(config, spark, primary)
    assert sorted(applying(server)) == ["No", "Yes"]
