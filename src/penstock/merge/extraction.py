"""Part `extraction` of a merge: its engine over the logs of its pipelines, and its links there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from penstock.base.held import Holder
from penstock.base.manifest import NAME as BASE
from penstock.host.files import REAL_FILES, FileMissing, remove_tree
from penstock.log import links
from penstock.log.links import CONSUMER_FILE
from penstock.merge.engine import MergeEngine
from penstock.merge.inputs import InputPlace
from penstock.model import TableDefinition, TableName
from penstock.model.removal import Removal
from penstock.model.sections import MERGED
from penstock.ports.config import Config, Pipeline
from penstock.ports.handover import Handover
from penstock.ports.identity import SourceIdentity
from penstock.ports.registry import types_at
from penstock.ports.source import ExtractOptions
from penstock.ports.tables import tables_at


def identity(config: Config) -> SourceIdentity:
    """Return the merge's identity. The logs may change; the name stays."""
    return SourceIdentity(
        pipeline=config.pipeline.name,
        engine=MERGED,
        system_id="merge",
        timeline=0,
        database=config.pipeline.name,
        database_id=0,
        slot="",
        publication="",
    )


def has_begun(pipeline: Pipeline) -> bool:
    """Return whether the log has a position, from which it continues in any case."""
    return bool(pipeline.log_position())


def place_of(config: Config, one: Config) -> InputPlace:
    """Return the place of a log, and of our links to its segments.

    Args:
        config: of the merge.
        one: of the log's own pipeline.
    """
    links = one.layout.consumers / consumer_name(config)
    extension = one.change_loader.change_file_extension
    holder = Holder(
        one.layout.base,
        owner=consumer_name(config),
        log=one.layout.log,
        links=(one.layout.consumers / BASE, links),
        extension=extension,
    )
    return InputPlace(
        name=one.pipeline.name,
        log=one.layout.log,
        links=links,
        extension=extension,
        holder=holder if config.has_base else None,
        followed=partial(_list_followed, one),
    )


def _list_followed(one: Config) -> frozenset[TableName]:
    """Return the existing tables that a log follows."""
    known = tables_at(one.source.url).read_followed(one, added=())
    return known.names - known.missing if known is not None else frozenset()


def consumer_name(config: Config) -> str:
    """Return the consumer name under which a merge reads its logs."""
    return f"merge-{config.pipeline.name}"


@contextmanager
def open_engine(
    pipeline: Pipeline,
    options: ExtractOptions,
    *,
    tables: Callable[[], list[TableDefinition]],
    stop: Callable[[], bool],
) -> Iterator[MergeEngine]:
    """Return the engine. Each log's own pipeline captures its tables."""
    del options, tables, stop
    config = pipeline.config
    assert config.merge is not None, "a file with [merge]"
    if config.has_base:
        links.enable(config.layout.consumers / BASE)  # before the first segment
    yield MergeEngine(
        name=config.pipeline.name,
        scheme=config.source.url.partition("://")[0],
        types=types_at(config.source.url),
        places=[place_of(config, one) for one in config.inputs],
        section=config.merge,
        has_base=config.has_base,
    )


def _places(config: Config) -> Iterator[Path]:
    """Yield the directory of links that each log keeps for this merge."""
    for one in config.inputs:
        place = one.layout.consumers / consumer_name(config)
        if place.exists():
            yield place


def _removal(place: Path) -> Removal:
    return Removal(what=f"links of this merge in {place}", statements=())


def find_removals(config: Config, handover: Handover | None) -> Iterator[Removal]:
    """Yield the removals."""
    del handover
    yield from map(_removal, _places(config))


def owner(config: Config, *, log_id: str) -> str:
    """Return an empty text: links have the merge's name."""
    del config, log_id
    return ""


def remove(config: Config, handover: Handover | None, removal: Removal) -> None:
    """Remove the settings first, so that the log makes no further links."""
    del handover
    for place in _places(config):
        if _removal(place) == removal:
            with suppress(FileMissing):
                REAL_FILES.unlink(place / CONSUMER_FILE)
            remove_tree(place)
