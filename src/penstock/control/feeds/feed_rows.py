"""The parts of `penstock stage` that write rows straight into the target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from penstock.model.sections import StageMode, StageSection, seconds
from penstock.ports.config import Config
from penstock.ports.row_apply import row_target_at
from penstock.ports.staging import feeds, log_id_of

if TYPE_CHECKING:
    from penstock.stage.apply.sequencer import RowSequencer
    from penstock.stage.metrics import Metrics
    from penstock.stage.script import Script

logger = structlog.get_logger()
ROUND_S = 1.0
AGAIN_S = 10.0
"""Seconds after a round in which something had to wait or failed."""


def script_of(config: Config) -> Script:
    """The user's module of a pipeline. Raises UserModuleInvalid."""
    from penstock.stage.script import load_script

    section = _section(config)
    return load_script(section.user_module, beside=config.path.parent)


def _section(config: Config) -> StageSection:
    assert config.stage is not None, "a file for changefeeds"
    return config.stage


def with_options(section: StageSection, script: Script) -> StageSection:
    """Return the section with the settings of the user's module; the file's settings win.

    Raises UserModuleInvalid.
    """
    from penstock.stage.script import UserModuleInvalid

    names = {
        "mode": "mode",
        "bestEffortWindow": "best_effort_window",
        "dlqTableName": "dlq_table_name",
    }
    default = StageSection()
    found = section
    for key, text in script.options.items():
        name = names[key]
        if getattr(section, name) != getattr(default, name):
            continue
        try:
            value: Any = StageMode(text) if key == "mode" else text
            if key == "bestEffortWindow":
                seconds(text)
        except ValueError as error:
            raise UserModuleInvalid(
                f"set_options: {key} = {text!r} is not understood",
                hint="Write it as in [stage] of the pipeline file.",
            ) from error
        changed: dict[str, Any] = {name: value}
        found = replace(found, **changed)
    return found


@contextmanager
def row_sequencer(config: Config, metrics: Metrics, script: Script) -> Iterator[RowSequencer]:
    """Yield the sequencer, which accepts mutations and sweeps staged ones."""
    from penstock.stage.apply.metrics import ApplyMetrics
    from penstock.stage.apply.sequencer import RowSequencer, SequencerOptions
    from penstock.stage.receiver.app import THREADS
    from penstock.stage.receiver.sessions import Sessions

    section = with_options(_section(config), script)
    options = SequencerOptions(
        mode=section.mode,
        best_effort_window_s=seconds(section.best_effort_window),
        dlq_table=section.dlq_table_name,
        stages_all=bool(config.consumers or feeds(config)),
    )
    # A thread has one session while it writes and may ask for another to read the catalogue.
    with Sessions(row_target_at(config.target.url), 2 * THREADS + 2) as target:
        yield RowSequencer(
            target,
            metrics=ApplyMetrics(metrics.registry),
            log_id=partial(log_id_of, config),
            script=script,
            options=options,
        )
