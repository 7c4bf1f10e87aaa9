"""Iceberg's catalogue as a lake: tables of a namespace, created and removed.

The catalogue is built from the properties `spark.sql.catalog.NAME.*`, as Spark builds its own: of
type `hadoop`, `jdbc`, `rest`, `hive`, `glue`, or of a class (`catalog-impl`). Table
`public.orders` of the target is `NAMESPACE.public.orders`; a table without a schema is in the
namespace itself. Not here: what a table holds (`table.py`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from penstock.engines.iceberg.columns import schema_json
from penstock.engines.iceberg.java import Iceberg
from penstock.engines.iceberg.partition import spec_json
from penstock.engines.iceberg.table import RECORD, IcebergTable, to_location
from penstock.engines.lake.format import (
    Catalogue,
    LakeColumn,
    LakeForeign,
    LakeFormat,
    LakeTable,
    PartitionField,
    Prepared,
)
from penstock.engines.lake.jars import LakeJarsMissing, find_jars, iceberg_jars
from penstock.engines.lake.java import class_names, typed_errors
from penstock.engines.lake.merging import Merger, quote
from penstock.engines.lake.object_store import iceberg_properties
from penstock.engines.lake.url import STATE_FOLDER, LakeUrl, parse_url
from penstock.host import faults
from penstock.host.errors import UrlInvalid
from penstock.model import TableName
from penstock.ports.jobs import Jobs

faults.declare("iceberg.together.before", "iceberg.together.after")

CREATED = "penstock.created"
"""Property of a table that penstock created, so it may remove the table's whole folder."""

KEY = "penstock.key"
_KINDS = ("type", "catalog-impl")
_REST_CLASS = "org.apache.iceberg.rest.RESTCatalog"
# A catalogue that does not announce the endpoint; one that answers 404, or another status that
# Iceberg gives no class of its own.
_LACKING = frozenset(
    {"UnsupportedOperationException", "NoSuchTableException", "NoSuchEndpointException"}
)
_MANIFESTS_MIN = "8"
_PROPERTIES = {
    CREATED: "true",
    "commit.manifest.min-count-to-merge": _MANIFESTS_MIN,
    "write.format.default": "parquet",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "history.expire.min-snapshots-to-keep": "100",
    # For other writers, such as Spark's DELETE: they shall not copy whole files either.
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.delete.granularity": "file",
}


class IcebergFormat(LakeFormat):
    """Iceberg, as `format.LakeFormat` describes a format."""

    name: ClassVar[str] = "iceberg"

    def open(self, url: str, jobs: Jobs, options: Mapping[str, str]) -> Catalogue:
        """Build the catalogue of a URL and create its namespace."""
        place = parse_url(url)
        iceberg = Iceberg(jobs.jvm)
        if not iceberg.is_present:
            find_jars(
                iceberg_jars(is_on_s3=place.is_on_s3)
            )  # raises the error that names the missing jar
            raise LakeJarsMissing(
                "Iceberg's classes are not on Spark's class path",
                hint="Remove spark.driver.extraClassPath below [spark.conf], or add Iceberg's jar.",
            )
        if not any(kind in place.properties for kind in _KINDS):
            raise UrlInvalid(
                f"catalogue {place.catalog} has no type",
                hint=f'Write "spark.sql.catalog.{place.catalog}.type" below [spark.conf], such as '
                '"hadoop", "jdbc" or "rest", with the catalogue\'s other properties.',
            )
        with typed_errors(f"open catalogue {place.catalog}"):
            java = iceberg.classes.CatalogUtil.buildIcebergCatalog(
                place.catalog,
                iceberg.map_of(_java_properties(place)),
                jobs.hadoop_conf,
            )
        merger = Merger(jobs, _merge_conf(place)) if place.merges else None
        catalogue = IcebergCatalogue(iceberg, java, place, options, merger)
        catalogue.ensure_namespace(place.namespace)
        return catalogue


