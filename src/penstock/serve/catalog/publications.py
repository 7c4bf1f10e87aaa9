"""Publications: which tables, columns and rows a client is sent, and since which position. Pure.

A publication that changes gets a new version, valid from a position of the log on; the stream asks
for the versions that were valid at a transaction's position. What the pipeline file gives as
patterns is looked up for each table, so a table that is captured later is in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.codec.postgres.pgwire_server import Refused
from penstock.model.patterns import Selection
from penstock.model.table import TableName

_ACTIONS = ("insert", "update", "delete", "truncate")
_SYSTEM_SCHEMAS = ("pg_catalog", "information_schema", "pg_toast")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """One table that a publication names. columns: None for all; row_filter: SQL, or empty."""

    schema: str
    name: str
    columns: tuple[str, ...] | None = None
    row_filter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """One version of a publication. patterns: of the pipeline file, as its tables are written."""

    name: str
    oid: int
    owner: str
    all_tables: bool = False
    tables: tuple[PublishedTable, ...] = ()
    schemas: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    actions: tuple[str, ...] = _ACTIONS
    via_root: bool = False

    def table(self, schema: str, name: str) -> PublishedTable | None:
        """How it publishes a table; None: it does not."""
        for found in self.tables:
            if (found.schema, found.name) == (schema, name):
                return found
        whole = PublishedTable(schema=schema, name=name)
        if self.all_tables or schema in self.schemas:
            return whole
        if self.patterns and Selection.parse(self.patterns).takes(TableName(schema, name)):
            return whole
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    """What COMMENT ON PUBLICATION says of one. It is no new version: nothing else is sent."""

    oid: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A publication from a position on. publication: None where it has been dropped."""

    position: int
    name: str
    publication: Publication | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What several publications together send of one table.

    columns: names, None for all. filters: by action; None: all rows, else SQL conditions of which
    one must be true. actions: those that are sent.
    """

    columns: tuple[str, ...] | None
    filters: dict[str, tuple[str, ...] | None]
    actions: frozenset[str]


class Publications:
    """All versions of all publications, in the order in which they were made."""

    def __init__(self, versions: Iterable[Version] = ()) -> None:
        """versions: with rising positions."""
        self._versions = list(versions)

    @property
    def versions(self) -> Sequence[Version]:
        """All of them."""
        return self._versions

    def current(self) -> dict[str, Publication]:
        """Those that exist now, by name."""
        return self._valid(None)

    def at(self, position: int) -> dict[str, Publication]:
        """Those that existed at a position."""
        return self._valid(position)

    def _valid(self, position: int | None) -> dict[str, Publication]:
        found: dict[str, Publication] = {}
        for version in self._versions:
            if position is not None and version.position > position:
                break
            if version.publication is None:
                found.pop(version.name, None)
            else:
                found[version.name] = version.publication
        return found

    def change(self, position: int, name: str, publication: Publication | None) -> None:
        """Add a version; positions never fall."""
        if self._versions:
            position = max(position, self._versions[-1].position)
        self._versions.append(Version(position=position, name=name, publication=publication))

    def restore(self, versions: Iterable[Version]) -> None:
        """Have these versions again, in place of all."""
        self._versions = list(versions)

    def forget_before(self, position: int) -> None:
        """Drop the versions that nobody can ask for any more: replaced at or before a position."""
        kept: list[Version] = []
        for index, version in enumerate(self._versions):
            later = any(
                v.name == version.name and v.position <= position
                for v in self._versions[index + 1 :]
            )
            if not later:
                kept.append(version)
        self._versions = kept


def published(publications: Sequence[Publication], schema: str, name: str) -> Published | None:
    """What these publications send of a table; None: nothing.

    Raises Refused, 0A000, where they have different column lists for it, as the server does.
    """
    found = [(p, t) for p in publications if (t := p.table(schema, name)) is not None]
    if not found:
        return None
    lists = {None if t.columns is None else frozenset(t.columns) for _, t in found}
    if len(lists) > 1:
        raise Refused(
            "0A000",
            f'cannot use different column lists for table "{schema}.{name}" in different '
            "publications",
        )
    filters: dict[str, tuple[str, ...] | None] = {}
    for action in _ACTIONS:
        texts = [t.row_filter for p, t in found if action in p.actions]
        whole = action == "truncate" or "" in texts
        filters[action] = None if whole else tuple(dict.fromkeys(texts))
    return Published(
        columns=found[0][1].columns,
        filters=filters,
        actions=frozenset(action for p, _ in found for action in p.actions),
    )


def named(publications: dict[str, Publication], names: Sequence[str]) -> list[Publication]:
    """Those of these names. Raises Refused, 42704, for one that is not there."""
    for name in names:
        if name not in publications:
            raise Refused("42704", f'publication "{name}" does not exist')
    return [publications[name] for name in names]


def everything(actions: Collection[str]) -> Publication:
    """What a stream is sent that no publication is asked for."""
    found = tuple(action for action in _ACTIONS if action in actions)
    return Publication(name="", oid=0, owner="", all_tables=True, actions=found)


def with_tables(publication: Publication, tables: Sequence[PublishedTable]) -> Publication:
    """The publication with more tables. Raises Refused: 42710 for one that is there."""
    there = {(table.schema, table.name) for table in publication.tables}
    for table in tables:
        if (table.schema, table.name) in there:
            raise Refused(
                "42710",
                f'relation "{table.name}" is already member of publication "{publication.name}"',
            )
    return replace(publication, tables=(*publication.tables, *tables))


def without_tables(publication: Publication, names: Sequence[tuple[str, str]]) -> Publication:
    """The publication with fewer tables. Raises Refused: 42704 for one that is not there."""
    kept = list(publication.tables)
    for schema, name in names:
        found = next((t for t in kept if (t.schema, t.name) == (schema, name)), None)
        if found is None:
            raise Refused("42704", f'relation "{name}" is not part of the publication')
        kept.remove(found)
    return replace(publication, tables=tuple(kept))


def with_schemas(publication: Publication, names: Sequence[str]) -> Publication:
    """The publication with more schemas. Raises Refused: 42710, 22023."""
    for name in names:
        if name in _SYSTEM_SCHEMAS:
            raise Refused("22023", f'cannot add schema "{name}" to publication')
        if name in publication.schemas:
            raise Refused(
                "42710",
                f'schema "{name}" is already member of publication "{publication.name}"',
            )
    return replace(publication, schemas=(*publication.schemas, *names))


def without_schemas(publication: Publication, names: Sequence[str]) -> Publication:
    """The publication with fewer schemas. Raises Refused: 42704."""
    for name in names:
        if name not in publication.schemas:
            raise Refused("42704", f'tables from schema "{name}" are not part of the publication')
    return replace(
        publication, schemas=tuple(name for name in publication.schemas if name not in names)
    )
