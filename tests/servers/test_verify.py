"""verify compares at one position: with a loader that is held for it, and without one."""

from __future__ import annotations

import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from penstock.codec.postgres.lsn import Lsn
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.running import LOAD_LOCK
from penstock.control.pipeline.servers import source_tables
from penstock.control.verify.verify import (
    ChangesUnapplied,
    ExtractorMissing,
    HoldNotReached,
    NotLoadedYet,
    VerifyStopped,
    verify,
)
from penstock.engines.postgres.connect import connect
from penstock.engines.postgres.source.source_engine import PostgresEngine
from penstock.engines.postgres.target.progress import PostgresProgress
from penstock.extract.extractor import ExtractOptions, Extractor
from penstock.host.files import REAL_FILES, DirectoryLock
from penstock.load.ledger import Ledger, write_ledger
from penstock.load.loader_state import (
    HOLD_FILE,
    Hold,
    HoldAnswer,
    read_hold,
    write_held,
    write_hold,
)
from penstock.model import TableName
from penstock.ports.config import Config

SLOT = "wirekite_replication_slot"
PUBLICATION = "wirekite_publication"
WRITER = """
import psycopg, sys, itertools
with psycopg.connect(sys.argv[1], autocommit=True) as c:
    for i in itertools.count(1000):
        c.execute('insert into t values (%s, %s)', (i, str(i)))
"""


def make_config(directory: Path, source: str, target: str, mode: str) -> Config:
    """Return a pipeline of this mode."""
    file = directory / "v.toml"
    file.write_text(
        f"""
        [pipeline]
        name = "verified"
        mode = "{mode}"
        directory = "v"
        [source]
        url = "{source}"
        tables = ["public.*"]
        [target]
        url = "{target}"
        """
    )
    return load_config(file)


def run(url: str, *statements: str) -> None:
    """Run statements in autocommit."""
    with connect(url, application_name="test") as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def config(source_url: str, target_url: str, tmp_path: Path) -> Config:
    """A loaded pipeline with publication and slot, both sides equal at the slot's position."""
    create = "create table public.t (id int primary key, v text)"
    fill = "insert into public.t select i, i::text from generate_series(1, 100) as i"
    run(target_url, create, fill)
    run(
        source_url,
        create,
        fill,
        f"create publication {PUBLICATION} for table public.t "
        "with (publish_via_partition_root = true)",
        f"select pg_create_logical_replication_slot('{SLOT}', 'pgoutput')",
    )
    made = make_config(tmp_path, source_url, target_url, "data+change")
    REAL_FILES.make_directory(made.layout.state)
    REAL_FILES.make_directory(made.layout.log)
    write_ledger(made.layout.state, Ledger(finished=True))
    return made


# -- at rest ---------------------------------------------------------------------------------------


def test_equal_sides_at_rest_are_equal(config: Config) -> None:
    """All changes are read and no row differs."""
    result = verify(config)
    assert result.equal
    assert (result.tables[0].source_rows, result.tables[0].target_rows) == (100, 100)
    assert result.hold_seconds == 0
    shown = result.as_dict()
    assert (shown["equal"], shown["tables"][0]["table"]) == (True, "public.t")


def test_a_difference_at_rest_is_named(config: Config) -> None:
    """A difference of one byte in the target is named."""
    run(config.target.url, "update public.t set v = '08' where id = 8")
    result = verify(config)
    assert not result.equal
    assert [d.key for d in result.tables[0].named] == ["(8)"]


@pytest.mark.parametrize(
    "change",
    ["insert into t values (0)", "update t set v = ''", "delete from t where id = 1", "truncate t"],
)
def test_changes_that_nobody_has_read_are_not_called_differences(
    config: Config, change: str
) -> None:
    """Unread changes wait in the slot: the error says that the pipeline has to be started."""
    run(config.source.url, change)
    with pytest.raises(ChangesUnapplied, match="replication slot") as caught:
        verify(config)
    assert "penstock run v.toml" in caught.value.hint


def test_changes_of_other_tables_do_not_count_as_unread(config: Config) -> None:
    """The slot's publication decides which tables count as unread."""
    run(config.source.url, "create table public.other (id int)", "insert into other values (1)")
    run(config.target.url, "create table public.other (id int)", "insert into other values (1)")
    assert verify(config).equal


