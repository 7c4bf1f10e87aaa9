"""Tables of a SQL Server source; see `ports.tables.Tables`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import closing

from penstock.codec.types import Server
from penstock.engines.sqlserver.connect import connect
from penstock.engines.sqlserver.reading.catalog import captured_tables, server_at, taken_names
from penstock.engines.sqlserver.source.instances import KnownTables
from penstock.engines.sqlserver.source.source_engine import TABLES_FILE
from penstock.host.state_file import StateFile
from penstock.model import TableDefinition, TableName
from penstock.ports.config import Config
from penstock.ports.tables import Followed, Present

DEFAULT_SCHEMA = "dbo"


def server_of(url: str) -> Server:
    """Return the server at a URL, source or target."""
    return server_at(url)


def read_captured(
    config: Config,
    *,
    dropped: Collection[TableName],
) -> list[TableDefinition]:
    """Return the definitions of the tables that the configuration captures, ordered by name.

    A pattern may name a table that was followed and no longer exists.
    """
    with closing(connect(config.source.url)) as connection:
        return captured_tables(connection, config.source.tables, dropped=dropped)


def read_followed(config: Config, *, added: Iterable[TableName]) -> Followed | None:
    """Return the tables that the change log follows; None before changes were extracted."""
    known = StateFile(config.layout.state / TABLES_FILE, KnownTables).load()
    if known is None:
        return None
    return Followed(
        names=frozenset([*(one.table for one in known.tables.values()), *added]),
    )


def present(config: Config, patterns: Sequence[str], known: Followed) -> Present:
    """Return the present tables."""
    with closing(connect(config.source.url)) as connection:
        names = taken_names(connection, patterns)
    there = frozenset(name for name, is_taken in names.items() if is_taken)
    return Present(names=there, new=frozenset(name for name in there if not known.has(name)))


def everything(url: str) -> str:
    """Return a pattern for all tables of the URL's database."""
    del url
    return "*.*"


def namespace(url: str, schema: str, *, is_same: bool) -> str:
    """Return the target's schema: `dbo`, unless the source is a SQL Server, too."""
    del url
    return "" if is_same or schema == DEFAULT_SCHEMA else DEFAULT_SCHEMA


def shift(config: Config) -> int:
    """Return 0: LSNs stay what they are."""
    del config
    return 0
