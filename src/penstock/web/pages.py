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
from penstock.control.pipeline.display import human_bytes, human_count, human_seconds
from penstock.host.errors import mask
from penstock.load.bulk_progress import share_of
from penstock.model.words import count_words
from penstock.ports.config import Config
from penstock.ports.positions import positions_of
from penstock.web.plot import PLOT_HEIGHT, PLOT_WIDTH, SPANS_S, make_plot
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
from penstock.web.stage_pages import REGIONS as STAGE_REGIONS
from penstock.web.stage_pages import stage_common, stage_context
from penstock.web.stage_reading import StageWatch
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
STATE_KINDS = {
    "following changes": "good",
    "done": "good",
    "bulk load": "busy",
    "starting": "busy",
    "being read": "busy",
    "paused": "held",
    "stopping": "held",
    "stopped": "held",
    "not started": "held",
    "applying": "good",
    "catching up": "busy",
    "nothing received yet": "held",
    "no instance works": "held",
}  # any other state is a server that is away


def moment(us: int) -> str:
    """Return a time of day in UTC as `2026-11-21 20:15:03`, or a dash for 0."""
    return f"{datetime.fromtimestamp(us / 1e6, UTC):%Y-%m-%d %H:%M:%S}" if us else "–"


def quantity(value: float) -> str:
    """Return a number of a scale, in few digits: `12 500`, `3.5`, `0.25`."""
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
        "consumer_plots": _consumer_plots(reading),
        "values": _values(reading),
        "latencies": latencies(reading),
        "doctor": tasks[TaskKind.DOCTOR],
        "verify": tasks[TaskKind.VERIFY],
        "can_pause": _has_action(reading),
    }


def _consumer_plots(reading: Reading) -> list[dict[str, Any]]:
    """Return the plot of each consumer's lag."""

    def lag_of(name: str) -> Callable[[Sample], float | None]:
        return lambda sample: sample.consumer_lags_s.get(name)

    return [
        {
            "name": line.name,
            "lag": make_plot(
                reading.history,
                [lag_of(line.name)],
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
    """Return the values for the template of the list of pipelines."""
    return {
        "pipelines": [
            stage_common(watch, "")
            if isinstance(watch, StageWatch)
            else _common(watch.config, watch.latest, "")
            for watch in watches
        ]
    }


def announcements(context: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts that a screen reader reads out on a change; none changes all the time."""
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
