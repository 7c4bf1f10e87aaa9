"""Removal of earlier versions by the loader, between two batches: one table after each batch.

The table of batches names versions that readers may open; they are kept, and all later ones. Older
ones are removed each hour, and of a table with many versions earlier; Delta's files that no version
needs any more once a day. Not here: the removal itself, which is each format's
(`LakeTable.expire`); joining of files (`upkeep.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

import structlog

from penstock.engines.lake.batches import BATCHES, HOUR_US, Promises
from penstock.engines.lake.format import Expiry
from penstock.engines.lake.opened import OpenLake
from penstock.engines.lake.state import UpkeepState
from penstock.host import faults
from penstock.model import PenstockError, TableName

logger = structlog.get_logger(__name__)

faults.declare("lake.expire.before", "lake.expire.after")

EXPIRE_US = HOUR_US
VACUUM_US = 24 * HOUR_US
VERSIONS_MIN = 200
"""Number of a table's versions from which on they are removed before the hour is over."""

VERSIONS_STEP = 100
MARGIN_US = HOUR_US
"""Clocks of other writers, which say when they removed a file, may differ so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryRun:
    """One pass over tables.

    Attributes:
        promises: Versions that the table of batches named when it began.
        files_before_us: See `Expiry`.
        is_whole: It is over all tables.
    """

    promises: Promises
    files_before_us: int | None
    is_whole: bool


def make_expiry(name: TableName, run: ExpiryRun) -> Expiry:
    """Return the limits for one table."""
    return Expiry(
        before_us=run.promises.since_us,
        keeps=run.promises.versions.get(str(name), frozenset()),
        files_before_us=run.files_before_us,
    )


def files_limit(promises: Promises, now_us: int, hours: float) -> int:
    """Return the time before which files must have been removed from a table to be deleted."""
    return min(now_us - round(hours * HOUR_US), promises.since_us - MARGIN_US)


class Expirer:
    """Removal of earlier versions of a lake that a loader has open. Used by one thread."""

    def __init__(self, lake: OpenLake) -> None:
        """Keep the lake."""
        self._lake = lake
        self._run: ExpiryRun | None = None
        self._queue: deque[TableName] = deque()
        self._limits: dict[TableName, int] = {}
        self._times: UpkeepState | None = None

    def step(self, names: Iterable[TableName]) -> bool:
        """Do one table if one is due; return whether it was. names: tables of the last batch.

        An error is logged, and the table is due again in the next pass.
        """
        lake = self._lake
        now_us = lake.clock.now_us()
        if not self._queue:
            self._begin(names, now_us)
        if self._run is None or not self._queue:
            return False
        name = self._queue.popleft()
        faults.point("lake.expire.before")
        try:
            done = lake.expire(name, make_expiry(name, self._run))
            if done.version_count or done.file_count:
                logger.info(
                    "earlier versions removed",
                    table=str(name),
                    versions=done.version_count,
                    files=done.file_count,
                    bytes=done.size_bytes,
                )
        except PenstockError as error:
            logger.warning("earlier versions not removed", table=str(name), reason=error.message)
        faults.point("lake.expire.after")
        count = lake.count_versions(name)
        self._limits[name] = max(VERSIONS_MIN, count + max(VERSIONS_STEP, count // 10))
        if not self._queue and self._run.is_whole:
            self._note_whole(now_us, with_files=self._run.files_before_us is not None)
        return True

    def _begin(self, names: Iterable[TableName], now_us: int) -> None:
        """Queue the tables that are due."""
        lake, times = self._lake, self._read_times(now_us)
        is_whole = now_us - times.expired_us >= EXPIRE_US
        due = (
            sorted({TableName(*name.split(".", 1)) for name in lake.versions})
            if is_whole
            else [name for name in sorted(set(names)) if self._has_many(name)]
        )
        if lake.merges:
            due = []  # earlier versions are the business of who writes the table
        if is_whole or self._has_many(BATCHES):
            due.append(BATCHES)
        if not due:
            return
        promises = lake.batches.read_promises(now_us)
        is_file_time = is_whole and now_us - times.vacuumed_us >= VACUUM_US
        limit = files_limit(promises, now_us, lake.vacuum_hours) if is_file_time else None
        self._run = ExpiryRun(promises=promises, files_before_us=limit, is_whole=is_whole)
        self._queue.extend(due)

    def _has_many(self, name: TableName) -> bool:
        limit = self._limits.get(name, VERSIONS_MIN)
        return self._lake.count_versions(name) >= limit

    def _read_times(self, now_us: int) -> UpkeepState:
        """Return the times of the last pass; those of a new lake begin now."""
        if self._times is None:
            self._times = self._lake.state.read_upkeep()
            if not self._times.expired_us:
                self._note_whole(now_us, with_files=True)
        assert self._times is not None, "it was read"
        return self._times

    def _note_whole(self, now_us: int, *, with_files: bool) -> None:
        times = replace(self._times or UpkeepState(), expired_us=now_us)
        self._times = replace(times, vacuumed_us=now_us) if with_files else times
        self._lake.state.write_upkeep(self._times)
