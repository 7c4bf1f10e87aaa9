"""Contents of the catalogue: our tables under their oids, schemas, roles and publications.

Oids are assigned once and kept in the state file, so a client sees the same ones after a restart.
A table takes a range of them: itself, its row type, the array of that, its index, its constraint,
its TOAST table (never created).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from penstock.codec.postgres.pgtypes import FIRST_USER_OID, wire_type
from penstock.model import Identity, Relation
from penstock.serve.catalog.publications import Comment, Publication, Publications, Version
from penstock.serve.saved_state import CATALOG, SavedState

OWNER_OID = 10
OWNER = "penstock"
PUBLIC_OID = 2200
DATABASE_OID = 16_383  # below the assigned ones
OIDS_PER_TABLE = 8
Change = Publication | Comment | None
"""New state of a publication; None if it is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """One column as clients see it: the type in which it is sent."""

    name: str
    type_oid: int
    typmod: int
    not_null: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTable:
    """One table.

    Attributes:
        key: numbers of columns, from 0.
        primary: the key is a primary key.
    """

    oid: int
    schema: str
    name: str
    columns: tuple[TableColumn, ...]
    key: tuple[int, ...]
    primary: bool
    identity: Identity

    @property
    def row_type(self) -> int:
        """Oid of its row type."""
        return self.oid + 2

    @property
    def array_type(self) -> int:
        """Oid of the array type of its rows."""
        return self.oid + 1

    @property
    def index_oid(self) -> int:
        """Oid of the key's index, whether or not there is one."""
        return self.oid + 5

    @property
    def constraint_oid(self) -> int:
        """Oid of the primary key's constraint, whether or not there is one."""
        return self.oid + 6

    @property
    def index_name(self) -> str:
        """Name of the key's index."""
        if self.primary:
            return cut_name(self.name, "", "pkey")
        names = "_".join(self.columns[number].name for number in self.key)
        return cut_name(self.name, names, "idx")


def cut_name(table: str, columns: str, label: str) -> str:
    """Return a name for an index, made and cut as the server does."""
    rest = 63 - len(label) - 1 - (1 if columns else 0)
    one, two = len(table.encode()), len(columns.encode())
    while one + two > rest:
        if one > two:
            one -= 1
        else:
            two -= 1
    parts = [table.encode()[:one].decode(errors="ignore")]
    if columns:
        parts.append(columns.encode()[:two].decode(errors="ignore"))
    return "_".join([*parts, label])


@dataclass(slots=True, kw_only=True)
class SavedOid:
    """Assigned oid; kind is `table`, `schema`, `role` or `publication`."""

    kind: str
    schema: str
    name: str
    oid: int


@dataclass(slots=True, kw_only=True)
class SavedCatalog:
    """Part of the state file: oids, versions of publications, entries of the pipeline file.

    Attributes:
        comments: of publications, by oid.
    """

    next_oid: int = FIRST_USER_OID
    oids: list[SavedOid] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    of_file: dict[str, tuple[str, ...]] = field(default_factory=dict)
    comments: dict[int, str] = field(default_factory=dict)


