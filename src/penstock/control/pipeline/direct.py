"""Consumers that read the directory of the source's log directly, without a change log."""

from __future__ import annotations

import re
from dataclasses import replace

from penstock.host.errors import UrlInvalid
from penstock.model.sections import ConsumerSection
from penstock.ports.config import Config
from penstock.ports.direct import DIRECT_PART
from penstock.ports.registry import Descriptor, engine_at, is_list


def engine_of(url: object) -> Descriptor | None:
    """Return the engine of a URL as written in the file; None if it is not known yet."""
    try:
        return engine_at(url) if isinstance(url, str) else None
    except UrlInvalid:  # reported with its place when values are checked
        return None


def has_directory(config: Config) -> bool:
    """Return whether the source's log can be read from a directory."""
    engine = engine_of(config.source.url)
    return engine is not None and DIRECT_PART in engine.parts


def is_direct(config: Config, consumer: ConsumerSection) -> bool:
    """Return whether a consumer reads the directory of the source's node, and no change log."""
    if consumer.direct is None:
        has_log = config.has_target or config.stage is not None or is_list(config.source.url)
        return not has_log and has_directory(config)
    return consumer.direct


def with_whole_patterns(config: Config) -> Config:
    """Complete patterns if tables have a name and no schema: `person` becomes `*.person`."""
    engine = engine_of(config.source.url)
    if engine is None or not engine.names_alone:
        return config
    consumers = {
        name: replace(one, tables=_whole(one.tables)) for name, one in config.consumers.items()
    }
    source = replace(config.source, tables=_whole(config.source.tables))
    return replace(config, source=source, consumers=consumers)


def _whole(patterns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(re.sub(r"^(!?)", r"\1*.", pattern, count=1) for pattern in patterns)
