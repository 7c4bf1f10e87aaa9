"""[consumers.NAME] of a pipeline file: one consumer, with the published names and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

TARGET_NAME = "target"  # the load, where consumers are listed


class Start(StrEnum):
    """Position at which a new consumer begins."""

    NOW = "now"
    BEGINNING = "beginning"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSection:
    """[consumers.NAME]. Names, units and defaults are those of document 002 where it has them.

    Attributes:
        class_: `module:attribute`, or an entry point's name.
        options: Its keyword arguments.
        tables: Patterns as in [source]; all tables if there are none.
        lock_timeout: Milliseconds.
        check_frequency: Milliseconds.
        cdc_wal_directory_max_size: Bytes of its links, 0: no limit.
        wal_force_archive_timeout: Milliseconds from a change to the rotation of its segment, -1:
            never for that reason.
        direct: It reads the directory to which the source's node writes its log, and no change log;
            None: if that is possible, and there is no target.
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
        """Limit of its links; None: no limit."""
        return self.cdc_wal_directory_max_size or None
