"""Lakes of `penstock demo`: rows of the newest versions as a library without Spark reads them.

The comparison is that of `penstock verify`; only the rows come from another reader than penstock's
own. Not here: the formats' folders and libraries (`engines/delta/demo.py`,
`engines/iceberg/demo.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import Any, cast

import pyarrow as pa

from penstock.engines.lake import images
from penstock.engines.lake.verify import LakeVerifyReader
from penstock.engines.lake.versions import with_plain_types
from penstock.model import TableName
from penstock.ports.lake import VersionReader
from penstock.ports.verify import Dialect, Part, VerifyReader, table_gone

_PLAIN = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


class LibraryVerifyReader(LakeVerifyReader):
    """Reader of the versions that the table of batches names last."""

    def __init__(self, versions: VersionReader, *, sessions: int) -> None:
        """Read the table of batches. sessions: how many tables are read at once."""
        self._versions = versions
        rows = [row for row in versions.read_batches().to_pylist() if row["versions"]]
        newest = max(rows, key=lambda row: row["applied_at"])
        self._named: Mapping[str, int] = json.loads(newest["versions"])
        self._tables: dict[TableName, pa.Table] = {}
        self._is_cancelled = False
        self.executor = ThreadPoolExecutor(sessions, thread_name_prefix="demo-read")
        dialect: ModuleType = images
        self.dialect = cast(Dialect, dialect)

    def parts(self, table: TableName, side: str) -> tuple[tuple[Part, ...], int]:
        if str(table) not in self._named:
            raise table_gone(table, side)
        rows = self._versions.arrow(table, self._named[str(table)])
        found = self._tables[table] = with_plain_types(rows, _PLAIN)
        return (Part(relation=table, size_bytes=found.nbytes),), found.num_rows

    def column_types(self, table: TableName) -> dict[str, str]:
        return {field.name: str(field.type) for field in self._tables[table].schema}

    def _rows(self, asked: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        for schema, name, _ in asked["parts"]:
            self._check()
            for rows in self._tables[TableName(schema, name)].to_batches():
                self._check()
                yield rows


@contextmanager
def open_library(versions: VersionReader, *, sessions: int) -> Iterator[VerifyReader]:
    """Return the newest rows as a library reads them."""
    reader = LibraryVerifyReader(versions, sessions=sessions)
    try:
        yield reader
    except BaseException:
        reader.cancel()
        raise
    finally:
        reader.executor.shutdown(wait=True, cancel_futures=True)
