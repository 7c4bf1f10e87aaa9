"""The handover on real servers, and a standby: no row missing or repeated between the halves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from penstock.codec.postgres.lsn import Lsn
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.servers import pipeline_of, source_tables
from penstock.control.run.bulk_load import (
    bulk_load,
    bulk_planner,
    read_handover,
    wait_for_point,
)
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.handover import prepare
from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from penstock.engines.postgres.source.client import open_replication
from penstock.engines.postgres.standby import NotAStandby
from penstock.load.ledger import Ledger, read_ledger, write_ledger
from penstock.load.session import Session
from penstock.ports.config import Config
from penstock.ports.handover import HandoverPhase
from plugins.postgres import Server

WAIT_S = 30.0
PEEK = """
    select count(*)
      from pg_logical_slot_peek_binary_changes('wirekite_replication_slot', null, null,
           'proto_version', '1', 'publication_names', 'wirekite_publication')
     where get_byte(data, 0) = ascii('I')
       and lsn >= %s::pg_lsn
"""


def make_config(directory: Path, source: str, target: str, mode: str) -> Config:
    """Return the configuration of a data+change pipeline."""
    file = directory / "h.toml"
    file.write_text(
        f"""
        [pipeline]
        name = "handed"
        mode = "data+change"
        directory = "h"
        handover = "{mode}"
        [source]
        url = "{source}"
        tables = ["public.*"]
        [target]
        url = "{target}"
        [dataLoader]
        chunkMegabytes = 1
        """
    )
    return load_config(file)


def run(url: str, *statements: str) -> None:
    """Run statements in autocommit."""
    with connect(url, application_name="test") as connection:
        for statement in statements:
            connection.execute(statement)


def value(url: str, query: str, *parameters: object) -> object:
    """Return the first value of a query."""
    with psycopg.connect(url) as connection:
        row = connection.execute(query, parameters or None).fetchone()  # type: ignore[arg-type]
    assert row is not None
    return row[0]


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def phase_of(config: Config) -> HandoverPhase | None:
    """Return the phase in the file."""
    state = read_handover(config)
    return None if state is None else state.phase


def finish_bulk(config: Config) -> None:
    """Record that the bulk load is done, as it does itself at its end."""
    ledger = read_ledger(config.layout.state)
    write_ledger(config.layout.state, Ledger(finished=True, plans=ledger.plans))


@contextmanager
def extracting(config: Config) -> Iterator[None]:
    """Hold the slot as the extractor does, reading nothing."""
    with open_replication(config.source.url, application_name="test extract") as replication:
        replication.start_copy(
            "START_REPLICATION SLOT wirekite_replication_slot LOGICAL 0/0 "
            "(proto_version '1', publication_names '\"wirekite_publication\"')",
            doing="starting to stream",
        )
        yield


@pytest.fixture
def config(source_url: str, target_url: str, tmp_path: Path) -> Config:
    """A pipeline in mode snapshot, with one table."""
    run(source_url, "create table public.t (id int primary key, v text)")
    run(source_url, "insert into public.t select i, i::text from generate_series(1, 100) as i")
    return make_config(tmp_path, source_url, target_url, "snapshot")


# -- mode snapshot ---------------------------------------------------------------------------------


@pytest.mark.promise
@pytest.mark.spark
def test_each_row_is_in_the_bulk_load_or_in_the_slot_while_the_source_is_written(
    config: Config, spark: Session
) -> None:
    """The snapshot ends exactly where the slot's changes begin."""
    writer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import psycopg, sys, itertools\n"
            "with psycopg.connect(sys.argv[1], autocommit=True) as c:\n"
            "    for i in itertools.count(1000):\n"
            "        c.execute('insert into t values (%s)', (i,))\n",
            config.source.url,
        ]
    )
    try:
        until(lambda: int(str(value(config.source.url, "select count(*) from t"))) > 150)
        tables = source_tables(config)
        with prepare(pipeline_of(config), tables, stop=lambda: False) as position:
            state = wait_for_point(config)
            assert state is not None
            assert Lsn.parse(state.position).ordinal == position
            with bulk_planner(config) as planner:
                result = bulk_load(config, spark, planner)
            assert result.positions[tables[0].name] == position
            writer.kill()
            writer.wait()
    finally:
        writer.kill()
        writer.wait()
    loaded = value(config.target.url, "select count(*) from public.t")
    assert isinstance(loaded, int)
    assert loaded > 100

    def in_slot() -> int:
        return int(str(value(config.source.url, PEEK, str(Lsn(position)))))

    # Test servers commit asynchronously: the newest rows are decoded once the server flushed them.
    until(lambda: loaded + in_slot() == value(config.source.url, "select count(*) from public.t"))


