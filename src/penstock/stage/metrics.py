"""Counts of the stage package, with the names that document 001's implementation publishes."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from penstock.host.clock import REAL_CLOCK
from penstock.ports.staging import Group, Staged, StagedTable, group_name

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_OF_TABLE = ("schema", "table")
_OF_KIND = ("kind", "schema")
# Upper bounds of every histogram of durations.
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 120)


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
