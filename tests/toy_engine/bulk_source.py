"""The source of a bulk load: parts `planner`, `bulk_reader` and `read_plan`."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from penstock.codec.lines import LineDialect
from penstock.codec.server_pair import ReadPlan, ServerPair
from penstock.codec.types import Mapping as TypeMapping
from penstock.model import ColumnDefinition, PenstockError, TableDefinition, TableName
from penstock.model.position import PositionKind
from penstock.ports.bulk import BulkReader, Chunk, ChunkTask, Lines, Planning, Point, TableRead
from penstock.ports.config import Config
from toy_engine.facts import read_captured
from toy_engine.store import Store, ToyPosition
from toy_engine.values import line_of

CHUNK_ROWS = 500


def read_plan(
    columns: Sequence[ColumnDefinition], mappings: Mapping[str, TypeMapping], servers: ServerPair
) -> ReadPlan:
    """Return a plan that copies values unchanged."""
    del mappings, servers
    return ReadPlan(columns=tuple(column.name for column in columns))


class ToyPlanner(Planning):
    """Planner of copies. A point is a position, so there is no snapshot to keep open."""

    positions: PositionKind = ToyPosition

    def __init__(self, config: Config, *, first: Callable[[], Point | None]) -> None:
        self._config = config
        self._first = first

    def __enter__(self) -> ToyPlanner:
        return self

    def __exit__(self, *_how: object) -> None:
        """Do nothing, because nothing was opened."""

    def first_point(self) -> Point | None:
        return self._first()

    def fresh_point(self) -> Point:
        with closing(Store(self._config.source.url)) as store:
            end = store.end()
        return Point(position=end, snapshot_id=str(end), snapshot_text=str(end))

    def release(self) -> None:
        """Do nothing: no snapshot is held."""

    def define(self, tables: Sequence[TableName]) -> list[TableDefinition]:
        return [one for one in read_captured(self._config, dropped=()) if one.name in set(tables)]

    def chunks(self, point: Point, wanted: Sequence[TableRead]) -> dict[TableName, list[Chunk]]:
        """Return chunks. A row's key gives its chunk; `copy_out` is read by our reader only."""
        return {read.definition.name: self._chunks(point, read) for read in wanted}

    def _chunks(self, point: Point, read: TableRead) -> list[Chunk]:
        assert not read.binary, "there is no binary form"
        table = read.definition
        with closing(Store(self._config.source.url)) as store:
            rows = len(store.rows_at(ToyPosition(point.position.ordinal), table.name))
        count = 1 + rows // CHUNK_ROWS
        return [
            Chunk(
                number=number,
                relation=table.name,
                copy_out=json.dumps([number, count, list(table.primary_key), list(read.columns)]),
                row_count=rows // count,
            )
            for number in range(count)
        ]


@dataclass
class ToyLines(Lines):
    """Lines of the rows of one chunk."""

    store: Store
    position: ToyPosition
    chunk: Chunk
    row_count: int = 0

    def __iter__(self) -> Iterator[bytes]:
        number, count, key, columns = json.loads(self.chunk.copy_out)
        for row in self.store.rows_at(self.position, self.chunk.relation):
            if zlib.crc32(repr([row[name] for name in key]).encode()) % count == number:
                self.row_count += 1
                yield line_of(row[name] for name in columns)


class ToyReader(BulkReader):
    """Reader of the rows as they were at a position."""

    def __init__(self, url: str, position: ToyPosition) -> None:
        self._store = Store(url)
        self._position = position

    def close(self) -> None:
        self._store.close()

    def was_rewritten(self, _task: ChunkTask) -> bool:
        return False

    def lines(self, task: ChunkTask, dialect: LineDialect) -> ToyLines:
        assert dialect is LineDialect.COPY, "our values are PostgreSQL's texts"
        return ToyLines(self._store, self._position, task.chunk)

    def tells_rewritten(self, _error: PenstockError) -> bool:
        return False


def open_reader(url: str, snapshot_id: str, _snapshot_text: str) -> ToyReader:
    """Return a session that sees this snapshot, or None if the snapshot no longer exists."""
    return ToyReader(url, ToyPosition.parse(snapshot_id))


def snapshot_alive(_url: str, _snapshot_id: str, _snapshot_text: str) -> bool:
    """Return whether the snapshot can still be read, and is the same one."""
    return True
