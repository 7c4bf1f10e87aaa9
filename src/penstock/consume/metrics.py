"""Metrics of a consumer: those that Ignite's CDC names, and the consumer's own.

They are kept in memory and written into the consumer's status file, from which the web interface
exports them. Times are in milliseconds here, as published; the page for Prometheus has seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from penstock.model.histogram import Histogram

# Bounds of the published histograms, milliseconds.
METADATA_BOUNDS_MS = (100, 500, 1000)
CAPTURE_BOUNDS_MS = (5_000, 10_000, 15_000, 30_000, 60_000)
SEGMENT_BOUNDS_MS = (25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000)


class Metric:
    """Number that is set, added to, or computed on demand."""

    kind = "gauge"

    def __init__(self, help_text: str, value: Callable[[], float] | None = None) -> None:
        """Start at 0.

        Args:
            help_text: description.
            value: called whenever the metrics are written; None: the value that was set.
        """
        self.help_text = help_text
        self.value: float = 0
        self._asked = value

    def set(self, value: float) -> None:
        """Replace the value."""
        self.value = value

    def add(self, value: float = 1) -> None:
        """Add to the value."""
        self.value += value

    def as_dict(self) -> dict[str, Any]:
        """Return the metric as the status file has it."""
        value = self.value if self._asked is None else self._asked()
        return {"kind": self.kind, "help": self.help_text, "value": value}


class Counter(Metric):
    """Number that only grows."""

    kind = "counter"


_Metric = TypeVar("_Metric", Metric, Counter)


class MetricRegistry:
    """Registry in which a consumer makes its own metrics, in `start`; names are unique.

    Names should consist of letters, digits and _; Prometheus gets them with a prefix.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._exports: dict[str, Callable[[], dict[str, Any]]] = {}

    def gauge(self, name: str, text: str = "", value: Callable[[], float] | None = None) -> Metric:
        """Make a number that may fall.

        Args:
            name: the name.
            text: description.
            value: called whenever it is exported.
        """
        return self._add_metric(name, Metric(text, value))

    def counter(self, name: str, text: str = "") -> Counter:
        """Make a number that only grows."""
        return self._add_metric(name, Counter(text))

    def histogram(self, name: str, bounds: Sequence[float], text: str = "") -> Histogram:
        """Make a histogram.

        Args:
            name: the name.
            bounds: rising.
            text: description.
        """
        made = Histogram(tuple(bounds))
        self._add(name, lambda: {"kind": "histogram", "help": text, **asdict(made)})
        return made

    def _add_metric(self, name: str, metric: _Metric) -> _Metric:
        self._add(name, metric.as_dict)
        return metric

    def _add(self, name: str, export: Callable[[], dict[str, Any]]) -> None:
        if not name.isidentifier() or not name.isascii():
            raise ValueError(f"a metric's name is letters, digits and _, not {name!r}")
        if name in self._exports:
            raise ValueError(f"there is a metric {name} already")
        self._exports[name] = export

    def as_dict(self) -> dict[str, Any]:
        """Return every metric by its name, as the status file has it."""
        return {name: export() for name, export in self._exports.items()}


class CdcMetrics:
    """Metrics with published names, of one consumer; and UnreadableRecords, our own."""

    def __init__(self) -> None:
        """Start at zero."""
        self.registry = MetricRegistry()
        gauge, histogram = self.registry.gauge, self.registry.histogram
        self.current_segment = gauge("CurrentSegmentIndex", "Segment that is read.")
        self.committed_segment = gauge("CommittedSegmentIndex", "Segment of the saved state.")
        self.committed_offset = gauge(
            "CommittedSegmentOffset", "Bytes of that segment before the saved state."
        )
        self.last_segment_time = gauge(
            "LastSegmentConsumptionTime", "When the reading of a segment began, ms since 1970."
        )
        self.metadata_time = histogram(
            "MetadataUpdateTime", METADATA_BOUNDS_MS, "Time of metadata callbacks, ms."
        )
        self.capture_time = histogram(
            "EventCaptureTime",
            CAPTURE_BOUNDS_MS,
            "From the commit at the source to the consumer, of the last event of each call, ms.",
        )
        self.segment_time = histogram(
            "SegmentConsumingTime", SEGMENT_BOUNDS_MS, "Time to read one segment, ms."
        )
        self.events = self.registry.counter("EventsCount", "Changes read, also of other tables.")
        self.unreadable = self.registry.counter(
            "UnreadableRecords", "Records whose changes cannot be read: of encrypted caches."
        )
        self.last_event_time = gauge("LastEventTime", "When an event was last read, ms since 1970.")
