"""[merge] of a pipeline file: the logs that become one, as every package reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

MERGE = "merge"
MERGED = "merged"
"""Prefix of the schemes of URLs that name a merge as a source."""


class OfOneLog(StrEnum):
    """Action for a TRUNCATE, DROP or reload of a table of which other logs have rows too."""

    STOP = "stop"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSection:
    """[merge].

    Attributes:
        logs: The pipeline files of the logs, relative to this file.
        join_seconds: How far apart the commits of a global transaction's parts may be.
        clock_skew_seconds: How far a server's clock may step back, and how much servers' clocks may
            differ without an alarm.
        split: Logs that end, each with the logs that continue in its place.
    """

    logs: tuple[str, ...]
    join_seconds: float = 10
    clock_skew_seconds: float = 5
    of_one_log: OfOneLog = OfOneLog.STOP
    split: dict[str, tuple[str, ...]] = field(default_factory=dict)
