"""Prometheus metrics of Spark's tasks, counted by the load process since its start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from penstock.load.job_figures import SparkReport

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
