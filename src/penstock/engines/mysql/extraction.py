"""Extraction from MySQL and MariaDB: the handover, then the engine that follows it.

Not here: the handover's steps (`handover.py`), where a log continues (`resume_state.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.engines.mysql.handover import prepare
from penstock.engines.mysql.log_start import has_begun, make_engine
from penstock.engines.mysql.source.catalog import open_catalog
from penstock.engines.mysql.source.source_engine import MySQLEngine
from penstock.model import TableDefinition
from penstock.ports.config import Config, Mode, Pipeline
from penstock.ports.identity import SourceIdentity
from penstock.ports.source import ExtractOptions

__all__ = ["has_begun", "identity", "mysql_identity", "open_engine"]

APPLICATION_NAME = "penstock extract"


def identity(config: Config) -> SourceIdentity:
    """Ask the source for its identity."""
    with open_catalog(config.source.url, application_name=APPLICATION_NAME) as source:
        return mysql_identity(config, str(source.server.flavour))


def mysql_identity(config: Config, flavour: str) -> SourceIdentity:
    """Return the permanent identity of a source: with GTIDs, another server may take over.

    Before each connection it is checked that the server has the position where the log continues
    (`penstock.engines.mysql.source.status.check_resume`).
    """
    return SourceIdentity(
        pipeline=config.pipeline.name,
        engine="mysql",
        system_id=flavour,
        timeline=0,
        database="",
        database_id=0,
        slot="",
        publication="",
    )


@contextmanager
def open_engine(
    pipeline: Pipeline,
    options: ExtractOptions,
    *,
    tables: Callable[[], list[TableDefinition]],  # noqa: ARG001 - the binlog tells all
    stop: Callable[[], bool],
) -> Iterator[MySQLEngine]:
    """Return the engine, for as long as changes are extracted."""
    if pipeline.config.pipeline.mode is not Mode.DATA_CHANGE:
        yield make_engine(pipeline, options)
        return
    with prepare(pipeline, has_begun=has_begun(pipeline), stop=stop) as handed:
        yield make_engine(pipeline, options, handed)
