"""The tables of a YugabyteDB source, and the plan for them; see `ports.tables`.

A log follows the tables that its publication had when it began.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NoReturn

from penstock.codec.types import Engine, Server
from penstock.engines.yugabyte.catalog import connect_catalog, tables_of
from penstock.engines.yugabyte.slots import STATE_FILE, SlotPlace
from penstock.host.state_file import StateFile
from penstock.model import TableDefinition, TableName
from penstock.ports.config import Config
from penstock.ports.registry import PartMissing
from penstock.ports.tables import PLAN_APPLICATION, Followed, Present, SourceFacts


def server_of(url: str) -> Server:
    """Return the PostgreSQL version on which the server is based."""
    with connect_catalog(url) as connection:
        version = connection.info.server_version
    return Server(engine=Engine.POSTGRESQL, version=(version // 10_000,))


def read_captured(config: Config, *, dropped: Collection[TableName]) -> list[TableDefinition]:
    """Return the definitions of the tables that the configuration captures, ordered by name."""
    with connect_catalog(config.source.url) as connection:
        return tables_of(connection, config.source.tables, dropped=dropped)


def stored_place(config: Config) -> SlotPlace:
    """Load the stored facts about the log's slot. Raises CheckpointCorrupt."""
    return StateFile(config.layout.state / STATE_FILE, SlotPlace).load() or SlotPlace()


def read_followed(
    config: Config,
    *,
    added: Iterable[TableName],  # noqa: ARG001 - the port's
) -> Followed | None:
    """Return the tables that the change log follows; None before changes were extracted."""
    place = stored_place(config)
    if not place.stream_id:
        return None
    return Followed(
        names=frozenset(TableName(schema, name) for _, schema, name in place.tables),
        ids=frozenset(id_ for id_, _, _ in place.tables),
    )


def present(config: Config, patterns: Sequence[str], known: Followed) -> Present:
    """Return the present tables of the catalogue; None if it is not known yet which are new."""
    with connect_catalog(config.source.url, application_name="penstock new tables") as connection:
        found = tables_of(connection, patterns)
    names = frozenset(table.name for table in found)
    return Present(
        names=names,
        new=frozenset(one.name for one in found if not known.has(one.name, one.source_id)),
    )


def everything(url: str) -> str:  # noqa: ARG001 - the port's
    """Return a pattern for all tables of a source; empty if its URL does not say enough."""
    return "*.*"


def namespace(url: str, schema: str, *, is_same: bool) -> str:  # noqa: ARG001 - the port's
    """Return the target namespace for a source's one schema; empty: the same name."""
    return "" if is_same else "public"


def shift(config: Config) -> int:  # noqa: ARG001 - the port's
    """Return the offset that the log adds to the positions of a server that took over."""
    return 0


def read_source(config: Config, *, dropped: Collection[TableName]) -> SourceFacts:
    """Return the facts of the source."""
    with connect_catalog(config.source.url, application_name=PLAN_APPLICATION) as connection:
        tables = tables_of(connection, config.source.tables, dropped=dropped)
    return SourceFacts(
        server=server_of(config.source.url), tables=tuple(tables), left_out=(), problems=()
    )


def read_target(config: Config) -> NoReturn:
    """Return the target, and its lower_case_table_names, 0 if names keep their case."""
    raise PartMissing(
        "YugabyteDB cannot be a target",
        hint="Name a database of another engine in [target] url.",
        url=config.path.name,
    )


def problems_between(
    config: Config,  # noqa: ARG001 - the port's
    tables: Sequence[TableDefinition],  # noqa: ARG001 - the port's
    *,
    planned: Collection[TableName],  # noqa: ARG001 - the port's
) -> list[str]:
    """Return what a target of the same engine would refuse of the source, one sentence each."""
    return []