def test_the_four_steps_are_recorded_in_the_documents_words(config: Config) -> None:
    """Each step has its time, once the extractor holds the slot."""
    with prepare(pipeline_of(config), source_tables(config), stop=lambda: False):
        assert phase_of(config) is HandoverPhase.CAPTURED
        with extracting(config):
            until(lambda: phase_of(config) is HandoverPhase.DONE)
        state = read_handover(config)
        assert state is not None
        assert [step.name for step in state.steps] == [
            "Stop Replication",
            "Capture Position",
            "Start Change Processes",
            "Resume Replication",
        ]
        assert [step.number for step in state.steps] == [1, 2, 3, 4]
        finish_bulk(config)
        until(lambda: not (read_handover(config) or state).snapshot_id)
    assert value(config.source.url, "select count(*) from pg_replication_slots") != 0


def test_an_extraction_that_is_idle_keeps_the_snapshot_until_the_load_is_done(
    config: Config,
) -> None:
    """The extractor with exitWhenIdle may end long before the bulk load."""
    ended = threading.Event()

    def extract() -> None:
        with prepare(pipeline_of(config), source_tables(config), stop=lambda: False):
            pass
        ended.set()

    thread = threading.Thread(target=extract)
    thread.start()
    until(lambda: phase_of(config) is HandoverPhase.CAPTURED)
    assert not ended.wait(1.5)
    finish_bulk(config)
    assert ended.wait(WAIT_S)
    thread.join()


def test_a_stop_ends_it_at_once(config: Config) -> None:
    """Ctrl-C does not wait for the bulk load; the file then names no snapshot."""
    stop = threading.Event()
    with prepare(pipeline_of(config), source_tables(config), stop=stop.is_set):
        stop.set()
    state = read_handover(config)
    assert state is not None
    assert (state.phase, state.snapshot_id) == (HandoverPhase.CAPTURED, "")
    assert state.point(Lsn) is None


@pytest.mark.faults
@pytest.mark.parametrize("fault", ["handover.slot.made:1:kill", "handover.captured:1:kill"])
def test_killed_at_any_step_the_next_run_goes_on_with_the_same_slot(
    config: Config, fault: str
) -> None:
    """The slot is created once; a run that finds it uses it at its position."""
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from penstock.control.pipeline.servers import source_tables\n"
        "from penstock.control.pipeline.config import load_config\n"
        "from penstock.control.pipeline.servers import pipeline_of\n"
        "from penstock.engines.postgres.handover import prepare\n"
        "config = load_config(Path(sys.argv[1]))\n"
        "with prepare(pipeline_of(config), source_tables(config), stop=lambda: False):\n    pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(config.path)],
        env={**os.environ, "PENSTOCK_FAULT": fault},
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == -9
    before = value(
        config.source.url,
        "select confirmed_flush_lsn::text from pg_replication_slots "
        "where database = current_database()",
    )
    with prepare(pipeline_of(config), source_tables(config), stop=lambda: False) as position:
        assert Lsn(position) == Lsn.parse(str(before))
        assert phase_of(config) is HandoverPhase.CAPTURED
        finish_bulk(config)


def test_pause_on_a_primary_is_refused_and_nothing_is_changed(
    source_url: str, target_url: str, tmp_path: Path
) -> None:
    """The error says which mode to set instead."""
    run(source_url, "create table public.t (id int primary key)")
    config = make_config(tmp_path, source_url, target_url, "pause")
    with (
        pytest.raises(NotAStandby) as caught,
        prepare(pipeline_of(config), source_tables(config), stop=lambda: False),
    ):
        pass
    assert 'handover = "snapshot"' in caught.value.hint
    assert read_handover(config) is None
    slots = "select count(*) from pg_replication_slots where database = current_database()"
    assert value(source_url, slots) == 0


# -- mode pause ------------------------------------------------------------------------------------


