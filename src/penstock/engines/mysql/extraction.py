"""Extracting from MySQL and MariaDB: the handover made, and the engine over it.

Not here: the handover's steps (`handover.py`), where a log goes on (`resume_state.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.engines.mysql.handover import prepared
from penstock.engines.mysql.log_start import has_begun, make_engine
from penstock.engines.mysql.source.catalog import open_catalog
from penstock.engines.mysql.source.source_engine import MySQLEngine
from penstock.model import TableDefinition
from penstock.ports.config import Config, Mode
from penstock.ports.extract_options import ExtractOptions
from penstock.ports.identity import SourceIdentity
from penstock.ports.pipeline import Pipeline

__all__ = ["has_begun", "identity", "mysql_identity", "open_engine"]

APPLICATION_NAME = "penstock extract"


def identity(config: Config) -> SourceIdentity:
    """See Extraction."""
    with open_catalog(config.source.url, application_name=APPLICATION_NAME) as source:
        return mysql_identity(config, str(source.server.flavour))


def mysql_identity(config: Config, flavour: str) -> SourceIdentity:
    """Who a MySQL or MariaDB source is, for good: with GTIDs servers may take over.

    Whether this one has what the log goes on from is checked before each connection
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
    """See Extraction."""
    if pipeline.config.pipeline.mode is not Mode.DATA_CHANGE:
        yield make_engine(pipeline, options)
        return
    with prepared(pipeline, has_begun=has_begun(pipeline), stop=stop) as handed:
        yield make_engine(pipeline, options, handed)
