"""Extraction from change tables into a log on disk: beginning, restart, requests, handover, lag.

The server is `harness.servers.change_tables`; the extractor, the log and the state files are real.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.pipeline import write_pipeline
from harness.servers.change_tables import ChangeServer, FakeTable
from harness.servers.change_writer import ChangeWriter
from penstock.codec.sqlserver.lsn import SqlServerLsn
from penstock.control.pipeline.config import load_config
from penstock.control.pipeline.servers import pipeline_of
from penstock.engines.sqlserver import extraction, handover, lag, positions, reset
from penstock.engines.sqlserver.connect import server_error
from penstock.engines.sqlserver.errors import (
    CdcDisabled,
    ChangesLost,
    InstanceMissing,
    PositionAhead,
)
from penstock.engines.sqlserver.source import statements
from penstock.engines.sqlserver.source.beginning import present_place
from penstock.engines.sqlserver.source.caught_up import CaughtUp
from penstock.engines.sqlserver.source.source_engine import SQLServerEngine, bytes_between
from penstock.extract.extractor import Extractor
from penstock.host.request_files import RequestFiles
from penstock.host.state_file import StateFile
from penstock.log import list_segments, open_chain
from penstock.model import TableName
from penstock.model.change import FlushPoint
from penstock.model.removal import Removal
from penstock.model.table_requests import REQUESTS_FILE, Capture, TableRequest, TableRequests
from penstock.ports.config import Config
from penstock.ports.handover import LogWithoutBulkLoad, read_handover
from penstock.ports.lag import LogEnd
from penstock.ports.source import ExtractOptions, extraction_of

OPTIONS = ExtractOptions(
    exit_when_idle=True, idle_wait_s=0.01, flush_interval_s=0.05, apply_interval_s=0.01
)
COLUMNS = [("id", "int"), ("name", "nvarchar(20)")]


class Case:
    """A server with one captured table, and a pipeline that has not begun."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.server = ChangeServer()
        self.table = self.server.add_table("t", COLUMNS)
        self.writer = ChangeWriter(self.server)
        self.server.capture(self.table, start=self.writer.next_lsn())
        self.begin = self.writer.idle()
        for module in (extraction, lag):
            monkeypatch.setattr(module, "connect", self.connect)
        monkeypatch.setattr(
            "penstock.engines.sqlserver.source.source_engine.CaughtUp",
            lambda clock: CaughtUp(margin_s=0.0, clock=clock),
        )

    @contextmanager
    def _session(self) -> Iterator[Any]:
        session = self.server.open()
        yield session
        session.close()

    def connect(self, _url: str, **_more: Any) -> Any:
        """Open a session, which is also a context manager."""
        session = self.server.open()

        class Opened(type(session)):  # type: ignore[misc]
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None:
                self.close()

        session.__class__ = Opened
        return session

    def config(self, mode: str = "change", **extractor: Any) -> Config:
        """Write the pipeline's file and read it."""
        path = write_pipeline(
            self.folder,
            "sqlserver://u:p@h/shop",
            "postgresql://u:p@127.0.0.1:1/t",
            mode=mode,
            tables=["dbo.*"],
            sections={"changeExtractor": extractor} if extractor else {},
        )
        return load_config(path, {})

    def extract(self, config: Config, **more: Any) -> Any:
        """Extract until the source is idle."""
        options = replace(OPTIONS, **more)
        with extraction.open_engine(
            pipeline_of(config), options, tables=self.server.definitions, stop=lambda: False
        ) as engine:
            outcome = Extractor(engine, config.directory, options=options).run()
        assert self.server.open_count == 0
        return outcome

    def insert(self, *ids: int, table: FakeTable | None = None) -> int:
        """Commit a transaction; return its LSN."""
        transaction = self.writer.begin()
        for number in ids:
            transaction.insert(table or self.table, {"id": number, "name": f"n{number}"})
        transaction.commit()
        return self.writer.last


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """A server, and a pipeline that has not begun."""
    return Case(tmp_path, monkeypatch)


def rows_in(config: Config) -> list[tuple[str, int]]:
    """Return table and id of all rows in the log, in order."""
    found: list[tuple[int, str, int]] = []
    for segment in open_chain(list_segments(config.layout.log)):
        with segment:
            for entry in segment.row_frames():
                rows = segment.read_rows(entry)
                for row in rows.batch.to_pylist():
                    image = row["after"] or row["before"]
                    found.append((row["gsn"], rows.relation.name, image["id"]))
    return [(table, number) for _, table, number in sorted(found)]