@pytest.fixture
def standby(own_postgres: Server, tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A standby of `own_postgres` that replays by streaming, feedback on."""
    own_postgres.restart_with(wal_level="logical", hot_standby="on")
    own_postgres.execute("select pg_create_physical_replication_slot('standby')")
    root = Path("/tmp") / f"penstock-standby-{os.getpid()}-{time.monotonic_ns()}"
    root.mkdir()
    secret = own_postgres.url().split("//")[1].split("@")[0].split(":")[1]
    subprocess.run(
        [
            str(own_postgres.bindir / "pg_basebackup"),
            "-D", str(root / "data"), "-S", "standby", "-X", "stream", "-c", "fast", "-R",
            "-d", own_postgres.url(),
        ],
        check=True,
        env={**os.environ, "PGPASSWORD": secret},
    )  # fmt: skip
    own = own_postgres.directory.stat()
    for path in [root, *root.rglob("*")]:
        os.chown(path, own.st_uid, own.st_gid, follow_symlinks=False)
    try:
        with EmbeddedPostgres(
            major=own_postgres.version,
            directory=root,
            password=secret,
            settings={"hot_standby_feedback": "on", "primary_slot_name": "standby"},
        ) as server:
            yield server
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def frozen(
    own_postgres: Server, standby: EmbeddedPostgres, target_url: str, tmp_path: Path
) -> Config:
    """A pipeline in mode pause; database and publication come from the primary."""
    primary = own_postgres.make_database("paused")
    run(
        primary,
        "create table public.t (id int primary key, v text)",
        "insert into public.t select i, i::text from generate_series(1, 100) as i",
        "create publication wirekite_publication for table public.t "
        "with (publish_via_partition_root = true)",
    )
    url = standby.url(primary.rpartition("/")[2])

    def has_replayed() -> bool:
        try:
            return value(url, "select count(*) from public.t") == 100
        except psycopg.Error:
            return False

    until(has_replayed)
    return make_config(tmp_path, url, target_url, "pause")


def help_slot(own_postgres: Server) -> threading.Event:
    """Make the primary log its running transactions, for which a slot on a standby waits."""
    enough = threading.Event()

    def work() -> None:
        while not enough.wait(0.3):
            own_postgres.execute("select pg_log_standby_snapshot()")

    threading.Thread(target=work, daemon=True).start()
    return enough


@pytest.mark.spark
@pytest.mark.server("postgres >= 16")
def test_pause_mode_reads_a_frozen_standby_and_resumes_it(
    own_postgres: Server, frozen: Config, spark: Session
) -> None:
    """Steps 1 to 4 run in order: only the primary's later writes come through the slot."""
    primary = own_postgres.url(frozen.source.url.rpartition("/")[2])
    helped = help_slot(own_postgres)
    entered = threading.Event()
    position: list[int] = []

    def extract() -> None:
        with prepare(
            pipeline_of(frozen), source_tables(frozen), stop=lambda: False
        ) as slot_position:
            position.append(slot_position)
            with extracting(frozen):
                until(lambda: phase_of(frozen) is HandoverPhase.DONE)
            entered.set()

    thread = threading.Thread(target=extract)
    thread.start()
    state = wait_for_point(frozen, timeout_s=WAIT_S)
    helped.set()
    assert state is not None
    assert value(frozen.source.url, "select pg_get_wal_replay_pause_state()") == "paused"
    run(primary, "insert into public.t select generate_series(101, 150)")
    with bulk_planner(frozen) as planner:
        result = bulk_load(frozen, spark, planner)
    assert entered.wait(WAIT_S)
    thread.join()
    assert next(iter(result.positions.values())) == Lsn.parse(state.position).ordinal
    assert position[0] <= Lsn.parse(state.position).ordinal
    assert value(frozen.target.url, "select count(*) from public.t") == 100
    assert value(frozen.source.url, "select pg_get_wal_replay_pause_state()") == "not paused"
    until(lambda: value(frozen.source.url, "select count(*) from public.t") == 150)
    assert value(frozen.source.url, PEEK, state.position) == 50
    final = read_handover(frozen)
    assert final is not None
    assert [step.number for step in final.steps] == [1, 2, 3, 4]
    assert final.steps[0].text == "Stop Replication: replay on the standby is paused"


@pytest.mark.server("postgres >= 16")
def test_a_stop_during_the_pause_resumes_replay(own_postgres: Server, frozen: Config) -> None:
    """Ctrl-C never leaves a frozen standby; the next run pauses at a later position."""
    stop = threading.Event()
    helped = help_slot(own_postgres)

    def extract() -> None:
        with prepare(pipeline_of(frozen), source_tables(frozen), stop=stop.is_set):
            assert stop.is_set()

    thread = threading.Thread(target=extract)
    thread.start()
    first = wait_for_point(frozen, timeout_s=WAIT_S)
    helped.set()
    stop.set()
    thread.join()
    assert first is not None
    assert value(frozen.source.url, "select pg_get_wal_replay_pause_state()") == "not paused"
    run(own_postgres.url(frozen.source.url.rpartition("/")[2]), "insert into public.t values (500)")
    until(lambda: value(frozen.source.url, "select count(*) from public.t") == 101)
    stop.clear()
    thread = threading.Thread(target=extract)
    thread.start()
    until(lambda: (read_handover(frozen) or first).position > first.position)
    state = read_handover(frozen)
    assert state is not None
    assert state.slot_position == first.slot_position
    stop.set()
    thread.join()
