"""Files by which the loader and other processes tell each other: its report, and the hold.

The report `run/load.json` is for displays, never for decisions. The hold is how `penstock verify`
pauses a running loader at one position: two small files below state/, plain JSON, replaced whole.
verify writes hold.json, and the loader answers in held.json with the same nonce:

1. hold `{nonce}`: the loader finishes its batch, begins no other, answers `{nonce, gsn, position}`.
2. hold `{nonce, until}`: it applies exactly the rows with position < until, as soon as the log has
   reached that, and answers `{nonce, ..., reached: until}`.
3. hold.json is removed: the loader continues as usual.

A hold counts only while its creator holds the lock HOLD.LOCK, so the hold of a killed verify is
ignored. Positions are ordered numbers. Not here: the loader's loop (`loader.py`) and verify itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.host.files import REAL_FILES, Files
from penstock.host.process import holder_of
from penstock.host.state_file import StateFile, report_file
from penstock.model.histogram import Histogram

if TYPE_CHECKING:  # who shows the state need not wait for Arrow
    from penstock.ports.loading import Batch

STATE_NAME = "load.json"
ALTERATIONS_MAX = 1000


class AppliedAlteration(msgspec.Struct, frozen=True, kw_only=True):
    """A schema change that the loader has carried out. number: counts from 1 in each process."""

    number: int
    table: str
    change: str


class LoaderState(msgspec.Struct, kw_only=True):
    """Contents of `run/load.json`.

    Attributes:
        state: starting, waiting, applying, paused, held, retrying or ended.
        commit_time_us: commit time of the last applied commit.
        seconds: duration of each step of the last batch. Its staging may have run while the
            previous batch was applied.
        heartbeats: seconds from before a heartbeat's commit at the source until it was visible,
            by this machine's clock.
        commits: the same from the commit of each batch's last transaction, by the source's clock.
        problem: last failure, since problem_since_us, with a retry at next_try_us; empty and 0
            after success.
        is_spark_starting: whether no job can run yet.
        alterations: the last ALTERATIONS_MAX ones.

    Rows are changes that this process applied.
    """

    pid: int
    state: str = "starting"
    updated_us: int = 0
    batch_count: int = 0
    row_count: int = 0
    file_count: int = 0
    applied_gsn: int = 0
    applied_segment: int = -1
    applied_position: int = 0
    commit_time_us: int = 0
    batch_rows: int = 0
    batch_files: int = 0
    batch_tables: int = 0
    seconds: dict[str, float] = {}
    heartbeats: Histogram = msgspec.field(default_factory=Histogram)
    commits: Histogram = msgspec.field(default_factory=Histogram)
    problem: str = ""
    problem_since_us: int = 0
    next_try_us: int = 0
    is_spark_starting: bool = False
    alterations: list[AppliedAlteration] = []

    def note_latency(self, batch: Batch, *, now_us: int) -> None:
        """Record how long a batch took from its commits until it was visible.

        A negative duration, which two clocks can cause, counts as 0.
        """
        for sent_us in batch.heartbeats:
            self.heartbeats.observe(max(0.0, (now_us - sent_us) / 1e6))
        if batch.after.trx > batch.before.trx and batch.after.commit_time_us:
            self.commits.observe(max(0.0, (now_us - batch.after.commit_time_us) / 1e6))

    def count_batch(self, batch: Batch, seconds: Mapping[str, float]) -> None:
        """Count a batch. seconds: duration of each of its steps."""
        self.batch_count += 1
        self.row_count += batch.counts.changes
        self.file_count += len(batch.whole)
        self.batch_rows = batch.counts.changes
        self.batch_files = len(batch.whole)
        self.batch_tables = batch.tables
        self.seconds = dict(seconds)
        self.note_progress()

    def note_alteration(self, table: str, change: str) -> None:
        """Record a schema change of a target table."""
        number = self.alterations[-1].number + 1 if self.alterations else 1
        new = AppliedAlteration(number=number, table=table, change=change)
        self.alterations = [*self.alterations, new][-ALTERATIONS_MAX:]

    def note_failure(self, problem: str, *, now_us: int, wait_s: float) -> None:
        """Record a failure that will be retried later."""
        self.problem = problem
        self.problem_since_us = self.problem_since_us or now_us
        self.next_try_us = now_us + round(wait_s * 1e6)

    def note_progress(self) -> None:
        """Record that the loader works again."""
        self.problem, self.problem_since_us, self.next_try_us = "", 0, 0


def write_loader_state(run_directory: Path, state: LoaderState, files: Files = REAL_FILES) -> None:
    """Replace the file, without fsync: after a crash of the machine it is not needed."""
    files.make_directory(run_directory)
    report_file(run_directory / STATE_NAME, LoaderState, files).save(state)


def read_loader_state(run_directory: Path, files: Files = REAL_FILES) -> LoaderState | None:
    """Return the state that the loader last wrote, or None."""
    return report_file(run_directory / STATE_NAME, LoaderState, files).load()


HOLD_FILE = "hold.json"
HELD_FILE = "held.json"
HOLD_LOCK = "HOLD.LOCK"
_HINT = "Stop penstock verify and remove the file: the next penstock verify writes it again."


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Request of verify. until: apply only rows with a smaller position; None to apply nothing."""

    nonce: str
    until: int | None = None


class HoldAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of the loader. gsn, position: those of the last applied row and commit.

    reached: the `until` of the hold, once everything before it is applied.
    """

    nonce: str
    gsn: int = 0
    position: int = 0
    reached: int | None = None


def _hold_file(state_directory: Path) -> StateFile[Hold]:
    return StateFile(state_directory / HOLD_FILE, Hold, hint=_HINT, has_checksum=False)


def _held_file(state_directory: Path) -> StateFile[HoldAnswer]:
    return StateFile(state_directory / HELD_FILE, HoldAnswer, hint=_HINT, has_checksum=False)


def read_hold(state_directory: Path) -> Hold | None:
    """Return the hold that counts now, or None, in the loader. Cheap enough for every batch."""
    hold = _hold_file(state_directory).load()
    return hold if hold is not None and holder_of(state_directory / HOLD_LOCK) else None


def write_hold(state_directory: Path, hold: Hold) -> None:
    """Request a hold, or move it forward, in verify with HOLD_LOCK held."""
    _hold_file(state_directory).save(hold)


def clear_hold(state_directory: Path) -> None:
    """Let the loader continue, in verify. Does nothing if there is no hold."""
    _hold_file(state_directory).remove()
    _held_file(state_directory).remove()


def read_held(state_directory: Path, nonce: str) -> HoldAnswer | None:
    """Return the loader's answer to the hold of this nonce, in verify; None before it arrives."""
    held = _held_file(state_directory).load()
    return held if held is not None and held.nonce == nonce else None


def write_held(state_directory: Path, held: HoldAnswer) -> None:
    """Write the answer, in the loader."""
    _held_file(state_directory).save(held)
