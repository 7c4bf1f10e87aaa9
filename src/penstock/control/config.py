"""A pipeline's configuration: every key, its type and its default.

Parameters that document 000 names are spelled and defaulted as there. Not here: reading TOML and
environment variables (`config_text.py`), and anything that asks a server (`doctor.py`).
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from penstock.codec.types import Engine, TypeChoiceInvalid, TypeChoiceUnknown, parse_choices
from penstock.control.config_text import ConfigText, Substituted, read_config_text
from penstock.control.table_requests import with_requests
from penstock.host.errors import UrlInvalid
from penstock.model import PenstockError
from penstock.model.patterns import PatternInvalid, Selection
from penstock.ports.config import SECTIONS, Config, EngineOptions, Mode, camel, snake
from penstock.ports.registry import Descriptor, engine_at, engines, part, types_at


class ConfigKeyUnknown(PenstockError):
    """A key or section that penstock does not know."""

    code = "CF04"


class ConfigValueInvalid(PenstockError):
    """A value of the wrong type, or outside what the key allows."""

    code = "CF05"


class ConfigKeyMissing(PenstockError):
    """A key without default is not there."""

    code = "CF06"


class ConfigUrlInvalid(PenstockError):
    """A database URL that cannot be read, or of an engine that penstock does not have."""

    code = "CF07"


class ConfigPatternInvalid(PenstockError):
    """An entry of tables that is not a table pattern."""

    code = "CF08"


class ConfigOtherEngine(PenstockError):
    """A parameter that belongs to another engine than the source's."""

    code = "CF09"


class ConfigStartRefused(PenstockError):
    """A starting position where the handover finds it by itself (mode data+change)."""

    code = "CF10"


SECTIONS_NEEDED = ("pipeline", "source", "target")
POSITIVE = (
    ("changeExtractor", "idleWaitSeconds"),
    ("changeExtractor", "flushIntervalSeconds"),
    ("changeExtractor", "eventsPerFlush"),
    ("changeLoader", "maxFilesPerBatch"),
    ("changeLoader", "maxThreads"),
    ("changeLoader", "keepAppliedHours"),
    ("changeLoader", "keepAppliedMegabytes"),
    ("changeLoader", "applyIntervalSeconds"),
    ("dataLoader", "maxThreads"),
    ("dataLoader", "chunkMegabytes"),
)


def load_config(path: Path, environment: Mapping[str, str] | None = None) -> Config:
    """Read, check and complete a pipeline file; nothing is changed.

    The tables are those of the file, with what `penstock table` has added and removed since.
    environment: where `${NAME}` is looked up; the process's own when None.
    Raises one of the CF errors, each naming section, key and (where it has one) line.
    """
    text = read_config_text(path.absolute(), os.environ if environment is None else environment)
    for name in text.values:
        if name not in SECTIONS:
            raise _unknown(text, name, "", tuple(SECTIONS), what="section")
    _refuse_other_engines(text)
    parts = {snake(name): _section(text, name) for name in SECTIONS}
    config = Config(path=text.path, **parts)
    _check_values(text, config)
    return with_requests(replace(config, file_tables=config.source.tables))


def _section(text: ConfigText, name: str) -> Any:
    kind = SECTIONS[name]
    given = text.values.get(name, {})
    if not isinstance(given, dict):
        raise ConfigValueInvalid(
            f"{text.place(name)}: {name} must be a section",
            hint=f"Write it as a line [{name}] with its keys below.",
        )
    known = {camel(item.name): item for item in fields(kind)}
    for key in given:
        if key not in known:
            raise _unknown(text, key, name, tuple(known), what="key")
    for key, item in known.items():
        if key not in given and item.default is MISSING and item.default_factory is MISSING:
            raise ConfigKeyMissing(
                f"{text.path.name}: [{name}] has no {key}, which every pipeline needs",
                hint=f"Add it below [{name}]; docs/configuration.md shows a whole file.",
                key=f"{name}.{key}",
            )
    hints = get_type_hints(kind)
    return kind(
        **{
            known[key].name: _converted(text, name, key, value, hints[known[key].name])
            for key, value in given.items()
        }
    )


