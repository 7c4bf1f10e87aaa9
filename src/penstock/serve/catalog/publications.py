"""Publications: the tables, columns and rows for a client, from a position on. Pure.

A publication that changes gets a new version, valid from a position of the log on; the stream
looks up the versions that were valid at a transaction's position. Patterns of the pipeline file
are matched with each table, so they include tables that are captured later.
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
    """One table of a publication.

    Attributes:
        columns: None for all.
        row_filter: SQL, or empty.
    """

    schema: str
    name: str
    columns: tuple[str, ...] | None = None
    row_filter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """One version of a publication.

    Attributes:
        patterns: table patterns of the pipeline file.
    """

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
        """Return how the publication sends a table; None if it does not."""
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
    """Comment from COMMENT ON PUBLICATION. It makes no version: the sent changes stay the same."""

    oid: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """Publication as it is from a position on; its publication is None if it was dropped there."""

    position: int
    name: str
    publication: Publication | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Changes of one table that several publications together send.

    Attributes:
        columns: names, None for all.
        filters: by action; None: all rows, else SQL conditions, one of which must be true.
        actions: actions that are sent.
    """

    columns: tuple[str, ...] | None
    filters: dict[str, tuple[str, ...] | None]
    actions: frozenset[str]


class Publications:
    """All versions of all publications, in the order of creation."""

    def __init__(self, versions: Iterable[Version] = ()) -> None:
        """Set versions with rising positions."""
        self._versions = list(versions)

    @property
    def versions(self) -> Sequence[Version]:
        """All versions."""
        return self._versions

    def current(self) -> dict[str, Publication]:
        """Return the existing publications, by name."""
        return self._valid(None)

    def at(self, position: int) -> dict[str, Publication]:
        """Return the publications that existed at a position."""
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
        """Replace all versions by these."""
        self._versions = list(versions)

    def forget_before(self, position: int) -> None:
        """Drop versions that are no longer needed: replaced at or before a position."""
        kept: list[Version] = []
        for index, version in enumerate(self._versions):
            later = any(
                v.name == version.name and v.position <= position
                for v in self._versions[index + 1 :]
            )
            if not later:
                kept.append(version)
        self._versions = kept


def find_published(publications: Sequence[Publication], schema: str, name: str) -> Published | None:
    """Return the parts of a table that these publications send; None if they send nothing.

    Raises Refused, 0A000, if they have different column lists for it, as the server does.
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


def find_publications(
    publications: dict[str, Publication], names: Sequence[str]
) -> list[Publication]:
    """Return the publications of these names. Raises Refused, 42704, for a missing one."""
    for name in names:
        if name not in publications:
            raise Refused("42704", f'publication "{name}" does not exist')
    return [publications[name] for name in names]


def everything(actions: Collection[str]) -> Publication:
    """Return the publication for a stream that names no publication."""
    found = tuple(action for action in _ACTIONS if action in actions)
    return Publication(name="", oid=0, owner="", all_tables=True, actions=found)


def with_tables(publication: Publication, tables: Sequence[PublishedTable]) -> Publication:
    """Return the publication with more tables. Raises Refused: 42710 for a repeated one."""
    there = {(table.schema, table.name) for table in publication.tables}
    for table in tables:
        if (table.schema, table.name) in there:
            raise Refused(
                "42710",
                f'relation "{table.name}" is already member of publication "{publication.name}"',
            )
    return replace(publication, tables=(*publication.tables, *tables))


def without_tables(publication: Publication, names: Sequence[tuple[str, str]]) -> Publication:
    """Return the publication with fewer tables. Raises Refused: 42704 for a missing one."""
    kept = list(publication.tables)
    for schema, name in names:
        found = next((t for t in kept if (t.schema, t.name) == (schema, name)), None)
        if found is None:
            raise Refused("42704", f'relation "{name}" is not part of the publication')
        kept.remove(found)
    return replace(publication, tables=tuple(kept))


def with_schemas(publication: Publication, names: Sequence[str]) -> Publication:
    """Return the publication with more schemas. Raises Refused: 42710, 22023."""
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
    """Return the publication with fewer schemas. Raises Refused: 42704."""
    for name in names:
        if name not in publication.schemas:
            raise Refused("42704", f'tables from schema "{name}" are not part of the publication')
    return replace(
        publication, schemas=tuple(name for name in publication.schemas if name not in names)
    )
