"""Reading of one pipeline for its page, repeated on a thread of its own.

Everything is read from the change log, the state files and the two servers, never from the memory
of a process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from penstock.control.doctor.past_errors import PastError, past_errors
from penstock.control.pipeline.log_facts import read_log_end
from penstock.control.pipeline.running import ProcessState, processes
from penstock.control.pipeline.servers import followed_tables
from penstock.control.status.consumer_list import (
    ConsumerLine,
    ConsumerReport,
    consumer_lines,
    read_report,
)
from penstock.control.status.run_events import is_loading, starting
from penstock.control.status.status import Status, StatusReader, TableFacts, table_facts
from penstock.control.tables.change_counts import KINDS, ChangeCounter, ChangeCounts
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.load.bulk_progress import BulkProgress, Rates
from penstock.load.job_figures import SparkReport, read_spark_report
from penstock.load.loader_state import LoaderState, read_loader_state
from penstock.model import PenstockError, TableName
from penstock.model.histogram import Histogram
from penstock.ports.config import Config
from penstock.ports.lag import Retention, SourceReader, open_source
from penstock.web.watching import (
    HISTORY_S,
    Trouble,
    Watch,
    trouble_of,
    trouble_of_outage,
    troubles_of_waits,
)

APPLICATION_NAME = "penstock web"
RETENTION_INTERVAL_S = 10.0
SPEED_WINDOW_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Changes per second, over the last SPEED_WINDOW_S: into the log and into the target.

    A value is None if it is not known yet, and while tables are loaded and changes wait in the log.
    """

    extracted_rows: float | None = None
    loaded_rows: float | None = None
    extracted_transactions: float | None = None
    loaded_transactions: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Point of the plots. at_s: monotonic. A value is None if it was not known."""

    at_s: float
    lag_s: float | None
    extracted_transactions: float | None
    loaded_transactions: float | None
    consumer_lags_s: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One look at a pipeline.

    Attributes:
        number: Number of the look, from 1.
        status_at_us: When `status` was read, except its log and processes.
        status: None before the target could be read for the first time. Its log and processes are
            always of this look; the rest may be older while there is a trouble.
    """

    number: int
    at_us: int
    at_s: float
    status_at_us: int
    status: Status | None
    processes: tuple[ProcessState, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    bulk: BulkProgress | None = None
    speeds: Speeds = Speeds()
    retention: Retention | None = None
    counts: ChangeCounts = field(default_factory=ChangeCounts)
    tables: tuple[TableFacts, ...] = ()
    errors: tuple[PastError, ...] = ()
    loader: LoaderState | None = None
    spark: SparkReport | None = None
    history: tuple[Sample, ...] = ()
    consumers: tuple[ConsumerLine, ...] = ()
    consumer_reports: Mapping[str, ConsumerReport] = field(default_factory=dict)


class SpeedMeter:
    """Calculator of speeds from counters that were read at some moments."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, tuple[int, int, int, int]]] = deque()

    def add(self, now_s: float, status: Status) -> Speeds:
        """Add a reading and return the speeds. If a counter went back, the window begins again."""
        if status.target.unknown:
            return Speeds()
        log, applied = status.log.end, status.target.applied
        counters = (log.gsn, applied.gsn, log.trx, applied.trx)
        if self._seen and any(
            new < old for new, old in zip(counters, self._seen[-1][1], strict=True)
        ):
            self._seen.clear()
        self._seen.append((now_s, counters))
        while len(self._seen) > 2 and now_s - self._seen[0][0] > SPEED_WINDOW_S:
            self._seen.popleft()
        then_s, before = self._seen[0]
        span_s = now_s - then_s
        if span_s <= 0:
            return Speeds()
        rates = [(new - old) / span_s for new, old in zip(counters, before, strict=True)]
        if is_loading(status) or starting(status):
            return Speeds(extracted_rows=rates[0] or None, extracted_transactions=rates[2] or None)
        return Speeds(
            extracted_rows=rates[0],
            loaded_rows=rates[1],
            extracted_transactions=rates[2],
            loaded_transactions=rates[3],
        )


class PipelineWatch(Watch[Reading]):
    """Watch of one pipeline that has a source."""

    def __init__(self, config: Config, *, clock: Clock = REAL_CLOCK) -> None:
        """Prepare; nothing is read before start()."""
        empty = Reading(number=0, at_us=0, at_s=0.0, status_at_us=0, status=None)
        super().__init__(config, empty, clock=clock)
        self._reader = StatusReader(config, clock=clock)
        self._counter = ChangeCounter(config)
        self._meter = SpeedMeter()
        self._bulk_rates = Rates()
        self._history: deque[Sample] = deque()
        self._retention: Retention | None = None
        self._retention_at_s = float("-inf")
        self._source: SourceReader | None = None

    def let_go(self) -> None:
        """Close the servers' connections; see `Watch`."""
        self._reader.close()
        if self._source is not None:
            self._source.close()

    def look(self) -> None:
        """Read everything once; `latest` is new afterwards."""
        before = self.latest
        troubles: list[Trouble] = []
        now_us, now_s = self._clock.now_us(), self._clock.monotonic_s()
        status, status_at_us = self._status(before, now_us, troubles)
        counts, errors, names = before.counts, before.errors, frozenset[TableName]()
        followed = None
        retention = before.retention
        consumers, reports = before.consumers, before.consumer_reports
        try:
            consumers = consumer_lines(self.config, with_target=False)
            reports = {line.name: read_report(self.config, line.name) for line in consumers}
            counts = deepcopy(self._counter.look())
            errors = past_errors(self.config)
            followed = followed_tables(self.config)
            names = followed.names if followed is not None else frozenset(counts.tables)
            retention = self._read_retention(now_s, at_once=bool(status and status.source_error))
        except PenstockError as error:
            troubles.append(trouble_of(error))
        if status is not None:
            away = map(trouble_of_outage, status.outages)
            troubles = [*away, *troubles_of_waits(status.waits), *troubles]
        speeds, bulk, tables = before.speeds, before.bulk, before.tables
        if status is not None:
            speeds = self._meter.add(now_s, status)
            found = status.target.bulk
            bulk = self._bulk_rates.add(now_s, found) if found is not None else None
            tables = tuple(table_facts(status, names, whole=followed is not None))
            fresh = status if status_at_us == now_us else None
            self._remember(now_s, fresh, speeds, consumers)
        self.latest = Reading(
            number=before.number + 1,
            at_us=now_us,
            at_s=now_s,
            status_at_us=status_at_us,
            status=status,
            processes=status.processes if status is not None else processes(self.config),
            troubles=_distinct(troubles),
            bulk=bulk,
            speeds=speeds,
            retention=retention,
            counts=counts,
            tables=tables,
            errors=errors,
            loader=read_loader_state(self.config.layout.run),
            spark=read_spark_report(self.config.layout.run),
            history=tuple(self._history),
            consumers=consumers,
            consumer_reports=reports,
        )

    def _status(
        self, before: Reading, now_us: int, troubles: list[Trouble]
    ) -> tuple[Status | None, int]:
        """Return the status and when it was read; with the target away, the part that is known."""
        try:
            status = self._reader.read()
        except PenstockError as error:
            troubles.append(trouble_of(error))
        else:
            return status, now_us if status.outage("target") is None else before.status_at_us
        if before.status is None:
            return None, 0
        try:
            log = read_log_end(self.config)
        except PenstockError as error:
            troubles.append(trouble_of(error))
            log = before.status.log
        here = replace(before.status, log=log, processes=processes(self.config), lag=None)
        return here, before.status_at_us

    def _read_retention(self, now_s: float, *, at_once: bool) -> Retention | None:
        """Return the log that the source keeps; seldom read, because the server lists a folder."""
        if not self.config.pipeline.mode.has_change:
            return None
        if not at_once and now_s - self._retention_at_s < RETENTION_INTERVAL_S:
            return self._retention
        if self._source is None or self._source.is_closed:
            self._source = open_source(self.config, application_name=APPLICATION_NAME)
        try:
            self._retention = self._source.retention()
        except PenstockError:
            self._source.close()
            raise
        self._retention_at_s = now_s
        return self._retention

    def _remember(
        self,
        now_s: float,
        fresh: Status | None,
        speeds: Speeds,
        consumers: Sequence[ConsumerLine],
    ) -> None:
        """Add a point to the plots; its lag is None if it was not known."""
        lag = fresh.lag if fresh is not None else None
        self._history.append(
            Sample(
                at_s=now_s,
                lag_s=lag.seconds if lag is not None else None,
                extracted_transactions=speeds.extracted_transactions,
                loaded_transactions=speeds.loaded_transactions if fresh is not None else None,
                consumer_lags_s={line.name: line.lag_seconds for line in consumers},
            )
        )
        while now_s - self._history[0].at_s > HISTORY_S:
            self._history.popleft()


def _distinct(troubles: Sequence[Trouble]) -> tuple[Trouble, ...]:
    """Return each trouble once: of two readers with the same trouble the first one reports it."""
    distinct: list[Trouble] = []
    for trouble in troubles:
        if not any(one.error.endswith(trouble.error) for one in distinct):
            distinct.append(trouble)
    return tuple(distinct)


def state_of(reading: Reading) -> str:
    """Return the pipeline's state in a word or two."""
    status = reading.status
    if status is None:
        return "not known" if reading.troubles else "being read"
    running = {process.name for process in status.processes if process.pid}
    if not running:
        begun = status.log.log_id or status.handover is not None or status.target.bulk is not None
        return "done" if _is_done(status) else "stopped" if begun else "not started"
    if status.outages:
        return " and ".join(one.words for one in status.outages)
    if status.target.action != "RUN":
        return {"PAUSE": "paused", "STOP": "stopping"}[status.target.action]
    bulk = status.target.bulk
    if status.mode != "change" and (bulk is None or bulk.phase != "done"):
        return "bulk load" if bulk is not None else "starting"
    return "following changes" if status.mode != "data" else "bulk load"


def lag_words(reading: Reading) -> str:
    """Return the lag for people, in a few letters; `lag_reason` says why it is not known."""
    status = reading.status
    if status is None or status.mode == "data":
        return "–"
    return "unknown" if lag_reason(reading) else status.lag_words


def lag_reason(reading: Reading) -> str:
    """Return why the lag is not known; empty if it is."""
    status = reading.status
    if status is None or (status.lag is not None and status.lag.seconds is not None):
        return ""
    return status.why_no_lag


def _is_done(status: Status) -> bool:
    bulk = status.target.bulk
    if status.mode == "data":
        return bulk is not None and bulk.phase == "done"
    is_applied = status.target.applied.gsn >= status.log.end.gsn or not status.has_target
    return status.log.done and is_applied


def as_dict(reading: Reading, config: Config) -> dict[str, Any]:
    """Return a reading as the JSON of `/api/pipelines/NAME`. Times are UTC microseconds."""
    status, speeds = reading.status, reading.speeds
    return {
        "name": config.pipeline.name,
        "state": state_of(reading),
        "read_at_us": reading.at_us,
        "status_read_at_us": reading.status_at_us,
        "troubles": msgspec.to_builtins(reading.troubles),
        "status": status.as_dict() if status is not None else None,
        "bulk": msgspec.to_builtins(reading.bulk),
        "speeds": msgspec.to_builtins(speeds),
        "latency": {name: _latency(found) for name, found in latencies(reading).items()},
        "source_keeps": reading.retention.as_dict() if reading.retention else None,
        "tables": [
            {
                "table": str(item.table),
                "state": str(item.state),
                "bulk_share": item.share,
                "wanted": item.wanted,
                "code": item.code,
                "error": item.error,
                "hint": item.hint,
                "changes": changes_of(reading, item.table),
            }
            for item in reading.tables
        ],
        "counts_complete": reading.counts.complete,
        "counts_from_gsn": reading.counts.gsn_first,
        "consumers": [line.as_dict() for line in reading.consumers],
        "errors": [error.as_dict() for error in reading.errors],
    }


def latencies(reading: Reading) -> dict[str, Histogram]:
    """Return the latencies that the loader has measured: of heartbeats, and of commits."""
    loader = reading.loader
    if loader is None:
        return {}
    found = {"heartbeats": loader.heartbeats, "commits": loader.commits}
    return {name: histogram for name, histogram in found.items() if histogram.count}


def _latency(histogram: Histogram) -> dict[str, Any]:
    return {
        "count": histogram.count,
        "last_seconds": round(histogram.last, 3),
        "p50_seconds": histogram.quantile(0.5),
        "p99_seconds": histogram.quantile(0.99),
        "buckets": dict(histogram.cumulative()),
    }


def changes_of(reading: Reading, table: TableName) -> dict[str, int]:
    """Return the changes of a table by kind, as counted in the log."""
    counts = reading.counts.tables.get(table)
    return counts.as_dict() if counts is not None else dict.fromkeys(KINDS, 0)
