"""The two servers of a configured pipeline, and the tables that it takes in: asked at both engines.

Not here: what is done with them (`bulk_load.py`, `doctor_load.py`).
"""

from __future__ import annotations

from penstock.codec.types import Engine, Server, parse_choices
from penstock.control.followed import followed_names
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog
from penstock.model import TableDefinition
from penstock.ports.config import Config
from penstock.sql.read_plan import Ends, is_mysql


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
        from penstock.engines.mysql.source import catalog as mysql_catalog

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
        from penstock.engines.mysql.source import catalog as mysql_catalog

        with mysql_catalog.open_catalog(config.source.url) as connection:
            return mysql_catalog.captured_tables(connection, config.source.tables)
    with open_catalog(config.source.url) as connection:
        return captured_tables(connection, config.source.tables, dropped=followed_names(config))
