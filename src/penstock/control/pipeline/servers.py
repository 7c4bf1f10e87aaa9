"""The two servers of a configured pipeline, and its captured tables."""

from __future__ import annotations

from penstock.codec.server_pair import ServerPair
from penstock.codec.types import Server, parse_choices
from penstock.control.pipeline.followed import followed_names
from penstock.model import TableDefinition
from penstock.ports.config import Config
from penstock.ports.registry import same_types
from penstock.ports.tables import tables_at


def server_of(url: str) -> Server:
    """Return the server at a URL. Raises the errors of connecting."""
    return tables_at(url).server_of(url)


def server_pair(config: Config) -> ServerPair | None:
    """Return the two servers, each with the engine and version that it reports.

    Returns None if every type is the same at both, so that nothing is translated; or without a
    target.
    """
    if not config.has_target or same_types(config.source.url, config.target.url):
        return None
    source = server_of(config.source.url)
    return ServerPair(
        source=source,
        target=server_of(config.target.url),
        choices=parse_choices(config.target.types, source.engine),
    )


def source_tables(config: Config) -> list[TableDefinition]:
    """Return the definitions of the captured tables, ordered by name.

    Raises the errors of `read_captured` of the source's engine.
    """
    return tables_at(config.source.url).read_captured(config, dropped=followed_names(config))
