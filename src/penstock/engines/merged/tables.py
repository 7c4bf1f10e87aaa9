"""The tables of a merge: those of its logs; see `ports.tables.Tables`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from penstock.codec.types import Server
from penstock.model import TableDefinition, TableName
from penstock.model.sections import MERGED
from penstock.ports.config import Config
from penstock.ports.tables import Followed, Present, tables_at


def server_of(url: str) -> Server:
    """Return the server of the first log's source."""
    inner = url.removeprefix(f"{MERGED}-")
    return tables_at(inner).server_of(inner)


def read_captured(config: Config, *, dropped: Collection[TableName]) -> list[TableDefinition]:
    """Return the definitions. A table of several logs has that of the first one."""
    found: dict[TableName, TableDefinition] = {}
    for one in config.inputs:
        for table in tables_at(one.source.url).read_captured(one, dropped=dropped):
            found.setdefault(table.name, table)
    return [found[name] for name in sorted(found)]


def read_followed(config: Config, *, added: Iterable[TableName]) -> Followed | None:  # noqa: ARG001
    """Return None: the logs' own pipelines follow their tables."""
    return None


def present(config: Config, patterns: Sequence[str], known: Followed) -> Present | None:  # noqa: ARG001
    """Return None: the logs' own pipelines add new tables."""
    return None


def everything(url: str) -> str:  # noqa: ARG001 - the port's
    """Return a pattern for all tables of a source; empty if its URL does not say enough."""
    return "*.*"


def namespace(url: str, schema: str, *, is_same: bool) -> str:
    """Return the name that the first log's source gives."""
    return tables_at(url.removeprefix(f"{MERGED}-")).namespace(url, schema, is_same=is_same)


def shift(config: Config) -> int:  # noqa: ARG001 - the port's
    """Return the offset that the log adds to the positions of a server that took over."""
    return 0
