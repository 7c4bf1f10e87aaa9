"""Lakes as targets of the change loader: the port of `ports/target.py`, for every format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from penstock.codec.types import NO_CHOICES, Choices
from penstock.engines.lake.apply import BatchApply
from penstock.engines.lake.expiry import Expirer
from penstock.engines.lake.format import LakeFailed, LakeFormat
from penstock.engines.lake.history import Histories
from penstock.engines.lake.opened import OpenLake
from penstock.engines.lake.staging import LakeStaging
from penstock.engines.lake.tags import Tags
from penstock.engines.lake.upkeep import DEFAULT_LIMITS, Limits, keep_up
from penstock.engines.lake.url import parse_url
from penstock.host.clock import REAL_CLOCK, Clock
from penstock.model import PenstockError, TableName
from penstock.model.policies import EVOLVE_ALL, Policies
from penstock.ports.jobs import GetJobs
from penstock.ports.target import (
    Applied,
    MergeBatch,
    ShapeNote,
    TableSync,
    Target,
    TargetEngine,
)

COMMIT_THREADS = 8


class LakeTarget(Target):
    """Lake to which batches are applied, one after the other.

    Attributes:
        replica: A lake has neither foreign keys nor triggers.
    """

    replica = True
    is_closed = False

    def __init__(self, lake: OpenLake, limits: Limits = DEFAULT_LIMITS) -> None:
        """Keep the lake; `use` and `bind` follow. limits: of upkeep."""
        self._lake = lake
        self._limits = limits
        self._executor = ThreadPoolExecutor(COMMIT_THREADS, thread_name_prefix="lake-commit")
        self._tags = Tags(lake.tag_minutes)
        self._notes: list[ShapeNote] = []
        self._expirer = Expirer(lake)

    def use(self, jobs: GetJobs) -> None:
        self._lake.use(jobs)

    def bind(self, log_id: str) -> Applied:
        applied = self._lake.bind(log_id)
        if self._lake.histories is not None:
            self._lake.histories.begin()
        return applied

    def read_ahead(self) -> Mapping[TableName, int]:
        return self._lake.ahead

    def apply(
        self, batch: Any, *, table_sync: TableSync | None = None, at: Applied | None = None
    ) -> Mapping[str, float]:
        assert isinstance(batch, MergeBatch), "it was staged for a lake"
        applying = BatchApply(
            self._lake,
            batch,
            self._executor,
            table_sync=table_sync,
            at=batch.before if at is None else at,
        )
        try:
            seconds = applying.run()
        finally:
            self._notes += applying.notes
        self._tags.add_if_due(self._lake, applying.versions, batch.after.gsn, self._executor)
        began = self._lake.clock.monotonic_s()
        # Files that Spark writes may follow rules which penstock does not know.
        tables = () if self._lake.merges else applying.names
        is_done = bool(keep_up(self._lake, tables, self._limits))
        is_done |= self._expirer.step(applying.names)
        self._lake.note_tables(applying.names)
        if is_done:
            return {**seconds, "upkeep": round(self._lake.clock.monotonic_s() - began, 3)}
        return seconds

    def read_table_syncs(self) -> dict[TableName, TableSync]:
        return self._lake.read_syncs()

    def write_table_sync(self, rows: Sequence[TableSync], *, at: Applied) -> None:
        self._lake.write_syncs(rows, at)

    def take_notes(self) -> list[ShapeNote]:
        taken, self._notes = self._notes, []
        return taken

    def forget(self) -> None:
        self._lake.forget()

    def close(self) -> None:
        """End the threads, once no commit is under way."""
        self._executor.shutdown()
        self.is_closed = True


class LakeEngine(TargetEngine):
    """Lake of one format. Staging and applying share the open lake."""

    errors: tuple[type[BaseException], ...] = ()
    ddl_commits = True

    def __init__(self, table_format: LakeFormat, limits: Limits = DEFAULT_LIMITS) -> None:
        """Keep the format. limits: of upkeep."""
        self._format = table_format
        self._limits = limits
        self._lake: OpenLake | None = None

    def convert_error(self, doing: str, error: BaseException) -> PenstockError:
        return LakeFailed(f"{doing}: {error}", hint="penstock retries automatically.")

    def open_staging(
        self, url: str, *, choices: Choices = NO_CHOICES, directory: Path | None = None
    ) -> LakeStaging:
        """Return the stager's side of the lake that `open_target` has opened."""
        del url, choices, directory
        assert self._lake is not None, "the target is opened first"
        return LakeStaging(self._lake)

    def open_target(
        self,
        url: str,
        namespaces: Mapping[str, str],
        *,
        allow_triggers: bool = False,
        choices: Choices = NO_CHOICES,
        policies: Policies = EVOLVE_ALL,
        clock: Clock = REAL_CLOCK,
    ) -> LakeTarget:
        """Open a lake for applying. A lake has no triggers."""
        del allow_triggers
        self._lake = OpenLake(
            self._format,
            url,
            namespaces,
            choices=choices,
            policies=policies,
            clock=clock,
        )
        if parse_url(url).history:
            self._lake.histories = Histories(self._lake)
        return LakeTarget(self._lake, self._limits)
