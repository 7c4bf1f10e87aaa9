"""Part `extraction`: the engine of an Oracle source, with the handover before it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from penstock.engines.oracle import handover
from penstock.engines.oracle.beginning import Beginning, check_database, read_database
from penstock.engines.oracle.connect import Connection, connect, connect_root
from penstock.engines.oracle.reading.catalog import captured_tables
from penstock.engines.oracle.source.assembly import Limits
from penstock.engines.oracle.source.source_engine import OracleEngine
from penstock.engines.oracle.source.watermarks import REDO_FILE, KnownRedo
from penstock.engines.oracle.url import OracleUrl
from penstock.host.state_file import StateFile
from penstock.model import TableDefinition, TableName
from penstock.model.patterns import Selection
from penstock.ports.config import Config, Mode, Pipeline
from penstock.ports.identity import SourceIdentity
from penstock.ports.source import ExtractOptions
from penstock.ports.tables import asks_for_tables, with_requested

# A window of LogMiner may take minutes without a byte.
STATEMENT_TIMEOUT_S = 3600.0


def identity(config: Config) -> SourceIdentity:
    """Ask the source for its identity: the database, and the container of the tables."""
    with connect_root(config.source.url) as session:
        found = read_database(session)
    return identity_of(config, found.dbid, found.name)


def identity_of(config: Config, dbid: int, name: str) -> SourceIdentity:
    """Return the permanent identity of a database. dbid: DBID. name: of the whole database."""
    return SourceIdentity(
        pipeline=config.pipeline.name,
        engine="oracle",
        system_id=str(dbid),
        timeline=0,
        database=OracleUrl.parse(config.source.url).pdb or name,
        database_id=0,
        slot="",
        publication="",
    )


def known_redo(config: Config) -> KnownRedo | None:
    """Return the incarnation and watermarks of the log; None before it began."""
    return StateFile(config.layout.state / REDO_FILE, KnownRedo).load()


def has_begun(pipeline: Pipeline) -> bool:
    """Return whether the log has a position, from which it continues in any case."""
    return known_redo(pipeline.config) is not None or bool(pipeline.log_position())


@contextmanager
def open_engine(
    pipeline: Pipeline,
    options: ExtractOptions,
    *,
    tables: Callable[[], list[TableDefinition]],
    stop: Callable[[], bool],  # noqa: ARG001 - nothing is waited for
) -> Iterator[OracleEngine]:
    """Return the engine, for as long as changes are extracted.

    Raises the errors of `beginning.check_database`, and those of the handover.
    """
    config = pipeline.config
    url = config.source.url
    section = config.change_extractor
    engine = OracleEngine(
        lambda: open_root(url),
        lambda: open_tables(url),
        tables=lambda: with_added(config, tables()),
        selects=_selects(config),
        options=options,
        container=OracleUrl.parse(url).pdb,
        beginning=_find_beginning(pipeline, tables),
        start_scn=section.start_scn,
        limits=Limits(
            rows_max=section.transaction_rows_max,
            age_max_s=section.transaction_hours_max * 3600,
        ),
    )
    try:
        yield engine
    finally:
        engine.close()


def _find_beginning(
    pipeline: Pipeline, tables: Callable[[], list[TableDefinition]]
) -> Beginning | None:
    """Check the database, and return where the handover lets an empty log begin."""
    config = pipeline.config
    with connect_root(config.source.url) as session:
        check_database(session, OracleUrl.parse(config.source.url).pdb)
        if config.pipeline.mode is not Mode.DATA_CHANGE:
            return None
        return handover.prepare(pipeline, session, tables=tables, has_begun=has_begun(pipeline))


def _selects(config: Config) -> Callable[[TableName], bool]:
    """Return whether a table that is created later is captured at once."""
    if asks_for_tables(config):
        return lambda _: False
    return Selection.parse(config.source.tables).takes


def with_added(config: Config, known: list[TableDefinition]) -> list[TableDefinition]:
    """Return the captured tables, and those that were requested since the process began."""

    def read(patterns: Sequence[str], dropped: Collection[TableName]) -> list[TableDefinition]:
        with connect(config.source.url) as session:
            return captured_tables(session, patterns, dropped=dropped)

    return with_requested(config, known, read)


def open_root(url: str) -> Connection:
    """Open a session of the extractor for mining."""
    return connect_root(url, timeout_s=STATEMENT_TIMEOUT_S)


def open_tables(url: str) -> Connection:
    """Open a session of the extractor in the container of the tables."""
    return connect(url, timeout_s=STATEMENT_TIMEOUT_S)
