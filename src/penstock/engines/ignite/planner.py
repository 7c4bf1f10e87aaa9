"""Planner of the bulk load from an Ignite source: points, definitions and chunks.

A point is a place in the node's log, and there is no snapshot: rows are read later, one
partition after the other, and the changes from the point on are applied over them. Each change
puts or removes a whole value by its key, so the last change determines the final row, whatever a
scan read; the tables are equal to the caches once the changes that the node's log had at the end
of the scan are applied (`release`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

import msgspec
import structlog

from penstock.codec.ignite.cache_config import read_cache_config
from penstock.codec.ignite.types import cache_id
from penstock.engines.ignite.bulk_reader import ChunkScan
from penstock.engines.ignite.directory import Cache, open_any
from penstock.engines.ignite.handover import LEARNED, capture
from penstock.engines.ignite.source.node import node_end
from penstock.engines.ignite.source.position import IgnitePosition, position_of
from penstock.engines.ignite.source.read_plan import ColumnRead
from penstock.engines.ignite.source.scan import (
    check_address,
    keep_scanned,
    known_shapes,
    scanned_shapes,
    taken_caches,
)
from penstock.engines.ignite.source.shapes import KeptColumn, KeptShape
from penstock.engines.ignite.tables import definition_of
from penstock.engines.ignite.thin import ThinClient, open_thin
from penstock.engines.ignite.url import thin_url
from penstock.model import ColumnDefinition, TableDefinition, TableName
from penstock.model.position import Position, PositionKind
from penstock.ports.bulk import Chunk, Planning, Point, TableRead
from penstock.ports.config import Config
from penstock.ports.registry import is_list

CHUNK_ROWS = 50_000
FRESH = "fresh"

logger = structlog.get_logger(__name__)


class IgnitePlanner(Planning):
    """Planner of scans. first: returns the handover's point."""

    positions: PositionKind = IgnitePosition

    def __init__(self, config: Config, *, first: Callable[[], Point | None]) -> None:
        """Read the options. Raises AddressMissing, CdcDirectoryMissing."""
        check_address(config)
        self._config = config
        self._url = thin_url(config.source.url)
        self._directory = open_any(config.source.url)
        self._is_one = not is_list(config.source.url)
        self._first = first

    def __enter__(self) -> Self:
        """Return the planner; it opens nothing."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing: the planner holds nothing."""

    def first_point(self) -> Point | None:
        return self._first()

    def fresh_point(self) -> Point:
        """Return the present place of the node's log."""
        position = IgnitePosition(capture(self._directory) if self._is_one else 0)
        return Point(
            position=position,
            snapshot_id=str(position),
            snapshot_text=f"{FRESH}/{secrets.token_hex(4)}",
        )

    def release(self) -> Position | None:
        """Return the present end of the node's log; for several nodes it is not known."""
        if not self._is_one:
            return None
        place = node_end(self._url, self._directory)
        return None if place is None else IgnitePosition(position_of(place))

    def define(self, tables: Sequence[TableName]) -> list[TableDefinition]:
        """Read all entries, because rows did not fit the known columns."""
        caches = [one for one in self._caches() if one.name in {name.name for name in tables}]
        shapes = known_shapes(self._config, self._directory)
        known = {
            one.name: shapes.all_kept()[one.name] for one in caches if one.name in shapes.all_kept()
        }
        keep_scanned(
            self._config, scanned_shapes(self._config, self._directory, caches, kept=known)
        )
        shapes = known_shapes(self._config, self._directory)
        found = [shapes.known_relation(one.name, one.cache_id) for one in caches]
        return [definition_of(one) for one in found if one is not None]

    def chunks(self, point: Point, wanted: Sequence[TableRead]) -> dict[TableName, list[Chunk]]:
        """Return ranges of partitions; columns are texts of ColumnRead."""
        kept = known_shapes(self._config, self._directory).all_kept()
        with open_thin(self._url) as client:
            return {
                read.definition.name: self._chunks(client, point, read, shape)
                for read in wanted
                if (shape := _cut(kept.get(read.definition.name.name), read.definition)) is not None
            }

    def _chunks(
        self, client: ThinClient, point: Point, read: TableRead, shape: KeptShape
    ) -> list[Chunk]:
        assert not read.binary, "there is no binary form"
        table, cache = read.definition, read.definition.name.name
        scan = ChunkScan(
            cache=cache,
            cache_id=cache_id(cache),
            partitions=(),
            shape=shape,
            order=tuple(one.name for one in table.columns),
            reads=tuple(msgspec.json.decode(text, type=ColumnRead) for text in read.columns),
            zone=self._config.source.time_zone,
            backups=self._config.source.include_backups,
            skips=point.snapshot_text.startswith(LEARNED),
        )
        count, parts = self._parts(client, cache)
        return [
            Chunk(
                number=number,
                relation=table.name,
                copy_out=msgspec.json.encode(
                    msgspec.structs.replace(scan, partitions=part)
                ).decode(),
                row_count=count // len(parts),
            )
            for number, part in enumerate(parts)
        ]

    def _parts(self, client: ThinClient, cache: str) -> tuple[int, list[tuple[int, ...]]]:
        """Return the number of a cache's entries, and ranges of its partitions; an empty range
        means all at once.
        """
        count = client.size(cache, cache_id(cache))
        path = self._directory.config_path(cache)
        config = None if path is None else read_cache_config(path.read_bytes(), str(path))
        partitions = None if config is None else config.partitions
        wanted = min(1 + count // CHUNK_ROWS, partitions or 1)
        if wanted == 1 or partitions is None:
            return count, [()]
        return count, list(_ranges(partitions, wanted))

    def _caches(self) -> list[Cache]:
        return taken_caches(self._config, self._directory)


def _ranges(partitions: int, count: int) -> Iterator[tuple[int, ...]]:
    for number in range(count):
        begin, end = (partitions * at // count for at in (number, number + 1))
        yield tuple(range(begin, end))


def _cut(kept: KeptShape | None, table: TableDefinition) -> KeptShape | None:
    """Return the known shape of a cache, reduced to its definition's columns. The log may know more
    by now.

    Returns None if the cache was recreated meanwhile: its definition must be read again.
    """
    sides = {one.name: one for one in kept.columns} if kept is not None else {}
    if kept is None or any(one.name not in sides for one in table.columns):
        return None
    return KeptShape(
        version=1,
        columns=[_column(sides[one.name], one) for one in table.columns],
        types=kept.types,
        has_rows=True,
    )


def _column(known: KeptColumn, defined: ColumnDefinition) -> KeptColumn:
    return msgspec.structs.replace(known, kind=defined.type_text, neutral=defined.neutral)


def make_planner(config: Config, *, first: Callable[[], Point | None]) -> IgnitePlanner:
    """Return the planner of a pipeline's source."""
    return IgnitePlanner(config, first=first)
