"""The bulk load's port to a source: consistent points, definitions and chunks.

Not here: copying them (`penstock.load.bulk`), the handover's own point (`ports/handover.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from penstock.model import PenstockError, TableDefinition, TableName
from penstock.model.position import Position, PositionKind
from penstock.ports.bulk import Chunk
from penstock.ports.config import Config
from penstock.ports.registry import part


class PointUnfit(PenstockError):
    """A table was truncated or rewritten after a consistent point: it needs a later one."""

    code = "LD49"
    retry = "backoff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Consistent point of the source: an exported snapshot and its position.

    Rows of transactions whose commit record starts before `position` are in the snapshot, all
    others are not.

    Attributes:
        snapshot_text: The content of the snapshot, because ids are used again after a restart.
        settled: If snapshots are of several moments, the position up to which changes have to be
            applied before the tables are equal to the source.
        definitions: Digests of the tables' definitions that certainly held at the point, by name;
            None if the snapshot itself has them.
    """

    position: Position
    snapshot_id: str
    snapshot_text: str
    settled: Position | None = None
    definitions: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRead:
    """Table to be read, and its columns in order. binary: in COPY's binary format."""

    definition: TableDefinition
    columns: tuple[str, ...]
    binary: bool = False


class Planner(Protocol):
    """Facts of the source that the bulk load needs."""

    positions: PositionKind  # of the source: how they are parsed and printed

    def first_point(self) -> Point | None:
        """Return the handover's consistent point; None if there is none, or not any more."""
        ...

    def fresh_point(self) -> Point:
        """Make a new consistent point, later than all before; kept until it is released."""
        ...

    def release(self) -> Position | None:
        """Release the points that were made, because all rows are copied.

        Returns the position up to which changes have to be applied before the tables are equal to
        the source, if rows were read without a snapshot; else None.
        """
        ...

    def define(self, tables: Sequence[TableName]) -> list[TableDefinition]:
        """Return the present definitions of the tables."""
        ...

    def chunks(
        self, point: Point, wanted: Sequence[TableRead]
    ) -> Mapping[TableName, Sequence[Chunk]]:
        """Cut tables into chunks which together hold each of their rows once.

        Each copy_out yields the columns in order; they may be expressions. A table is left out if
        its rows cannot be read at this point any more, or if its definition at the point was
        another one. The source is asked for all tables together: the number of queries does not
        depend on theirs.
        """
        ...


class Planning(Planner, Protocol):
    """Planner that keeps the points it makes while a with block is open."""

    def __enter__(self) -> Self:
        """Return itself."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the points."""
        ...


class HeldPoint(Protocol):
    """Consistent point whose snapshot lives while a with block is open."""

    @property
    def position(self) -> int:
        """Position of the point, as an ordered number."""
        ...

    @property
    def snapshot_id(self) -> str:
        """Id of the exported snapshot."""
        ...


def open_planner(config: Config, *, first: Callable[[], Point | None] | None = None) -> Planning:
    """Return the planner of a pipeline's source, to be used as a context manager.

    first: called when the load wants the handover's point; None without a handover.
    """
    made: Callable[..., Planning] = part(config.source.url, "planner")
    return made(config, first=first or (lambda: None))
