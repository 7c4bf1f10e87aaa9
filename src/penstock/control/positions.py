"""Positions of the change log as a source's users know them: LSNs, or places in binlog files.

Not here: the positions themselves (`penstock.model.position`).
"""

from __future__ import annotations

from typing import Protocol

from penstock.engines.mysql.source.standing import STANDING_FILE, Standing, position_text
from penstock.host import checkpoint
from penstock.log import PipelineLayout
from penstock.model import Lsn
from penstock.ports.config import Config


class Positions(Protocol):
    """How a pipeline's positions are written."""

    def text(self, position: int) -> str:
        """A position, as the source writes it."""
        ...

    def origin(self, position: int) -> str:
        """Where a segment that begins at position comes from: the slot, or the binlog's file."""
        ...


class LsnPositions:
    """Those of a PostgreSQL source."""

    def __init__(self, slot: str = "") -> None:
        """slot: what the source knows the pipeline by."""
        self._slot = slot

    def text(self, position: int) -> str:
        """`0/16B3740`."""
        return str(Lsn(position))

    def origin(self, _: int) -> str:
        """The slot."""
        return self._slot


class BinlogPositions:
    """Those of a MySQL or MariaDB source; its files' names are kept beside the log."""

    def __init__(self, layout: PipelineLayout) -> None:
        """layout: of the pipeline."""
        self._path = layout.state / STANDING_FILE

    def text(self, position: int) -> str:
        """`binlog.000003:154`."""
        standing = checkpoint.load(self._path, Standing)
        return position_text(standing.epochs if standing is not None else (), position)

    def origin(self, position: int) -> str:
        """The file."""
        return self.text(position).rpartition(":")[0] or "binlog"


def positions_of(config: Config) -> Positions:
    """How this pipeline's positions are written."""
    if config.source.is_mysql:
        return BinlogPositions(config.layout)
    return LsnPositions(config.change_extractor.replication_slot)