def test_an_unfinished_bulk_load_is_no_difference_either(config: Config) -> None:
    """An unfinished load would always differ."""
    write_ledger(config.layout.state, Ledger(finished=False))
    with pytest.raises(NotLoadedYet):
        verify(config)


def test_changes_in_the_log_that_are_not_applied_are_not_called_differences(
    config: Config,
) -> None:
    """The extractor has read changes that no loader has applied; once applied, verify compares."""
    run(config.source.url, "insert into t values (0, 'zero')")
    options = ExtractOptions(exit_when_idle=True, idle_wait_s=0.3)
    engine = PostgresEngine(config.source.url, tables=source_tables(config), options=options)
    Extractor(engine, config.directory, options=options).run()
    (config.layout.log / "LOCK").write_text("")  # as if the extractor's process had ended
    with pytest.raises(ChangesUnapplied, match="the log has 1 change that the target lacks"):
        verify(config)
    with connect(config.target.url, application_name="test") as connection:
        progress = PostgresProgress(connection)
        progress.ensure_tables()
        progress.bind_log("the log")
        connection.execute("update wirekite.wirekite_log set applied_gsn = 1")
    assert verify(config).tables[0].missing == 1
    run(config.target.url, "insert into t values (0, 'zero')")
    assert verify(config).equal


def test_a_batch_that_was_cut_short_is_not_called_a_difference(config: Config) -> None:
    """Some of its tables are ahead of the others until a loader has finished it."""
    with connect(config.target.url, application_name="test") as connection:
        progress = PostgresProgress(connection)
        progress.ensure_ahead()
        progress.bind_log("the log")
        ahead = [TableName("public", "t")]
        progress.put_ahead(log_id="the log", tables=ahead, known={}, gsn=5)
        with pytest.raises(ChangesUnapplied, match=r"applied in part: .* public\.t"):
            verify(config)
        progress.clear_ahead(log_id="the log", gsn=5)
    assert verify(config).equal


def test_mode_data_compares_what_is_there(source_url: str, target_url: str, tmp_path: Path) -> None:
    """Later changes of the source are differences without changes in the pipeline."""
    for url in (source_url, target_url):
        run(url, "create table public.t (id int primary key)")
    config = make_config(tmp_path, source_url, target_url, "data")
    REAL_FILES.make_directory(config.layout.state)
    write_ledger(config.layout.state, Ledger(finished=True))
    assert verify(config).equal
    run(source_url, "insert into t values (1)")
    assert verify(config).tables[0].missing == 1


# -- while the pipeline runs -----------------------------------------------------------------------


def read_inserts(messages: list[tuple[bytes]]) -> list[tuple[str, str]]:
    """Return the rows of pgoutput insert messages of a table with two columns."""
    rows = []
    for (data,) in messages:
        if data[:1] != b"I":
            continue
        values, offset = [], 8
        for _ in range(2):
            (length,) = struct.unpack_from(">i", data, offset + 1)
            values.append(data[offset + 5 : offset + 5 + length].decode())
            offset += 5 + length
        rows.append((values[0], values[1]))
    return rows


class MiniLoader(threading.Thread):
    """Acts as extractor and loader in this process: applies the slot's inserts, obeys a hold.

    broken: applies everything at a hold, not only the rows before its position.
    """

    def __init__(self, config: Config, *, broken: bool = False, deaf: bool = False) -> None:
        super().__init__(daemon=True)
        self.config = config
        self.broken = broken
        self.deaf = deaf
        self.ended = threading.Event()
        self.holds = 0

    def run(self) -> None:
        with (
            psycopg.connect(self.config.source.url, autocommit=True) as source,
            psycopg.connect(self.config.target.url, autocommit=True) as target,
        ):
            while not self.ended.wait(0.02):
                hold = None if self.deaf else read_hold(self.config.layout.state)
                if hold is None:
                    self.apply(source, target, None)
                else:
                    self.holds += 1
                    self.obey(source, target, hold)

    def obey(self, source: psycopg.Connection, target: psycopg.Connection, hold: Hold) -> None:
        if hold.until is not None:
            self.apply(source, target, None if self.broken else hold.until)
        held = HoldAnswer(nonce=hold.nonce, gsn=0, position=0, reached=hold.until)
        write_held(self.config.layout.state, held)

    def apply(
        self, source: psycopg.Connection, target: psycopg.Connection, until: int | None
    ) -> None:
        messages = source.execute(
            "select data from pg_logical_slot_get_binary_changes(%s, %s::pg_lsn, null, "
            "'proto_version', '1', 'publication_names', %s)",
            (SLOT, None if until is None else str(Lsn(until)), PUBLICATION),
        ).fetchall()
        with target.transaction(), target.cursor() as cursor:
            cursor.executemany("insert into t values (%s, %s)", read_inserts(messages))


