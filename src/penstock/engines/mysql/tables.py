"""Tables of a MySQL or MariaDB source; see `ports.tables.Tables`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from penstock.codec.mysql.binlog_position import BINLOG_OFFSET_BITS
from penstock.codec.types import Engine, Server
from penstock.engines.mysql.log_start import stored_resume_state
from penstock.engines.mysql.source.catalog import captured_tables, open_catalog, taken_names
from penstock.engines.mysql.source.schema_history import ghost_of
from penstock.engines.mysql.source.source_engine import NOTES_FILE
from penstock.engines.mysql.source.table_notes import AllNotes
from penstock.engines.mysql.url import MySQLUrl
from penstock.host.state_file import StateFile
from penstock.model import TableDefinition, TableName
from penstock.model.patterns import as_pattern
from penstock.ports.config import Config
from penstock.ports.tables import Followed, Present


def server_of(url: str) -> Server:
    """Return the server at a URL, source or target."""
    with open_catalog(url) as connection:
        found = connection.server
    engine = Engine.MARIADB if found.is_mariadb else Engine.MYSQL
    return Server(engine=engine, version=found.number)


def read_captured(
    config: Config,
    *,
    dropped: Collection[TableName],  # noqa: ARG001 - the binlog tells
) -> list[TableDefinition]:
    """Return the definitions of the tables that the configuration captures, ordered by name."""
    with open_catalog(config.source.url) as connection:
        return captured_tables(connection, config.source.tables)


def read_followed(config: Config, *, added: Iterable[TableName]) -> Followed | None:
    """Return the followed tables. An added table is noted with the next transaction that
    arrives.
    """
    notes = StateFile(config.layout.state / NOTES_FILE, AllNotes).load()
    if notes is None:
        return None
    captured = [one for one in notes.tables if one.is_captured]
    return Followed(
        names=frozenset([*(one.table for one in captured), *added]),
        missing=frozenset(one.table for one in captured if not one.is_there),
    )


def present(config: Config, patterns: Sequence[str], known: Followed) -> Present | None:
    """Return the present tables.

    A missing captured table was either dropped or renamed. The binlog shows which of the two once
    it is read that far.
    """
    with open_catalog(config.source.url, application_name="penstock new tables") as catalog:
        names = taken_names(catalog, patterns)
    if not known.names - known.missing <= names.keys():
        return None
    # An online schema change tool uses such a name for its copy of a followed table.
    there = frozenset(
        name for name, taken in names.items() if taken and ghost_of(name) not in known.names
    )
    return Present(names=there, new=frozenset(name for name in there if not known.has(name)))


def everything(url: str) -> str:
    """Return a pattern for the tables of the URL's database."""
    database = MySQLUrl.parse(url).database
    return as_pattern(TableName(database, "x")).removesuffix("x") + "*" if database else ""


def namespace(url: str, schema: str, *, is_same: bool) -> str:  # noqa: ARG001 - the port's
    """Return the URL's database; empty if it is the schema."""
    database = MySQLUrl.parse(url).database
    return database if database and database != schema else ""


def shift(config: Config) -> int:
    """Return the offset that the log adds to the positions of a server that took over."""
    resume_state = stored_resume_state(config)
    return 0 if resume_state is None else resume_state.mark.shift << BINLOG_OFFSET_BITS
