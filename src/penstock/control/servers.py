"""The two servers of a configured pipeline, and the tables that it takes in."""

from __future__ import annotations

from penstock.codec.types import Server, parse_choices
from penstock.control.followed import followed_names
from penstock.model import TableDefinition
from penstock.ports.config import Config
from penstock.ports.registry import same_types
from penstock.ports.server_pair import ServerPair
from penstock.ports.tables import tables_at


def server_of(url: str) -> Server:
    """Which server answers at a URL. Raises what connecting does."""
    return tables_at(url).server_of(url)


def server_pair(config: Config) -> ServerPair | None:
    """The two servers, each with the engine and version that it reports.

    None where every type is the same at both, and nothing is translated; or there is no target.
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
    """The definitions of the tables that the configuration takes in, ordered by name.

    Raises the errors of `captured_tables` of the source's engine.
    """
    return tables_at(config.source.url).read_captured(config, dropped=followed_names(config))