def wait_for_a_row(url: str) -> None:
    """Wait until the first of the writer's rows arrives."""
    deadline = time.monotonic() + 30
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute("select exists (select from t where id >= 1000)").fetchone() != (
            True,
        ):
            assert time.monotonic() < deadline, "nothing is written"
            time.sleep(0.02)


@contextmanager
def pipeline(config: Config, loader: MiniLoader | None) -> Iterator[None]:
    """Hold the locks of a running pipeline, with its loader and a writer at the source."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, config.source.url])
    with ExitStack() as stack:
        stack.callback(writer.wait)
        stack.callback(writer.kill)
        stack.enter_context(DirectoryLock(config.layout.log))
        stack.enter_context(DirectoryLock(config.layout.state, LOAD_LOCK))
        if loader is not None:
            loader.start()
            stack.callback(loader.join)
            stack.callback(loader.ended.set)
        wait_for_a_row(config.source.url if loader is None else config.target.url)
        yield


def test_a_source_that_is_being_written_is_compared_at_one_position(config: Config) -> None:
    """The loader stops exactly at that position, and continues afterwards."""
    loader = MiniLoader(config)
    with pipeline(config, loader):
        for _ in range(3):
            result = verify(config, timeout_s=20)
            assert result.equal, result
            assert result.tables[0].source_rows > 100
            assert 0 < result.hold_seconds < 20
        assert loader.holds > 0
        assert not (config.layout.state / HOLD_FILE).exists()


def test_a_loader_that_goes_past_the_position_is_found_out(config: Config) -> None:
    """Rows after the position are surplus: the hold is not a formality."""
    with pipeline(config, MiniLoader(config, broken=True)):
        results = [verify(config, timeout_s=20) for _ in range(3)]
    assert any(result.tables[0].surplus for result in results)


def test_a_difference_is_found_while_the_pipeline_runs(config: Config) -> None:
    """The difference is found among all the rows that are being written."""
    run(config.target.url, "update public.t set v = 'ninety' where id = 90")
    with pipeline(config, MiniLoader(config)):
        result = verify(config, timeout_s=20)
    assert [(d.kind, d.key) for d in result.tables[0].named] == [("different", "(90)")]


def test_a_loader_that_does_not_answer_is_let_go(config: Config) -> None:
    """The hold is removed after the timeout, and the error has the loader's position."""
    with (
        pipeline(config, MiniLoader(config, deaf=True)),
        pytest.raises(HoldNotReached, match="did not answer"),
    ):
        verify(config, timeout_s=1.0)
    assert not (config.layout.state / HOLD_FILE).exists()


def test_a_loader_without_extractor_is_an_error(config: Config) -> None:
    """The position would never be reached."""
    with DirectoryLock(config.layout.state, LOAD_LOCK), pytest.raises(ExtractorMissing):
        verify(config)


def test_a_stop_while_waiting_takes_the_hold_back(config: Config) -> None:
    """Ctrl-C does not leave the loader on hold."""
    with (
        pipeline(config, MiniLoader(config, deaf=True)),
        pytest.raises(VerifyStopped),
    ):
        verify(config, stop=lambda: True)
    assert not (config.layout.state / HOLD_FILE).exists()


def test_the_hold_of_a_verify_that_was_killed_holds_nobody_up(config: Config) -> None:
    """A hold.json without a live holder of its lock is ignored."""
    write_hold(config.layout.state, Hold(nonce="left over"))
    assert read_hold(config.layout.state) is None
    with DirectoryLock(config.layout.state, "HOLD.LOCK"):
        assert read_hold(config.layout.state) == Hold(nonce="left over")
