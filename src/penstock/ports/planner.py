"""What the bulk load asks of a source: consistent points, definitions and chunks.

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
    """A consistent point of the source: an exported snapshot and its position.

    Rows of transactions whose commit record starts before `position` are in the snapshot, all
    others are not. snapshot_text: what the snapshot holds, because ids are used again after a
    restart. settled: where snapshots are of several moments, the position up to which changes have
    to be applied before the tables are equal to the source. definitions: digests of the tables'
    definitions that certainly held at the point, keyed by name; None where the snapshot itself
    tells them.
    """

    position: Position
    snapshot_id: str
    snapshot_text: str
    settled: Position | None = None
    definitions: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRead:
    """A table that is to be read, and what of it, in order. binary: in COPY's binary format."""

    definition: TableDefinition
    columns: tuple[str, ...]
    binary: bool = False


class Planner(Protocol):
    """What the bulk load needs to know of the source."""

    positions: PositionKind  # of the source: how they are parsed and printed

    def first_point(self) -> Point | None:
        """The handover's consistent point; None when there is none, or not any more."""
        ...

    def fresh_point(self) -> Point:
        """Make a new consistent point, later than all before; kept until it is released."""
        ...

    def release(self) -> Position | None:
        """All rows are copied: release the points that were made.

        Where rows were read without a snapshot: the position up to which changes have to be applied
        before the tables are equal to the source; else None.
        """
        ...

    def define(self, tables: Sequence[TableName]) -> list[TableDefinition]:
        """The tables' definitions as they are now."""
        ...

    def chunks(
        self, point: Point, wanted: Sequence[TableRead]
    ) -> Mapping[TableName, Sequence[Chunk]]:
        """Cut tables into chunks which together hold each of their rows once.

        Each copy_out gives the columns in order; they may be expressions. A table whose
        rows cannot be read at this point any more, or whose definition is not the one that it had
        there, is left out. The source is asked for all tables
        together: how often does not depend on how many they are.
        """
        ...


class Planning(Planner, Protocol):
    """A planner that keeps the points it makes while a with block is open."""

    def __enter__(self) -> Self:
        """Return itself."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the points go."""
        ...


class HeldPoint(Protocol):
    """A consistent point whose snapshot lives while a with block is open."""

    @property
    def position(self) -> int:
        """The point, as an ordered number."""
        ...

    @property
    def snapshot_id(self) -> str:
        """The exported snapshot."""
        ...


def open_planner(config: Config, *, first: Callable[[], Point | None] | None = None) -> Planning:
    """The planner of a pipeline's source, to be used as a context manager.

    first: called when the load wants the handover's point; None where there is no handover.
    """
    made: Callable[..., Planning] = part(config.source.url, "planner")
    return made(config, first=first or (lambda: None))
