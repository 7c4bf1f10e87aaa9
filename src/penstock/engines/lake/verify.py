"""Comparison by `penstock verify` for lakes: `Verifier`, `VerifyReader` of `ports/verify.py`.

Files of a version never change, so all sessions see the same rows: the live files are listed once,
by a JVM of the command's own, and read in this process. Not here: images and checksums
(`images.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any, NoReturn, cast

import pyarrow as pa

from penstock.codec.row_images import add_up, hash_batches, name_chosen, take_buckets
from penstock.engines.lake import images
from penstock.engines.lake.format import (
    Catalogue,
    LakeColumn,
    LakeFormat,
    LiveFile,
    Snapshot,
    check_readable,
)
from penstock.engines.lake.own_java import open_java
from penstock.engines.lake.rows import read_rows
from penstock.engines.lake.url import parse_url
from penstock.model import TableDefinition, TableName
from penstock.ports.bulk import BulkReader
from penstock.ports.config import Config
from penstock.ports.verify import (
    KEY_TEXT_LENGTH_MAX,
    PART_BYTES,
    Dialect,
    Hasher,
    Hashes,
    Part,
    SourcePoint,
    Verifier,
    VerifyReader,
    read_cancelled,
    table_gone,
)


class LakeVerifyReader(VerifyReader):
    """Reader of versions that were the newest when it was made."""

    def __init__(
        self,
        catalogue: Catalogue,
        storage: Mapping[str, str],
        *,
        sessions: int,
        part_bytes: int = PART_BYTES,
    ) -> None:
        """Keep the lake. sessions: how many read at once."""
        self._catalogue = catalogue
        self._storage = storage
        self._part_bytes = part_bytes
        self._snapshots: dict[TableName, Snapshot] = {}
        self._is_cancelled = False
        self.executor = ThreadPoolExecutor(sessions, thread_name_prefix="verify-read")
        dialect: ModuleType = images
        self.dialect = cast(Dialect, dialect)

    def hashers(self) -> Mapping[Hasher, str]:
        return {Hasher.SHARED: ""}

    def parts(self, table: TableName, side: str) -> tuple[tuple[Part, ...], int]:
        """Return groups of files. A version's files stay, though others commit meanwhile."""
        found = self._catalogue.find(table)
        if found is None:
            raise table_gone(table, side)
        snapshot = self._snapshots[table] = found.snapshot(refresh=True)
        check_readable(table, snapshot)
        count = sum(file.row_count - file.dead_count for file in snapshot.files)
        groups = list(_group(snapshot.files, self._part_bytes)) or [(0, 0, 0)]
        parts = tuple(
            Part(relation=table, size_bytes=size, where=f"{first} {last}")
            for first, last, size in groups
        )
        return parts, count

    def column_types(self, table: TableName) -> dict[str, str]:
        return {column.name: column.type for column in self._snapshots[table].columns}

    def fetch(self, query: str, doing: str) -> list[tuple[Any, ...]]:
        del doing
        asked = json.loads(query)
        if asked["what"] == "names":
            key, numbers = asked["key"], asked["numbers"]
            return list(name_chosen(self._rows(asked), key, numbers, KEY_TEXT_LENGTH_MAX))
        return list(add_up(self._hashes(asked), asked["buckets"]))

    def hashes(self, query: str, doing: str) -> Iterator[Hashes]:
        del doing
        asked = json.loads(query)
        found = take_buckets(self._hashes(asked), asked["buckets"], asked["numbers"])
        if len(found):
            yield found

    def _hashes(self, asked: Mapping[str, Any]) -> Hashes:
        return hash_batches(self._rows(asked), asked["key"], asked["row"])

    def _rows(self, asked: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        names = {cell[0] for cell in (*asked["key"], *asked["row"])}
        for schema, name, where in asked["parts"]:
            self._check()
            snapshot = self._snapshots[TableName(schema, name)]
            columns: list[LakeColumn] = [one for one in snapshot.columns if one.name in names]
            first, last = map(int, where.split())
            for file in snapshot.files[first:last]:
                for rows in read_rows(file, columns, self._storage):
                    self._check()
                    yield rows

    def row_reader(self) -> AbstractContextManager[BulkReader]:
        """Raise an error: a lake is a target only."""
        return _refuse()

    def cancel(self) -> None:
        self._is_cancelled = True

    def _check(self) -> None:
        """Raise ReadCancelled after a cancel."""
        if self._is_cancelled:
            raise read_cancelled()


def _refuse() -> NoReturn:
    raise NotImplementedError("a lake is a target only")


def _group(files: Sequence[LiveFile], part_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield the first, the last and the bytes of groups of files."""
    first = size = 0
    for at, file in enumerate(files):
        size += file.size_bytes
        if size >= part_bytes or at == len(files) - 1:
            yield first, at + 1, size
            first, size = at + 1, 0


class LakeVerifier(Verifier):
    """Verifier of a lake, which is a target only."""

    def __init__(self, table_format: LakeFormat) -> None:
        """Keep the format."""
        self._format = table_format

    def open_source(
        self,
        config: Config,
        tables: Callable[[], Sequence[TableDefinition]],
        tell: Callable[[str], None],
        /,
        *,
        sessions: int,
        part_bytes: int = PART_BYTES,
    ) -> AbstractContextManager[tuple[VerifyReader, SourcePoint]]:
        """Raise an error: a lake is a target only."""
        del config, tables, tell, sessions, part_bytes
        return _refuse()

    @contextmanager
    def open_target(
        self, url: str, *, sessions: int, part_bytes: int = PART_BYTES
    ) -> Iterator[VerifyReader]:
        lake = parse_url(url)
        with open_java(url, lake.class_path) as java:
            catalogue = self._format.open(url, java, {})
            reader = LakeVerifyReader(catalogue, lake.s3, sessions=sessions, part_bytes=part_bytes)
            try:
                yield reader
            except BaseException:
                reader.cancel()
                raise
            finally:
                reader.executor.shutdown(wait=True, cancel_futures=True)

    def nudge(self, url: str) -> None:
        """Do nothing: a lake is a target only."""

    def unread(
        self,
        config: Config,
        point: SourcePoint,
        tables: Callable[[], Sequence[TableDefinition]],
        /,
        *,
        since: int,
    ) -> str:
        """Return an empty text: a lake is a target only."""
        del config, point, tables, since
        return ""
