"""A sequencer over a real target and a staging database in memory."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from harness.feeds.staging import FakeStaging
from penstock.feeds.apply.sequencer import RowSequencer, SequencerOptions
from penstock.feeds.metrics import ApplyMetrics
from penstock.feeds.position import TakenOver, take_over
from penstock.feeds.script import Script, load_script
from penstock.feeds.sessions import Sessions
from penstock.model.hlc import Hlc
from penstock.model.sections import StageMode
from penstock.ports.feeds import Group, Mutation, Staged, StagedTable, batch_of
from penstock.ports.progress import open_shared_progress
from penstock.ports.row_apply import row_target_at
from penstock.ports.target import SHARED_LOG
from plugins.row_apply import Rows


def log_id_of(group: Group) -> str:
    """Name the log that instances of a target schema share."""
    return f"{SHARED_LOG}test/{'.'.join(group)}"


@dataclass
class Stage:
    """A poster of mutations to a sequencer."""

    rows: Rows
    stack: ExitStack
    mode: StageMode = StageMode.IMMEDIATE
    script: Script = field(default_factory=Script)
    staging: FakeStaging = field(default_factory=FakeStaging)
    more: dict[str, Any] = field(default_factory=dict)
    holder: TakenOver | None = None

    def __post_init__(self) -> None:
        """Create the sequencer."""
        self.registry = CollectorRegistry()
        self.group = self.rows.group
        sessions = self.stack.enter_context(Sessions(row_target_at(self.rows.url), 4))
        self.sequencer = RowSequencer(
            sessions,
            metrics=ApplyMetrics(self.registry),
            log_id=log_id_of,
            script=self.script,
            options=SequencerOptions(mode=self.mode, **self.more),
        )

    def table(self, name: str) -> StagedTable:
        """Return a table of the target schema."""
        return StagedTable(self.group, name)

    def post(self, **mutations: list[Mutation] | Mutation) -> dict[str, tuple[int, int]]:
        """Post one request; return by table how many were new, and how many were not."""
        batches = {
            self.table(name): batch_of(some if isinstance(some, list) else [some])
            for name, some in mutations.items()
        }
        found = self.sequencer.accept(self.staging, self.group, batches, "p")
        return {table.name: _counts(one) for table, one in found.items()}

    def resolve(self, time: int) -> None:
        """Send a resolved timestamp."""
        self.staging.advance(self.group, "p", Hlc(time))

    def take_over(self) -> TakenOver:
        """Take over the right to apply windows."""
        with closing(open_shared_progress(self.rows.url, application_name="test")) as progress:
            self.holder = take_over(log_id_of(self.group), progress)
        return self.holder

    def round(self, holder: TakenOver | None = None) -> StageMode:
        """Run the round that the holder of the lease repeats."""
        holder = holder or self.holder or self.take_over()
        return self.sequencer.round(self.staging, self.group, lambda: holder)

    def sweep(self) -> Hlc:
        """Run one round of best effort."""
        return self.sequencer.sweep(
            self.staging, self.group, lambda: self.holder or self.take_over()
        )

    def waiting(self, name: str) -> list[tuple[int, str]]:
        """Return the staged mutations of a table that are not applied."""
        kept = self.staging.tables.get(self.table(name), {})
        return sorted((time.nanos, key) for (time, key), row in kept.items() if not row.applied)

    def count(self, name: str, table: str) -> float:
        """Return a metric of a table."""
        labels = {"schema": ".".join(self.group), "table": table}
        return self.registry.get_sample_value(name, labels) or 0.0


def _counts(staged: Staged) -> tuple[int, int]:
    return staged.added, staged.duplicates


def module(folder: Path, text: str) -> Script:
    """Return the script of a user's module."""
    (folder / "rules.py").write_text(f"from penstock.stage.script import *\n{text}")
    return load_script("rules", beside=folder)


def row(time: int, id: Any, before: Any = None, **more: Any) -> Mutation:
    """Return an upsert."""
    return Mutation(
        time=Hlc(time),
        key=json.dumps([id]),
        after=json.dumps({"id": id, **more}).encode(),
        before=None if before is None else json.dumps({"id": id, **before}).encode(),
    )


def make_delete(time: int, *key: Any) -> Mutation:
    """Return a delete."""
    return Mutation(time=Hlc(time), key=json.dumps(list(key)), after=None)
