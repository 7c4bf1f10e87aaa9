"""Rows of a chunk in Spark's workers: partitions of a cache, scanned and converted to lines.

A chunk's `copy_out` is only for this reader (`ChunkScan`). There is no snapshot: rows have their
values at the time of reading, and the change log brings the changes since the point.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from penstock.codec.arrow_lines import copy_lines, load_data_lines
from penstock.codec.errors import unfit
from penstock.codec.exact_text import exact_texts
from penstock.codec.lines import LineDialect
from penstock.codec.types import prepare_values
from penstock.codec.types.from_ignite import NANOS
from penstock.engines.ignite.directory import open_any
from penstock.engines.ignite.source.read_plan import ColumnRead, Exact
from penstock.engines.ignite.source.scan import FixedRows, ShapeUnfit, entries
from penstock.engines.ignite.source.shapes import KeptShape
from penstock.engines.ignite.thin import ALL, ThinClient, open_thin
from penstock.engines.ignite.url import thin_url
from penstock.model import PenstockError
from penstock.ports.bulk import BulkReader, ChunkTask, Lines

logger = structlog.get_logger(__name__)


class RowUnfit(PenstockError):
    """A row has a field or value that no earlier scan had: its table lacks a column or a type
    for it.
    """

    code = "IG72"
    retry = "backoff"


class ChunkScan(msgspec.Struct, frozen=True, kw_only=True):
    """Work of a chunk.

    Attributes:
        partitions: partitions of the cache; empty for all of them.
        order: names of the columns.
        reads: how each column is written.
        skips: rows that do not fit are left to the change log.
    """

    cache: str
    cache_id: int
    partitions: tuple[int, ...]
    shape: KeptShape
    order: tuple[str, ...]
    reads: tuple[ColumnRead, ...]
    zone: str
    backups: bool
    skips: bool


class IgniteReader(BulkReader):
    """Reader of a cache. It has a connection and the types of the node's directory."""

    def __init__(self, url: str) -> None:
        self._stack = ExitStack()
        self._types = open_any(url).types_read
        self._client = self._stack.enter_context(open_thin(thin_url(url)))

    def close(self) -> None:
        self._stack.close()

    def was_rewritten(self, _task: ChunkTask) -> bool:
        """Return False: reading detects a rewritten cache."""
        return False

    def lines(self, task: ChunkTask, dialect: LineDialect) -> ScannedLines:
        chunk = msgspec.json.decode(task.chunk.copy_out, type=ChunkScan)
        rows = FixedRows(
            chunk.cache,
            chunk.shape,
            self._types,
            order=chunk.order,
            zone=chunk.zone,
            backups=chunk.backups,
            skips=chunk.skips,
        )
        return ScannedLines(self._client, self._types, chunk, rows, dialect)

    def tells_rewritten(self, error: PenstockError) -> bool:
        """Return whether a row did not fit: then the table is planned again, with its present
        columns.
        """
        return isinstance(error, RowUnfit)


class ScannedLines(Lines):
    """Lines of the entries in some partitions of a cache."""

    row_count = 0

    def __init__(
        self,
        client: ThinClient,
        types: Any,
        chunk: ChunkScan,
        rows: FixedRows,
        dialect: LineDialect,
    ) -> None:
        self._client = client
        self._types = types
        self._chunk = chunk
        self._rows = rows
        self._dialect = dialect

    def __iter__(self) -> Iterator[bytes]:
        """Yield blocks of lines. Raises RowUnfit, CellUnfit, KeyNotUsable and the errors of
        scanning.
        """
        chunk = self._chunk
        for partition in chunk.partitions or (ALL,):
            for piece in entries(self._client, self._types, chunk.cache, chunk.cache_id, partition):
                try:
                    parts = self._rows.columns(piece)
                except ShapeUnfit as error:
                    raise RowUnfit(
                        f"cache {chunk.cache} has {error.what}, which no earlier scan had",
                        hint="Do nothing: the table is planned again automatically.",
                        cache=chunk.cache,
                    ) from error
                for columns in parts:
                    yield self._write(columns)
        if self._rows.skipped:
            logger.info(
                "rows are left to the change log", cache=chunk.cache, row_count=self._rows.skipped
            )

    def _write(self, columns: list[Any]) -> bytes:
        neutral = [one.neutral for one in self._chunk.reads]
        if self._dialect is LineDialect.LOAD_DATA:
            written = load_data_lines(columns)
        else:
            held = [
                _as_postgres(column, how, place, self.row_count)
                for place, (column, how) in enumerate(zip(columns, self._chunk.reads, strict=True))
            ]
            written = copy_lines(held, neutral, first_row=self.row_count)
        self.row_count += len(columns[0])
        return written


def _as_postgres(column: Any, how: ColumnRead, place: int, first_row: int) -> Any:
    """Return a column in the form that PostgreSQL needs, as its statement does on the other
    path.
    """
    column = prepare_values(column, how.prepare)
    if how.exact is Exact.AS_TEXT:
        return pa.array(exact_texts(column, how.neutral), pa.string())
    if how.exact in (Exact.REFUSED, Exact.NULL):
        finer = pc.match_substring_regex(column, NANOS)
        row = pc.index(finer, True).as_py()
        if row >= 0 and how.exact is Exact.REFUSED:
            raise unfit(first_row + row + 1, place, "it is a time with nanoseconds")
        return pc.if_else(finer, None, column)
    return column


def open_reader(url: str, _snapshot_id: str, _snapshot_text: str) -> IgniteReader:
    """Return a session for reading caches. Raises the errors of connecting."""
    return IgniteReader(url)


def snapshot_alive(_url: str, _snapshot_id: str, _snapshot_text: str) -> bool:
    """Return True: rows can be read at any time."""
    return True
