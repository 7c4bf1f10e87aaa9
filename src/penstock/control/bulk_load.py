"""The bulk load of a configured pipeline: what the load process runs before the first change.

Joins configuration, source and the load room. Not here: the handover's point (`handover.py`), and
how chunks are copied (`penstock.load.bulk`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.codec.typemap import Engine, Server, parse_choices
from penstock.control.config import Config
from penstock.control.followed import followed_names
from penstock.load.bulk import BulkOptions, BulkResult, Planner, load_in_bulk
from penstock.load.bulk_progress import OnProgress
from penstock.load.bulk_types import Ends, is_mysql
from penstock.load.session import Session
from penstock.model import TableDefinition
from penstock.source.postgres.catalog import captured_tables, open_catalog


def bulk_options(config: Config) -> BulkOptions:
    """Where this pipeline's bulk load reads, writes and keeps its state."""
    return BulkOptions(
        source_url=config.source.url,
        target_url=config.target.url,
        state_directory=config.layout.state,
        run_directory=config.layout.run,
        namespaces=config.target.map,
        max_threads=config.data_loader.max_threads,
        ends=ends_of(config),
        keys_directory=config.layout.state if config.pipeline.mode.has_change else None,
    )


def ends_of(config: Config) -> Ends | None:
    """The two servers, as they say themselves which they are; None when both are PostgreSQL."""
    if not is_mysql(config.source.url) and not is_mysql(config.target.url):
        return None
    source = server_of(config.source.url)
    return Ends(
        source=source,
        target=server_of(config.target.url),
        choices=parse_choices(config.target.types, source.engine),
    )


def server_of(url: str) -> Server:
    """Which server answers at a URL."""
    if is_mysql(url):
        from penstock.source.mysql import catalog as mysql_catalog

        with mysql_catalog.open_catalog(url) as connection:
            found = connection.server
        engine = Engine.MARIADB if found.is_mariadb else Engine.MYSQL
        return Server(engine=engine, version=found.number)
    with open_catalog(url) as catalog:
        version = catalog.info.server_version
    return Server(engine=Engine.POSTGRESQL, version=(version // 10_000,))


def source_tables(config: Config) -> list[TableDefinition]:
    """The definitions of the tables that the configuration takes in, ordered by name.

    Raises the errors of `captured_tables` of the source's engine.
    """
    if is_mysql(config.source.url):
        from penstock.source.mysql import catalog as mysql_catalog

        with mysql_catalog.open_catalog(config.source.url) as connection:
            return mysql_catalog.captured_tables(connection, config.source.tables)
    with open_catalog(config.source.url) as connection:
        return captured_tables(connection, config.source.tables, dropped=followed_names(config))


def bulk_load(
    config: Config,
    session: Session,
    planner: Planner,
    *,
    definitions: Sequence[TableDefinition] | None = None,
    on_progress: OnProgress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> BulkResult:
    """Load what is not loaded yet; see `load_in_bulk` for what it raises.

    Call it with the handover's planner (`handover.bulk_planner`) in mode data+change, with that of
    `source_planner.data_planner` in mode data.
    """
    tables = source_tables(config) if definitions is None else definitions
    return load_in_bulk(
        session, bulk_options(config), tables, planner, on_progress=on_progress, stop=stop
    )
