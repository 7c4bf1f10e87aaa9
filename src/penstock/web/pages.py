"""Readings and tasks as HTML: whole pages, and the regions that are sent after each change.

The HTML itself holds the facts, so that a page shows them without JavaScript too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from penstock import __version__
from penstock.control.feeds.feed_show import lease_words, letters_words
from penstock.control.feeds.feed_status import SchemaStatus
from penstock.control.pipeline.display import human_bytes, human_count, human_seconds
from penstock.host.errors import mask
from penstock.load.bulk_progress import share_of
from penstock.model.words import count_words
from penstock.ports.config import Config
from penstock.ports.positions import positions_of
from penstock.web.attention import (
    STATE_KINDS,
    AnySample,
    assess,
    count_sentence,
    error_age,
    lag_of,
)
from penstock.web.feed_reading import StageReading, StageSample, StageWatch, rates_of
from penstock.web.feed_reading import state_of as stage_state_of
from penstock.web.plot import (
    PLOT_HEIGHT,
    PLOT_WIDTH,
    SPANS_S,
    SPARK_BUCKETS,
    make_plot,
    span_of,
)
from penstock.web.reading import (
    PipelineWatch,
    Reading,
    Sample,
    changes_of,
    lag_reason,
    lag_words,
    latencies,
    state_of,
)
from penstock.web.tasks import Stage, TaskKind, TaskView

AnyWatch = PipelineWatch | StageWatch

REGIONS = (
    "summary",
    "troubles",
    "actions",
    "bulk",
    "lag",
    "speeds",
    "positions",
    "spark",
    "tables",
    "lake",
    "consumers",
    "errors",
    "doctor-controls",
    "doctor",
    "verify-controls",
    "verify",
)
VALUES_EVERY_S = 30.0
LAG_TOP_LEAST_S = 1.0
SPEED_TOP_LEAST = 10.0
SEVERITIES = {"E": "error", "W": "warning", "I": "note"}
DIFFERENCES = {
    "missing": "in the source only",
    "surplus": "in the target only",
    "different": "differs",
}


def moment(us: int) -> str:
    """Return a time of day in UTC as `2026-11-21 20:15:03`, or a dash for 0."""
    return f"{datetime.fromtimestamp(us / 1e6, UTC):%Y-%m-%d %H:%M:%S}" if us else "–"


def quantity(value: float) -> str:
    """Return a number of a scale with few digits: `12 500`, `3.5`, `0.25`."""
    return human_count(value) if value >= 10 or value == int(value) else f"{value:.2g}"


def span(seconds: float) -> str:
    """Return the length of time that a plot covers: `30 s`, `1 min`, `2.5 min`."""
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:g} min"


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("penstock.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(
        bytes=human_bytes,
        count=human_count,
        words=count_words,
        seconds=human_seconds,
        quantity=quantity,
        span=span,
        moment=moment,
    )
    made.globals.update(
        version=__version__,
        severities=SEVERITIES,
        differences=DIFFERENCES,
        state_kinds=STATE_KINDS,
        share_of=share_of,
        plot_width=PLOT_WIDTH,
        plot_height=PLOT_HEIGHT,
    )
    return made


class Pages:
    """Renderer of templates. Any thread may use it."""

    def __init__(self) -> None:
        self._environment = _environment()

    def page(self, template: str, **context: Any) -> str:
        """Return a whole page."""
        return self._environment.get_template(template).render(context)

    def regions(self, names: Sequence[str], context: Mapping[str, Any]) -> dict[str, str]:
        """Return regions by name, with the same HTML as in the whole page."""
        return {
            name: self._environment.get_template(f"region_{name}.html").render(context)
            for name in names
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Page of one pipeline. regions: names of the parts that are sent after each change."""

    template: str
    regions: tuple[str, ...]
    context: dict[str, Any]


def page_of(watch: AnyWatch, tasks: Mapping[TaskKind, TaskView], secret: str) -> Page:
    """Return a pipeline's page as it is now. secret: the secret of its forms."""
    if isinstance(watch, StageWatch):
        context = stage_context(watch, tasks, secret)
        return Page(template="stage.html", regions=STAGE_REGIONS, context=context)
    context = pipeline_context(watch, tasks, secret)
    return Page(template="pipeline.html", regions=REGIONS, context=context)


