"""Refusals of commands that a pipeline file does not fit."""

from __future__ import annotations

from penstock.control.pipeline.config_text import SourceMissing
from penstock.ports.config import Config

STARTING = ("run", "extract", "load", "merge")
"""Commands that `penstock stage` replaces for a file with [stage]."""


def need_source(config: Config, command: str, *, takes_merge: bool = False) -> None:
    """Refuse a command that is about the source if there is none. Raises SourceMissing.

    Args:
        config: The pipeline file.
        command: The typed command, after `penstock`: "table add FILE public.item".
        takes_merge: Whether a merge of logs is accepted.
    """
    if config.merge is not None and not takes_merge:
        files = ", ".join(one.path.name for one in config.inputs)
        raise SourceMissing(
            f"{config.path.name} has [merge] and no [source]: it reads the logs of {files}",
            hint="Run the command for one of these pipelines: penstock "
            f"{command.replace('FILE', str(config.inputs[0].path))}",
        )
    if config.stage is not None:
        words = command.partition(" FILE")[0]
        is_starting = words in STARTING
        raise SourceMissing(
            f"{config.path.name} has [stage] and no [source]: changefeeds are posted to it"
            + ("" if is_starting else f", and `penstock {words}` is about a source"),
            hint="Run: penstock stage FILE"
            if is_starting
            else "See what is staged and applied: penstock status FILE",
        )
