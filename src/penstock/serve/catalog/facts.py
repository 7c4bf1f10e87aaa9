"""Facts about each version of the server: types, system relations, views, settings.

They are read from facts.tsv.gz, which `tests/make_catalog_facts.py` writes from real servers:
`zcat` shows them. Pure.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

VERSIONS = (14, 15, 16, 17, 18)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SystemColumn:
    """Column of a system relation; type_oid may be a domain's."""

    name: str
    type_oid: int
    not_null: bool
    typmod: int


@dataclass(frozen=True, slots=True)
class SystemRelation:
    """Table (`r`) or view (`v`) of pg_catalog or information_schema."""

    oid: int
    schema: str
    name: str
    kind: str
    row_type: int
    columns: tuple[SystemColumn, ...]
    shared: bool


@dataclass(frozen=True, slots=True)
class PgType:
    """Part of a row of pg_type for names and values."""

    oid: int
    name: str
    schema_oid: int
    size: int
    kind: str
    category: str
    preferred: bool
    element: int
    array: int
    relation: int
    base: int
    typmod: int


@dataclass(frozen=True)
class Facts:
    """All facts of one major version; rows are those of the tables that are kept whole."""

    version: int
    server_version: str
    relations: dict[tuple[str, str], SystemRelation]
    views: dict[tuple[str, str], str]
    rows: dict[str, tuple[tuple[Any, ...], ...]] = field(repr=False)

    @cached_property
    def types(self) -> dict[int, PgType]:
        """Types by oid."""
        columns = [column.name for column in self.relations["pg_catalog", "pg_type"].columns]
        found = (make_type(dict(zip(columns, row, strict=True))) for row in self.rows["type"])
        return {kind.oid: kind for kind in found}

    @cached_property
    def type_names(self) -> dict[tuple[int, str], int]:
        """Oids of types by schema and name."""
        return {(kind.schema_oid, kind.name): kind.oid for kind in self.types.values()}

    @cached_property
    def namespaces(self) -> dict[str, int]:
        """Oids of schemas by name."""
        return {name: oid for oid, name in self.rows["namespace"]}

    @cached_property
    def settings(self) -> dict[str, tuple[Any, ...]]:
        """Rows of pg_settings by name in small letters."""
        return {row[0].lower(): row for row in self.rows["setting"]}

    @cached_property
    def relation_by_oid(self) -> dict[int, SystemRelation]:
        """System relations by oid."""
        return {relation.oid: relation for relation in self.relations.values()}

    @property
    def version_number(self) -> int:
        """Value of server_version_num: 150018."""
        major, _, minor = self.server_version.partition(".")
        return int(major) * 10_000 + int(minor)


def make_type(row: Row) -> PgType:
    """Return a type from a row of pg_type."""
    return PgType(
        oid=row["oid"],
        name=row["typname"],
        schema_oid=row["typnamespace"],
        size=row["typlen"],
        kind=row["typtype"],
        category=row["typcategory"],
        preferred=bool(row["typispreferred"]),
        element=row["typelem"],
        array=row["typarray"],
        relation=row["typrelid"],
        base=row["typbasetype"],
        typmod=row["typtypmod"],
    )


def _relation(values: Sequence[Any]) -> SystemRelation:
    oid, schema, name, kind, row_type, columns, shared = values
    return SystemRelation(
        oid,
        schema,
        name,
        kind,
        row_type,
        tuple(SystemColumn(c[0], c[1], bool(c[2]), c[3]) for c in columns),
        shared,
    )


@cache
def facts_of(version: int) -> Facts:
    """Return the facts of one major version, 14 to 18."""
    rows: dict[str, list[tuple[Any, ...]]] = {}
    packed = files(__package__).joinpath("facts.tsv.gz").read_bytes()
    for line in gzip.decompress(packed).decode().splitlines():
        versions, kind, values = line.split("\t", 2)
        if str(version) in versions.split(","):
            rows.setdefault(kind, []).append(tuple(json.loads(values)))
    relations = [_relation(values) for values in rows.pop("relation")]
    return Facts(
        version=version,
        server_version=rows.pop("version")[0][0],
        relations={(relation.schema, relation.name): relation for relation in relations},
        views={(schema, name): text for schema, name, text in rows.pop("view")},
        rows={kind: tuple(found) for kind, found in rows.items()},
    )
