"""Rules of [merge] in a pipeline file, and its effect on the other sections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from penstock.codec.types import Engine
from penstock.control.pipeline.config_text import ConfigText, ConfigValueInvalid, invalid, plain
from penstock.model.sections import MERGE, MERGED, STAGE, STAGING
from penstock.ports.config import Config, Mode, SourceSection
from penstock.ports.registry import schemes, types_at


def check_merge_file(text: ConfigText) -> None:
    """Refuse sections that a file with [merge] cannot have. Raises ConfigValueInvalid."""
    for name in ("source", STAGE, STAGING):
        if name in text.values:
            raise ConfigValueInvalid(
                f"{text.place(name)}: a file with [merge] has no [{name}]: it reads change logs",
                hint=f"Take [{name}] out; or take [merge] out to follow a server's log.",
            )
    pipeline = text.values.get("pipeline")
    mode = plain(pipeline.get("mode")) if isinstance(pipeline, dict) else None
    if mode == Mode.DATA:
        raise ConfigValueInvalid(
            f"{text.place('pipeline', 'mode')}: with [merge] nothing is loaded in bulk",
            hint='Take mode out; or write mode = "data+change": the merged log begins with the '
            "rows of its logs' bases then.",
            key="pipeline.mode",
        )


def with_merge(text: ConfigText, config: Config, load: Callable[[Path], Config]) -> Config:
    """Return the pipeline with its logs' own ones, and a URL that names the merge as its source.

    load: reads another pipeline file. Raises ConfigValueInvalid, and the errors of load.
    """
    section = config.merge
    assert section is not None, "a file with [merge]"
    if not section.logs or len(set(section.logs)) < len(section.logs):
        raise invalid(text, MERGE, "logs", "must name pipeline files, each once")
    for key, value in (
        ("joinSeconds", section.join_seconds),
        ("clockSkewSeconds", section.clock_skew_seconds),
    ):
        if not 0 <= value < 2**20:
            raise invalid(text, MERGE, key, f"must be 0 or more, not {value}")
    inputs = tuple(load(text.path.parent / name) for name in section.logs)
    by_file = {file: one.pipeline.name for file, one in zip(section.logs, inputs, strict=True)}
    names = list(by_file.values())
    if len(set(names)) < len(names):
        raise invalid(text, MERGE, "logs", f"must have different names, not {', '.join(names)}")
    _check_inputs(text, config, inputs)
    for file in (*section.split, *(child for of in section.split.values() for child in of)):
        if file not in by_file:
            raise invalid(text, MERGE, "split", f"names {file}, which is not in logs")
    types = {types_at(one.source.url) for one in inputs}
    if len(types) > 1 and config.has_target:
        raise invalid(
            text, MERGE, "logs", f"have types of {', '.join(sorted(types))}; a target takes one"
        )
    split = {
        by_file[parent]: tuple(by_file[child] for child in children)
        for parent, children in section.split.items()
    }
    patterns = dict.fromkeys(pattern for one in inputs for pattern in one.source.tables)
    url = inputs[0].source.url
    if f"{MERGED}-{types_at(url)}" not in schemes():
        raise invalid(text, MERGE, "logs", f"cannot be of a source with types of {types_at(url)}")
    return replace(
        config,
        merge=replace(section, split=split),
        inputs=inputs,
        source=SourceSection(url=_url_of(url), tables=tuple(patterns)),
    )


def _check_inputs(text: ConfigText, config: Config, inputs: Sequence[Config]) -> None:
    """Check that each has what this merge needs. Raises ConfigValueInvalid."""
    for one in inputs:
        if one.merge is not None or one.stage is not None or not one.pipeline.mode.has_change:
            reason = f"must have a log of a source's changes, and {one.path.name} has none"
            raise invalid(text, MERGE, "logs", reason)
        if one.directory == config.directory:
            raise invalid(text, MERGE, "logs", f"has {one.path.name}, of the same directory")
        if config.pipeline.mode is Mode.DATA_CHANGE and not one.has_base:
            reason = (
                f"must have bases, and {one.path.name} has none: it needs mode data+change, and "
                "[serve] or no [target]"
            )
            raise invalid(text, MERGE, "logs", reason)


def _url_of(url: str) -> str:
    """Return the first log's source, with a word in front of it."""
    return f"{MERGED}-{Engine(types_at(url)).value}://{url.partition('://')[2]}"
