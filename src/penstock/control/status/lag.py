"""Lag of the target behind the source, read from the source, the log and the target.

Without a target it is the log's lag: changes in the log count as applied. The target's state is
in the tables of its schema or database `wirekite`.

Seconds are of commit times, by the source's clock: the age of the oldest commit that is not visible
in the target. 0 is reported only if it is known that nothing is outstanding; an unknown lag is
unknown. Not here: the query of Wirekite's guide, which counts from the last finished file and grows
when idle, asking the source (`lag` of each engine), and reading the tables (`target_state` of each
engine).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.control.pipeline.display import human_seconds
from penstock.control.pipeline.log_facts import outstanding_commit_us, read_log_end
from penstock.load.bulk_progress import BulkProgress, read_progress
from penstock.load.ledger import read_ledger
from penstock.model import TableName
from penstock.ports.config import Config
from penstock.ports.handover import log_begin
from penstock.ports.lag import LogEnd, SourceState, open_source
from penstock.ports.lake import FACTS_PART, TableFacts
from penstock.ports.positions import PlainPositions, Positions, positions_of
from penstock.ports.progress import ProgressRow, TargetReader, Unfinished, open_target_reader
from penstock.ports.registry import engine_at
from penstock.ports.target import Applied, TableSync


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """State of the target.

    unknown: the target could not be asked so far, so the other fields mean nothing. present: it has
    our tables. lake: facts of a lake's tables by their names, as the loader has written them.
    """

    unknown: bool = False
    present: bool = True
    applied: Applied = field(default_factory=Applied)
    action: str = "RUN"
    restarts: int = 0
    extracted: tuple[ProgressRow, ...] = ()
    loaded: tuple[ProgressRow, ...] = ()
    bulk: BulkProgress | None = None
    table_syncs: Mapping[TableName, TableSync] = field(default_factory=dict)
    lake: Mapping[str, TableFacts] = field(default_factory=dict)
    unfinished: Unfinished = field(default_factory=Unfinished)


def read_target_state(reader: TargetReader, config: Config) -> TargetState:
    """Return the state in the target's tables; empty before they are created."""
    progress, bulk = reader.present()
    if not progress:
        return TargetState(present=False)
    action = reader.action()
    return TargetState(
        applied=reader.read_applied(),
        action=action,
        restarts=reader.restarts(),
        extracted=tuple(reader.newest("CE")),
        loaded=tuple(reader.newest("CL")),
        bulk=_bulk(reader, config, action) if bulk else None,
        table_syncs=reader.table_syncs(),
        lake=_lake(config),
        unfinished=reader.read_unfinished(),
    )


def _lake(config: Config) -> Mapping[str, TableFacts]:
    engine = engine_at(config.target.url)
    return engine.part(FACTS_PART)(config.target.url) if FACTS_PART in engine.parts else {}


