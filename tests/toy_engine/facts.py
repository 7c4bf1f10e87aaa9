"""Facts for the pipeline file, the catalogue and the plan: parts `options`, `tables`, `plan`."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing

from penstock.codec.types import Engine, Server
from penstock.host.errors import UrlInvalid
from penstock.model import ColumnDefinition, TableDefinition, TableName
from penstock.model.patterns import Selection
from penstock.ports.config import ChangeExtractorSection, Config
from penstock.ports.tables import Followed, Present, SourceFacts
from toy_engine.store import Shape, Store

SERVER = Server(engine=Engine.POSTGRESQL, version=(18,))  # the engine whose types ours are


def check_url(url: str) -> None:
    """Refuse a URL that cannot be of this engine."""
    if not url.startswith("toy:///"):
        raise UrlInvalid("url names no file", hint="Write it like toy:///folder/file.db.")


def problems(_section: ChangeExtractorSection) -> Iterator[tuple[str, str]]:
    """Yield nothing: there are no parameters of our own."""
    return iter(())


def definition_of(shape: Shape) -> TableDefinition:
    """Return the definition with which a target creates a table."""
    return TableDefinition(
        name=shape.table,
        source_id=zlib.crc32(repr(shape.table).encode()),
        columns=tuple(
            ColumnDefinition(
                name=name,
                type_text=kind,
                type_oid=0,
                typmod=-1,
                not_null=name in shape.key,
                base_type=kind,
                neutral=neutral,
            )
            for name, kind, neutral in shape.columns
        ),
        primary_key=shape.key,
        identity_columns=shape.key,
    )


def server_of(url: str) -> Server:
    """Return the server at a URL, source or target."""
    Store(url).close()
    return SERVER


def read_captured(config: Config, *, dropped: Collection[TableName]) -> list[TableDefinition]:
    """Return the definitions of the captured tables. No table is ever dropped here."""
    del dropped
    takes = Selection.parse(config.source.tables).takes
    with closing(Store(config.source.url)) as store:
        return [definition_of(one) for name, one in store.shapes().items() if takes(name)]


def read_followed(_config: Config, *, added: Iterable[TableName]) -> Followed | None:
    """Return None: every table that matches the patterns is followed, whenever it was created."""
    del added
    return None


def present(_config: Config, _patterns: Sequence[str], _known: Followed) -> Present | None:
    """Return None: there are no new tables, because all that match are followed."""
    return None


def everything(_url: str) -> str:
    """Return a pattern for all tables of a source; empty if its URL does not say enough."""
    return "*.*"


def namespace(_url: str, _schema: str, *, is_same: bool) -> str:
    """Return an empty name: every name is allowed."""
    del is_same
    return ""


def shift(_config: Config) -> int:
    """Return 0: positions never change."""
    return 0


def read_source(config: Config, *, dropped: Collection[TableName]) -> SourceFacts:
    """Return the facts of the source."""
    return SourceFacts(server=SERVER, tables=tuple(read_captured(config, dropped=dropped)))


def read_target(config: Config) -> tuple[Server, int]:
    """Return the target, and its lower_case_table_names, 0 if names keep their case."""
    return server_of(config.target.url), 0


def problems_between(
    _config: Config, _tables: Sequence[TableDefinition], *, planned: Collection[TableName]
) -> list[str]:
    """Return what a target of the same engine would refuse of the source, one sentence each."""
    del planned
    return []