def pipeline_context(
    watch: PipelineWatch, tasks: Mapping[TaskKind, TaskView], secret: str
) -> dict[str, Any]:
    """Return the values for the templates of one pipeline's page. secret: that of its forms."""
    reading, config = watch.latest, watch.config
    return {
        **_common(config, reading, secret),
        "position": lambda position: _position(config, position),
        "changes_of": lambda table: changes_of(reading, table),
        "lag_plot": make_plot(
            reading.history,
            [lambda sample: sample.lag_s],
            now_s=reading.at_s,
            least_top=LAG_TOP_LEAST_S,
        ),
        "speed_plot": make_plot(
            reading.history,
            [lambda s: s.extracted_transactions, lambda s: s.loaded_transactions],
            now_s=reading.at_s,
            least_top=SPEED_TOP_LEAST,
        ),
        "tables_by_need": sorted(reading.tables, key=lambda item: not item.error),
        "consumer_plots": _consumer_plots(reading),
        "values": _values(reading),
        "latencies": latencies(reading),
        "doctor": tasks[TaskKind.DOCTOR],
        "verify": tasks[TaskKind.VERIFY],
        "can_pause": _has_action(reading),
    }


def _consumer_plots(reading: Reading) -> list[dict[str, Any]]:
    """Return the plot of each consumer's lag."""

    def consumer_lag(name: str) -> Callable[[Sample], float | None]:
        return lambda sample: sample.consumer_lags_s.get(name)

    return [
        {
            "name": line.name,
            "lag": make_plot(
                reading.history,
                [consumer_lag(line.name)],
                now_s=reading.at_s,
                least_top=LAG_TOP_LEAST_S,
            ),
        }
        for line in reading.consumers
    ]


def _position(config: Config, position: int) -> str:
    """Return a position as the source writes it, or a dash for 0."""
    return positions_of(config).text(position) if position else "–"


def _common(config: Config, reading: Reading, secret: str) -> dict[str, Any]:
    return {
        "kind": "pipeline",
        "name": config.pipeline.name,
        "config": config,
        "file": config.path.name,
        "source_url": mask(config.source.url),
        "target_url": mask(config.target.url) if config.has_target else "",
        "reading": reading,
        "status": reading.status,
        "state": state_of(reading),
        "lag": reading.status.lag if reading.status is not None else None,
        "lag_words": lag_words(reading),
        "lag_reason": lag_reason(reading),
        "secret": secret,
    }


def _has_action(reading: Reading) -> bool:
    """Return whether the target has the table that the processes obey, and rows show their use."""
    target = reading.status.target if reading.status is not None else None
    return target is not None and bool(target.extracted or target.loaded or target.bulk)


def _values(reading: Reading) -> list[dict[str, Any]]:
    """Return the plots' values as rows of a table, one per VALUES_EVERY_S, the newest first."""
    rows: list[dict[str, Any]] = []
    for sample in reversed(reading.history):
        age_s = reading.at_s - sample.at_s
        if age_s > SPANS_S[-1]:
            break
        if age_s >= len(rows) * VALUES_EVERY_S:
            rows.append({"age_s": age_s, "sample": sample})
    return rows


def index_context(watches: Sequence[AnyWatch]) -> dict[str, Any]:
    """Return the values for the template of the list of pipelines, the most urgent first."""
    now_us = max((watch.latest.at_us for watch in watches), default=0)
    spans = [span_of(watch.latest.history, watch.latest.at_s) for watch in watches]
    span_s = max(spans, default=SPANS_S[0])
    rows = [_index_row(watch, now_us, span_s) for watch in watches]
    rows.sort(key=lambda row: (row["attention"].rank, row["name"]))
    return {
        "pipelines": rows,
        "sentence": count_sentence(row["attention"].rank for row in rows),
        "span_s": span_s,
    }


