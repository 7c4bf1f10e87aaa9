"""What a pipeline is doing, read from the log, the target and the state files only.

Nothing here asks a process of ours: a status is true whether or not one runs. Not here: how it is
shown (`display.py`, `live.py`), and the source's side of the lag (`lag.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from penstock.control.config import Config
from penstock.control.handover_state import Handover, read_handover
from penstock.control.identity import SourceIdentity, stored_identity
from penstock.control.lag import Lag, SourceState, lag_of, log_begin, read_source_state
from penstock.control.log_facts import LogEnd, outstanding_commit_us, read_log_end
from penstock.control.running import ProcessState, processes
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.connect import connect, server_errors
from penstock.load.bulk_progress import BulkProgress, read_progress
from penstock.load.ledger import read_ledger
from penstock.load.postgres.bulk import PostgresCounts
from penstock.load.postgres.progress import read_action, read_applied
from penstock.load.target import Applied
from penstock.model import Lsn, PenstockError

# As document 000 prints them.
CE_ROWS = """
    SELECT source, mark, start_time, finish_time
    FROM wirekite.wirekite_progress
    WHERE operation = 'CE'
    ORDER BY start_time DESC
    LIMIT 5
"""
CL_ROWS = """
    SELECT source, mark, start_time, finish_time
    FROM wirekite.wirekite_progress
    WHERE operation = 'CL'
    ORDER BY start_time DESC
    LIMIT 5
"""
RESTARTS = """
    select coalesce(sum(restarts), 0)::int
      from wirekite.wirekite_progress
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRow:
    """A row of wirekite_progress as the document's query gives it; times are UTC."""

    source: str
    mark: str | None
    start_time: datetime
    finish_time: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """What the target tells."""

    applied: Applied = field(default_factory=Applied)
    action: str = "RUN"
    restarts: int = 0
    extracted: tuple[ProgressRow, ...] = ()
    loaded: tuple[ProgressRow, ...] = ()
    bulk: BulkProgress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """All of it. lag is None, and source_error says why, when the source can not be asked."""

    pipeline: str
    mode: str
    directory: Path
    identity: SourceIdentity | None
    processes: tuple[ProcessState, ...]
    handover: Handover | None
    log: LogEnd
    target: TargetState
    lag: Lag | None
    source_error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The status as `penstock status --json` prints it."""
        return {
            "pipeline": self.pipeline,
            "mode": self.mode,
            "directory": str(self.directory),
            "processes": {process.name: process.pid or None for process in self.processes},
            "action": self.target.action,
            "restarts": self.target.restarts,
            "handover": self.handover.as_dict() if self.handover else None,
            "bulk": msgspec.to_builtins(self.target.bulk),
            "log": {
                "log_id": self.log.log_id,
                "segments": self.log.segments,
                "size_bytes": self.log.size_bytes,
                "next_segment": self.log.number_next,
                "gsn": self.log.end.gsn,
                "trx": self.log.end.trx,
                "position": str(Lsn(self.log.end.position)),
                "done": self.log.done,
            },
            "applied": {
                "gsn": self.target.applied.gsn,
                "trx": self.target.applied.trx,
                "position": str(Lsn(self.target.applied.position)),
            },
            "extracted_files": [_row_dict(row) for row in self.target.extracted],
            "loaded_files": [_row_dict(row) for row in self.target.loaded],
            "lag": self.lag.as_dict() if self.lag else None,
            "source_error": self.source_error,
        }


def _row_dict(row: ProgressRow) -> dict[str, Any]:
    return {
        "source": row.source,
        "mark": row.mark,
        "start_time": _utc_text(row.start_time),
        "finish_time": _utc_text(row.finish_time) if row.finish_time else None,
    }


def _utc_text(moment: datetime) -> str:
    return moment.replace(tzinfo=UTC).isoformat()


class StatusReader:
    """Reads a status again and again on connections that stay open. Used by one thread."""

    def __init__(self, config: Config, *, clock: Clock = REAL_CLOCK) -> None:
        """Nothing is connected before the first read."""
        self._config = config
        self._clock = clock
        self._target: psycopg.Connection | None = None
        self._source: psycopg.Connection | None = None

    def read(self, *, look_into_open: bool = True) -> Status:
        """The status now. look_into_open: read the open segment's end too.

        Raises the typed errors of the target's connection; the source's go into the status.
        """
        config = self._config
        log = read_log_end(config, look_into_open=look_into_open)
        target = self._target_state()
        lag, source_error = self._lag(log, target.applied)
        return Status(
            pipeline=config.pipeline.name,
            mode=str(config.pipeline.mode),
            directory=config.directory,
            identity=stored_identity(config),
            processes=processes(config),
            handover=read_handover(config),
            log=log,
            target=target,
            lag=lag,
            source_error=source_error,
        )

    def _target_state(self) -> TargetState:
        if self._target is None or self._target.closed:
            self._target = connect(self._config.target.url, application_name="penstock status")
        try:
            return read_target_state(self._target, self._config)
        except PenstockError:
            self._target.close()
            raise

    def _lag(self, log: LogEnd, applied: Applied) -> tuple[Lag | None, str]:
        if not self._config.pipeline.mode.has_change:
            return None, ""
        try:
            if self._source is None or self._source.closed:
                self._source = connect(self._config.source.url, application_name="penstock status")
            slot = self._config.change_extractor.replication_slot
            state: SourceState = read_source_state(self._source, slot)
        except PenstockError as error:
            if self._source is not None:
                self._source.close()
            return None, error.message
        outstanding = outstanding_commit_us(self._config, applied.gsn)
        now_us = self._clock.now_us()
        lag = lag_of(
            state,
            log,
            applied,
            outstanding_us=outstanding,
            now_us=now_us,
            begin=log_begin(self._config),
        )
        return lag, ""

    def close(self) -> None:
        """Let go of both connections."""
        for connection in (self._target, self._source):
            if connection is not None:
                connection.close()


def read_status(config: Config) -> Status:
    """The status, once. Raises the typed errors of the target's connection."""
    reader = StatusReader(config)
    try:
        return reader.read()
    finally:
        reader.close()


