"""Prometheus metrics, in base units, made from the newest readings at each request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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
from penstock.control.status.status import Status
from penstock.web.consumer_metrics import consumer_metrics
from penstock.web.merge_metrics import merge_metrics
from penstock.web.reading import Reading, latencies
from penstock.web.spark_metrics import spark_metrics
from penstock.web.stage_metrics import stage_metrics
from penstock.web.stage_reading import StageReading
from penstock.web.watching import AnyReading

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
                family.add_metric([pipeline], found.cumulative(), found.sum_s)
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


def _changes(known: Known) -> Iterator[Metric]:
    text = "Changes counted in the log since this server began to look."
    changes = _counter("table_changes", text, "table", "kind")
    for name, reading, _ in known:
        for table, counts in sorted(reading.counts.tables.items()):
            for kind, count in counts.as_dict().items():
                changes.add_metric([name, str(table), kind], count)
    yield changes
