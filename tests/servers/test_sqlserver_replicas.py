"""A source of SQL Server in an availability group: readable secondaries, and fail-over.

The simulated secondary is the same database: its sessions read snapshots and may not write, locks
of readers have no effect, and scans of the log cannot be seen. Not here: a secondary that lags, and
real fail-overs.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.pipeline import write_pipeline
from harness.servers.change_table_log import rows_of
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.servers import pipeline_of, source_tables
from penstock.control.run.extract_process import extract_options
from penstock.engines.sqlserver.connect import connect
from penstock.engines.sqlserver.errors import NoLockOnSecondary, PositionAhead
from penstock.engines.sqlserver.planner import make_planner
from penstock.engines.sqlserver.source import source_engine
from penstock.engines.sqlserver.source.caught_up import CaughtUp
from penstock.extract.extractor import Extractor
from penstock.host.errors import StatementFailed
from penstock.log import list_segments, open_chain
from penstock.model import TableName
from penstock.ports.bulk import TableRead
from penstock.ports.config import Config
from penstock.ports.source import extraction_of
from plugins.sqlserver import SimServer

QUICK = {"flushIntervalSeconds": 0.2, "idleWaitSeconds": 0.2}
MARGIN_S = 1.0
WAIT_S = 60.0


class Group:
    """A database of an availability group, whose secondary is the source.

    Attributes:
        url: URL of the readable secondary.
    """

    def __init__(self, server: SimServer, database: str, folder: Path) -> None:
        self.server, self.database, self.folder = server, database, folder
        self.url = server.url(database) + "&applicationIntent=ReadOnly"
        self.primary(
            "EXEC sys.sp_cdc_enable_db",
            "EXEC sim.[set] N'hadr', N'1'",
            "EXEC sim.[set] N'is_secondary', N'1'",
            "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY)",
            "CREATE TABLE dbo.bag (id int NULL)",
        )
        for name in ("t", "bag"):
            self.primary(
                f"EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'{name}', "
                "@role_name = NULL, @supports_net_changes = 0"
            )

    def primary(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements at the primary replica; return the rows of the last one."""
        found: list[tuple[Any, ...]] = []
        for statement in statements:
            found = self.server.execute(statement, self.database)
        return found

    def config(self, *, mode: str = "change", tables: str = "dbo.t") -> Config:
        """Return a pipeline of the secondary."""
        target = "postgresql://u:p@127.0.0.1:1/t"
        path = write_pipeline(
            self.folder, self.url, target, mode=mode, tables=[tables],
            sections={"changeExtractor": QUICK},
        )  # fmt: skip
        return load_config(path, {})

    def extract(self, *, ends: threading.Event | None = None) -> None:
        """Extract until the source is idle, or until an event."""
        config = self.config()
        options = replace(extract_options(config), exit_when_idle=ends is None)

        def stop() -> bool:
            return ends is not None and ends.is_set()

        with extraction_of(config).open_engine(
            pipeline_of(config),
            options,
            tables=lambda: source_tables(config),
            stop=stop,
        ) as engine:
            Extractor(engine, config.directory, options=options, stop=stop).run()

    def ids(self) -> list[int]:
        """Return the ids of the log's rows, in order."""
        found = []
        for segment in open_chain(list_segments(self.config().layout.log)):
            with segment:
                for entry in segment.row_frames():
                    frame = segment.read_rows(entry)
                    found += rows_of(frame.relation, frame.batch)
        return [seen.after["id"] for _, _, seen in sorted(found, key=lambda one: one[0])]


@pytest.fixture
def group(
    sqlserver: SimServer,
    sqlserver_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Group:
    """A group whose end of the log is waited for one second, not fifteen."""
    monkeypatch.setattr(source_engine, "CaughtUp", partial(CaughtUp, margin_s=MARGIN_S))
    return Group(sqlserver, sqlserver_database, tmp_path)


def test_a_secondary_is_read_only(group: Group) -> None:
    """The server refuses writes there, and shows no scan of the log."""
    with connect(group.url) as session, pytest.raises(StatementFailed, match="read-only"):
        session.run("DELETE FROM [dbo].[t];")
    scans = "SELECT COUNT(*) FROM sys.dm_cdc_log_scan_sessions"
    assert group.primary(scans) == [(0,)]


def test_changes_arrive_from_a_secondary(group: Group) -> None:
    """A reader in one open transaction would see its beginning for ever (S5, DBZ-1642)."""
    group.extract()
    ends = threading.Event()
    reader = threading.Thread(target=group.extract, kwargs={"ends": ends}, daemon=True)
    reader.start()
    try:
        until = time.monotonic() + WAIT_S
        for number in range(3):
            group.primary(f"INSERT INTO dbo.t VALUES ({number})")
            while group.ids() != list(range(number + 1)):
                assert time.monotonic() < until
                assert reader.is_alive()
                time.sleep(0.2)
    finally:
        ends.set()
        reader.join(WAIT_S)
    assert not reader.is_alive()


def test_a_secondary_is_silent_after_a_time(group: Group) -> None:
    """Without scans the end of the log is a matter of time."""
    group.extract()
    group.primary("INSERT INTO dbo.t VALUES (1)")
    began = time.monotonic()
    group.extract()
    assert time.monotonic() - began >= MARGIN_S
    assert group.ids() == [1]


def test_rows_are_copied_from_a_secondary_by_their_keys(group: Group) -> None:
    """A table without a key would need a lock, which a secondary ignores."""
    group.primary("INSERT INTO dbo.t VALUES (1), (2)")
    table = TableName("dbo", "t")
    with make_planner(group.config(mode="data+change"), first=lambda: None) as planner:
        (definition,) = planner.define([table])
        read = TableRead(definition=definition, columns=("[id]",))
        (chunk,) = planner.chunks(planner.fresh_point(), [read])[table]
    with connect(group.url) as session:
        assert sorted(session.execute(chunk.copy_out)) == [(1,), (2,)]
    config = group.config(mode="data+change", tables="dbo.*")
    with (
        make_planner(config, first=lambda: None) as planner,
        pytest.raises(NoLockOnSecondary, match=r"dbo\.bag, which has no key") as refused,
    ):
        planner.fresh_point()
    assert "without applicationIntent" in refused.value.hint


def test_the_log_goes_on_after_a_fail_over(group: Group) -> None:
    """Sessions end, and the new primary has no jobs until they are created."""
    group.extract()
    group.primary("INSERT INTO dbo.t VALUES (1)")
    group.extract()
    group.primary("EXEC sim.fail_over 0", "INSERT INTO dbo.t VALUES (2)")
    group.primary(
        "EXEC sys.sp_cdc_add_job @job_type = N'capture'",
        "EXEC sys.sp_cdc_add_job @job_type = N'cleanup'",
        "EXEC sim.start_agent",
    )
    group.extract()
    assert group.ids() == [1, 2]


def test_a_log_ahead_of_the_new_primary_stops(group: Group) -> None:
    """The new primary lacks a commit that the log has; nothing is read over the gap."""
    group.extract()
    group.primary("INSERT INTO dbo.t VALUES (1)", "INSERT INTO dbo.t VALUES (2)")
    group.extract()
    group.primary("EXEC sim.fail_over 1")
    with pytest.raises(PositionAhead):
        group.extract()
    assert group.ids() == [1, 2]
