"""Positions as users of Oracle know them: SCNs, with the address of a COMMIT where it is needed."""

from __future__ import annotations

from penstock.codec.oracle.scn import OraclePosition
from penstock.ports.config import Config
from penstock.ports.positions import Positions


class ScnPositions(Positions):
    """Printer and parser of positions, which are the same for every server."""

    def text(self, position: int) -> str:
        """Return a position as text, for example `8800153` or `8800153:1:0x0a.0000b3c1.0010`."""
        return str(OraclePosition(position))

    def origin(self, position: int) -> str:
        """Return the redo thread of a position; `redo` for one after a whole SCN.

        It is never empty: a target may be Oracle, which stores an empty text as NULL.
        """
        return self.text(position).partition(":")[2].partition(":")[0] or "redo"

    def parse(self, text: str) -> int:
        return OraclePosition.parse(text).ordinal


def positions_of(_config: Config) -> ScnPositions:
    """Return the printer and parser of this pipeline's positions."""
    return ScnPositions()
