"""Counts of applying, with the names that document 001's implementation publishes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model.hlc import Hlc
from penstock.ports.staging import Group, StagedTable, group_name
from penstock.stage.metrics import SECONDS

_OF_TABLE = ("schema", "table")
_AGES = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 3600, 86_400)


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
