"""Extracting from PostgreSQL: publication, slot and handover made, and the engine over them.

Not here: the handover's steps (`handover.py`), the stream (`source/source_engine.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import psycopg
import structlog

from penstock.codec.postgres.lsn import Lsn
from penstock.engines.postgres.connect import connect, server_errors
from penstock.engines.postgres.handover import prepare
from penstock.engines.postgres.planner import tell_blockers
from penstock.engines.postgres.source import slot as slots
from penstock.engines.postgres.source.client import open_replication
from penstock.engines.postgres.source.slot_owner import check_adoptable, disclaim_slot
from penstock.engines.postgres.source.source_engine import PostgresEngine
from penstock.engines.postgres.standby import check_publication_there
from penstock.model import TableDefinition
from penstock.model.patterns import Selection
from penstock.ports.config import Config, Mode, NewTables, Pipeline
from penstock.ports.identity import SourceIdentity
from penstock.ports.source import ExtractOptions

logger = structlog.get_logger()
APPLICATION_NAME = "penstock extract"

IDENTITY = """
    select s.system_identifier::text,
           c.timeline_id,
           current_database(),
           (select oid::int8 from pg_database where datname = current_database())
      from pg_control_system() as s,
           pg_control_checkpoint() as c
"""


def identity(config: Config) -> SourceIdentity:
    """Ask the source for its identity."""
    with connect(config.source.url, application_name=APPLICATION_NAME) as connection:
        return read_identity(connection, config)


def read_identity(connection: psycopg.Connection, config: Config) -> SourceIdentity:
    """Ask the source for its identity. Raises the typed errors of `server_errors`."""
    with server_errors("reading the source's identity"):
        row = connection.execute(IDENTITY).fetchone()
    if row is None:
        raise RuntimeError("pg_control_system() gave no row")
    return SourceIdentity(
        pipeline=config.pipeline.name,
        engine="postgresql",
        system_id=row[0],
        timeline=row[1],
        database=row[2],
        database_id=row[3],
        slot=config.change_extractor.replication_slot,
        publication=config.change_extractor.publication,
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
) -> Iterator[PostgresEngine]:
    """Return the engine, for as long as changes are extracted."""
    captured = tables()
    with _begin(pipeline, captured, stop) as start_position:
        config = pipeline.config
        takes = Selection.parse(config.source.tables).takes
        yield PostgresEngine(
            config.source.url,
            tables=captured,
            options=options,
            start_position=start_position,
            takes=takes,
            takes_renamed=takes if config.source.new_tables is NewTables.ADD else lambda _: False,
            reads_renamed=not config.has_target,
            pipeline=config.pipeline.name,
        )


@contextmanager
def _begin(
    pipeline: Pipeline, tables: list[TableDefinition], stop: Callable[[], bool]
) -> Iterator[int]:
    """Prepare publication, slot and, in mode data+change, the handover's snapshot. Returns the
    position where an empty log begins.

    The snapshot is kept as long as the with block is open and the bulk load needs it.
    """
    if pipeline.config.pipeline.mode is Mode.DATA_CHANGE:
        with prepare(pipeline, tables, stop=stop) as position:
            yield position
        return
    yield ensure_slot(pipeline, tables)


def ensure_slot(pipeline: Pipeline, tables: list[TableDefinition]) -> int:
    """Make sure that the slot exists in mode change; return where an empty log begins.

    The log begins at the position of a new slot, and at 0 for an existing one. A slot that a log
    with content has lost is never recreated: the extractor refuses. Raises SlotOfAnother or
    SlotInUse for a slot that an empty log cannot begin at.
    """
    config = pipeline.config
    section = config.change_extractor
    with open_replication(config.source.url, application_name=APPLICATION_NAME) as replication:
        state = slots.read_slot(replication, section.replication_slot)
        if pipeline.log_position():
            return 0
        with connect(config.source.url, application_name=APPLICATION_NAME) as connection:
            if state is not None:
                check_adoptable(connection, section.publication, section.replication_slot)
                return 0
            disclaim_slot(connection, section.publication, section.replication_slot)
            names = [table.name for table in tables]
            check_publication_there(connection, section.publication, names)
            slots.ensure_publication(connection, section.publication, names)
        created = slots.create_slot(
            replication,
            config.source.url,
            section.replication_slot,
            snapshot=False,
            on_blocked=partial(tell_blockers, config.layout.run),
        )
    logger.info("slot made at the present position", position=str(Lsn(created.position)))
    return created.position
