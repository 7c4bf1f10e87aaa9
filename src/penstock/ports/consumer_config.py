"""[consumers.NAME] of a pipeline file: one consumer, with the published names and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

TARGET_NAME = "target"  # the load, where consumers are listed


class Start(StrEnum):
    """Where a new consumer begins."""

    NOW = "now"
    BEGINNING = "beginning"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSection:
    """[consumers.NAME]. Names, units and defaults are those of document 002 where it has them.

    class_: `module:attribute`, or an entry point's name. options: its keyword arguments. tables:
    patterns as in [source]; none: all. lock_timeout, check_frequency: milliseconds.
    cdc_wal_directory_max_size: bytes of its links, 0: no limit. wal_force_archive_timeout: ms from
    a change to the rotation of its segment, -1: never for that. direct: it reads the directory
    where the source's node leaves its log, and no change log; None: where that can be, and there is
    no target.
    """

    class_: str
    options: dict[str, Any] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    start: Start = Start.NOW
    lock_timeout: int = 1000
    check_frequency: int = 1000
    keep_binary: bool = True
    cdc_wal_directory_max_size: int = 0
    wal_force_archive_timeout: int = -1
    direct: bool | None = None

    @property
    def size_bytes_max(self) -> int | None:
        """Of its links; None: no limit."""
        return self.cdc_wal_directory_max_size or None
