"""Servers, tables and base of a configured pipeline."""

from __future__ import annotations

from pathlib import Path

from penstock.base.held import Holder
from penstock.base.manifest import NAME, BasePlace
from penstock.codec.server_pair import ServerPair
from penstock.codec.types import Server, parse_choices
from penstock.control.pipeline.table_requests import read_answers, read_requests
from penstock.load.ledger import read_ledger
from penstock.log.layout import load_state
from penstock.model import TableDefinition, TableName
from penstock.model.table_requests import Capture
from penstock.ports.config import BulkState, Config, Pipeline
from penstock.ports.registry import same_types
from penstock.ports.tables import Followed, tables_at


def followed_tables(config: Config) -> Followed | None:
    """Return the tables that the change log follows; None before changes were extracted.

    Raises CheckpointCorrupt.
    """
    answers = read_answers(config)
    added = [
        request.table
        for request in read_requests(config).tables
        if request.capture is Capture.ADDED and answers.is_done(request)
    ]
    return tables_at(config.source.url).read_followed(config, added=added)


def is_followed(config: Config, table: TableName) -> bool:
    """Return whether a table of the configuration is followed; before a first run all are."""
    state = followed_tables(config)
    return state is None or state.has(table)


def followed_names(config: Config) -> frozenset[TableName]:
    """Return the tables that the change log follows, or did until they were dropped at the source.

    Empty before changes were extracted. Raises CheckpointCorrupt.
    """
    state = followed_tables(config)
    return state.names if state is not None else frozenset()


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


def pipeline_of(config: Config) -> Pipeline:
    """Return the pipeline of a configuration; its files are read at each call."""

    def log_position() -> int:
        state = load_state(config.layout.log)
        return 0 if state is None else state.end.position

    def bulk() -> BulkState:
        ledger = read_ledger(config.layout.state)
        return BulkState(
            copied=ledger.copied,
            finished=ledger.finished,
            planned=frozenset(plan.source for plan in ledger.plans),
        )

    return Pipeline(config=config, log_position=log_position, bulk=bulk)


def base_place(config: Config) -> BasePlace:
    """Return the place of the log's base, and the links of segments that it needs."""
    return BasePlace(
        directory=config.layout.base,
        links=config.layout.consumers / NAME,
        extension=config.change_loader.change_file_extension,
    )


def base_holder(config: Config, owner: str, *links: Path) -> Holder:
    """Return a holder of the base's states. owner: a name that no other process has.

    links: directories with names of segments, besides the known ones.
    """
    place = base_place(config)
    return Holder(
        place.directory,
        owner=owner,
        log=config.layout.log,
        links=(place.links, *links),
        extension=place.extension,
    )
