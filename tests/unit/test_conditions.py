"""Rare conditions: each one is constructed, and recognised by its error class."""

from __future__ import annotations

import os
from collections import deque
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest
from psycopg.errors import AdminShutdown, NumericValueOutOfRange

from harness.pipelines.pipeline import pipeline
from penstock.codec.mysql.binlog_events import EventKind
from penstock.codec.postgres.copy_binary import Unwritable
from penstock.control.pipeline import table_requests
from penstock.control.pipeline.actions import StopRequest
from penstock.control.run import bulk_load, demo, supervisor
from penstock.control.run.child_ends import HalfFailed, HalfKilled
from penstock.control.verify.repair import Repair, RepairUnequal
from penstock.engines.mysql.source.assemble import Assembler
from penstock.engines.mysql.source.unsupported import ChangesMissing, TransactionUndone
from penstock.engines.postgres.source.source_identity import ServerTooOld, identify
from penstock.engines.postgres.target import merge_tables as sending
from penstock.engines.postgres.target import schema
from penstock.engines.postgres.target.target import require
from penstock.host import server_process
from penstock.host.clock import REAL_CLOCK
from penstock.host.files import REAL_FILES, DirectoryLock
from penstock.host.process import Child, ProcessNotStarted
from penstock.load.ledger import STATE_FILE, LedgerUnreadable, read_ledger
from penstock.load.sql_target import LogGap, SegmentForeign, Stager
from penstock.model import TableDefinition, TableName
from penstock.model.policies import SchemaChangeNotApplied
from penstock.ports.bulk import NamesCollide, check_names
from penstock.ports.config import Config
from penstock.ports.identity import (
    DirectoryOfOtherPipeline,
    SourceIdentity,
    StateUnreadable,
    check_identity,
    unreadable,
)
from penstock.ports.loading import BatchOptions
from penstock.ports.target import (
    Applied,
    StagingFailed,
    StagingLost,
    TargetSchemaMissing,
    TargetTableMissing,
)
from penstock.web import tasks

