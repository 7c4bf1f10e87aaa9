"""The output of a run of several pipelines: each line names its pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.cli.output import say_error_line, say_json, say_text, show_error


class GroupLines:
    """View of plain lines. Figures of progress are left to `penstock status` and the web."""

    def event(self, pipeline: str, fields: Mapping[str, Any]) -> None:
        """Print the event's sentence."""
        if text := str(fields.get("text", "")):
            say_text(_add_name(pipeline, text))

    def error(self, pipeline: str, error: Mapping[str, Any]) -> None:
        """Print the error to standard error."""
        show_error({**error, "error": _add_name(pipeline, str(error["error"]))}, as_json=False)

    def text(self, pipeline: str, line: str) -> None:
        """Print the line to standard error."""
        say_error_line(_add_name(pipeline, line))


class GroupJson:
    """View of one JSON object per line, each with the pipeline's name."""

    def event(self, pipeline: str, fields: Mapping[str, Any]) -> None:
        """Print the event."""
        say_json({"pipeline": pipeline, **fields})

    def error(self, pipeline: str, error: Mapping[str, Any]) -> None:
        """Print the error to standard error."""
        show_error({**error, "pipeline": pipeline}, as_json=True)

    def text(self, pipeline: str, line: str) -> None:
        """Print the line to standard error."""
        say_error_line(_add_name(pipeline, line))


def _add_name(pipeline: str, text: str) -> str:
    return f"{pipeline}: {text}" if pipeline else text