def _converted(text: ConfigText, section: str, key: str, value: Any, kind: Any) -> Any:
    strict = not isinstance(value, Substituted)
    try:
        return msgspec.convert(_plain(value), type=kind, strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigValueInvalid(
            f"{text.place(section, key)}: {key} has a wrong value: {_reason(error, kind)}",
            hint=_nearest(key, value, kind) or _type_hint(key, kind),
            key=f"{section}.{key}",
        ) from error


def _plain(value: Any) -> Any:
    """The value with every Substituted replaced by its text."""
    if isinstance(value, Substituted):
        return value.text
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _words(kind: Any) -> tuple[str, ...]:
    """The words that a value may be, where it is one of some words; else none."""
    for one in (kind, *get_args(kind)):
        if isinstance(one, type) and issubclass(one, StrEnum):
            return tuple(one)
    return ()


def _nearest(key: str, value: Any, kind: Any) -> str:
    """Which of the words was meant; empty where that is not clear."""
    given = str(_plain(value)).lower()
    close = difflib.get_close_matches(given, _words(kind), n=1, cutoff=0.5)
    return f'Did you mean {key} = "{close[0]}"?' if close else ""


def _reason(error: msgspec.ValidationError, kind: Any) -> str:
    if words := _words(kind):
        return f"expected one of {', '.join(words)}"
    reason = str(error).partition(" - at ")[0]
    return reason[:1].lower() + reason[1:].replace("`", "")


def _type_hint(key: str, kind: Any) -> str:
    examples = {bool: "true", int: "30", float: "2.5", str: '"text"'}
    if words := _words(kind):
        return f'Write for example {key} = "{words[0]}".'
    if kind in examples:
        return f"Write for example {key} = {examples[kind]}."
    return f"See {key} in docs/configuration.md."


def _unknown(
    text: ConfigText, name: str, section: str, known: tuple[str, ...], *, what: str
) -> ConfigKeyUnknown:
    place = text.place(section, name) if section else text.place(name)
    by_lower = {item.lower(): item for item in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    elsewhere = [
        other
        for other, kind in SECTIONS.items()
        if section and name in {camel(item.name) for item in fields(kind)}
    ]
    if elsewhere:
        hint = f"{name} belongs in the section [{elsewhere[0]}]."
    elif close:
        hint = f"Did you mean {by_lower[close[0]]}?"
    else:
        hint = f"Known here: {', '.join(known)}."
    return ConfigKeyUnknown(f"{place}: unknown {what} {name}", hint=hint, key=name)


def _refuse_other_engines(text: ConfigText) -> None:
    """Starting positions and other engines' parameters (document 000) are refused by name."""
    pipeline, source = text.values.get("pipeline"), text.values.get("source")
    mode = _plain(pipeline.get("mode")) if isinstance(pipeline, dict) else None
    url = _plain(source.get("url")) if isinstance(source, dict) else None
    source_engine = _engine_of(url)
    for section, given in text.values.items():
        if section not in SECTIONS or not isinstance(given, dict):
            continue
        for key in given:
            owners = [one for one in engines() if key in one.options.get(section, ())]
            if not owners:
                continue
            if mode == Mode.DATA_CHANGE and any(key in one.start_keys for one in owners):
                raise ConfigStartRefused(
                    f"{text.place(section, key)}: {key} is a starting position, and mode "
                    "data+change captures the position itself during the handover",
                    hint=f'Take {key} out, or set mode = "change" to start from a position.',
                    key=key,
                )
            if source_engine is not None and source_engine not in owners:
                begins, instead = source_engine.begins
                raise ConfigOtherEngine(
                    f"{text.place(section, key)}: {key} is a parameter of {owners[0].shown}; this "
                    f"source is {source_engine.shown}, which {begins}",
                    hint=f"Take {key} out; {instead}." if instead else f"Take {key} out.",
                    key=key,
                )


def _engine_of(url: object) -> Descriptor | None:
    """The engine of a URL as written in the file; None where it is not known yet."""
    try:
        return engine_at(url) if isinstance(url, str) else None
    except UrlInvalid:  # reported when values are checked, with its place
        return None


def _check_values(text: ConfigText, config: Config) -> None:
    _check_url(text, "source", config.source.url)
    _check_url(text, "target", config.target.url)
    _check_patterns(text, config.source.tables)
    _check_types(text, config)
    for section, key in POSITIVE:
        value = getattr(getattr(config, snake(section)), snake(key))
        if not 0 < value < 2**31:
            raise _invalid(text, section, key, f"must be more than 0, not {value}")
    if not 0 <= config.change_extractor.heartbeat_seconds < 2**31:
        raise _invalid(text, "changeExtractor", "heartbeatSeconds", "must be 0 (never) or more")
    if not re.match(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,62}\Z", config.pipeline.name):
        raise _invalid(text, "pipeline", "name", "must be 1 to 63 letters, digits, _, - or .")
    if not config.pipeline.directory.strip() or "\0" in config.pipeline.directory:
        raise _invalid(text, "pipeline", "directory", "must name a directory")
    for engine in engines():
        if "options" in engine.parts:
            options: EngineOptions = engine.part("options")
            for key, reason in options.problems(config.change_extractor):
                raise _invalid(text, "changeExtractor", key, reason)
    if not re.match(r"[A-Za-z0-9]{1,16}\Z", config.change_loader.change_file_extension):
        reason = "must be 1 to 16 letters and digits, without the dot"
        raise _invalid(text, "changeLoader", "changeFileExtension", reason)
    if config.change_loader.remove_files and config.change_loader.done_directory:
        reason = "is the alternative to removeFiles; both are set"
        raise _invalid(text, "changeLoader", "doneDirectory", reason)


def _invalid(text: ConfigText, section: str, key: str, reason: str) -> ConfigValueInvalid:
    return ConfigValueInvalid(
        f"{text.place(section, key)}: {key} {reason}",
        hint=f"See {key} in docs/configuration.md.",
        key=f"{section}.{key}",
    )


def _check_url(text: ConfigText, section: str, url: str) -> None:
    try:
        options: EngineOptions = part(url, "options")
        options.check_url(url)
    except UrlInvalid as error:
        place = text.place(section, "url")
        raise ConfigUrlInvalid(f"{place}: {error.message}", hint=error.hint) from error


def _check_patterns(text: ConfigText, patterns: tuple[str, ...]) -> None:
    place = text.place("source", "tables")
    try:
        Selection.parse(patterns)
    except PatternInvalid as error:
        raise ConfigPatternInvalid(f"{place}: {error.message}", hint=error.hint) from error


def _check_types(text: ConfigText, config: Config) -> None:
    try:
        parse_choices(config.target.types, Engine(types_at(config.source.url)))
    except (TypeChoiceUnknown, TypeChoiceInvalid) as error:
        place = text.place("target", "types")
        raise type(error)(f"{place}: {error.message}", hint=error.hint, **error.fields) from error
