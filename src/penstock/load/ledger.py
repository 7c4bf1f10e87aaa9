"""Ledger of the bulk load: plans, their positions, and the plan of the target's rows.

It has two parts that are only valid together. `state/bulk.json`, replaced whole, has the plan: each
table's chunks, its consistent point and the name of the plan. The target has the progress: a DL row
per chunk, committed with the chunk's rows, and in `wirekite.bulk_table` the name of the plan that a
table's rows came from. A chunk's transaction checks that name first, so a task of a killed process
cannot add rows of an old plan to a table that is copied from the beginning. Not here: the target's
part (`BulkTarget`), running anything (`bulk.py`, `chunk.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum
from pathlib import Path

import msgspec

from penstock.host import files
from penstock.host.state_file import StateFile
from penstock.model import LOAD_AFRESH, PenstockError, TableName
from penstock.model.position import Position, PositionKind
from penstock.ports.bulk import Mark, TablePlan

STATE_FILE = "bulk.json"
FORMAT_VERSION = 1


class LedgerUnreadable(PenstockError):
    """state/bulk.json is not what penstock wrote."""

    code = "LD42"


class TargetHoldsRows(PenstockError):
    """A target table holds rows that this pipeline did not load."""

    code = "LD43"


class Ledger(msgspec.Struct, kw_only=True):
    """Contents of bulk.json.

    Attributes:
        copied: whether all rows are in the target, so nothing more is read at the source.
        finished: whether keys and indexes exist too.
    """

    version: int = FORMAT_VERSION
    copied: bool = False
    finished: bool = False
    foreign_keys_done: bool = False
    plans: list[TablePlan] = []

    def plan_of(self, table: TableName) -> TablePlan | None:
        """Return the plan of a source table, or None."""
        return next((plan for plan in self.plans if plan.source == table), None)

    def settled_at(self, kind: PositionKind) -> dict[TableName, int]:
        """Return the position at which each table with rows of several moments becomes
        consistent.
        """
        return {plan.source: plan.ordinals(kind)[1] for plan in self.plans if plan.is_mixed}

    def settle(self, position: Position) -> None:
        """Record that rows of plans without keys are consistent once changes up to here are
        applied.
        """
        self.plans = [
            plan if plan.has_keys else msgspec.structs.replace(plan, settled=str(position))
            for plan in self.plans
        ]

    def finish(self) -> None:
        """Record that keys and indexes exist: definitions are no longer needed."""
        self.finished = True
        self.plans = [msgspec.structs.replace(plan, definition=None) for plan in self.plans]

    def reopen(self) -> None:
        """Continue with more tables; those that are finished stay unchanged."""
        self.finished = self.copied = False
        self.plans = [msgspec.structs.replace(plan, has_keys=True) for plan in self.plans]

    def put(self, plans: Iterable[TablePlan]) -> None:
        """Add plans, replacing those of the same tables."""
        new = {plan.source: plan for plan in plans}
        kept = [plan for plan in self.plans if plan.source not in new]
        self.plans = kept + list(new.values())

    def forget(self, tables: Collection[TableName]) -> None:
        """Remove the plans of tables whose rows are not copied any more."""
        self.plans = [plan for plan in self.plans if plan.source not in tables]


def _ledger_file(state_directory: Path) -> StateFile[Ledger]:
    return StateFile(
        state_directory / STATE_FILE,
        Ledger,
        name="the bulk load's plan",
        hint=LOAD_AFRESH,
        error=LedgerUnreadable,
        has_checksum=False,
        is_indented=True,
    )


def read_ledger(state_directory: Path) -> Ledger:
    """Read bulk.json; return an empty ledger if it is missing. Raises LedgerUnreadable."""
    file = _ledger_file(state_directory)
    ledger = file.load()
    if ledger is None:
        return Ledger()
    if ledger.version != FORMAT_VERSION:
        raise LedgerUnreadable(
            f"{file.path} has format {ledger.version}, this penstock reads {FORMAT_VERSION}",
            hint="Go on with the version of penstock that began this load.",
        )
    return ledger


def write_ledger(state_directory: Path, ledger: Ledger) -> None:
    """Replace bulk.json whole, durably."""
    files.REAL_FILES.make_directory(state_directory)
    _ledger_file(state_directory).save(ledger)


def start_positions(state_directory: Path, kind: PositionKind) -> dict[TableName, int] | None:
    """Return each source table's consistent point as an ordered number; None without a bulk load.

    The loader skips changes with a smaller position: the bulk load's rows include them. kind: kind
    of positions.
    """
    ledger = read_ledger(state_directory)
    if not ledger.plans and not ledger.copied:
        return None
    return {plan.source: plan.ordinals(kind)[0] for plan in ledger.plans}


# --- what to do with a table ----------------------------------------------------------------------


class Step(StrEnum):
    """Step of a starting load for a table."""

    REFUSE = "refuse"
    AFRESH = "afresh"
    GO_ON = "go on"
    DONE = "done"


def next_step(
    plan: TablePlan | None, mark: Mark | None, *, empty: bool, made: bool = False
) -> Step:
    """Decide on a table's next step by the two parts of the ledger and by the target table itself.

    plan: the plan in bulk.json. mark: the target's record. empty: whether the target table is
    empty. made: whether the table was created just now, so that its rows are gone, whatever the
    mark says.
    """
    if made:
        return Step.AFRESH
    if mark is None or plan is None or mark.plan not in (plan.name, *plan.given_up):
        # There is no record that its rows are ours.
        return Step.AFRESH if empty else Step.REFUSE
    if mark.plan != plan.name:
        return Step.AFRESH  # killed between writing bulk.json and emptying the table
    if mark.finished:
        return Step.DONE
    if not mark.done and not empty:
        return Step.AFRESH  # its DL rows were deleted
    return Step.GO_ON


def target_not_empty(target: TableName, truncate: str) -> TargetHoldsRows:
    """Return the error for a target table with foreign rows. truncate: SQL that empties it."""
    return TargetHoldsRows(
        f"target table {target} holds rows that this pipeline did not load",
        hint=f"If they may go, run: {truncate}; otherwise leave the table out "
        'of [source] tables, or set mode = "change".',
        table=str(target),
    )
