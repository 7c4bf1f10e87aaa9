"""[merge] of a pipeline file: the logs that become one, as every room reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

MERGE = "merge"
MERGED = "merged"
"""What the schemes of the URLs begin with that name a merge as a source."""


class OfOneLog(StrEnum):
    """What becomes of a TRUNCATE, DROP or reload of a table that other logs have rows of, too."""

    STOP = "stop"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSection:
    """[merge]. logs: the pipeline files of the logs, relative to this file.

    join_seconds: how far apart the commits of a global transaction's parts may be.
    clock_skew_seconds: by how much a server's clock may step back, and servers' clocks may differ
    without an alarm. split: logs that end, each with those that go on in its place.
    """

    logs: tuple[str, ...]
    join_seconds: float = 10
    clock_skew_seconds: float = 5
    of_one_log: OfOneLog = OfOneLog.STOP
    split: dict[str, tuple[str, ...]] = field(default_factory=dict)