def _index_row(watch: AnyWatch, now_us: int, span_s: float) -> dict[str, Any]:
    """Return the values of one row. span_s: seconds that the curve of the lag covers."""
    reading = watch.latest
    common = (
        stage_common(watch, "")
        if isinstance(watch, StageWatch)
        else _common(watch.config, watch.latest, "")
    )
    error = reading.errors[0] if reading.errors else None
    history: Sequence[AnySample] = reading.history
    return {
        **common,
        "attention": assess(reading, now_us=now_us),
        "error": error,
        "error_age": error_age(error, now_us) if error is not None else "",
        "rates": _stage_rates(common) if isinstance(watch, StageWatch) else _rates(watch),
        "sparkline": make_plot(
            history,
            [lag_of],
            now_s=reading.at_s,
            least_top=LAG_TOP_LEAST_S,
            span_s=span_s,
            bucket_count=SPARK_BUCKETS,
        ).curves[0],
    }


def _stage_rates(common: Mapping[str, Any]) -> dict[str, str]:
    """Return rows per second, staged and applied, as words."""
    rates = {"extracted": common["staged_per_s"], "loaded": common["applied_per_s"]}
    return {name: "unknown" if rate is None else human_count(rate) for name, rate in rates.items()}


def _rates(watch: PipelineWatch) -> dict[str, str]:
    """Return rows per second, extracted and loaded, as words; while tables are loaded, theirs."""
    reading, bulk = watch.latest, watch.latest.bulk
    is_copying = bulk is not None and bulk.phase != "done" and bulk.rows_per_s > 0
    loaded = bulk.rows_per_s if bulk is not None and is_copying else reading.speeds.loaded_rows
    is_away = reading.status is not None and reading.status.outage("target") is not None
    return {
        "extracted": _rate_words(reading.speeds.extracted_rows),
        "loaded": "–"
        if not watch.config.has_target
        else "unknown"
        if is_away
        else _rate_words(loaded),
    }


def _rate_words(rate: float | None) -> str:
    return "–" if rate is None else human_count(rate)


def announcements(context: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts that a screen reader reads out when they change; none changes constantly."""
    troubles = "; ".join(trouble.error for trouble in context["reading"].troubles)
    tasks = {"doctor": "Doctor", "verify": "Verify"}
    return {
        "state": f"Pipeline {context['name']}: {context['state']}",
        "troubles": f"Trouble: {troubles}" if troubles else "No trouble now",
        **{key: _task_words(name, context[key]) for key, name in tasks.items() if key in context},
    }


def _task_words(name: str, view: TaskView) -> str:
    if view.stage is Stage.DONE and view.report is not None:
        errors = sum(finding["severity"] == "E" for finding in view.findings)
        findings = count_words(len(view.findings), "finding")
        return f"{name}: done, {count_words(errors, 'error')}, {findings}"
    if view.stage is Stage.DONE and view.result is not None:
        verdict = "are equal" if view.result["equal"] else "differ"
        return f"{name}: source and target {verdict}"
    if view.stage is Stage.FAILED and view.error is not None:
        return f"{name}: failed, {view.error['error']}"
    return f"{name}: {view.stage}"


STAGE_REGIONS = (
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
        "state": stage_state_of(reading),
        "lag_words": _stage_lag_words(reading),
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
        "lag_plots": [_stage_plot(reading, schema.name) for schema in schemas or ()],
        "doctor": tasks[TaskKind.DOCTOR],
    }


def _stage_lag_words(reading: StageReading) -> str:
    status = reading.status
    if status is None:
        return "–"
    return status.lag_words if status.lag_s is not None else "unknown"


def _window_s(schema: SchemaStatus) -> float | None:
    """Return the seconds of the source's time that are received and not applied."""
    if schema.committed_time is None or schema.proposed_time is None:
        return None
    return max(0.0, (schema.proposed_time.nanos - schema.committed_time.nanos) / 1e9)


def _stage_plot(reading: StageReading, name: str) -> dict[str, Any]:
    def applied_lag(sample: StageSample) -> float | None:
        return sample.lags_s.get(name)

    def received_lag(sample: StageSample) -> float | None:
        return sample.received_lags_s.get(name)

    drawn = make_plot(
        reading.history, [applied_lag, received_lag], now_s=reading.at_s, least_top=LAG_TOP_LEAST_S
    )
    return {"name": name, "plot": drawn, "values": _stage_values(reading, name)}


def _stage_values(reading: StageReading, name: str) -> list[dict[str, Any]]:
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