def request(config: Config, table: TableName, capture: Capture) -> None:
    """Request a table's capture, as `penstock table` does."""
    file = StateFile(config.layout.state / REQUESTS_FILE, TableRequests)
    known = file.load() or TableRequests()
    number = known.serial + 1
    file.save(known.with_request(TableRequest(table=table, capture=capture, capture_id=number)))


def test_a_new_log_begins_at_the_present(case: Case) -> None:
    """Earlier changes are not in it; a restart continues, and an idle end moves."""
    case.insert(1)
    config = case.config()
    assert not extraction.has_begun(pipeline_of(config))
    begin = case.writer.last
    assert case.extract(config).end.position - begin in (0, 1)  # 1: it was silent for longer
    assert extraction.has_begun(pipeline_of(config))
    case.insert(2, 3)
    case.extract(config)
    last = case.insert(4)
    newest = case.writer.idle()
    assert newest > last
    assert case.extract(config).end.position - newest in (0, 1)
    assert rows_in(config) == [("t", 2), ("t", 3), ("t", 4)]


def test_a_new_log_begins_at_start_lsn(case: Case) -> None:
    """Changes after that commit are in it."""
    first = case.insert(1)
    case.insert(2)
    config = case.config(startLsn=str(SqlServerLsn(first)))
    case.extract(config)
    assert rows_in(config) == [("t", 2)]


def test_a_start_lsn_that_is_gone_or_to_come_is_refused(case: Case) -> None:
    """The hint names a place that can be used."""
    first = case.insert(1)
    case.insert(2)
    case.server.clean_up(case.writer.last)
    case.insert(3)
    with pytest.raises(ChangesLost, match="startLsn") as raised:
        case.extract(case.config(startLsn=str(SqlServerLsn(first))))
    assert str(SqlServerLsn(case.server.instances[0].start)) in str(raised.value.hint)
    with pytest.raises(PositionAhead, match="startLsn"):
        case.extract(case.config(startLsn=str(SqlServerLsn(case.writer.last + 2))))


def test_a_database_or_table_without_capture_is_refused(case: Case) -> None:
    """The hints are the statements that enable it; nothing is begun."""
    case.server.add_table("u", COLUMNS)
    config = case.config()
    with pytest.raises(InstanceMissing, match=r"dbo\.u") as raised:
        case.extract(config)
    assert "EXEC sys.sp_cdc_enable_table" in str(raised.value.hint)
    assert not extraction.has_begun(pipeline_of(config))
    case.server.is_enabled = False
    with pytest.raises(CdcDisabled, match="shop") as disabled:
        extraction.identity(config)
    assert "sys.sp_cdc_enable_db" in str(disabled.value.hint)


def test_a_loss_while_the_pipeline_is_stopped_stops_it(case: Case) -> None:
    """Instances are remembered beside the log."""
    config = case.config()
    case.extract(config)
    case.insert(1)
    case.server.clean_up(case.writer.last)
    case.insert(2)
    with pytest.raises(ChangesLost):
        case.extract(config)
    assert rows_in(config) == []


def test_a_restored_database_stops_the_pipeline(case: Case) -> None:
    """The server had captured once everything that the log has."""
    config = case.config()
    case.extract(config)
    for number in (1, 2):
        case.insert(number)
        case.extract(config)
    case.server.commits = case.server.commits[:-1]
    with pytest.raises(PositionAhead):
        case.extract(config)


def test_a_table_is_added_and_removed_by_request(case: Case) -> None:
    """A table that is enabled later is captured once it was requested, if there is a target."""
    config = case.config()
    case.extract(config)
    other = case.server.add_table("u", COLUMNS)
    case.server.capture(other, start=case.writer.next_lsn())
    case.insert(1, table=other)
    case.insert(2)
    case.extract(config)
    request(config, other.name, Capture.ADDED)
    case.extract(config)
    case.insert(3, table=other)
    case.extract(config)
    assert rows_in(config) == [("t", 2), ("u", 3)]
    request(config, case.table.name, Capture.REMOVED)
    case.extract(config)
    case.insert(4)
    case.insert(5, table=other)
    case.extract(config)
    assert rows_in(config) == [("t", 2), ("u", 3), ("u", 5)]


def test_a_table_that_is_not_enabled_cannot_be_added(case: Case) -> None:
    """The answer has the statement that enables it."""
    config = case.config()
    case.extract(config)
    other = case.server.add_table("u", COLUMNS)
    request(config, other.name, Capture.ADDED)
    case.extract(config)
    _, answers = RequestFiles(StateFilesOf(config)).read()
    answer = answers.of(other.name)
    assert answer is not None
    assert answer.code == "MS04"
    assert "sp_cdc_enable_table" in answer.hint