def _bulk(reader: TargetReader, config: Config, action: str) -> BulkProgress | None:
    """Return the bulk load's progress, without rates: from the plan and the target."""
    ledger = read_ledger(config.layout.state)
    if not ledger.plans:
        return None
    paused = "paused" if action == "PAUSE" else "copying"
    phase = "done" if ledger.finished else paused
    return read_progress(reader.counts, ledger.plans, phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Lag of a pipeline.

    Attributes:
        seconds: The age of the oldest commit that is not visible in the target; 0 if none is
            outstanding; None if it is not known.
        slot_bytes: Bytes that the source has written after the log's end.
        applied_bytes: Bytes of its log from the applied position to its present end, including
            other databases' and the server's own.
        rows: Row changes in the log that are not applied.
        extracting: An extractor reads the source.
        confirmed_position: The position that the source knows.
        positions: The form in which the source writes positions.
        at_most: The lag can be less, because the source's latest writes may not be of a captured
            table.
        unknown: Why seconds is None.
        has_target: Whether it is the lag of a target; else of the log, without applied changes.
        counts_bytes: Whether the source's positions have bytes, and its end is known; else both are
            0.
    """

    seconds: float | None
    at_most: bool = False
    unknown: str = ""
    slot_bytes: int
    applied_bytes: int
    rows: int
    extracting: bool
    source_position: int
    log_position: int
    applied_position: int
    applied_commit_us: int
    has_target: bool = True
    counts_bytes: bool = True
    confirmed_position: int = 0
    positions: Positions = field(default_factory=PlainPositions, compare=False)

    @property
    def words(self) -> str:
        """Seconds for people: `2.0 s`, `at most 2.0 s`, `unknown: why`."""
        if self.seconds is None:
            return f"unknown: {self.unknown}"
        return f"{'at most ' if self.at_most else ''}{human_seconds(self.seconds)}"

    def as_dict(self) -> dict[str, Any]:
        """Return the lag as `penstock lag --json` prints it; positions in the source's form."""
        counted = self.slot_bytes if self.counts_bytes else None
        has_applied = self.has_target and self.counts_bytes
        return {
            "lag_seconds": None if self.seconds is None else round(self.seconds, 3),
            "lag_is_at_most": self.at_most,
            "lag_unknown": self.unknown or None,
            "extract_lag_bytes": counted,
            "slot_lag_bytes": counted,
            "applied_lag_bytes": self.applied_bytes if has_applied else None,
            "rows_outstanding": self.rows if self.has_target else None,
            "extracting": self.extracting,
            "source_position": self.positions.text(self.source_position)
            if self.counts_bytes
            else None,
            "log_position": self.positions.text(self.log_position),
            "applied_position": self.positions.text(self.applied_position)
            if self.has_target
            else None,
        }


def lag_of(
    source: SourceState,
    log: LogEnd,
    applied: Applied,
    *,
    outstanding_us: int | None,
    watermark_us: int = 0,
    why_unknown: str = "",
    begin: int = 0,
    positions: Positions | None = None,
) -> Lag:
    """Compute the lag from source, log and target. Pure.

    Args:
        source: The source's state.
        log: The log's end.
        applied: How far the target is.
        outstanding_us: Commit time of the first transaction in the log that is not applied; None:
            there is none.
        watermark_us: That of the caller; see `Watermark`.
        why_unknown: Why the seconds cannot be known in any case.
        begin: The position where the log begins, as long as nothing is applied.
        positions: The form in which the source writes positions.
    """
    seconds, at_most, why = None, False, why_unknown
    if not why:
        seconds, at_most = _seconds(source, log, applied, outstanding_us, watermark_us)
        why = "" if seconds is not None else _NOT_READ
    # Once everything in the log is applied, the target's position is the log's.
    at = max(applied.position, log.end.position) if outstanding_us is None else applied.position
    at = max(at, begin)
    return Lag(
        seconds=seconds,
        at_most=at_most,
        unknown=why,
        slot_bytes=source.slot_lag_bytes,
        applied_bytes=source.bytes_behind(at) if at else 0,
        rows=max(log.end.gsn - applied.gsn, 0),
        extracting=source.slot_active,
        counts_bytes=source.counts_bytes,
        confirmed_position=source.confirmed,
        source_position=source.position,
        log_position=log.end.position,
        applied_position=at,
        applied_commit_us=applied.commit_time_us,
        positions=positions or PlainPositions(),
    )


_NOT_READ = "the source has written more than the log has, and since when is not known"


def _seconds(
    source: SourceState,
    log: LogEnd,
    applied: Applied,
    outstanding_us: int | None,
    watermark_us: int,
) -> tuple[float | None, bool]:
    """Return the lag, and whether it is only an upper bound.

    Changes in the log were committed before all others, so its first transaction decides. After
    the log the source knows the first commit, or nothing was committed before the watermark, nor
    before the log's last commit.
    """
    if outstanding_us is not None:
        return max((source.now_us - outstanding_us) / 1e6, 0.0), False
    # Not the position that the source knows as confirmed: it may be later than the read log.
    read_to = max(log.end.position, applied.position)
    if source.counts_bytes and not source.bytes_behind(read_to):
        return 0.0, False
    if source.unread is not None:
        since_us = source.unread.commit_us
        if since_us is None:
            return 0.0, False
    else:
        since_us = max(
            watermark_us, log.watermark_us, log.end.commit_time_us, applied.commit_time_us
        )
    if not since_us:
        return None, False
    return max((source.now_us - since_us) / 1e6, 0.0), True


def why_unknown(config: Config, source: SourceState, log: LogEnd, target: TargetState) -> str:
    """Return why the lag is not known though both servers answer; empty if it is known."""
    if not log.log_id:
        return "nothing is extracted yet"
    if not source.slot_exists:
        return "the source does not have this pipeline's replication slot"
    if not config.has_target:
        return ""
    if config.pipeline.mode.has_data and not read_ledger(config.layout.state).finished:
        return "the tables are not loaded yet"
    if not target.present:
        return "nothing is loaded yet"
    if target.applied.trx > log.end.trx:
        return "the target has more than the change log, so it follows another one"
    return ""


def assess_lag(
    config: Config,
    source: SourceState,
    log: LogEnd,
    target: TargetState,
    *,
    watermark_us: int = 0,
) -> Lag:
    """Return the lag of a pipeline, from the states of log, target and source.

    They are asked in this order, so a lag of 0 is still true when the source answers. Raises the
    errors of reading the log. watermark_us: the caller's own, for this end of the log.
    """
    if target.applied.trx > log.end.trx:  # the log grew between the two reads
        log = read_log_end(config)
    applied = target.applied if config.has_target else _all_of(log)
    why = why_unknown(config, source, log, target)
    outstanding_us = None
    if not why and log.end.trx > applied.trx:
        outstanding_us = outstanding_commit_us(config, applied)
        if outstanding_us is None:
            why = "the change log does not have what the target lacks"
    found = lag_of(
        source,
        log,
        applied,
        outstanding_us=outstanding_us,
        watermark_us=watermark_us,
        why_unknown=why,
        begin=log_begin(config),
        positions=positions_of(config),
    )
    return replace(found, has_target=config.has_target)


def _all_of(log: LogEnd) -> Applied:
    """Return everything in the log as applied: the part for which the extraction answers."""
    return Applied(
        segment=log.number_next,
        gsn=log.end.gsn,
        trx=log.end.trx,
        position=log.end.position,
        commit_time_us=log.end.commit_time_us,
    )


def read_lag(config: Config) -> Lag:
    """Read all three places and compute the lag. Raises their typed errors."""
    name = "penstock lag"
    log = read_log_end(config)
    with closing(open_target_reader(config.target.url, application_name=name)) as reader:
        target = read_target_state(reader, config)
    with closing(open_source(config, application_name=name)) as source:
        state = source.state(log)
    return assess_lag(config, state, log, target)
