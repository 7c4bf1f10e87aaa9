"""A receiver, a staging database and a target of one schema, all in memory."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from harness.feeds.interleaved import LOG, LockingTarget
from harness.feeds.row_target import GROUP
from harness.feeds.staging import FakeStaging
from penstock.control.feeds import feed_rewind
from penstock.feeds.apply.sequencer import RowSequencer, SequencerOptions
from penstock.feeds.metrics import ApplyMetrics
from penstock.feeds.position import TakenOver, take_over
from penstock.feeds.sessions import Sessions
from penstock.model.hlc import Hlc
from penstock.model.sections import StageMode
from penstock.ports.feeds import Mutation, StagedTable, batch_of

T, P = StagedTable(GROUP, "t"), StagedTable(GROUP, "p")
ALL_MODES = [StageMode.CONSISTENT, StageMode.BEST_EFFORT, StageMode.IMMEDIATE]


class Site:
    """A staging database, a target, and a sequencer for each mode."""

    def __init__(self, stack: ExitStack, **options: Any) -> None:
        self.staging, self.target = FakeStaging(), LockingTarget()
        sessions: Any = stack.enter_context(Sessions(self.target, 4))  # type: ignore[type-var]
        self.sequencers = {
            mode: RowSequencer(
                sessions,
                metrics=ApplyMetrics(CollectorRegistry()),
                log_id=lambda _group: LOG,
                options=SequencerOptions(mode=mode, **options),
                clock=SimpleNamespace(  # type: ignore[arg-type]
                    now_us=lambda: 10**15, monotonic_s=lambda: 0.0, sleep=lambda _s: None
                ),
            )
            for mode in ALL_MODES
        }

    def post(
        self, mode: StageMode, *rows: Mutation, table: StagedTable = T, feed: str = "a"
    ) -> tuple[int, int]:
        """Send rows; return how many were new, and how many were not."""
        batches = {table: batch_of(rows)}
        found = self.sequencers[mode].accept(self.staging, GROUP, batches, feed)
        return found[table].added, found[table].duplicates

    def apply(self, mode: StageMode, holder: TakenOver | None = None) -> None:
        """Run a round of the lease's holder; of a new one if none is given."""
        holder = holder or take_over(LOG, self.target)
        self.sequencers[mode].round(self.staging, GROUP, lambda: holder)

    def resolve(self, time: int, feed: str = "a") -> None:
        """Resolve a time as a feed."""
        self.staging.advance(GROUP, feed, Hlc(time))

    def waiting(self, table: StagedTable = T) -> list[int]:
        """Return the times of staged rows that are not applied."""
        kept = self.staging.tables.get(table, {})
        return sorted(time.nanos for (time, _), one in kept.items() if not one.applied)

    def values(self, table: str = "t") -> dict[str, int]:
        """Return the value of each key in the target."""
        return {key: found["v"] for key, found in self.target.rows[table].items()}


class Place:
    """The staging database and target of a pipeline, as the command receives them."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        section = SimpleNamespace(lease_seconds=60.0)
        schemas = SimpleNamespace(
            group_of=lambda name: GROUP if name == "shop.public" else None,
        )
        target = SimpleNamespace(url="postgresql://t/shop")
        self.config: Any = SimpleNamespace(target=target)
        replaced = {
            "checked_sections": lambda _config: (section, site.staging),
            "TargetSchemas": lambda _config: schemas,
            "log_id_of": lambda _config, _group: LOG,
            "open_shared_progress": lambda _url, **_more: site.target,
            "row_target_at": lambda _url: site.target,
        }
        for name, found in replaced.items():
            monkeypatch.setattr(feed_rewind, name, found)
