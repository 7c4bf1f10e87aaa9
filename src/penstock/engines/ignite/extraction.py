"""Part `extraction`: the engine of a node's directory, with the handover before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from zoneinfo import ZoneInfo

from penstock.engines.ignite import handover
from penstock.engines.ignite.directory import open_any, open_directory
from penstock.engines.ignite.source.several import NAME, NodesEngine
from penstock.engines.ignite.source.source_engine import IgniteEngine
from penstock.engines.ignite.url import IgniteUrl
from penstock.model import PenstockError, TableDefinition
from penstock.ports.config import Config, Mode, Pipeline
from penstock.ports.identity import SourceIdentity
from penstock.ports.registry import is_list
from penstock.ports.source import ExtractOptions


class TimeZoneUnknown(PenstockError):
    """[source] timeZone names no time zone. fields: name."""

    code = "IG82"
    retry = "never"


def identity(config: Config) -> SourceIdentity:
    """Return the identity of the cluster. Raises CdcDirectoryMissing."""
    url = config.source.url
    name = NAME if is_list(url) else open_directory(url).directory.name
    return SourceIdentity(
        pipeline=config.pipeline.name,
        engine="ignite",
        system_id=name,
        timeline=0,
        database="",
        database_id=0,
        slot="",
        publication="",
    )


def has_begun(pipeline: Pipeline) -> bool:
    """Return whether the log has a position, from which it continues in any case."""
    return bool(pipeline.log_position())


@contextmanager
def open_engine(
    pipeline: Pipeline,
    options: ExtractOptions,
    *,
    tables: Callable[[], list[TableDefinition]],
    stop: Callable[[], bool],
) -> Iterator[IgniteEngine]:
    """Return the engine: the node's log has everything. Raises CdcDirectoryMissing,
    TimeZoneUnknown.
    """
    del options, tables
    config = pipeline.config
    source = config.source
    check_zone(source.time_zone)
    begin = copied_ms = 0
    if config.pipeline.mode is Mode.DATA_CHANGE:
        begin = handover.prepare(
            pipeline,
            open_any(source.url),
            is_one=not is_list(source.url),
            has_begun=has_begun(pipeline),
            stop=stop,
        )
        copied_ms = handover.begun_ms(config)
    if is_list(source.url):
        yield NodesEngine(IgniteUrl.parse_nodes(source.url), config, copied_ms=copied_ms)
    else:
        yield IgniteEngine(open_directory(source.url), config, begin=begin, copied_ms=copied_ms)


def check_zone(name: str) -> None:
    """Raise TimeZoneUnknown if the machine does not know the time zone."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise TimeZoneUnknown(
            f"{name!r} in [source] timeZone is not a time zone that this machine knows",
            hint='Write it like timeZone = "Europe/Berlin", the time zone of the nodes; the '
            "default is UTC.",
            name=name,
        ) from error
