"""Values for the templates of a pipeline with [stage]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.control.feeds.feed_show import lease_words, letters_words
from penstock.control.feeds.feed_status import SchemaStatus
from penstock.host.errors import mask
from penstock.web.plot import SPANS_S, make_plot
from penstock.web.stage_reading import StageReading, StageSample, StageWatch, rates_of, state_of
from penstock.web.tasks import TaskKind, TaskView

REGIONS = (
    "stage-summary",
    "troubles",
    "stage-bars",
    "stage-rows",
    "stage-apply",
    "stage-lag",
    "errors",
    "doctor-controls",
    "doctor",
)
LAG_TOP_LEAST_S = 1.0
VALUES_EVERY_S = 30.0


def stage_common(watch: StageWatch, secret: str) -> dict[str, Any]:
    """Return the values that the list of pipelines needs too. secret: that of its forms."""
    config, reading = watch.config, watch.latest
    assert config.stage is not None, "a file for changefeeds"
    assert config.staging is not None, "a file for changefeeds"
    staged, applied = rates_of(reading)
    return {
        "kind": "stage",
        "name": config.pipeline.name,
        "config": config,
        "listen": config.stage.listen,
        "staging_url": mask(config.staging.url),
        "target_url": mask(config.target.url),
        "reading": reading,
        "status": reading.status,
        "state": state_of(reading),
        "lag_words": _lag_words(reading),
        "staged_per_s": staged,
        "applied_per_s": applied,
        "secret": secret,
    }


def stage_context(
    watch: StageWatch, tasks: Mapping[TaskKind, TaskView], secret: str
) -> dict[str, Any]:
    """Return the values for the templates of one pipeline's page. secret: that of its forms."""
    reading = watch.latest
    schemas = None if reading.status is None else reading.status.schemas
    return {
        **stage_common(watch, secret),
        "schemas": schemas,
        "far_behind": [
            (schema, reading.bars[schema.name])
            for schema in schemas or ()
            if schema.name in reading.bars and reading.bars[schema.name].is_far_behind
        ],
        "lease_words": lease_words,
        "letters_words": letters_words,
        "window_s": _window_s,
        "lag_plots": [_plot(reading, schema.name) for schema in schemas or ()],
        "doctor": tasks[TaskKind.DOCTOR],
    }


def _lag_words(reading: StageReading) -> str:
    status = reading.status
    if status is None:
        return "–"
    return status.lag_words if status.lag_s is not None else "unknown"


def _window_s(schema: SchemaStatus) -> float | None:
    """Return the seconds of the source's time that are received and not applied."""
    if schema.committed_time is None or schema.proposed_time is None:
        return None
    return max(0.0, (schema.proposed_time.nanos - schema.committed_time.nanos) / 1e9)


def _plot(reading: StageReading, name: str) -> dict[str, Any]:
    def applied_lag(sample: StageSample) -> float | None:
        return sample.lags_s.get(name)

    def received_lag(sample: StageSample) -> float | None:
        return sample.received_lags_s.get(name)

    drawn = make_plot(
        reading.history, [applied_lag, received_lag], now_s=reading.at_s, least_top=LAG_TOP_LEAST_S
    )
    return {"name": name, "plot": drawn, "values": _values(reading, name)}


def _values(reading: StageReading, name: str) -> list[dict[str, Any]]:
    """Return the plot's values as rows of a table, one per VALUES_EVERY_S, the newest first."""
    rows: list[dict[str, Any]] = []
    for sample in reversed(reading.history):
        age_s = reading.at_s - sample.at_s
        if age_s > SPANS_S[-1]:
            break
        if age_s >= len(rows) * VALUES_EVERY_S:
            rows.append(
                {
                    "age_s": age_s,
                    "lag_s": sample.lags_s.get(name),
                    "received_lag_s": sample.received_lags_s.get(name),
                }
            )
    return rows
