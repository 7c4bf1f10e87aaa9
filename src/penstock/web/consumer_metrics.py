"""Metrics of consumers for Prometheus: published ones in base units, and consumers' own ones.

`CurrentSegmentIndex` becomes `penstock_cdc_current_segment_index`; metrics that are published in
milliseconds are in seconds here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric

from penstock.consume.metrics import CdcMetrics
from penstock.web.reading import Reading

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
    return (family for family in _all(readings) if family.samples)


def _all(readings: Readings) -> Iterator[Metric]:
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
    """Return the metric whose labels hold the values that are texts."""
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
    total, buckets = 0, []
    bounds = [*(str(bound / divisor) for bound in found["bounds"]), "+Inf"]
    for bound, count in zip(bounds, found["counts"], strict=True):
        total += count
        buckets.append((bound, total))
    family.add_metric(labels, buckets, found["sum"] / divisor)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
