"""Versions of Iceberg tables, read by pyiceberg or by a Spark session: the part `versions`.

pyiceberg gets the catalogue's properties from the URL. It has no catalogue of type `hadoop`, whose
newest metadata file is found as Iceberg itself finds it; and one of type `jdbc` is its `sql`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

from penstock.engines.lake.batches import BATCHES
from penstock.engines.lake.storage import Folder, file_system, path_in
from penstock.engines.lake.url import LakeUrl, parse_url
from penstock.engines.lake.versions import (
    import_library,
    store_options,
    typed_reading,
    version_expired,
    with_plain_types,
)
from penstock.model import TableName
from penstock.ports.lake import ReaderFailed, VersionReader

_STORE = {
    "access.key": "s3.access-key-id",
    "secret.key": "s3.secret-access-key",
    "session.token": "s3.session-token",
    "endpoint.region": "s3.region",
    "endpoint": "s3.endpoint",
}
_JDBC = re.compile(r"jdbc:(?P<kind>postgresql|mysql|mariadb)://(?P<rest>.+)")
_JDBC_SQLITE = re.compile(r"jdbc:sqlite:(?:file:)?(?P<path>[^?]+)")
_DRIVERS = {
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mysql+pymysql",
}
_SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
_METADATA = "{}.metadata.json"


class IcebergVersions(VersionReader):
    """Reader of the tables of one namespace."""

    def __init__(self, url: str) -> None:
        """Keep the place; nothing is read yet."""
        self._lake = parse_url(url)
        self.place = f"iceberg://{self._lake.catalog}/{'/'.join(self._lake.namespace)}"

    def read_batches(self, session: Any = None) -> Any:
        what = f"the table {BATCHES}"
        if session is None:
            table = self._open(BATCHES, what)
            if table is None:
                return None
            with typed_reading(what):
                return with_plain_types(table.scan().to_arrow())
        name = self._prepare(session, BATCHES)
        with typed_reading(what, hint=self._session_hint):
            try:
                if not session.catalog.tableExists(name):
                    return None
                session.catalog.refreshTable(name)
                return session.sql(f"select * from {name}").toArrow()
            except Exception as error:  # Spark may know a table that has gone
                if "TABLE_OR_VIEW_NOT_FOUND" in str(error):
                    return None
                raise

    def arrow(self, table: TableName, version: int) -> Any:
        what = f"{table} at snapshot {version}"
        opened = self._open(table, what)
        if opened is None or (version and opened.snapshot_by_id(version) is None):
            raise version_expired(what)
        with typed_reading(what):
            if not version:  # no rows were ever committed
                return with_plain_types(pa.table(opened.schema().as_arrow().empty_table()))
            return with_plain_types(opened.scan(snapshot_id=version).to_arrow())

    def frame(self, table: TableName, version: int, session: Any) -> Any:
        name = self._prepare(session, table)
        with typed_reading(f"{table} at snapshot {version}", hint=self._session_hint):
            session.catalog.refreshTable(name)
            if not version:
                return session.table(name).limit(0)
            return session.sql(f"select * from {name} version as of {version}")

    # -- Spark -------------------------------------------------------------------------------------

    @property
    def _session_hint(self) -> str:
        return (
            "Give the session Iceberg's jar and the properties "
            f"spark.sql.catalog.{self._lake.catalog}.*, see docs/lake.md."
        )

    def _prepare(self, session: Any, table: TableName) -> str:
        """Return a table's name in Spark's SQL; a session without the catalogue gets it."""
        lake = self._lake
        key = f"spark.sql.catalog.{lake.catalog}"
        if session.conf.get(key, None) is None:
            for name, value in lake.properties.items():
                session.conf.set(f"{key}.{name}", value)
            session.conf.set(key, _SPARK_CATALOG)
        parts = (lake.catalog, *lake.namespace, *filter(None, table))
        return ".".join("`" + part.replace("`", "``") + "`" for part in parts)

    # -- pyiceberg ---------------------------------------------------------------------------------

    def _open(self, table: TableName, what: str) -> Any:
        """Return pyiceberg's table with its newest metadata; None if there is none."""
        lake = self._lake
        kind = lake.properties.get("type", "")
        options = store_options(lake.s3, _STORE)
        if kind == "hadoop":
            library: Any = self._import("pyiceberg.table")
            place = find_metadata(lake, table)
            if place is None:
                return None
            with typed_reading(what):
                return library.StaticTable.from_metadata(place, options)
        module: Any = self._import("pyiceberg.catalog")
        errors: Any = self._import("pyiceberg.exceptions")
        with typed_reading(f"the catalogue {lake.catalog}"):
            properties = catalogue_properties(lake.properties) | options
            catalogue = module.load_catalog(lake.catalog, **properties)
        with catalogue, typed_reading(what):
            try:
                return catalogue.load_table((*lake.namespace, *filter(None, table)))
            except (errors.NoSuchTableError, errors.NoSuchNamespaceError):
                return None

    def _import(self, module: str) -> Any:
        return import_library(module, to_install="penstock[lake]", reads="Iceberg tables")


def find_metadata(lake: LakeUrl, table: TableName) -> str | None:
    """Return the URI of a table's newest metadata file in a catalogue of type `hadoop`.

    The hint may be older than the newest file, so later ones are looked for. Returns None without
    one. Raises ReaderFailed, LakeUnreachable.
    """
    if not lake.root.startswith(("file:", "s3:")):
        raise ReaderFailed(
            f"the warehouse {lake.root} can be read with Spark only",
            hint="Pass a session: .at_commit(session=spark), .table(NAME, spark).",
        )
    place = "/".join((lake.root, *lake.namespace, *filter(None, table), "metadata"))
    hint = Folder(place, lake.s3).read("version-hint.text")
    if hint is None:
        return None
    files, folder = file_system(lake.root, lake.s3), path_in(place)
    version, newest = int(hint), ""
    while True:
        names = [_METADATA.format(f"v{version}"), _METADATA.format(f"v{version}.gz")]
        infos = files.get_file_info([f"{folder}/{name}" for name in names])
        present = [one.base_name for one in infos if one.type is fs.FileType.File]
        if not present:
            return newest or None
        newest, version = f"{place}/{present[0]}", version + 1


def catalogue_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return a catalogue's properties as pyiceberg spells them. Raises ReaderFailed."""
    if properties.get("type") != "jdbc":
        return dict(properties)
    kept = {name: value for name, value in properties.items() if not name.startswith("jdbc.")}
    uri = kept["uri"] = sql_uri(properties)
    if not uri:
        raise ReaderFailed(
            f"pyiceberg knows no database for {properties.get('uri', '')}",
            hint="Pass a session: .at_commit(session=spark), .table(NAME, spark).",
        )
    return {**kept, "type": "sql", "init_catalog_tables": "false"}


def sql_uri(properties: Mapping[str, str]) -> str:
    """Return the URI of a JDBC catalogue's database as SQLAlchemy writes it; empty if unknown."""
    uri = properties.get("uri", "")
    if found := _JDBC_SQLITE.fullmatch(uri):
        return f"sqlite:///{found['path']}"
    found = _JDBC.fullmatch(uri)
    if found is None:
        return ""
    user, password = properties.get("jdbc.user", ""), properties.get("jdbc.password", "")
    who = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    place = found["rest"].partition("?")[0]
    return f"{_DRIVERS[found['kind']]}://{who}{'@' if who else ''}{place}"


def open_versions(url: str) -> VersionReader:
    """Return the reader of the lake at a URL."""
    return IcebergVersions(url)
