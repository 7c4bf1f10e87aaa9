"""Part `extraction`: the engine of a SQL Server source, with the handover before it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from penstock.engines.sqlserver import handover
from penstock.engines.sqlserver.connect import Connection, connect
from penstock.engines.sqlserver.reading.catalog import captured_tables
from penstock.engines.sqlserver.source.beginning import read_database
from penstock.engines.sqlserver.source.instances import KnownTables
from penstock.engines.sqlserver.source.source_engine import TABLES_FILE, SQLServerEngine
from penstock.host.state_file import StateFile
from penstock.model import TableDefinition, TableName
from penstock.model.patterns import Selection
from penstock.ports.config import Config, Mode, Pipeline
from penstock.ports.identity import SourceIdentity
from penstock.ports.source import ExtractOptions
from penstock.ports.tables import asks_for_tables, with_requested

STATEMENT_TIMEOUT_S = 3600.0


def identity(config: Config) -> SourceIdentity:
    """Ask the source for its identity: the database. Raises CdcDisabled.

    The server is left out, because another replica of an availability group may take over.
    """
    with connect(config.source.url) as session:
        return identity_of(config, read_database(session).name)


def identity_of(config: Config, database: str) -> SourceIdentity:
    """Return the permanent identity of a database."""
    return SourceIdentity(
        pipeline=config.pipeline.name,
        engine="sqlserver",
        system_id="",
        timeline=0,
        database=database,
        database_id=0,
        slot="",
        publication="",
    )


def known_tables(config: Config) -> KnownTables | None:
    """Return the captured tables by the state beside the log; None before a log began."""
    return StateFile(config.layout.state / TABLES_FILE, KnownTables).load()


def has_begun(pipeline: Pipeline) -> bool:
    """Return whether the log has a position, from which it continues in any case."""
    return known_tables(pipeline.config) is not None or bool(pipeline.log_position())


@contextmanager
def open_engine(
    pipeline: Pipeline,
    options: ExtractOptions,
    *,
    tables: Callable[[], list[TableDefinition]],
    stop: Callable[[], bool],  # noqa: ARG001 - nothing is waited for
) -> Iterator[SQLServerEngine]:
    """Return the engine, for as long as changes are extracted."""
    config = pipeline.config
    begin = 0
    if config.pipeline.mode is Mode.DATA_CHANGE:
        with connect(config.source.url) as session:
            begin = handover.prepare(
                pipeline, session, tables=tables(), has_begun=has_begun(pipeline)
            )
    engine = SQLServerEngine(
        lambda: open_session(config.source.url),
        tables=lambda: with_added(config, tables()),
        selects=Selection.parse(config.source.tables).takes,
        asks=asks_for_tables(config),
        options=options,
        begin=begin,
        start_lsn=config.change_extractor.start_lsn,
    )
    try:
        yield engine
    finally:
        engine.close()


def with_added(config: Config, known: list[TableDefinition]) -> list[TableDefinition]:
    """Return the captured tables, and those that were requested since the process began."""

    def read(patterns: Sequence[str], dropped: Collection[TableName]) -> list[TableDefinition]:
        with connect(config.source.url) as session:
            return captured_tables(session, patterns, dropped=dropped)

    return with_requested(config, known, read)


def open_session(url: str) -> Connection:
    """Open a session of the extractor."""
    return connect(url, timeout_s=STATEMENT_TIMEOUT_S)
