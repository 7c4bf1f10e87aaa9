"""A pipeline's consumers: those of its file, registered; and those of its directory."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace

from penstock.consume.registration import register
from penstock.host.errors import UrlInvalid
from penstock.log.links import LogPlace
from penstock.merge.extraction import consumer_name
from penstock.model import PenstockError
from penstock.model.sections import ConsumerSection, Start
from penstock.ports.config import Config
from penstock.ports.direct import DIRECT_PART
from penstock.ports.feeds import feed_config, feeds
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


class ConsumerUnknown(PenstockError):
    """The pipeline has no consumer of this name. fields: consumer."""

    code = "CN12"
    retry = "operator"


class FeedUnknown(PenstockError):
    """The command does not say which target schema's consumer is meant. fields: groups."""

    code = "CN17"
    retry = "operator"


def select_log(config: Config, group: str = "") -> Config:
    """Return the pipeline whose log consumers read: with [stage] that of a target schema.

    group: the name of the schema, such as `shop.public`; needed if there are several. Raises
    FeedUnknown.
    """
    if config.stage is None and not group:
        return config
    known = feeds(config)
    if config.stage is not None and (group in known or (not group and len(known) == 1)):
        return feed_config(config, tuple((group or known[0]).split(".")))
    there = ", ".join(known) or "none yet"
    hint = f"Say --group SCHEMA; there are: {there}."
    if not known:
        hint = "Start `penstock stage`: it makes them when a feed sends its first timestamp."
    if config.stage is None:
        hint = "Only files with [stage] have several logs: leave --group out."
    raise FeedUnknown(
        f"{config.path.name} has no log for consumers of {group}"
        if group
        else f"consumers of which target schema? {config.path.name} has {len(known)}",
        hint=hint,
        groups=list(known),
    )


def log_place(config: Config) -> LogPlace:
    """Return the place of the pipeline's log and its consumers."""
    return LogPlace(
        log=config.layout.log,
        consumers=config.layout.consumers,
        extension=config.change_loader.change_file_extension,
    )


def section_of(config: Config, name: str) -> ConsumerSection:
    """Return the consumer's section in the file. Raises ConsumerUnknown."""
    section = config.consumers.get(name)
    if section is None:
        raise unknown(config, name, tuple(config.consumers))
    return section


def unknown(config: Config, name: str, known: tuple[str, ...]) -> ConsumerUnknown:
    """Return the error for a name that is none of these."""
    close = difflib.get_close_matches(name, known, n=1)
    there = ", ".join(sorted(known)) or "none"
    return ConsumerUnknown(
        f"{config.path.name} has no consumer {name}",
        hint=f"Did you mean {close[0]}?"
        if close
        else f"Add a section [consumers.{name}] with its class to the file; there are: {there}.",
        consumer=name,
    )


def register_configured(config: Config) -> list[str]:
    """Register all consumers of the file; return the names of new ones.

    Raises the errors of registering. Needs no server.
    """
    place = log_place(config)
    return [
        name
        for name, section in config.consumers.items()
        if register(place, name, start=section.start, size_bytes_max=section.size_bytes_max)
    ]


def register_merge(config: Config) -> None:
    """Register a merge with its logs as a consumer of each, from the oldest existing change.

    Raises the errors of registering.
    """
    for one in config.inputs:
        register(log_place(one), consumer_name(config), start=Start.BEGINNING)
