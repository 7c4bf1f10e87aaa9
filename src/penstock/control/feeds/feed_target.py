"""The tables of a target that changefeeds are applied to; see `ports.feeds.TargetCatalog`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import unquote, urlsplit

from penstock.model import TableName
from penstock.model.patterns import as_pattern
from penstock.ports.config import Config, SourceSection
from penstock.ports.feeds import Group, TargetCatalog
from penstock.ports.registry import engine_at
from penstock.ports.tables import tables_at


class TargetSchemas(TargetCatalog):
    """Catalogue of the target, with the interface of a source's catalogue."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._url = config.target.url
        self._has_schemas = engine_at(self._url).has_schemas
        self._tables = tables_at(self._url)

    @property
    def group_parts(self) -> int:
        return 2 if self._has_schemas else 1

    @property
    def database(self) -> str:
        """Database of the target's URL."""
        return unquote(urlsplit(self._url).path.strip("/"))

    def keys(self, group: Group) -> Mapping[str, tuple[str, ...]]:
        if self._has_schemas and group[0] != self.database:
            return {}
        pattern = as_pattern(TableName(group[-1], "x")).removesuffix("x") + "*"
        source = SourceSection(url=self._url, tables=(pattern,))
        found = self._tables.read_captured(replace(self._config, source=source), dropped=())
        return {one.name.name: one.primary_key for one in found if one.name.schema == group[-1]}

    def group_of(self, name: str) -> Group | None:
        """Return the group of a name in the table checkpoints; None for one of another target."""
        if not self._has_schemas:
            return (name,)
        first = f"{self.database}."
        return (self.database, name[len(first) :]) if name.startswith(first) else None

    def check(self) -> None:
        self._tables.server_of(self._url)
