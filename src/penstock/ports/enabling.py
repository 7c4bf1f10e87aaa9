"""Enabling of capture at a source that records the changes of enabled tables only.

Not here: requesting that a pipeline captures a table (`penstock.control.tables.table_commands`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.model import TableName
from penstock.ports.config import Config
from penstock.ports.registry import PartName


class CaptureEnabling(Protocol):
    """Part `enabling` of an engine; see `enable_capture`."""

    def enable_capture(self, config: Config, tables: Sequence[TableName], /) -> None:
        """Let the source record the changes of tables, as far as it does not record them yet.

        Returns once changes are recorded and can be read. Raises PrivilegeMissing with the command
        for an administrator, the engine's refusals, and the errors of connecting.
        """
        ...


ENABLING_PART: PartName[CaptureEnabling] = PartName("enabling")


def enable_capture(config: Config, tables: Sequence[TableName]) -> None:
    """Enable the capture of tables at a pipeline's source. Raises PartMissing; see the protocol."""
    config.source.engine.part(ENABLING_PART).enable_capture(config, tables)


def has_enabling(config: Config) -> bool:
    """Return whether the pipeline's source records the changes of enabled tables only."""
    return ENABLING_PART in config.source.engine.parts
