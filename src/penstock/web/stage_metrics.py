"""Metrics of pipelines with [stage] for Prometheus, read from the databases.

They are the same whichever instance works, and have the published names if there are any. Metrics
that only a receiver can count are on its own page (`/_/varz`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from penstock.control.feeds.feed_status import SchemaStatus
from penstock.ports.staging import StagedRows
from penstock.web.stage_reading import StageReading

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
    return (family for family in _all(stages) if family.samples)


def _all(stages: Stages) -> Iterator[Metric]:
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
