"""Counts of staging and applying, with the names that document 001's implementation publishes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model.hlc import Hlc
from penstock.ports.feeds import Group, Staged, StagedTable, group_name

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