def at_rest(status: Status) -> Status:
    """The last status of a run that ended because its source was idle: without lag.

    With the slot read by nobody the age of the last commit is told as the most the lag can be;
    but here CHANGE.DONE has just been written, and everything before it is applied. Any other
    status is returned as it is.
    """
    lag = status.lag
    if lag is None or lag.rows or not status.log.done:
        return status
    return replace(status, lag=replace(lag, seconds=0.0))


def read_target_state(connection: psycopg.Connection, config: Config) -> TargetState:
    """What the target's tables in schema wirekite tell; empty before they are made."""
    with server_errors("reading the progress tables"):
        present = connection.execute(
            "select to_regclass('wirekite.wirekite_progress') is not null,"
            "       to_regclass('wirekite.bulk_table') is not null"
        ).fetchone()
        if present is None or not present[0]:
            return TargetState()
        action = read_action(connection)
        return TargetState(
            applied=read_applied(connection),
            action=action,
            restarts=_first(connection, RESTARTS),
            extracted=_progress_rows(connection, CE_ROWS),
            loaded=_progress_rows(connection, CL_ROWS),
            bulk=_bulk(connection, config, action) if present[1] else None,
        )


def _first(connection: psycopg.Connection, query: str) -> int:
    row = connection.execute(query).fetchone()
    return int(row[0]) if row else 0


def _progress_rows(connection: psycopg.Connection, query: str) -> tuple[ProgressRow, ...]:
    return tuple(
        ProgressRow(source=row[0], mark=row[1], start_time=row[2], finish_time=row[3])
        for row in connection.execute(query).fetchall()
    )


def _bulk(connection: psycopg.Connection, config: Config, action: str) -> BulkProgress | None:
    """The bulk load's progress, without rates: what plan and target say together."""
    ledger = read_ledger(config.layout.state)
    if not ledger.plans:
        return None
    paused = "paused" if action == "PAUSE" else "copying"
    phase = "done" if ledger.finished else paused
    return read_progress(PostgresCounts(connection), ledger.plans, phase)