def _merge_conf(place: LakeUrl) -> Mapping[str, str]:
    """Return the properties by which a session of Spark knows the catalogue, without a cache."""
    prefix = f"spark.sql.catalog.{place.catalog}"
    own = {**_java_properties(place), "cache-enabled": "false"}
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{prefix}.{name}": value for name, value in own.items()},
    }


def _java_properties(place: LakeUrl) -> Mapping[str, str]:
    return iceberg_properties(place.s3, place.properties) if place.is_on_s3 else place.properties


class IcebergCatalogue(Catalogue):
    """Namespace of a catalogue, as `format.Catalogue` describes a lake."""

    def __init__(
        self,
        iceberg: Iceberg,
        java: Any,
        place: LakeUrl,
        options: Mapping[str, str],
        merger: Merger | None = None,
    ) -> None:
        """Keep the catalogue. java: Iceberg's `Catalog`. options: see `LakeFormat.open`.

        merger: if Spark merges rows.
        """
        self._iceberg = iceberg
        self._merger = merger
        self._catalog = place.catalog
        self._java = java
        self._namespace = place.namespace
        self._version_ms = round(place.version_hours * 3_600_000)
        self._options = {"formatVersion": str(place.format_version), **options}
        self.root = to_location(place.state.removesuffix(f"/{STATE_FOLDER}"))
        kinds = [place.properties.get(kind) for kind in _KINDS]
        self.can_commit_together = merger is None and ("rest" in kinds or _REST_CLASS in kinds)
        self._tables: dict[TableName, IcebergTable] = {}
        self._namespaces: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()

    def _levels(self, name: TableName) -> tuple[str, ...]:
        return (*self._namespace, name.schema) if name.schema else self._namespace

    def _identifier(self, name: TableName) -> Any:
        return self._iceberg.identifier(self._levels(name), name.name)

    def ensure_namespace(self, levels: tuple[str, ...]) -> None:
        """Create a namespace and those above it, if they are missing."""
        with typed_errors(f"create namespace {'.'.join(levels)}"):
            for count in range(1, len(levels) + 1):
                if levels[:count] not in self._namespaces:
                    self._ensure_level(levels[:count])
                    self._namespaces.add(levels[:count])

    def _ensure_level(self, levels: tuple[str, ...]) -> None:
        namespace = self._iceberg.namespace(levels)
        try:
            if not self._java.namespaceExists(namespace):
                self._java.createNamespace(namespace)
        except Exception as error:
            # Another process created it first; or there are no namespaces, only their names.
            if not {"AlreadyExistsException", "UnsupportedOperationException"}.intersection(
                class_names(error)
            ):
                raise

    def _make_table(self, name: TableName, java: Any) -> IcebergTable:
        path = ".".join(map(quote, (self._catalog, *self._levels(name), name.name)))
        return IcebergTable(name, self._iceberg, java, merger=self._merger, sql_name=path)

    def tables(self) -> Sequence[TableName]:
        """Return the names of all tables in the namespace and those directly below it."""
        with typed_errors(f"list the tables of namespace {'.'.join(self._namespace)}"):
            names = [TableName("", name) for name in self._names_in(self._namespace)]
            for schema in self._schemas():
                names += [
                    TableName(schema, name) for name in self._names_in((*self._namespace, schema))
                ]
            return sorted(names)

    def _schemas(self) -> list[str]:
        depth = len(self._namespace)
        found = self._java.listNamespaces(self._iceberg.namespace(self._namespace))
        names = [str(below.level(depth)) for below in list(found) if int(below.length()) > depth]
        # The catalogue of type hadoop takes any folder for a namespace, such as our own.
        return [name for name in names if name != STATE_FOLDER]

    def _names_in(self, levels: tuple[str, ...]) -> list[str]:
        found = self._java.listTables(self._iceberg.namespace(levels))
        return [str(identifier.name()) for identifier in list(found)]

    def find(self, name: TableName) -> LakeTable | None:
        """Return a table, or None if there is none."""
        with self._lock:
            if (known := self._tables.get(name)) is not None:
                return known
        with typed_errors(f"load table {name}"):
            try:
                java = self._java.loadTable(self._identifier(name))
            except Exception as error:
                missing = {"NoSuchTableException", "NoSuchNamespaceException"}
                if missing.intersection(class_names(error)):
                    return None
                raise
            table = self._make_table(name, java)
        with self._lock:
            return self._tables.setdefault(name, table)

    def create(
        self,
        name: TableName,
        columns: Sequence[LakeColumn],
        *,
        key: Sequence[str] = (),
        record: str = "",
        options: Mapping[str, str] | None = None,
        partition: Sequence[PartitionField] = (),
    ) -> LakeTable:
        """Create an empty table; its columns get the ids from 1."""
        given = {**self._options, **(options or {})}
        properties = _PROPERTIES | {
            # For other programs; penstock itself keeps what the table of batches names.
            "history.expire.max-snapshot-age-ms": str(self._version_ms),
            "format-version": given["formatVersion"],
            KEY: json.dumps(list(key)),
            RECORD: record,
        }
        self.ensure_namespace(self._levels(name))
        with typed_errors(f"create table {name}"):
            classes = self._iceberg.classes
            try:
                schema = classes.SchemaParser.fromJson(schema_json(columns))
                spec = spec_json(partition, columns)
                java = self._java.createTable(
                    self._identifier(name),
                    schema,
                    classes.PartitionSpecParser.fromJson(schema, spec),
                    self._iceberg.map_of(properties),
                )
            except Exception as error:
                if "AlreadyExistsException" not in class_names(error):
                    raise
                raise LakeForeign(
                    f"table {name} exists already",
                    hint=f"Drop table {name} if its rows are not needed.",
                    table=str(name),
                ) from error
            table = self._make_table(name, java)
        with self._lock:
            self._tables[name] = table
        return table

    def drop(self, name: TableName) -> None:
        """Remove a table with its files; its whole folder if penstock created it."""
        with self._lock:
            self._tables.pop(name, None)
        with typed_errors(f"drop table {name}"):
            identifier = self._identifier(name)
            if not self._java.tableExists(identifier):
                return
            java = self._java.loadTable(identifier)
            is_ours = java.properties().get(CREATED) == "true"
            folder, io = str(java.location()), java.io()
            self._java.dropTable(identifier, True)
            if is_ours:
                self._remove_folder(io, folder)

    def _remove_folder(self, io: Any, folder: str) -> None:
        """Remove files that no version of a dropped table names, if the storage can list them."""
        try:
            io.deletePrefix(f"{folder.rstrip('/')}/")
        except Exception as error:
            if not {"UnsupportedOperationException", "FileNotFoundException"}.intersection(
                class_names(error)
            ) and "deletePrefix" not in str(error):
                raise

    def commit_together(self, commits: Sequence[Prepared]) -> bool:
        """Commit several tables by one request to a REST catalogue."""
        changes = self._iceberg.list_of(
            one.table.as_change(one, self._identifier(one.table.name))
            for one in commits
            if isinstance(one.table, IcebergTable)
        )
        names = ", ".join(str(one.table.name) for one in commits)
        with typed_errors(f"commit to tables {names}"):
            faults.point("iceberg.together.before")
            try:
                self._java.commitTransaction(changes)
            except Exception as error:
                kinds = class_names(error)
                self.can_commit_together = not _LACKING.intersection(kinds)
                if not self.can_commit_together or "CommitFailedException" in kinds:
                    self._give_up(commits)
                if not self.can_commit_together:
                    return False
                raise
            faults.point("iceberg.together.after")
        for one in commits:
            if isinstance(one.table, IcebergTable):
                one.table.take(one)
        return True

    def _give_up(self, commits: Sequence[Prepared]) -> None:
        for one in commits:
            if isinstance(one.table, IcebergTable):
                one.table.give_up(one)

    def forget(self) -> None:
        """Forget all tables and cached versions."""
        with self._lock:
            self._tables.clear()
            self._namespaces.clear()


FORMAT = IcebergFormat()
