"""What a pipeline is doing, read from the log, the target and the state files only.

Nothing here asks a process of ours: a status is true whether or not one runs. Not here: how it is
shown (`display.py`, `live.py`), and the two servers' sides (`lag.py`, `target_state.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from penstock.control.config import Config
from penstock.control.handover_state import Handover, read_handover
from penstock.control.identity import SourceIdentity, stored_identity
from penstock.control.lag import Lag, lag_of, log_begin
from penstock.control.log_facts import LogEnd, outstanding_commit_us, read_log_end
from penstock.control.positions import LsnPositions, Positions, positions_of
from penstock.control.running import ProcessState, processes
from penstock.control.source_reader import SourceReader, open_source
from penstock.control.target_state import (
    ProgressRow,
    TargetReader,
    TargetState,
    open_target_reader,
    read_target_state,
)
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.load.apart import ApartState
from penstock.load.target import Applied
from penstock.model import PenstockError

NAME = "penstock status"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """All of it. lag is None, and source_error says why, when the source can not be asked.

    positions: how the source writes them.
    """

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
    positions: Positions = field(default_factory=LsnPositions, compare=False)

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
            "apart": {
                str(table): str(row.state)
                for table, row in self.target.apart.items()
                if row.state is not ApartState.FOLLOWING
            },
            "log": {
                "log_id": self.log.log_id,
                "segments": self.log.segments,
                "size_bytes": self.log.size_bytes,
                "next_segment": self.log.number_next,
                "gsn": self.log.end.gsn,
                "trx": self.log.end.trx,
                "position": self.positions.text(self.log.end.position),
                "done": self.log.done,
            },
            "applied": {
                "gsn": self.target.applied.gsn,
                "trx": self.target.applied.trx,
                "position": self.positions.text(self.target.applied.position),
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
        self._target: TargetReader | None = None
        self._source: SourceReader | None = None

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
            positions=positions_of(config),
        )

    def _target_state(self) -> TargetState:
        if self._target is None or self._target.is_closed:
            self._target = open_target_reader(self._config.target.url, application_name=NAME)
        try:
            return read_target_state(self._target, self._config)
        except PenstockError:
            self._target.close()
            raise

    def _lag(self, log: LogEnd, applied: Applied) -> tuple[Lag | None, str]:
        if not self._config.pipeline.mode.has_change:
            return None, ""
        try:
            if self._source is None or self._source.is_closed:
                self._source = open_source(self._config, application_name=NAME)
            state = self._source.state(log)
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
            positions=positions_of(self._config),
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
