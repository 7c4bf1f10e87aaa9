"""How far the target is behind the source, read from the source, the log and the target.

Seconds are of commit times, so that an idle pipeline has no lag: nothing is outstanding. Not
here: the query of document 000, which counts from the last finished file and grows when idle, and
asking the source (`lag` of each engine).
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from penstock.control.log_facts import outstanding_commit_us, read_log_end
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.ports.config import Config
from penstock.ports.handover import log_begin
from penstock.ports.lag import LogEnd, SourceState, open_source
from penstock.ports.positions import PlainPositions, Positions, positions_of
from penstock.ports.progress import open_progress
from penstock.ports.target import Applied


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far behind.

    seconds: the age of the oldest commit that is not applied yet; 0 when none is outstanding.
    slot_bytes: WAL the source has written behind the slot. applied_bytes: WAL between what is
    applied and the source's present end, other databases' and the server's own included.
    rows: row changes in the log that are not applied. extracting: somebody reads the slot.
    positions: how the source writes them.
    """

    seconds: float
    slot_bytes: int
    applied_bytes: int
    rows: int
    extracting: bool
    source_position: int
    log_position: int
    applied_position: int
    applied_commit_us: int
    positions: Positions = field(default_factory=PlainPositions, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """The lag as `penstock lag --json` prints it; positions as the source writes them."""
        return {
            "lag_seconds": round(self.seconds, 3),
            "extract_lag_bytes": self.slot_bytes,
            "slot_lag_bytes": self.slot_bytes,
            "applied_lag_bytes": self.applied_bytes,
            "rows_outstanding": self.rows,
            "extracting": self.extracting,
            "source_position": self.positions.text(self.source_position),
            "log_position": self.positions.text(self.log_position),
            "applied_position": self.positions.text(self.applied_position),
        }


def lag_of(
    source: SourceState,
    log: LogEnd,
    applied: Applied,
    *,
    outstanding_us: int | None,
    now_us: int,
    begin: int = 0,
    positions: Positions | None = None,
) -> Lag:
    """Put the three together. Pure.

    outstanding_us: commit time of the first row in the log that is not applied; None: there is
    none. With nothing in the log and no reader on the slot it is not known whether what the source
    has written since concerns this pipeline: then the age of the last applied commit is reported,
    which is the most it can be. begin: the position where the log begins, for as long as nothing is
    applied.
    """
    seconds = 0.0
    if outstanding_us is not None:
        seconds = max((now_us - outstanding_us) / 1e6, 0.0)
    elif source.unread is not None:
        if source.unread.commit_us is not None:
            seconds = max((now_us - source.unread.commit_us) / 1e6, 0.0)
    elif source.slot_active and source.slot_lag_bytes:
        seconds = source.flush_lag_s
    elif source.slot_lag_bytes and applied.commit_time_us:
        seconds = max((now_us - applied.commit_time_us) / 1e6, 0.0)
    # Once everything in the log is applied, the target is where the log is.
    at = max(applied.position, log.end.position) if outstanding_us is None else applied.position
    at = max(at, begin)
    return Lag(
        seconds=seconds,
        slot_bytes=source.slot_lag_bytes,
        applied_bytes=source.bytes_behind(at) if at else 0,
        rows=max(log.end.gsn - applied.gsn, 0),
        extracting=source.slot_active,
        source_position=source.position,
        log_position=log.end.position,
        applied_position=at,
        applied_commit_us=applied.commit_time_us,
        positions=positions or PlainPositions(),
    )


def read_lag(config: Config, clock: Clock = REAL_CLOCK) -> Lag:
    """Read all three places and compute the lag. Raises their typed errors."""
    name = "penstock lag"
    with closing(open_progress(config.target.url, application_name=name)) as target:
        applied = target.read_applied()
    log = read_log_end(config)
    with closing(open_source(config, application_name=name)) as source:
        state = source.state(log)
    return lag_of(
        state,
        log,
        applied,
        outstanding_us=outstanding_commit_us(config, applied.gsn),
        now_us=clock.now_us(),
        begin=log_begin(config),
        positions=positions_of(config),
    )
