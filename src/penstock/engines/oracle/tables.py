"""Tables of an Oracle source; see `ports.tables.Tables`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from penstock.codec.types import Server
from penstock.engines.oracle.connect import connect
from penstock.engines.oracle.reading.catalog import captured_tables, read_tables, server_at, unfit
from penstock.engines.oracle.source.shapes import KnownShapes
from penstock.engines.oracle.url import OracleUrl
from penstock.host.state_file import StateFile
from penstock.model import TableDefinition, TableName
from penstock.model.patterns import Selection
from penstock.ports.config import Config
from penstock.ports.source import RELATIONS_FILE
from penstock.ports.tables import Followed, Present


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
    with connect(config.source.url) as connection:
        return captured_tables(connection, config.source.tables, dropped=dropped)


def read_followed(config: Config, *, added: Iterable[TableName]) -> Followed | None:
    """Return the tables that the change log follows; None before changes were extracted."""
    known = StateFile(config.layout.state / RELATIONS_FILE, KnownShapes).load()
    if known is None:
        return None
    noted = (TableName(*one) for one in known.objects.values())
    relations = (TableName(one.schema, one.name) for one in known.relations)
    return Followed(names=frozenset([*noted, *relations, *added]), ids=frozenset(known.objects))


def present(config: Config, patterns: Sequence[str], known: Followed) -> Present:
    """Return the present tables."""
    selection = Selection.parse(patterns)
    with connect(config.source.url) as connection:
        there = {
            name: row.object_id
            for name, row in read_tables(connection).items()
            if selection.takes(name) and unfit(row) is None
        }
    return Present(
        names=frozenset(there),
        new=frozenset(name for name, number in there.items() if not known.has(name, number)),
    )


def everything(url: str) -> str:
    """Return a pattern for all tables of the URL's container."""
    del url
    return "*.*"


def namespace(url: str, schema: str, *, is_same: bool) -> str:
    """Return the schema in upper case, as Oracle has names without quotes.

    PUBLIC cannot be a schema there: such tables are of the URL's user.
    """
    if is_same:
        return ""
    name = schema.upper()
    if name == "PUBLIC":
        name = OracleUrl.parse(url).user.upper()
    return "" if name == schema else name


def shift(config: Config) -> int:
    """Return 0: SCNs stay what they are."""
    del config
    return 0
