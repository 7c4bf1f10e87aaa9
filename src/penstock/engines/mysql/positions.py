"""Positions as users of MySQL and MariaDB know them: offsets in the binlog's files."""

from __future__ import annotations

from penstock.codec.mysql.binlog_position import BinlogPosition
from penstock.engines.mysql.source.resume_state import RESUME_STATE_FILE, ResumeState, position_text
from penstock.host.state_file import StateFile
from penstock.model.layout import PipelineLayout
from penstock.ports.config import Config
from penstock.ports.positions import Positions


class BinlogPositions(Positions):
    """Positions of a MySQL or MariaDB source, whose file names are kept beside the log."""

    def __init__(self, layout: PipelineLayout) -> None:
        """Keep the state file of the pipeline with this layout."""
        self._file = StateFile(layout.state / RESUME_STATE_FILE, ResumeState)

    def text(self, position: int) -> str:
        """Return a position as text, for example `binlog.000003:154`."""
        resume_state = self._file.load()
        return position_text(resume_state.epochs if resume_state is not None else (), position)

    def origin(self, position: int) -> str:
        """Return the file of a position."""
        return self.text(position).rpartition(":")[0] or "binlog"

    def parse(self, text: str) -> int:
        return BinlogPosition.parse(text).ordinal


def positions_of(config: Config) -> BinlogPositions:
    """Return the printer and parser of this pipeline's positions."""
    return BinlogPositions(config.layout)
