"""Prometheus metrics, in base units, made from the newest readings at each request.

Those of pipelines with [stage] are the same whichever instance works, and have the published names
if there are any. Metrics that only a receiver can count are on its own page (`/_/varz`). Those of
consumers have published names in Prometheus's form: `CurrentSegmentIndex` becomes
`penstock_cdc_current_segment_index`; metrics that are published in milliseconds are in seconds
here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock import __version__
from penstock.consume.metrics import CdcMetrics
from penstock.control.feeds.feed_status import SchemaStatus
from penstock.control.status.status import Status
from penstock.load.job_figures import SparkReport
from penstock.model.histogram import Histogram
from penstock.ports.feeds import StagedRows
from penstock.web.feed_reading import StageReading
from penstock.web.reading import Reading, latencies
from penstock.web.watching import AnyReading

COUNTED = {
    "jobs": ("jobs", "Spark jobs that have ended."),
    "tasks": ("tasks", "Tables, parts of tables and chunks that they have done."),
    "task_rows": ("rows", "Rows that these wrote to the target."),
    "task_bytes": ("size_bytes", "Bytes of the change log, or of tables, that these read."),
    "task_seconds": ("seconds", "Time that they took, added up."),
}


def spark_metrics(reports: Sequence[tuple[str, SparkReport]]) -> Iterator[Metric]:
    """Yield the metrics. reports: pairs of a pipeline's name and its report."""
    for name, (key, text) in COUNTED.items():
        family = CounterMetricFamily(f"penstock_spark_{name}", text, labels=["pipeline"])
        for pipeline, report in reports:
            family.add_metric([pipeline], getattr(report, key))
        yield family


