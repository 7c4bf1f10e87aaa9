"""Rows of a SQL Server table that are sent again: at one exact position of the log.

Not here: requests that need other engines or a target (`tests/conformance/test_resends.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.extract import Stop, running, segments_of, until
from harness.pipelines.pipeline import write_pipeline
from harness.pipelines.resend import View, answers, ask
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.servers import pipeline_of, source_tables
from penstock.control.run.extract_process import extract_options
from penstock.engines.sqlserver.source import resends
from penstock.engines.sqlserver.source.caught_up import wait_captured
from penstock.extract.extractor import Extractor
from penstock.host import faults
from penstock.host.errors import StatementFailed
from penstock.host.request_files import ResendRefused
from penstock.model import Op
from penstock.ports.source import extraction_of
from plugins.sqlserver import SimServer

ROWS = 600
WITHIN_S = 90.0
KEYED = "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, n int NULL, note nvarchar(40) NULL)"
KEYLESS = "CREATE TABLE dbo.k (id int NOT NULL, n int NULL)"
OTHER = "CREATE TABLE dbo.u (id int NOT NULL PRIMARY KEY)"
ENABLE = (
    "EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'{}', "
    "@role_name = NULL, @supports_net_changes = 0"
)


@dataclass
class Shop:
    """Database whose table t has rows that the log never had, and a pipeline of mode change."""

    server: SimServer
    database: str
    folder: Path

    def sql(self, *texts: str) -> list[tuple[Any, ...]]:
        """Run statements; return the rows of the last one."""
        found: list[tuple[Any, ...]] = []
        for text in texts:
            found = self.server.execute(text, self.database)
        return found

    def rows(self) -> dict[Any, dict[str, Any]]:
        """Return table t as the source has it."""
        found = self.sql("SELECT id, n, note FROM dbo.t")
        return {(row[0],): dict(zip(("id", "n", "note"), row, strict=True)) for row in found}

    @property
    def directory(self) -> Path:
        """Directory of the pipeline."""
        return load_config(self.folder / "shop.toml", {}).directory

    @contextmanager
    def extracting(self, **source: str) -> Iterator[Extractor]:
        """Run an extractor until the end of the block. source: more keys of [source]."""
        path = write_pipeline(
            self.folder,
            self.server.url(self.database),
            None,
            mode="change",
            tables=["dbo.*"],
            sections={"changeExtractor": {"flushIntervalSeconds": 0.2}, "source": source},
        )
        config = load_config(path, {})
        stop = Stop()
        options = replace(extract_options(config), exit_when_idle=False)
        with extraction_of(config).open_engine(
            pipeline_of(config), options, tables=lambda: source_tables(config), stop=stop
        ) as engine:
            extractor = Extractor(engine, config.directory, options=options, stop=stop)
            with running(extractor):
                try:
                    until(lambda: extractor.progress.state == "streaming")
                    yield extractor
                finally:
                    stop.asked.set()

    def resend(self, number: int, table: str = "dbo.t") -> Any:
        """Return the answer to a new request."""
        ask(self.directory, table, number=number)
        until(lambda: self.is_answered(number, table), WITHIN_S)
        return answers(self.directory)[table]

    def is_answered(self, number: int, table: str = "dbo.t") -> bool:
        """Return whether a request was answered."""
        found = answers(self.directory).get(table)
        return found is not None and found.resend_id == number

    def wait_for_all(self) -> None:
        """Wait until a later change is in the log, and so everything before it."""
        self.sql("INSERT INTO dbo.u VALUES (1)")
        until(lambda: View("dbo.u").read(self.directory).rows, WITHIN_S)


@pytest.fixture
def shop(sqlserver: SimServer, sqlserver_database: str, tmp_path: Path) -> Shop:
    """A source whose rows were written before the log began."""
    found = Shop(sqlserver, sqlserver_database, tmp_path)
    found.sql(
        "EXEC sys.sp_cdc_enable_db",
        "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON",
        KEYED,
        OTHER,
        ENABLE.format("t"),
        ENABLE.format("u"),
        "EXEC sim.[set] N'poll_s', N'0.1'",
    )
    for at in range(0, ROWS, 200):
        values = ", ".join(f"({n}, {n}, N'row {n}')" for n in range(at + 1, at + 201))
        found.sql(f"INSERT INTO dbo.t VALUES {values}")
    found.sql("EXEC sys.sp_cdc_scan", "EXEC sim.empty_log")
    return found


class Writer:
    """A thread that makes changes of all kinds, for a with block."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._ended = threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)
        assert self._errors == []

    def _work(self) -> None:
        try:
            number = 0
            while not self._ended.is_set():
                number += 1
                self._shop.sql(
                    f"UPDATE dbo.t SET n = n + 1 WHERE id = {number % 500 + 1}; "
                    f"INSERT INTO dbo.t VALUES ({10_000 + number}, 0, N'new'); "
                    f"DELETE FROM dbo.t WHERE id = {10_000 + number - 20}; "
                    f"UPDATE dbo.t SET id = -id WHERE id = {500 + number % 100}"
                )
        except BaseException as error:
            self._errors.append(error)


