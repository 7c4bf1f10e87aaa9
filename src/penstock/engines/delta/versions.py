"""Versions of Delta tables, read by delta-rs or by a Spark session: the part `versions`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.engines.delta.places import table_folder
from penstock.engines.lake.batches import BATCHES
from penstock.engines.lake.java import java_path
from penstock.engines.lake.storage import Folder, is_local, path_in
from penstock.engines.lake.url import parse_url
from penstock.engines.lake.versions import (
    import_library,
    store_options,
    typed_reading,
    version_expired,
    with_plain_types,
)
from penstock.model import TableName
from penstock.ports.lake import VersionReader

_STORE = {
    "access.key": "AWS_ACCESS_KEY_ID",
    "secret.key": "AWS_SECRET_ACCESS_KEY",
    "session.token": "AWS_SESSION_TOKEN",
    "endpoint.region": "AWS_REGION",
    "endpoint": "AWS_ENDPOINT_URL",
}


class DeltaVersions(VersionReader):
    """Reader of the tables below one folder."""

    def __init__(self, url: str) -> None:
        """Keep the place; nothing is read yet."""
        lake = parse_url(url)
        self.place = lake.root
        self._root = path_in(lake.root) if is_local(lake.root) else lake.root
        self._s3 = lake.s3
        self._options = store_options(lake.s3, _STORE)
        if self._options.get("AWS_ENDPOINT_URL", "").startswith("http:"):
            self._options["AWS_ALLOW_HTTP"] = "true"

    def read_batches(self, session: Any = None) -> Any:
        folder = table_folder(self._root, BATCHES)
        if next(iter(Folder(f"{folder}/_delta_log", self._s3).names()), None) is None:
            return None
        what = f"the table {BATCHES}"
        if session is not None:
            with typed_reading(what, hint="Give the session the jars of Delta Lake."):
                return session.read.format("delta").load(java_path(folder)).toArrow()
        return self._read(folder, None, what)

    def arrow(self, table: TableName, version: int) -> Any:
        return self._read(table_folder(self._root, table), version, f"{table} at version {version}")

    def frame(self, table: TableName, version: int, session: Any) -> Any:
        folder = java_path(table_folder(self._root, table))
        hint = "Give the session the jars of Delta Lake and its two settings, see docs/lake.md."
        with typed_reading(f"{table} at version {version}", hint=hint):
            return session.read.format("delta").option("versionAsOf", version).load(folder)

    def _read(self, folder: str, version: int | None, what: str) -> pa.Table:
        """Read by a query: the other ways of delta-rs refuse deletion vectors."""
        library: Any = import_library(
            "deltalake", to_install="penstock[lake]", reads="Delta tables"
        )
        with typed_reading(what):
            try:
                opened = library.DeltaTable(folder, version=version, storage_options=self._options)
            except library.exceptions.TableNotFoundError as error:
                raise version_expired(what) from error
            query = library.QueryBuilder().register("it", opened)
            return with_plain_types(pa.table(query.execute("select * from it").read_all()))


def open_versions(url: str) -> VersionReader:
    """Return the reader of the lake at a URL."""
    return DeltaVersions(url)
