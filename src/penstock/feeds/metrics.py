"""Counts of staging and applying, with the names that Replicator publishes.

Calls of a staging database are counted by one that wraps it (`MeteredStaging`). A call about
several tables at once has an empty label `table`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError
from penstock.model.hlc import ZERO, Hlc
from penstock.ports.checks import Finding
from penstock.ports.feeds import (
    CheckpointGoesBack,
    Group,
    Slice,
    Staged,
    StagedTable,
    StagingDatabase,
    StagingSession,
    Window,
    group_name,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_OF_TABLE = ("schema", "table")
_OF_KIND = ("kind", "schema")
# Upper bounds of every histogram of durations.
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 120)
_AGES = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 3600, 86_400)


class Metrics:
    """Set of counters; a process has one."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.staged = self._counter("stage_mutations", "Mutations staged.", _OF_TABLE)
        self.duplicates = self._counter(
            "stage_duplicate_mutations", "Mutations that came again.", _OF_TABLE
        )
        self.stage_errors = self._counter("stage_errors", "Requests not staged.", _OF_TABLE)
        self.stage_seconds = self._seconds("stage_duration_seconds", "Of staging.", _OF_TABLE)
        self.received = self._count("mutations_received_count", "Mutations received.", _OF_KIND)
        self.succeeded = self._count(
            "mutations_success_count", "Mutations received and staged.", _OF_KIND
        )
        self.failed = self._count(
            "mutations_error_count", "Mutations received and not staged.", _OF_KIND
        )
        self.source_lag = self._gauge(
            "source_lag_seconds", "Age of the newest mutation received.", _OF_KIND
        )
        self.advance_seconds = self._seconds(
            "checkpoint_advance_duration_seconds", "Of noting a checkpoint.", ("schema",)
        )
        self.http_codes = self._counter("http_status_codes", "Answers.", ("code",))
        self.http_seconds = self._seconds("http_latency_seconds", "Of answers.", ())
        self.http_bytes = self._counter("http_payload_in_bytes", "Of requests.", ())
        self.keys_loaded = self._gauge("jwt_last_refresh_time", "Keys read, since 1970 UTC.", ())

    def expose(self) -> bytes:
        """Return the page that Prometheus reads."""
        return generate_latest(self.registry)

    def note_staged(
        self,
        kind: str,
        group: Group,
        batches: Mapping[StagedTable, pa.RecordBatch],
        staged: Mapping[StagedTable, Staged] | None,
        seconds: float,
    ) -> None:
        """Count staged mutations; without `staged`, mutations that could not be staged."""
        count = sum(batch.num_rows for batch in batches.values())
        labels = (kind, group_name(group))
        self.received.labels(*labels).inc(count)
        if staged is None:
            self.failed.labels(*labels).inc(count)
            for table in batches:
                self.stage_errors.labels(group_name(group), table.name).inc()
        else:
            self.succeeded.labels(*labels).inc(count)
            for table, done in staged.items():
                names = (group_name(group), table.name)
                self.staged.labels(*names).inc(done.added)
                self.duplicates.labels(*names).inc(done.duplicates)
                self.stage_seconds.labels(*names).observe(seconds)
        newest = max(batch["nanos"][-1].as_py() for batch in batches.values())
        self.source_lag.labels(*labels).set(max(0.0, REAL_CLOCK.now_us() / 1e6 - newest / 1e9))

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _count(self, name: str, text: str, labels: tuple[str, ...]) -> Gauge:
        """Make a counter of a published name without `_total`, which the library would append."""
        return self._gauge(name, text, labels)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...]) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _seconds(self, name: str, text: str, labels: tuple[str, ...]) -> Histogram:
        return Histogram(name, text, labels, registry=self.registry, buckets=SECONDS)


class ApplyMetrics:
    """Counters in a process's registry."""

    def __init__(self, registry: CollectorRegistry, clock: Clock = REAL_CLOCK) -> None:
        self._registry, self._clock = registry, clock
        self.upserts = self._counter("apply_upserts", "Rows written.")
        self.deletes = self._counter("apply_deletes", "Rows deleted.")
        self.conflicts = self._counter("apply_conflicts", "Rows refused by cas or deadlines.")
        self.resolves = self._counter("apply_resolves", "Conflicts that a merge decided.")
        self.errors = self._counter("apply_errors", "Batches that were not applied.")
        self.seconds = self._histogram("apply_duration_seconds", "Of applying.", SECONDS)
        self.age = self._histogram("apply_mutation_age_seconds", "Of applied mutations.", _AGES)
        self.script_seconds = self._histogram(
            "script_exec_time_seconds", "Of functions of the user's module.", SECONDS
        )
        self.sweep_active = self._gauge("core_sweep_active_bool", "Whether staged rows are swept.")
        self.sweep_applied = self._gauge("core_sweep_apply_count", "Staged rows applied.")
        self.sweep_seconds = self._histogram("core_sweep_duration_seconds", "Of sweeps.", SECONDS)
        self.sweep_attempt = self._gauge(
            "core_sweep_attempt_timestamp_seconds", "When a sweep last began."
        )
        self.sweep_success = self._gauge(
            "core_sweep_success_timestamp_seconds", "When a sweep last left nothing."
        )
        self.direct_applied = self._gauge(
            "best_effort_accept_applied_count", "Mutations applied without being staged."
        )
        self.direct_deferred = self._gauge(
            "best_effort_accept_deferred_count", "Mutations staged behind others of their key."
        )
        self.direct_errors = self._gauge(
            "best_effort_accept_error_count", "Requests staged because they could not be applied."
        )
        self.direct_seconds = self._histogram(
            "best_effort_accept_duration_seconds", "Of applying without staging.", SECONDS
        )

    @contextmanager
    def measure(self, histogram: Histogram, table: StagedTable) -> Iterator[None]:
        """Observe the duration of the block."""
        begun_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            histogram.labels(*labels(table)).observe(self._clock.monotonic_s() - begun_s)

    def note_applied(self, table: StagedTable, nanos: list[int]) -> None:
        """Observe the ages of the oldest and the newest mutation of a batch."""
        now_s = self._clock.now_us() / 1e6
        for one in {min(nanos), max(nanos)}:
            self.age.labels(*labels(table)).observe(max(0.0, now_s - one / 1e9))

    def note_loaded(self, marked: Mapping[StagedTable, int], applied: Hlc) -> None:
        """Count the rows loaded through the log: everything of some tables up to a time."""
        now_s = self._clock.now_us() / 1e6
        for table, count in marked.items():
            names = labels(table)
            self.sweep_attempt.labels(*names).set(now_s)
            self.sweep_success.labels(*names).set(now_s)
            if count:
                self.sweep_applied.labels(*names).inc(count)
                self.note_applied(table, [applied.nanos])

    def note_not_loaded(self, group: Group) -> None:
        """Count a failed load through the log: its table is not known."""
        self.errors.labels(group_name(group), "").inc()

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, _OF_TABLE, registry=self._registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        """Make a gauge, also for counters whose published name lacks the library's `_total`."""
        return Gauge(name, text, _OF_TABLE, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, _OF_TABLE, registry=self._registry, buckets=buckets)


def labels(table: StagedTable) -> tuple[str, str]:
    """Return the labels schema and table."""
    return group_name(table.group), table.name


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