@pytest.mark.promise
def test_after_resend_with_changes_meanwhile_the_log_equals_the_source(shop: Shop) -> None:
    """Rows that the log never had are there, and each later change overrides them."""
    with shop.extracting() as extractor:
        with Writer(shop):
            until(lambda: extractor.progress.row_count > 40, WITHIN_S)
            for number in (1, 2):
                assert not shop.resend(number).error
            behind = extractor.progress.row_count
            until(lambda: extractor.progress.row_count > behind + 40, WITHIN_S)
        expected = shop.rows()
        shop.wait_for_all()
    view = View("dbo.t").read(shop.directory)
    assert view.reloads == 2
    assert len(view.resent) > 2 * ROWS - 100
    assert view.rows == expected


def test_rows_of_a_table_without_a_key_are_there_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change just before the lock is in the rows, and not a second time when it is captured."""
    original = resends._lock

    def lock_later(session: Any, table: Any) -> None:
        shop.sql("INSERT INTO dbo.k VALUES (3, 3)")
        original(session, table)

    monkeypatch.setattr(resends, "_lock", lock_later)
    shop.sql(KEYLESS, ENABLE.format("k"))
    with shop.extracting() as extractor:
        shop.sql("INSERT INTO dbo.k VALUES (1, 1), (1, 1), (2, NULL)")
        until(lambda: extractor.progress.row_count == 3, WITHIN_S)
        shop.sql("EXEC sim.[set] N'poll_s', N'3'")
        assert not shop.resend(1, "dbo.k").error
        shop.sql("EXEC sim.[set] N'poll_s', N'0.1'", "INSERT INTO dbo.k VALUES (4, 4)")
        shop.wait_for_all()
    resent = View("dbo.k").read(shop.directory).resent
    found = [(gsn, row) for gsn, row in keyless_rows(shop.directory) if gsn >= min(resent)]
    assert len(resent) == 4
    assert sorted(row for _, row in found) == sorted(shop.sql("SELECT id FROM dbo.k"))


def keyless_rows(directory: Path) -> list[tuple[int, tuple[Any, ...]]]:
    """Return the inserts of table k: number in the log and id."""
    with segments_of(directory) as segments:
        return [
            (int(gsn), (after["id"],))
            for segment in segments
            for found in segment.rows()
            if found.relation.name == "k"
            for gsn, after in zip(
                found.batch.column("gsn").to_pylist(),
                found.batch.column("after").to_pylist(),
                strict=True,
            )
        ]


def test_writers_wait_only_until_capture_has_read_the_log(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is held until the position is known; rows are read without it."""
    original = wait_captured
    waited, written = threading.Event(), threading.Event()
    writers: list[threading.Thread] = []

    def write() -> None:
        shop.sql("UPDATE dbo.t SET n = -1 WHERE id = 1")
        written.set()

    def drain_later(session: Any, **more: Any) -> int:
        writers.append(threading.Thread(target=write))
        writers[0].start()
        assert not written.wait(1.0)
        waited.set()
        return original(session, **more)

    with shop.extracting():
        monkeypatch.setattr(resends, "wait_captured", drain_later)
        assert not shop.resend(1).error
        assert waited.is_set()
        writers[0].join(30)
        assert written.is_set()
        shop.wait_for_all()
    view = View("dbo.t").read(shop.directory)
    assert len(view.resent) == ROWS
    assert view.rows[(1,)]["n"] == -1


def test_what_cannot_be_sent_is_answered(shop: Shop) -> None:
    """The table is unknown, altered just then, or snapshots are not allowed; the log continues."""
    with shop.extracting():
        assert shop.resend(1, "dbo.nothing").error.startswith("dbo.nothing is not captured by ")
        shop.sql("ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION OFF")
        said = shop.resend(2)
        assert "does not allow snapshots" in said.error
        assert "ALLOW_SNAPSHOT_ISOLATION ON" in said.hint
        shop.sql(
            "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON",
            "EXEC sim.fail_next @number = 3961, @like = N'SELECT [id], [n], [note] FROM'",
        )
        said = shop.resend(3)
        assert said.error.startswith("the resend was cancelled: dbo.t changed its shape")
        shop.sql("ALTER TABLE dbo.t DROP COLUMN note")
        assert not shop.resend(4).error
        shop.wait_for_all()
    view = View("dbo.t").read(shop.directory)
    assert (view.reloads, len(view.resent)) == (1, ROWS)
    assert view.rows[(5,)] == {"id": 5, "n": 5}