URL = "postgresql://u@127.0.0.1:1/d"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A pipeline whose servers are missing."""
    return pipeline(tmp_path, URL, URL)


# -- the log that a loader reads ---------------------------------------------------------------


def segment(log_id: str, after: int, last: int) -> Any:
    """Return the attributes of a segment that has the rows after `after` up to `last`."""
    return SimpleNamespace(
        path=Path("7.ckt"),
        header=SimpleNamespace(log_id=log_id),
        start=SimpleNamespace(gsn=after),
        end=SimpleNamespace(gsn=last),
    )


@pytest.fixture
def stager() -> Stager:
    """A stager of the log `ours` that stops before it asks a target."""
    options = BatchOptions(
        url=URL, log_id="ours", namespaces={}, threads_max=1, extension="ckt", starts={}
    )
    unused: Any = None
    return Stager(unused, unused, options)


@pytest.mark.parametrize(("after", "last"), [(11, 20), (0, 9)])
def test_a_segment_that_does_not_continue_is_a_gap(stager: Stager, after: int, last: int) -> None:
    """Rows are missing in front of it, or the target is ahead of it: no part of it is applied."""
    with pytest.raises(LogGap, match=f"rows {after + 1} to {last}.*up to 10"):
        stager._check([segment("ours", after, last)], Applied(gsn=10))


@pytest.mark.parametrize("after", [10, 4])
def test_a_segment_that_continues_is_taken(stager: Stager, after: int) -> None:
    """The segment begins after the applied rows, or before their end if partly applied."""
    stager._check([segment("ours", after, 20), segment("ours", 20, 30)], Applied(gsn=10))


def test_a_segment_of_another_log_is_foreign(stager: Stager) -> None:
    """A segment of another log is refused whatever its numbers and its place are."""
    with pytest.raises(SegmentForeign, match="belongs to change log theirs, expected ours"):
        stager._check([segment("ours", 10, 20), segment("theirs", 20, 30)], Applied(gsn=10))


# -- repair ------------------------------------------------------------------------------------


def test_a_repair_that_does_not_make_equal_is_refused(config: Config) -> None:
    """The rows are summed again before the commit: a remaining difference rolls everything back."""
    made = Repair(
        config=config,
        source=SimpleNamespace(),  # type: ignore[arg-type]
        target=SimpleNamespace(dialect=SimpleNamespace(bucket_query=lambda *_: "select")),  # type: ignore[arg-type]
        hasher=SimpleNamespace(),  # type: ignore[arg-type]
        servers=None,
        applied=Applied(),
        tell=lambda _: None,
    )
    one: Any = SimpleNamespace(
        pair=SimpleNamespace(target=TableName("public", "t")),
        parts=[None],
        images=[None, None],
        buckets=1,
        source_sums={0: (2, 5, 7)},
    )
    same: Any = SimpleNamespace(fetch=lambda *_: [(0, 2, 5, 7)])
    made._check_equal(one, same)
    for found in ([(0, 1, 5, 7)], [(0, 2, 5, 8)], []):
        other: Any = SimpleNamespace(fetch=lambda *_, found=found: found)
        with pytest.raises(RepairUnequal, match=r"public\.t would still differ"):
            made._check_equal(one, other)


# -- state and directories ---------------------------------------------------------------------


def test_a_directory_of_another_pipeline(config: Config) -> None:
    """The name decides, before any server is asked."""
    ours = SourceIdentity(
        pipeline="shop",
        engine="postgresql",
        system_id="1",
        timeline=1,
        database="d",
        database_id=1,
        slot="s",
        publication="p",
    )
    check_identity(config, ours, ours)
    with pytest.raises(DirectoryOfOtherPipeline, match="other"):
        check_identity(config, replace(ours, pipeline="other"), ours)
    assert isinstance(unreadable(Path("x"), ValueError()), StateUnreadable)


def test_a_ledger_that_cannot_be_read(tmp_path: Path) -> None:
    """The rows of the target that belong to penstock are unknown without the ledger."""
    (tmp_path / STATE_FILE).write_text("{")
    with pytest.raises(LedgerUnreadable):
        read_ledger(tmp_path)


def test_requests_of_another_command(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that waits too long says so."""
    monkeypatch.setattr(table_requests, "LOCK_WAIT_S", -1.0)
    REAL_FILES.make_directory(config.layout.state)
    lock = DirectoryLock(config.layout.state, table_requests.LOCK)
    try:
        with pytest.raises(table_requests.RequestsBusy), table_requests._lock(config):
            pytest.fail("the lock is another session's")
    finally:
        lock.release()


def test_two_tables_that_would_be_one(config: Config) -> None:
    """A map may join two schemas."""
    two = [
        TableDefinition(name=TableName(schema, "t"), columns=(), source_id=0)
        for schema in ("a", "b")
    ]
    check_names(two, {})
    with pytest.raises(NamesCollide, match=r"x\.t in the target"):
        check_names(two, {"a": "x", "b": "x"})


def test_the_point_of_a_handover_does_not_come(config: Config) -> None:
    """The load process does not wait without end for a missing extract process."""
    with pytest.raises(bulk_load.HandoverFailed):
        bulk_load.wait_for_point(config, stop=lambda: False, timeout_s=-1.0)


# -- processes and machines --------------------------------------------------------------------


def test_a_process_that_cannot_be_started() -> None:
    """The operating system's reason is shown."""
    with pytest.raises(ProcessNotStarted, match="No such file"):
        Child(["/no/such/program"], on_line=lambda _: None)


def test_how_a_process_ended(tmp_path: Path) -> None:
    """The error is the last one that the process printed, or its exit code and its log's name."""
    with (tmp_path / "load.log").open("w") as log:
        half = supervisor.Half(name="load", arguments=[], diagnostics=log, code=1)
    half.lines = deque(["noise", '{"code": "TG03", "error": "said"}', "more noise"])
    error = half.error()
    assert isinstance(error, HalfFailed)
    assert (error.as_dict()["code"], error.message) == ("TG03", "said")
    half.lines.clear()
    assert half.error().as_dict()["code"] == "CT03"


