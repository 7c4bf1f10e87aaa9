"""A staging database whose calls are counted, with the names that Replicator publishes.

A call about several tables at once has an empty label `table`. Not here: the counts of receiving
and applying (`metrics.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock.feeds.metrics import SECONDS
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError
from penstock.model.hlc import ZERO, Hlc
from penstock.ports.checks import Finding
from penstock.ports.feeds import (
    CheckpointGoesBack,
    Group,
    Slice,
    StagedTable,
    StagingDatabase,
    StagingSession,
    Window,
    group_name,
)

_OF_TABLE = ("schema", "table")
_OF_SCHEMA = ("schema",)


class StagingMetrics:
    """Counters in a process's registry. windows: by schema as last read; empty while unknown."""

    def __init__(self, registry: CollectorRegistry, clock: Clock = REAL_CLOCK) -> None:
        self.clock = clock
        self.windows: dict[str, Window] = {}
        count, seconds = _make_gauges(registry, Gauge), _histograms(registry)
        self.selected = Counter(
            "stage_select_mutations", "Staged mutations read.", _OF_TABLE, registry=registry
        )
        self.select_seconds = seconds("stage_select_duration_seconds", "Of reading.", _OF_TABLE)
        self.read_rows = count("stage_read_rows", "Staged mutations read.", _OF_TABLE)
        self.read_lag = count("stage_read_lag_seconds", "Age of the last one read.", _OF_TABLE)
        self.merge_lag = count(
            "stage_merge_lag_seconds", "Age of what the tables are merged up to.", _OF_SCHEMA
        )
        self.filtered = count(
            "stage_filter_mutation_count", "Mutations left out, applied before.", _OF_TABLE
        )
        self.mark_seconds = seconds("stage_mark_duration_seconds", "Of marking.", _OF_TABLE)
        self.retire_seconds = seconds("stage_retire_duration_seconds", "Of retiring.", _OF_TABLE)
        self.retire_errors = Counter(
            "stage_retire_errors", "Retiring that failed.", _OF_TABLE, registry=registry
        )
        self.stale = count(
            "stage_stale_mutations_count",
            "Unapplied mutations older than what is retired: should be 0.",
            _OF_TABLE,
        )
        self.inconsistent = count(
            "stage_consistency_error_count",
            "Keys found whose mutations were not applied in order: should be 0.",
            _OF_TABLE,
        )
        self.commit_seconds = seconds(
            "checkpoint_commit_duration_seconds", "Of marking checkpoints.", _OF_SCHEMA
        )
        self.refresh_seconds = seconds(
            "checkpoint_refresh_duration_seconds", "Of reading a window.", _OF_SCHEMA
        )
        self.backwards = count(
            "checkpoint_proposed_going_backwards_errors",
            "Resolved timestamps refused, before the last one.",
            _OF_SCHEMA,
        )
        registry.register(_Windows(self))

    def age_s(self, time: Hlc) -> float:
        """Return the age of a time in seconds."""
        return max(0.0, self.clock.now_us() / 1e6 - time.nanos / 1e9)

    @contextmanager
    def measure(self, histogram: Histogram, *labels: str) -> Iterator[None]:
        """Observe the duration of the block, if it does not fail."""
        begun_s = self.clock.monotonic_s()
        yield
        histogram.labels(*labels).observe(self.clock.monotonic_s() - begun_s)


def _make_gauges(registry: CollectorRegistry, kind: type[Gauge]) -> Any:
    """Return a maker, also for counters whose published name lacks the library's `_total`."""

    def make(name: str, text: str, labels: tuple[str, ...]) -> Gauge:
        return kind(name, text, labels, registry=registry)

    return make


def _histograms(registry: CollectorRegistry) -> Any:
    def make(name: str, text: str, labels: tuple[str, ...]) -> Histogram:
        return Histogram(name, text, labels, registry=registry, buckets=SECONDS)

    return make


WINDOW_METRICS = (
    ("checkpoint_committed_age_seconds", "Age of the committed checkpoint."),
    ("checkpoint_committed_time_seconds", "Its time, since 1970 UTC."),
    ("checkpoint_proposed_age_seconds", "Age of the proposed checkpoint."),
    ("checkpoint_proposed_time_seconds", "Its time, since 1970 UTC."),
    ("target_lag_seconds", "How far the target is behind."),
    ("target_applied_timestamp_seconds", "Everything up to here is applied."),
    ("target_pending_timestamp_seconds", "Everything up to here is received."),
)