@pytest.mark.parametrize("place", ["extract.resend.before", "sqlserver.resend.rows"])
def test_a_failure_meanwhile_leaves_a_request_that_is_carried_out(shop: Shop, place: str) -> None:
    """The next attempt carries a request out: sent twice at worst, and never answered before."""
    with shop.extracting(), faults.arming(f"{place}:1:error"):
        assert not shop.resend(1).error
        expected = shop.rows()
        shop.wait_for_all()
    view = View("dbo.t").read(shop.directory)
    assert view.rows == expected
    assert view.reloads == (2 if place == "extract.resend.before" else 1)


def test_a_long_transaction_of_a_writer_puts_the_request_off(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is not waited for without end, as other writers would wait behind it."""
    monkeypatch.setattr(resends, "LOCK_WAIT", "SET LOCK_TIMEOUT 100")
    monkeypatch.setattr(resends, "LOCKED_INTERVAL_S", 0.2)
    import mssql_python

    writer = mssql_python.connect(shop.server.connection_string(shop.database), autocommit=False)
    with shop.extracting(), writer:
        writer.cursor().execute("UPDATE dbo.t SET n = 0 WHERE id = 1")
        ask(shop.directory, "dbo.t", number=1)
        with pytest.raises(AssertionError, match="in time"):
            until(lambda: shop.is_answered(1), 5)
        writer.commit()
        until(lambda: shop.is_answered(1), WITHIN_S)
        shop.wait_for_all()
    assert View("dbo.t").read(shop.directory).rows[(1,)]["n"] == 0


INSTANCE = ENABLE + ", @capture_instance = N'dbo_{}_2'"


def wait_for_reload(shop: Shop) -> View:
    """Wait until the log has the table's rows again, and return the table as the log has it."""
    until(lambda: View("dbo.t").read(shop.directory).reloads, WITHIN_S)
    shop.wait_for_all()
    return View("dbo.t").read(shop.directory)


@pytest.mark.promise
def test_values_that_alter_table_gave_to_rows_are_sent(shop: Shop) -> None:
    """A default of older rows is in no change table, so the rows are read again without a request;
    a column without any value is none to read.
    """
    with shop.extracting():
        shop.sql(
            "UPDATE dbo.t SET n = 0 WHERE id = 1",
            "ALTER TABLE dbo.u ADD empty int NULL",
            INSTANCE.format("u", "u"),
            "ALTER TABLE dbo.t ADD d int NOT NULL CONSTRAINT df DEFAULT 7",
            INSTANCE.format("t", "t"),
            "INSERT INTO dbo.t (id, d) VALUES (9000, 8)",
        )
        view = wait_for_reload(shop)
    found = shop.sql("SELECT id, d FROM dbo.t")
    assert {key: row["d"] for key, row in view.rows.items()} == {(row[0],): row[1] for row in found}
    assert view.reloads == 1
    assert View("dbo.u").read(shop.directory).reloads == 0


def rows_of_k(directory: Path) -> list[tuple[str, bool]]:
    """Return the rows of table k in order: the operation, and whether the table awaits its rows."""
    with segments_of(directory) as segments:
        rows = [
            (int(gsn), Op(op).name, bool(found.relation.awaits_reload))
            for segment in segments
            for found in segment.rows()
            if found.relation.name == "k"
            for gsn, op in zip(
                found.batch.column("gsn").to_pylist(),
                found.batch.column("op").to_pylist(),
                strict=True,
            )
        ]
    return [(op, awaits) for _, op, awaits in sorted(rows)]


@pytest.mark.promise
@pytest.mark.parametrize("place", ["", "sqlserver.resend.rows"])
def test_a_table_without_a_key_awaits_the_values_of_alter_table(shop: Shop, place: str) -> None:
    """A change is found by values that only ALTER TABLE gave to the row, so the loader must not
    apply it before the rows are read again.
    """
    shop.sql(KEYLESS, ENABLE.format("k"))
    with shop.extracting(), faults.arming(f"{place}:1:error" if place else ""):
        shop.sql(
            "INSERT INTO dbo.k VALUES (1, 1), (1, 1), (2, NULL)",
            "ALTER TABLE dbo.k ADD b datetime2(6) NOT NULL CONSTRAINT df DEFAULT SYSUTCDATETIME()",
            INSTANCE.format("k", "k"),
            "UPDATE dbo.k SET b = '2020-02-29' WHERE id = 1",
        )
        until(lambda: View("dbo.k").read(shop.directory).reloads, WITHIN_S)
        shop.sql("DELETE FROM dbo.k WHERE id = 2")
        shop.wait_for_all()
    told = rows_of_k(shop.directory)
    copied, changed = [("INSERT", False)] * 3, [("UPDATE", True)] * 2
    assert told == [*copied, *changed, *copied, ("DELETE", False)]
    view = View("dbo.k").read(shop.directory)
    assert (view.reloads, len(view.resent)) == (1, 3)


def test_changes_after_a_failed_reading_are_awaited(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source's table was altered meanwhile: its rows come in a later shape, and no change may
    be applied before, not even the next one.
    """
    original = resends.Resends._fail

    def fail_once(*_: object) -> Iterator[Any]:
        raise StatementFailed("it has no such column", hint="Nothing to do.", errno=207)

    def change_then(self: resends.Resends, *more: Any) -> None:
        original(self, *more)
        monkeypatch.undo()
        shop.sql("DELETE FROM dbo.k WHERE id = 1", "EXEC sys.sp_cdc_scan")

    shop.sql(KEYLESS, ENABLE.format("k"))
    monkeypatch.setattr(resends.Resends, "_batches", staticmethod(fail_once))
    monkeypatch.setattr(resends.Resends, "_fail", change_then)
    with shop.extracting():
        shop.sql(
            "INSERT INTO dbo.k VALUES (1, 1), (2, 2)",
            "ALTER TABLE dbo.k ADD b int NOT NULL CONSTRAINT df DEFAULT 7",
            INSTANCE.format("k", "k"),
            "INSERT INTO dbo.k VALUES (3, 3, 3)",
        )
        until(lambda: rows_of_k(shop.directory)[3:], WITHIN_S)
    assert rows_of_k(shop.directory)[2:] == [("INSERT", True), ("DELETE", True)]
    assert View("dbo.k").read(shop.directory).reloads == 0


def test_awaited_values_that_cannot_be_read_stop_the_extractor(shop: Shop) -> None:
    """The loader would wait for them without end."""
    shop.sql(KEYLESS, ENABLE.format("k"), "INSERT INTO dbo.k VALUES (1, 1)")
    shop.sql("ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION OFF")

    def alter() -> None:
        with shop.extracting() as extractor:
            shop.sql(
                "INSERT INTO dbo.k VALUES (2, 2)",
                "ALTER TABLE dbo.k ADD b int NOT NULL CONSTRAINT df DEFAULT 7",
                INSTANCE.format("k", "k"),
                "DELETE FROM dbo.k WHERE id = 1",
            )
            until(lambda: extractor.progress.state == "failed", WITHIN_S)

    with pytest.raises(ResendRefused) as refused:
        alter()
    assert refused.value.hint.endswith("SET ALLOW_SNAPSHOT_ISOLATION ON")
    shop.sql("ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON")
    with shop.extracting():
        until(lambda: View("dbo.k").read(shop.directory).reloads, WITHIN_S)


def test_a_renamed_table_has_the_rows_that_changed_before(shop: Shop) -> None:
    """Their change rows are older than the new name, under which the log has no row yet."""
    with shop.extracting(newTables="add"):
        shop.sql("UPDATE dbo.t SET n = n + 1")
        until(lambda: len(View("dbo.t").read(shop.directory).rows) == ROWS, WITHIN_S)
        expected = shop.rows()
        shop.sql("EXEC sp_rename N'dbo.t', N'later'", "UPDATE dbo.later SET n = -1 WHERE id = 1")
        until(lambda: not View("dbo.t").read(shop.directory).rows, WITHIN_S)
        shop.sql("UPDATE dbo.later SET n = -2 WHERE id = 1")
        expected[(1,)]["n"] = -2
        until(lambda: View("dbo.later").read(shop.directory).rows == expected, 30.0)


def test_an_alter_table_that_waits_for_the_lock_is_waited_for(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query waits behind ALTER TABLE, which waits for the lock: the lock ends, and rows come."""
    original = wait_captured
    altering: list[threading.Thread] = []

    def drain_later(session: Any, **more: Any) -> int:
        position = original(session, **more)
        if not altering:
            text = "ALTER TABLE dbo.t ADD waited int NULL"
            altering.append(threading.Thread(target=shop.sql, args=(text,)))
            altering[0].start()
            altering[0].join(1.0)
            assert altering[0].is_alive(), "it has to wait"
        return position

    monkeypatch.setattr(resends, "LOCKED_INTERVAL_S", 0.5)
    with shop.extracting():
        monkeypatch.setattr(resends, "wait_captured", drain_later)
        assert not shop.resend(1).error
        altering[0].join(30)
        assert not altering[0].is_alive()
        shop.wait_for_all()
    assert len(View("dbo.t").read(shop.directory).resent) == ROWS
