"""The tables of a PostgreSQL source; see `ports.tables.Tables`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from penstock.codec.types import Engine, Server
from penstock.engines.postgres.source.catalog import captured_tables, open_catalog, taken_names
from penstock.engines.postgres.source.ddl_watch import WatchState
from penstock.engines.postgres.source.source_engine import WATCH_FILE
from penstock.host.files import REAL_FILES, Files
from penstock.host.state_file import StateFile
from penstock.model import TableDefinition, TableName
from penstock.model.layout import PipelineLayout
from penstock.ports.config import Config, NewTables
from penstock.ports.tables import Followed, Present


def server_of(url: str) -> Server:
    """Return the server at a URL, source or target."""
    with open_catalog(url) as catalog:
        version = catalog.info.server_version
    return Server(engine=Engine.POSTGRESQL, version=(version // 10_000,))


def read_captured(config: Config, *, dropped: Collection[TableName]) -> list[TableDefinition]:
    """Return the definitions of the tables that the configuration captures, ordered by name."""
    with open_catalog(config.source.url) as connection:
        return captured_tables(connection, config.source.tables, dropped=dropped)


def load_watch(layout: PipelineLayout, files: Files = REAL_FILES) -> WatchState | None:
    """Return the stored state of the watch over a pipeline's tables; None before its first look.

    Raises CheckpointCorrupt.
    """
    return StateFile(layout.state / WATCH_FILE, WatchState, files=files).load()


def read_followed(
    config: Config,
    *,
    added: Iterable[TableName],  # noqa: ARG001 - they are in the file
) -> Followed | None:
    """Return the tables that the change log follows; None before changes were extracted."""
    state = load_watch(config.layout)
    if state is None:
        return None
    return Followed(
        names=state.names,
        missing=frozenset(state.gone),
        ids=frozenset(shape.source_id for shape in state.shapes),
    )


def present(config: Config, patterns: Sequence[str], known: Followed) -> Present:
    """Return the present tables.

    A renamed table is new if its new name is captured. Without a target, the watch over tables
    captures it at once; with one, the watch stops the pipeline.
    """
    with open_catalog(config.source.url, application_name="penstock new tables") as catalog:
        oids = taken_names(catalog, patterns)
    is_asked_for = config.has_target and config.source.new_tables is NewTables.ADD
    new = frozenset(
        name for name, oid in oids.items() if not known.has(name, 0 if is_asked_for else oid)
    )
    return Present(names=frozenset(oids), new=new)


def everything(url: str) -> str:  # noqa: ARG001 - the port's
    """Return a pattern for all tables of a source; empty if its URL does not say enough."""
    return "*.*"


def namespace(url: str, schema: str, *, is_same: bool) -> str:  # noqa: ARG001 - the port's
    """Return the target namespace. A database of another engine is a schema here."""
    return "" if is_same else "public"


def shift(config: Config) -> int:  # noqa: ARG001 - the port's
    """Return 0: LSNs stay what they are."""
    return 0