def merge_metrics(merges: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[Metric]:
    """Yield the metrics. merges: pairs of a pipeline's name and the content of run/merge.json."""
    labels = ["pipeline"]
    watermark = GaugeMetricFamily(
        "penstock_merge_watermark_seconds",
        "Commit time up to which everything is merged, since 1970 UTC.",
        labels=labels,
    )
    skew = GaugeMetricFamily(
        "penstock_merge_clock_skew_seconds",
        "By how much the clocks of the logs' servers differ.",
        labels=labels,
    )
    held = GaugeMetricFamily(
        "penstock_merge_held", "1 for a log that holds the others back.", labels=[*labels, "log"]
    )
    behind = GaugeMetricFamily(
        "penstock_merge_behind_transactions",
        "Transactions of a log that are durable there and not merged.",
        labels=[*labels, "log"],
    )
    joined = CounterMetricFamily(
        "penstock_merge_joined_total", "Global transactions that were joined.", labels=labels
    )
    alone = CounterMetricFamily(
        "penstock_merge_unjoined_total",
        "Parts of global transactions that came alone.",
        labels=labels,
    )
    for name, facts in merges:
        if not facts:
            continue
        watermark.add_metric([name], facts["watermark_us"] / 1e6)
        skew.add_metric([name], facts["clock_skew_us"] / 1e6)
        joined.add_metric([name], facts["joined_count"])
        alone.add_metric([name], facts["unjoined_count"])
        for one in facts["inputs"]:
            if not one.get("is_over"):
                is_held = facts["held_s"] > 0 and one["name"] in facts["held_by"]
                held.add_metric([name, one["name"]], int(is_held))
                behind.add_metric([name, one["name"]], one["behind"])
    yield from (watermark, skew, held, behind, joined, alone)


Stages = Sequence[tuple[str, StageReading]]
OfSchema = Callable[[SchemaStatus], float | None]
OfRows = Callable[[StagedRows], float | None]


def _seconds(nanos: int | None) -> float | None:
    return None if nanos is None else nanos / 1e9


def _committed_s(schema: SchemaStatus) -> float | None:
    return None if schema.committed_time is None else schema.committed_time.nanos / 1e9


def _proposed_s(schema: SchemaStatus) -> float | None:
    return None if schema.proposed_time is None else schema.proposed_time.nanos / 1e9


OF_SCHEMAS: tuple[tuple[str, str, OfSchema], ...] = (
    ("checkpoint_committed_age_seconds", "Age of the committed checkpoint.", lambda s: s.lag_s),
    ("checkpoint_committed_time_seconds", "Its time, since 1970 UTC.", _committed_s),
    ("checkpoint_proposed_age_seconds", "Age of the proposed one.", lambda s: s.proposed_lag_s),
    ("checkpoint_proposed_time_seconds", "Its time, since 1970 UTC.", _proposed_s),
    ("target_lag_seconds", "How far the target is behind.", lambda s: s.lag_s),
    ("target_applied_timestamp_seconds", "Everything up to here is applied.", _committed_s),
    ("target_pending_timestamp_seconds", "Everything up to here is received.", _proposed_s),
    (
        "penstock_stage_dead_letters",
        "Rows in the table of dead letters, 10,000 at most.",
        lambda s: s.dead_letters,
    ),
    (
        "penstock_stage_lease_held",
        "1 while an instance works for the schema.",
        lambda s: float(bool(s.holder)),
    ),
    (
        "penstock_stage_problem",
        "1 while the last problem of the schema is not over.",
        lambda s: float(s.note.problem is not None and not s.problem_is_over),
    ),
)
OF_ROWS: tuple[tuple[str, str, OfRows], ...] = (
    ("penstock_stage_rows", "Rows in the mutation table.", lambda rows: rows.rows),
    ("penstock_stage_waiting_rows", "Those that are not applied.", lambda rows: rows.waiting),
    ("penstock_stage_size_bytes", "Of the mutation table.", lambda rows: rows.size_bytes),
    (
        "penstock_stage_oldest_waiting_timestamp_seconds",
        "The time of the first row that waits; missing when none does.",
        lambda rows: _seconds(None if rows.oldest is None else rows.oldest.nanos),
    ),
)


def stage_metrics(stages: Stages) -> Iterator[Metric]:
    """Return all metrics, without those that have no value."""
    return (family for family in _of_stages(stages) if family.samples)


def _of_stages(stages: Stages) -> Iterator[Metric]:
    for name, text, value in OF_SCHEMAS:
        family = GaugeMetricFamily(name, text, labels=["pipeline", "schema"])
        for pipeline, schema in _schemas(stages):
            found = value(schema)
            if found is not None:
                family.add_metric([pipeline, schema.name], found)
        yield family
    for name, text, of_rows in OF_ROWS:
        family = GaugeMetricFamily(name, text, labels=["pipeline", "schema", "table"])
        for pipeline, schema in _schemas(stages):
            for table, rows in schema.state.tables.items():
                found = of_rows(rows)
                if found is not None:
                    family.add_metric([pipeline, schema.name, table.name], found)
        yield family


def _schemas(stages: Stages) -> Iterator[tuple[str, SchemaStatus]]:
    for pipeline, reading in stages:
        for schema in (reading.status.schemas or ()) if reading.status is not None else ():
            yield pipeline, schema


LABELS = ("pipeline", "consumer")
_MS = 1000.0
# Published metrics with another name or unit here: our name, and the divisor of the value.
_OTHER = {
    "CommittedSegmentOffset": ("committed_segment_offset_bytes", 1.0),
    "LastSegmentConsumptionTime": ("last_segment_consumption_timestamp_seconds", _MS),
    "LastEventTime": ("last_event_timestamp_seconds", _MS),
    "MetadataUpdateTime": ("metadata_update_seconds", _MS),
    "EventCaptureTime": ("event_capture_seconds", _MS),
    "SegmentConsumingTime": ("segment_consuming_seconds", _MS),
    "EventsCount": ("events", 1.0),
    "UnreadableRecords": ("unreadable_records", 1.0),
}

Readings = Sequence[tuple[str, Reading]]


def consumer_metrics(readings: Readings) -> Iterator[Metric]:
    """Return all metrics of all consumers, without those that have no value."""
    return (family for family in _of_consumers(readings) if family.samples)


def _of_consumers(readings: Readings) -> Iterator[Metric]:
    yield from _of_lines(readings)
    for name, shown in CdcMetrics().registry.as_dict().items():
        metric, divisor = _OTHER.get(name, (_snake(name), 1.0))
        family = _family(f"penstock_cdc_{metric}", f"{name}: {shown['help']}", shown["kind"])
        for labels, found in _find_values(readings, "metrics", name):
            _add(family, labels, found, divisor)
        yield family
    yield _info(readings)
    yield from _own(readings)


def _of_lines(readings: Readings) -> Iterator[Metric]:
    values = (
        ("lag_seconds", "Age of the oldest change after the saved state; 0: none.", "lag_seconds"),
        ("lag_events", "Changes in the log after the saved state.", "lag_events"),
        ("lag_bytes", "Bytes of the log after the saved state.", "lag_bytes"),
        ("links", "Segments that the consumer holds.", "links"),
        ("links_size_bytes", "Size of the segments that the consumer holds.", "link_bytes"),
        ("held_bytes", "Size of the segments that no other reader holds.", "held_bytes"),
    )
    for name, text, attribute in values:
        family = _family(f"penstock_consumer_{name}", text, "gauge")
        for labels, line in _lines(readings):
            value = getattr(line, attribute)
            if value is not None:
                family.add_metric(labels, value)
        yield family
    running = _family("penstock_consumer_running", "1 while a process runs it.", "gauge")
    enabled = _family("penstock_consumer_enabled", "1 while it gets links.", "gauge")
    failed = _family("penstock_consumer_failed", "1 where an error ended it.", "gauge")
    for labels, line in _lines(readings):
        running.add_metric(labels, int(line.pid != 0))
        enabled.add_metric(labels, int(line.enabled))
        failed.add_metric(labels, int(bool(line.error)))
    yield from (running, enabled, failed)


def _info(readings: Readings) -> Metric:
    """Return the metric that has text values as its labels."""
    labels = (*LABELS, "cdc_dir", "cdc_mode")
    family = GaugeMetricFamily("penstock_cdc_info", "CdcDir and CdcMode: labels.", labels=labels)
    for pipeline, reading in readings:
        for consumer, report in reading.consumer_reports.items():
            if report.directory:
                family.add_metric([pipeline, consumer, report.directory, report.mode], 1)
    return family


def _own(readings: Readings) -> Iterator[Metric]:
    """Yield the metrics that consumers defined themselves, as `penstock_consumer_own_NAME`."""
    families: dict[str, tuple[str, Any]] = {}
    for pipeline, reading in readings:
        for consumer, report in reading.consumer_reports.items():
            for name, found in report.own_metrics.items():
                kind = str(found.get("kind", "gauge"))
                if name not in families:
                    text = str(found.get("help") or "Of the consumer's own.")
                    made = _family(f"penstock_consumer_own_{name.lower()}", text, kind)
                    families[name] = kind, made
                if families[name][0] == kind:  # the same name, of another kind, is left out
                    _add(families[name][1], [pipeline, consumer], found, 1.0)
    for _, family in families.values():
        yield family


def _lines(readings: Readings) -> Iterator[tuple[list[str], Any]]:
    for pipeline, reading in readings:
        for line in reading.consumers:
            yield [pipeline, line.name], line


def _find_values(
    readings: Readings, kind: str, name: str
) -> Iterator[tuple[list[str], Mapping[str, Any]]]:
    for pipeline, reading in readings:
        for consumer, report in reading.consumer_reports.items():
            if name in getattr(report, kind):
                yield [pipeline, consumer], getattr(report, kind)[name]


def _family(name: str, text: str, kind: str) -> Any:
    families = {"counter": CounterMetricFamily, "histogram": HistogramMetricFamily}
    return families.get(kind, GaugeMetricFamily)(name, text, labels=LABELS)


def _add(family: Any, labels: list[str], found: Mapping[str, Any], divisor: float) -> None:
    if "bounds" not in found:
        family.add_metric(labels, found["value"] / divisor)
        return
    histogram = msgspec.convert(found, Histogram)
    family.add_metric(labels, histogram.cumulative(divisor), histogram.sum / divisor)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def expose(
    readings: Sequence[tuple[str, Reading]], stages: Sequence[tuple[str, StageReading]] = ()
) -> bytes:
    """Return the page that Prometheus reads.

    Args:
        readings: Pairs of a pipeline's name and its newest reading.
        stages: The same for pipelines with [stage].
    """
    registry = CollectorRegistry()
    registry.register(_Readings(readings, stages))
    return generate_latest(registry)


class _Readings(Collector):
    """Collector that gives the metrics of some readings to the library, which formats them."""

    def __init__(
        self,
        readings: Sequence[tuple[str, Reading]],
        stages: Sequence[tuple[str, StageReading]],
    ) -> None:
        self._readings, self._stages = readings, stages

    def describe(self) -> Iterable[Metric]:
        """Return an empty list: this registry is used once."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        build = GaugeMetricFamily("penstock_build_info", "Version.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        readable = _gauge("status_readable", "1 when log, state, source and target can be read.")
        read_at = _gauge("status_timestamp_seconds", "When they were read, since 1970 UTC.")
        every: list[tuple[str, AnyReading]] = [*self._readings, *self._stages]
        for name, reading in every:
            if reading.number:
                readable.add_metric([name], 0 if reading.troubles else 1)
                read_at.add_metric([name], reading.status_at_us / 1e6)
        yield from (readable, read_at)
        known = [(name, r, r.status) for name, r in self._readings if r.status is not None]
        yield from _processes(self._readings, known)
        yield from _servers(known)
        yield from _log(known)
        yield from _lag(known)
        yield from _latencies(self._readings)
        yield from _bulk(known)
        yield from _changes(known)
        yield from _lake(known)
        yield from consumer_metrics(self._readings)
        yield from spark_metrics([(n, r.spark) for n, r in self._readings if r.spark is not None])
        yield from merge_metrics([(n, s.merge.facts) for n, _, s in known if s.merge is not None])
        yield from stage_metrics(self._stages)


Known = Sequence[tuple[str, Reading, Status]]


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"penstock_{name}", text, labels=["pipeline", *labels])


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"penstock_{name}", text, labels=["pipeline", *labels])


def _processes(every: Sequence[tuple[str, Reading]], known: Known) -> Iterator[Metric]:
    running = _gauge("process_running", "1 while this process of the pipeline runs.", "process")
    paused = _gauge("paused", "1 while wirekite_action holds PAUSE.")
    restarts = _counter("restarts", "Restarts noted in wirekite_progress.")
    table_state = _gauge(
        "table_apart", "1 for a table that does not follow with the others.", "table", "state"
    )
    for name, reading in every:
        for process in reading.processes:
            running.add_metric([name, process.name], 1 if process.pid else 0)
    for name, _, status in known:
        if status.target.unknown:
            continue
        paused.add_metric([name], 1 if status.target.action == "PAUSE" else 0)
        restarts.add_metric([name], status.target.restarts)
        for line in status.tables:
            if not line.follows:
                table_state.add_metric([name, str(line.table), line.state], 1)
    yield from (running, paused, restarts, table_state)


def _servers(known: Known) -> Iterator[Metric]:
    text = "1 when the server in the label side (source, target) could be asked."
    reachable = _gauge("server_reachable", text, "side")
    since = _gauge("server_unreachable_since_seconds", "Since 1970 UTC; missing when not.", "side")
    text = "When the process tries again what it has failed at; missing when nothing has."
    retry = _gauge("next_try_timestamp_seconds", text, "process")
    for name, _, status in known:
        sides = ("source", "target") if status.has_target else ("source",)
        for side in sides if status.mode != "data" else ("target",):
            outage = status.outage(side)
            reachable.add_metric([name, side], 0 if outage else 1)
            if outage is not None and outage.since_us:
                since.add_metric([name, side], outage.since_us / 1e6)
        for one in status.retries:
            retry.add_metric([name, one.process], one.next_us / 1e6)
    yield from (reachable, since, retry)


def _log(known: Known) -> Iterator[Metric]:
    rows = _counter("extracted_rows", "Row changes in the change log, ever.")
    transactions = _counter("extracted_transactions", "Transactions in the change log, ever.")
    loaded_rows = _counter("loaded_rows", "Row changes applied to the target, ever.")
    loaded_transactions = _counter("loaded_transactions", "Transactions applied, ever.")
    segments = _gauge("log_segments", "Closed segments on disk.")
    size = _gauge("log_size_bytes", "Size of the change log on disk.")
    for name, _, status in known:
        log, applied = status.log, status.target.applied
        rows.add_metric([name], log.end.gsn)
        transactions.add_metric([name], log.end.trx)
        if status.has_target and not status.target.unknown:
            loaded_rows.add_metric([name], applied.gsn)
            loaded_transactions.add_metric([name], applied.trx)
        segments.add_metric([name], log.segments)
        size.add_metric([name], log.size_bytes)
    yield from (rows, transactions, loaded_rows, loaded_transactions, segments, size)


def _lag(known: Known) -> Iterator[Metric]:
    text = (
        "Age of the oldest commit not visible in the target, or without one not in the log; "
        "0: none; missing: not known."
    )
    lag = _gauge("lag_seconds", text)
    at_most = _gauge("lag_at_most", "1 while penstock_lag_seconds is the most that it can be.")
    rows = _gauge("lag_rows", "Row changes in the log that are not applied.")
    slot = _gauge("extract_lag_bytes", "Log of the source that the extractor has not confirmed.")
    applied = _gauge(
        "lag_bytes", "Log of the source behind what is applied, or without target extracted."
    )
    kept = _gauge("source_kept_bytes", "Log that the source keeps for this pipeline.")
    age = _gauge("source_kept_seconds", "Age of the oldest log that the source keeps.")
    left = _gauge("source_left_bytes", "Log until the source throws away what we still need.")
    expires = _gauge("source_expires_seconds", "Age at which the source deletes its log.")
    for name, reading, status in known:
        if status.lag is not None:
            if status.lag.seconds is not None:
                lag.add_metric([name], status.lag.seconds)
                at_most.add_metric([name], int(status.lag.at_most))
            if status.has_target:
                rows.add_metric([name], status.lag.rows)
            if status.lag.counts_bytes:
                slot.add_metric([name], status.lag.slot_bytes)
                applied.add_metric([name], status.lag.applied_bytes)
        if reading.retention is not None:
            kept.add_metric([name], reading.retention.size_bytes)
            if reading.retention.age_s is not None:
                age.add_metric([name], reading.retention.age_s)
            if reading.retention.left_bytes is not None:
                left.add_metric([name], reading.retention.left_bytes)
            if reading.retention.expires_s is not None:
                expires.add_metric([name], reading.retention.expires_s)
    yield from (lag, at_most, rows, slot, applied, kept, age, left, expires)


def _latencies(every: Sequence[tuple[str, Reading]]) -> Iterator[Metric]:
    """Yield the latencies since the load process was started, as that process wrote them."""
    texts = {
        "heartbeats": ("heartbeat_seconds", "From before a heartbeat's commit to its visibility."),
        "commits": (
            "commit_visible_seconds",
            "From the commit of a batch's last transaction to its visibility.",
        ),
    }
    for of, (name, text) in texts.items():
        family = HistogramMetricFamily(f"penstock_{name}", text, labels=["pipeline"])
        for pipeline, reading in every:
            found = latencies(reading).get(of)
            if found is not None:
                family.add_metric([pipeline], found.cumulative(), found.sum)
        yield family


def _bulk(known: Known) -> Iterator[Metric]:
    rows = _gauge("bulk_loaded_rows", "Rows of the bulk load in the target.", "table")
    rows_all = _gauge("bulk_expected_rows", "Rows to load; an estimate until done.", "table")
    size = _gauge("bulk_loaded_bytes", "Bytes of source tables that are loaded.", "table")
    size_all = _gauge("bulk_expected_bytes", "Bytes of source tables to load.", "table")
    chunks = _gauge("bulk_loaded_chunks", "Chunks that are loaded.", "table")
    chunks_all = _gauge("bulk_expected_chunks", "Chunks of the table.", "table")
    left = _gauge("bulk_remaining_seconds", "Estimated time until the bulk load is done.")
    for name, reading, _ in known:
        if reading.bulk is None:
            continue
        for item in reading.bulk.tables:
            labels = [name, str(item.table)]
            rows.add_metric(labels, item.rows_done)
            rows_all.add_metric(labels, item.rows_total)
            size.add_metric(labels, item.bytes_done)
            size_all.add_metric(labels, item.bytes_total)
            chunks.add_metric(labels, item.chunks_done)
            chunks_all.add_metric(labels, item.chunks_total)
        if reading.bulk.eta_s is not None:
            left.add_metric([name], reading.bulk.eta_s)
    yield from (rows, rows_all, size, size_all, chunks, chunks_all, left)


def _lake(known: Known) -> Iterator[Metric]:
    files = _gauge("lake_files", "Live data files of a table in a lake.", "table")
    rows = _gauge("lake_rows", "Rows of the table, without deleted ones.", "table")
    dead = _gauge("lake_dead_rows", "Deleted rows in live files.", "table")
    size = _gauge("lake_size_bytes", "Size of the live data files.", "table")
    versions = _gauge("lake_versions", "Versions of the table that can be read.", "table")
    missing = _counter(
        "lake_missing_rows", "Rows that the log changed and the table lacked.", "table"
    )
    for name, _, status in known:
        for table, facts in sorted(status.target.lake.items()):
            files.add_metric([name, table], facts.files)
            rows.add_metric([name, table], facts.rows - facts.dead_rows)
            dead.add_metric([name, table], facts.dead_rows)
            size.add_metric([name, table], facts.size_bytes)
            versions.add_metric([name, table], facts.versions)
            missing.add_metric([name, table], facts.missing)
    yield from (files, rows, dead, size, versions, missing)


def _changes(known: Known) -> Iterator[Metric]:
    text = "Changes counted in the log since this server began to look."
    changes = _counter("table_changes", text, "table", "kind")
    for name, reading, _ in known:
        for table, counts in sorted(reading.counts.tables.items()):
            for kind, count in counts.as_dict().items():
                changes.add_metric([name, str(table), kind], count)
    yield changes