class StateFilesOf:
    """State files of a pipeline."""

    def __init__(self, config: Config) -> None:
        self._folder = config.layout.state

    def load(self, name: str, kind: type[Any]) -> Any:
        """Return a state."""
        return StateFile(self._folder / name, kind).load()

    def save(self, name: str, state: Any) -> None:
        """Save a state."""
        StateFile(self._folder / name, type(state)).save(state)


# --- positions of Wirekite's guide ----------------------------------------------------------------


def test_the_position_is_that_of_capture_then_of_the_group_then_of_the_log(case: Case) -> None:
    """Fallbacks are asked only if nothing was ever captured; a refusal goes on to the next."""
    session = case.server.open()
    assert present_place(session).position == case.begin
    case.server.commits.clear()
    case.server.hadr = "39000000188000005"
    case.server.log_commit = "00000027:00000900:0001"
    place = present_place(session)
    assert str(SqlServerLsn(place.position)) == "00000027:00000758:0005"
    case.server.failing[statements.HADR_COMMIT] = server_error("", 300, "", "denied")
    assert str(SqlServerLsn(present_place(session).position)) == "00000027:00000900:0001"
    case.server.failing[statements.LOG_COMMIT] = server_error("", 208, "", "no fn_dblog")
    place = present_place(session)
    assert place.position == case.server.instances[0].start
    assert not any("MAX(" in sql and "dblog" not in sql for sql, _ in case.server.sent)


def test_the_handover_notes_its_position_before_anything_is_read(case: Case) -> None:
    """A process that continues it begins at the same place; the four steps are written down."""
    config = case.config("data+change")
    pipeline = pipeline_of(config)
    session = case.server.open()
    begin = handover.prepare(pipeline, session, tables=case.server.definitions(), has_begun=False)
    case.insert(1)
    assert begin == case.begin
    assert handover.prepare(pipeline, session, tables=(), has_begun=False) == begin
    session.close()
    state = read_handover(config)
    assert state is not None
    assert [step.number for step in state.steps] == [1, 2, 3, 4]
    assert state.tables == ("dbo.t",)
    point = state.point(SqlServerLsn)
    assert point is not None
    assert point.position.ordinal == begin
    case.extract(config)
    assert rows_in(config) == [("t", 1)]


def test_a_log_without_a_bulk_load_is_refused(case: Case) -> None:
    """Mode change was followed by data+change in the same directory."""
    case.extract(case.config())
    with pytest.raises(LogWithoutBulkLoad):
        case.extract(case.config("data+change"))


def test_lag_is_the_age_of_the_first_captured_change_that_the_log_lacks(case: Case) -> None:
    """An idle source has none."""
    reader = lag.SQLServerLagReader(case.config(), "test")
    here = LogEnd(log_id="x", end=FlushPoint(position=case.begin), has_writer=True)
    state = reader.state(here)
    assert (state.position, state.unread and state.unread.commit_us) == (case.begin, None)
    case.server.answers.update({lag.OLDEST: [(90,)]})
    newest = case.insert(1)
    state = reader.state(here)
    assert state.position == newest
    assert state.unread is not None
    assert state.unread.commit_us is not None
    assert state.unread.commit_us < state.now_us
    assert not state.counts_bytes
    kept = reader.retention()
    assert kept is not None
    assert (kept.age_s, kept.expires_s) == (90.0, 4320 * 60)
    case.server.failing[statements.JOBS] = server_error("", 916, "", "msdb")
    assert reader.retention() is None
    reader.close()
    assert reader.is_closed


def test_positions_are_printed_and_read(case: Case) -> None:
    """Also those of the binary and decimal spellings; bytes are known within one log file."""
    found = positions.positions_of(case.config())
    number = found.parse("39000000188000005")
    assert found.text(number) == "00000027:00000758:0005"
    assert found.origin(number) == "00000027"
    later = found.parse("00000027:00000760:0001")
    assert bytes_between(number, later) == 8 * 512
    assert bytes_between(later, number) == 0
    assert bytes_between(number, found.parse("00000028:00000001:0001")) == 1
    engine = SQLServerEngine(
        case.server.open,
        tables=case.server.definitions,
        selects=lambda _: True,
        asks=False,
        options=OPTIONS,
    )
    assert engine.text(number) == found.text(number)
    with engine.heartbeats() as send:
        send(1)
    assert case.server.sent == []


def test_nothing_is_made_at_the_source(case: Case) -> None:
    """A reset has nothing to remove there."""
    config = case.config()
    assert list(reset.find_removals(config, None)) == []
    assert reset.owner(config, log_id="x") == ""
    with pytest.raises(ValueError, match="not a removal"):
        reset.remove(config, None, Removal(what="x", statements=()))
    assert extraction_of(config) is not None