class Model:
    """State of the catalogue. `save` writes it, `Model(...)` reads it again."""

    def __init__(self, state: SavedState, users: Sequence[str]) -> None:
        """Read its part of a server's state. Raises CheckpointCorrupt."""
        self._state, self._has_unsaved = state, False
        self._saved = state.load(CATALOG, SavedCatalog) or SavedCatalog()
        self._oids = {(o.kind, o.schema, o.name): o.oid for o in self._saved.oids}
        self.publications = Publications(self._saved.versions)
        self.tables: dict[int, CatalogTable] = {}
        self.roles = {OWNER_OID: OWNER}
        for user in users:
            self.roles[self.oid("role", "", user)] = user
        self.save()

    def save(self) -> None:
        """Write the state file. Raises DiskFull, FileFailed."""
        self._has_unsaved = True
        self._saved.versions = list(self.publications.versions)
        there = {found.oid for found in self.publications.current().values()}
        self._saved.comments = {
            oid: text for oid, text in self._saved.comments.items() if oid in there
        }
        self._state.save(CATALOG, self._saved)
        self._has_unsaved = False

    def save_oids(self) -> None:
        """Write the state file if oids were assigned since. Raises DiskFull, FileFailed."""
        if self._has_unsaved:
            self.save()

    def change(self, position: int, changes: Iterable[tuple[str, Change]]) -> None:
        """Change publications from a position on, durably. If that fails nothing has changed.

        Raises DiskFull, FileFailed.
        """
        versions, comments = list(self.publications.versions), dict(self._saved.comments)
        try:
            for name, change in changes:
                if isinstance(change, Comment):
                    self.set_comment(change)
                else:
                    self.publications.change(position, name, change)
            self.save()
        except BaseException:
            self.publications.restore(versions)
            self._saved.versions, self._saved.comments = versions, comments
            raise

    def comment(self, oid: int) -> str | None:
        """Return the comment of a publication; None if it has none."""
        return self._saved.comments.get(oid)

    def set_comment(self, comment: Comment) -> None:
        """Set the comment of a publication, an empty text for none; `save` makes it durable."""
        if comment.text:
            self._saved.comments[comment.oid] = comment.text
        else:
            self._saved.comments.pop(comment.oid, None)

    def oid(self, kind: str, schema: str, name: str) -> int:
        """Return the oid of an object; assign one if it has none yet."""
        found = self._oids.get((kind, schema, name))
        if found is None:
            found = self._saved.next_oid
            self._has_unsaved = True
            self._saved.next_oid += OIDS_PER_TABLE if kind == "table" else 1
            self._oids[kind, schema, name] = found
            self._saved.oids.append(SavedOid(kind=kind, schema=schema, name=name, oid=found))
        return found

    def new_oid(self, kind: str, name: str) -> int:
        """Assign a new oid to an object, even if an earlier object of its name had one."""
        self.forget(kind, name)
        return self.oid(kind, "", name)

    def forget(self, kind: str, name: str) -> None:
        """Forget a deleted object. A new object of its name gets another oid."""
        self._oids.pop((kind, "", name), None)
        self._saved.oids = [
            saved
            for saved in self._saved.oids
            if (saved.kind, saved.schema, saved.name) != (kind, "", name)
        ]

    def find_oid(self, kind: str, schema: str, name: str) -> int | None:
        """Return the oid of an object; None if it has none."""
        return self._oids.get((kind, schema, name))

    def set_relations(self, relations: Iterable[Relation]) -> None:
        """Set the tables; `save_oids` makes the oids of new ones durable."""
        tables = [self._table(relation) for relation in relations]
        self.tables = {table.oid: table for table in tables}

    def _table(self, relation: Relation) -> CatalogTable:
        if relation.schema != "public":
            self.oid("schema", "", relation.schema)
        key = _key(relation)
        return CatalogTable(
            oid=self.oid("table", relation.schema, relation.name),
            schema=relation.schema,
            name=relation.name,
            columns=tuple(
                TableColumn(
                    name=column.name,
                    type_oid=wire_type(column)[0],
                    typmod=wire_type(column)[1],
                    not_null=not column.nullable or (number in key),
                )
                for number, column in enumerate(relation.columns)
            ),
            key=key,
            primary=relation.identity is not Identity.INDEX,
            identity=relation.identity,
        )

    @property
    def schemas(self) -> dict[str, int]:
        """Oids of our schemas by name."""
        found = {"public": PUBLIC_OID}
        found |= {name: oid for (kind, _, name), oid in self._oids.items() if kind == "schema"}
        return found

    def table_named(self, schema: str, name: str) -> CatalogTable | None:
        """Return a table by its name."""
        oid = self._oids.get(("table", schema, name))
        return None if oid is None else self.tables.get(oid)

    def take_from_file(
        self,
        wanted: dict[str, tuple[str, ...]],
        publications: dict[str, Publication],
        position: int,
    ) -> None:
        """Create publications of the pipeline file; recreate those whose entry has changed.

        The file's entries are compared with those of the last start. A publication that was
        altered since then stays as it was altered. Raises DiskFull, FileFailed.

        Args:
            wanted: the file's entries by name.
            publications: the publications by name.
            position: where they begin.
        """
        for name, words in wanted.items():
            if self._saved.of_file.get(name) != words or name not in self.publications.current():
                self.publications.change(position, name, publications[name])
        for name in self._saved.of_file.keys() - wanted.keys():
            if name in self.publications.current():
                self.publications.change(position, name, None)
        self._saved.of_file = dict(wanted)
        self.save()


def _key(relation: Relation) -> tuple[int, ...]:
    if relation.key or relation.identity is not Identity.INDEX:
        return relation.key
    return relation.before
