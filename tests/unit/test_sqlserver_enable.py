"""Enabling of capture at SQL Server: which tables get an instance, and the errors without one.

Not here: the command on a server (`servers/test_sqlserver_enable.py`).
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.pipelines.pipeline import pipeline
from penstock.control.tables.table_commands import RequestRefused, add
from penstock.engines.sqlserver import enable, extraction
from penstock.engines.sqlserver.connect import server_error
from penstock.engines.sqlserver.errors import CdcDisabled, EnablingRefused, InstanceUnreadable
from penstock.engines.sqlserver.source import statements
from penstock.engines.sqlserver.source.instances import Instance
from penstock.host.errors import PrivilegeMissing
from penstock.host.state_file import StateFile
from penstock.model import TableDefinition, TableName
from penstock.model.table_requests import REQUESTS_FILE, Capture, TableRequest, TableRequests

LATE = TableName("dbo", "late")
URL = "sqlserver://app:secret@nowhere/shop"


class FakeSession:
    """Session that answers the statements of enabling.

    Attributes:
        instances: Names of the capture instances of dbo.late.
        refuses: Number of the error of the procedure; 0: none.
    """

    def __init__(self, *instances: str, refuses: int = 0, is_enabled: bool = True) -> None:
        self.instances = list(instances)
        self.refuses, self.is_enabled = refuses, is_enabled
        self.ran: list[str] = []

    def execute(self, sql: str, *_: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        if sql == statements.DATABASE:
            return [("shop", 5, self.is_enabled, "sql1", 3)]
        assert sql == statements.INSTANCES
        start = bytes([7] * 10)
        return [
            (at, 1, name, "2026-03-04", start, start, "dbo", "late", None)
            for at, name in enumerate(self.instances)
        ]

    def run(self, sql: str) -> int:
        """Run the procedure."""
        self.ran.append(sql)
        if self.refuses:
            raise server_error(sql, self.refuses, "", "the server's own words")
        self.instances.append("dbo_late")
        return -1

    def close(self) -> None:
        """Do nothing."""


def enable_with(session: FakeSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    """Enable the capture of dbo.late in a session, and return the session."""
    monkeypatch.setattr(enable, "connect", lambda _: closing(session))
    enable.enable_capture(pipeline(folder, URL, None, tables=["dbo.item"]), [LATE])
    return session


def test_a_table_gets_one_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The procedure is run for a table without an instance, whatever the instance is called."""
    [text] = enable_with(FakeSession(), tmp_path, monkeypatch).ran
    assert text.startswith("EXEC sys.sp_cdc_enable_table @source_schema = N'dbo'")
    assert enable_with(FakeSession("of_others"), tmp_path, monkeypatch).ran == []


def test_a_user_without_the_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint is the command for an administrator."""
    with pytest.raises(PrivilegeMissing, match=r"the capture of dbo\.late") as raised:
        enable_with(FakeSession(refuses=22904), tmp_path, monkeypatch)
    assert "db_owner: EXEC sys.sp_cdc_enable_table" in raised.value.hint
    assert raised.value.fields["errno"] == 22904


def test_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other errors of the procedure have the server's words."""
    with pytest.raises(EnablingRefused, match="the server's own words"):
        enable_with(FakeSession(refuses=35353), tmp_path, monkeypatch)


def test_a_database_without_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database has to be enabled first, by its administrator."""
    with pytest.raises(CdcDisabled, match="not enabled"):
        enable_with(FakeSession(is_enabled=False), tmp_path, monkeypatch)


def test_waiting_for_an_instance_ends() -> None:
    """An instance whose lowest LSN stays zero is an error after the time; one above it is not."""
    slept: list[float] = []
    hidden, shown = (
        Instance(
            name="dbo_late", object_id=1, source_id=2, table=LATE, created="", start=7, least=least
        )
        for least in (0, 7)
    )
    looks = iter(([], [hidden], [shown]))
    enable.wait_readable(lambda: next(looks), LATE, sleep=slept.append)
    assert len(slept) == 2
    with pytest.raises(InstanceUnreadable, match=r"dbo\.late"):
        enable.wait_readable(lambda: [hidden], LATE, timeout_s=3, sleep=slept.append)
    assert sum(slept[2:]) == 3


def test_other_sources_refuse_the_flag(tmp_path: Path) -> None:
    """PostgreSQL is not asked: its publication is altered without a flag."""
    config = pipeline(tmp_path, "postgresql://app@nowhere/shop", None)
    with pytest.raises(RequestRefused, match="--enable is for a source"):
        add(config, TableName("public", "late"), enables=True)


def test_tables_that_were_added_later_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extractor began with other tables; a request adds one to them."""
    config = pipeline(tmp_path, URL, None, tables=["dbo.item"])
    item, late = (
        TableDefinition(name=TableName("dbo", name), source_id=1, columns=())
        for name in ("item", "late")
    )
    asked: list[tuple[str, ...]] = []

    def read(_session: object, patterns: tuple[str, ...], **_: Any) -> list[TableDefinition]:
        asked.append(patterns)
        return [late]

    monkeypatch.setattr(extraction, "connect", lambda _: closing(FakeSession()))
    monkeypatch.setattr(extraction, "captured_tables", read)
    assert extraction.with_added(config, [item]) == [item]
    config.layout.state.mkdir(parents=True)
    requests = TableRequests(
        tables=(
            TableRequest(table=LATE, capture=Capture.ADDED, capture_id=1),
            TableRequest(table=item.name, capture=Capture.ADDED, capture_id=2),
        )
    )
    StateFile(config.layout.state / REQUESTS_FILE, TableRequests).save(requests)
    assert extraction.with_added(config, [item]) == [item, late]
    assert asked == [("dbo.late",)]