class _Windows(Collector):
    """Ages at the moment of asking, without unknown ones."""

    def __init__(self, metrics: StagingMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Yield all of WINDOW_METRICS."""
        windows = dict(self._metrics.windows)
        for name, text in WINDOW_METRICS:
            is_target = name.startswith("target_")
            labels = ["kind", "schema"] if is_target else ["schema"]
            family = GaugeMetricFamily(name, text, labels=labels)
            of_proposed = "proposed" in name or "pending" in name
            for schema, window in windows.items():
                time = window.proposed if of_proposed else window.committed
                if time.nanos <= 1:  # nothing was there yet
                    continue
                is_age = name.endswith(("age_seconds", "lag_seconds"))
                value = self._metrics.age_s(time) if is_age else time.nanos / 1e9
                family.add_metric(["stage", schema] if is_target else [schema], value)
            yield family


class MeteredStaging(StagingDatabase):
    """Implementation of `StagingDatabase` whose sessions count."""

    def __init__(self, database: StagingDatabase, metrics: StagingMetrics) -> None:
        self._database, self._metrics = database, metrics

    def create(self, *, database: bool = True) -> None:
        self._database.create(database=database)

    def examine(self) -> list[Finding]:
        return self._database.examine()

    @contextmanager
    def open_session(self) -> Iterator[StagingSession]:
        with self._database.open_session() as session:
            yield cast("StagingSession", _Metered(session, self._metrics))


class _Metered:
    """Session that counts; other calls are passed on unchanged."""

    def __init__(self, session: StagingSession, metrics: StagingMetrics) -> None:
        self._session, self._metrics = session, metrics

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def unapplied_of(self, table: StagedTable, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the unapplied mutations, and count those that were left out as already applied."""
        found = self._session.unapplied_of(table, batch)
        count = batch.num_rows - found.num_rows
        self._metrics.filtered.labels(*_labels([table])).inc(count)
        return found

    def mark_applied(
        self, table: StagedTable, batch: pa.RecordBatch, *, keep: bool = False
    ) -> None:
        """Measure the marking."""
        with self._metrics.measure(self._metrics.mark_seconds, *_labels([table])):
            self._session.mark_applied(table, batch, keep=keep)

    def mark_applied_through(
        self, tables: Collection[StagedTable], time: Hlc, *, after: Hlc = ZERO
    ) -> Mapping[StagedTable, int]:
        """Measure the marking."""
        with self._metrics.measure(self._metrics.mark_seconds, *_labels(tables)):
            return self._session.mark_applied_through(tables, time, after=after)

    def read(
        self, tables: Collection[StagedTable], after: Hlc, through: Hlc, *, limit: int
    ) -> Iterator[Slice]:
        """Count the mutations that are read, and measure each read."""
        metrics = self._metrics
        slices = self._session.read(tables, after, through, limit=limit)
        while True:
            with metrics.measure(metrics.select_seconds, *_labels(tables)):
                found = next(slices, None)
            if found is None:
                return
            for table, rows in found.rows.items():
                names = _labels([table])
                metrics.selected.labels(*names).inc(rows.num_rows)
                metrics.read_rows.labels(*names).inc(rows.num_rows)
                metrics.read_lag.labels(*names).set(metrics.age_s(Hlc(rows["nanos"][-1].as_py())))
            for schema in {group_name(table.group) for table in tables}:
                metrics.merge_lag.labels(schema).set(metrics.age_s(found.through))
            yield found

    def retire(self, table: StagedTable, before: Hlc) -> int:
        """Measure retiring, and count its failures."""
        try:
            with self._metrics.measure(self._metrics.retire_seconds, *_labels([table])):
                return self._session.retire(table, before)
        except PenstockError:
            self._metrics.retire_errors.labels(*_labels([table])).inc()
            raise

    def advance(self, group: Group, partition: str, time: Hlc) -> None:
        """Count the resolved timestamps that are refused."""
        try:
            self._session.advance(group, partition, time)
        except CheckpointGoesBack:
            self._metrics.backwards.labels(group_name(group)).inc()
            raise

    def window(self, group: Group) -> Window:
        """Keep the window for the gauges, and measure reading it."""
        name = group_name(group)
        with self._metrics.measure(self._metrics.refresh_seconds, name):
            found = self._session.window(group)
        self._metrics.windows[name] = found
        return found

    def commit(self, group: Group, through: Hlc) -> None:
        """Measure the commit."""
        with self._metrics.measure(self._metrics.commit_seconds, group_name(group)):
            self._session.commit(group, through)


def _labels(tables: Collection[StagedTable]) -> tuple[str, str]:
    """Return the labels schema and table."""
    schemas = {group_name(table.group) for table in tables}
    names = {table.name for table in tables}
    return (
        schemas.pop() if len(schemas) == 1 else "",
        names.pop() if len(names) == 1 else "",
    )