def test_a_process_that_is_killed_again_and_again(tmp_path: Path) -> None:
    """The process is restarted a limited number of times."""
    stop = StopRequest()
    unused: Any = lambda *_, **__: None  # noqa: E731
    watch = supervisor.Supervisor([], stop, on_event=unused, on_tick=unused)
    with (tmp_path / "load.log").open("w") as log:
        half = supervisor.Half(name="load", arguments=[], diagnostics=log)
    half.started_s = REAL_CLOCK.monotonic_s()
    for _ in range(supervisor.RESTARTS_MAX):
        watch._was_killed(half, -9)
        assert watch._failure is None
    watch._was_killed(half, -9)
    assert isinstance(watch._failure, HalfKilled)
    assert "SIGKILL" in watch._failure.message
    assert stop()


def test_java_that_is_missing_for_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing Java is found before a server is started."""
    monkeypatch.setattr(demo, "java_version", lambda: None)
    with pytest.raises(demo.DemoNeedsJava):
        demo.require_java()


def test_a_machine_without_an_account_for_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers do not run as root, and there is no other account."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(server_process, "ACCOUNTS", ())
    with pytest.raises(server_process.NoUnprivilegedAccount):
        server_process.unprivileged_account()


def test_a_folder_that_the_server_cannot_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is refused before a file is put there."""
    monkeypatch.setattr(server_process, "enterable", lambda *_: False)
    with pytest.raises(server_process.EmbeddedDirectoryUnusable):
        server_process.ServerFolder(tmp_path / "data", prefix="x")


def test_more_tasks_than_the_web_interface_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each comparison costs both servers time."""
    monkeypatch.setattr(tasks, "TASKS_MAX", 0)
    with pytest.raises(tasks.TooManyTasks):
        tasks.Tasks().begin("shop", tasks.TaskKind.DOCTOR, tmp_path / "shop.toml")


# -- servers -----------------------------------------------------------------------------------


def test_a_server_that_is_too_old() -> None:
    """The server's version is known before the first question."""
    old: Any = SimpleNamespace(server_version=13, settings={"server_version": "13.9"})
    with pytest.raises(ServerTooOld, match="13"):
        identify(old)


def test_a_target_that_lacks_a_table() -> None:
    """The error names the table."""
    with pytest.raises(TargetTableMissing, match=r"public\.t"):
        require({}, TableName("public", "t"))


def test_a_schema_that_may_not_be_made() -> None:
    """The hint has both ways out: someone else creates it, or grants the right to us."""

    class Target:
        info = SimpleNamespace(dbname="d", user="least")

        def execute(self, sql: str, *_: object) -> Any:
            if sql.startswith("create"):
                raise psycopg.errors.InsufficientPrivilege
            return SimpleNamespace(fetchone=lambda: None)

        def transaction(self) -> Any:
            return nullcontext()

    target: Any = Target()
    with pytest.raises(TargetSchemaMissing) as caught:
        schema._ensure_schema(target, "s")
    assert 'create schema "s" authorization "least"' in caught.value.hint
    assert 'grant create on database "d" to "least"' in caught.value.hint


def test_a_transaction_that_is_undone_after_it_was_given_out() -> None:
    """The transaction's rows may already be on the disk."""
    late = Mock()
    late.decoder.abandon.return_value = False
    with pytest.raises(TransactionUndone):
        Assembler._undo(late)


def test_a_binlog_that_says_itself_that_changes_are_missing() -> None:
    """The event is an INCIDENT, with the server's words."""
    event = bytes(4) + bytes([EventKind.INCIDENT]) + bytes(14) + b"\x01\x00\x04lost"
    with pytest.raises(ChangesMissing, match="lost"):
        Assembler._message(Mock(), event)


def test_a_worker_whose_connection_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker may continue with another connection; a refused value must not be retried."""
    rows: Any = SimpleNamespace(table=TableName("public", "t"), staging="t_wkm")
    for lost in (psycopg.OperationalError("server closed the connection"), AdminShutdown("ended")):
        assert isinstance(sending._staging_error(rows, lost), StagingLost)
    for refused in (NumericValueOutOfRange("too large"), Unwritable("at", 1, "no such time")):
        assert isinstance(sending._staging_error(rows, refused), StagingFailed)


def test_a_change_of_shape_that_was_softened() -> None:
    """The change is kept among the past errors with the table's name."""
    assert SchemaChangeNotApplied.of("public.t", "x").fields["table"] == "public.t"
