"""Tags: a name under which each table of a lake can be read at one batch, where formats have them.

Tag `penstock-<gsn>` is given to all tables at the versions that the batch's row names, to the table
of batches last: if that has the tag, all tables with rows have it. Tags are a convenience: the row
names the same versions. So a tag that cannot be given stops nothing, and the next batch gets one.
Not here: the removal of tags and of versions without one, which is the format's (`expire`).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor

import structlog

from penstock.engines.lake.batches import BATCHES
from penstock.engines.lake.opened import OpenLake
from penstock.host import faults
from penstock.model import PenstockError, TableName

logger = structlog.get_logger(__name__)

faults.declare("lake.tag.before", "lake.tag.after")

PREFIX = "penstock-"
KEPT_US = 7 * 24 * 3600 * 1_000_000
"""Age at which tags end, and with them the versions that only they keep: microseconds."""

MINUTE_US = 60 * 1_000_000


def tag_name(gsn: int) -> str:
    """Return the tag of the batch that ends at a gsn."""
    return f"{PREFIX}{gsn}"


class Tags:
    """Tags of one lake, given by its loader from time to time."""

    def __init__(self, minutes: float) -> None:
        """Keep the shortest time between two tags; 0: there are none."""
        self._every_us = round(minutes * MINUTE_US)
        self._next_us = 0

    def add_if_due(
        self, lake: OpenLake, versions: Mapping[str, int] | None, gsn: int, executor: Executor
    ) -> None:
        """Tag all tables, if it is time.

        Args:
            lake: the lake.
            versions: the version of each table at the batch, by name; None if not all are known.
            gsn: where the batch ends.
            executor: tags tables in parallel.
        """
        now_us = lake.clock.now_us()
        if not self._every_us or versions is None or now_us < self._next_us:
            return
        faults.point("lake.tag.before")
        try:
            self._add(lake, versions, tag_name(gsn), executor)
        except PenstockError as error:
            logger.warning("no tag", tag=tag_name(gsn), reason=error.message)
            return
        faults.point("lake.tag.after")
        self._next_us = now_us + self._every_us

    def _add(
        self, lake: OpenLake, versions: Mapping[str, int], tag: str, executor: Executor
    ) -> None:
        named = [name for name in lake.catalogue.tables() if versions.get(str(name), 0) > 0]

        def add(name: TableName) -> None:
            lake.tag(name, tag, versions[str(name)], kept_us=KEPT_US)

        for _ in executor.map(add, named):
            pass  # an error of one of them is raised here
        lake.tag(BATCHES, tag, lake.batches.snapshot.version, kept_us=KEPT_US)
