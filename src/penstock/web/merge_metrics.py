"""Prometheus metrics of merges, from the latest file of each merging process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric


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
