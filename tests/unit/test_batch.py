"""A staged batch is applied, or the error says why not: whatever the target refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.host.errors import StatementInterrupted
from penstock.load.sql_target import APPLY_ATTEMPTS_MAX, apply_batch
from penstock.model import PenstockError, TableName
from penstock.ports.refusals import ValueRefused
from penstock.ports.target import Applied, SyncState, TableSync

STAGED: Any = SimpleNamespace(
    phases=(), seconds={}, extra=(), files=(), before=None, after=None, source_engine="postgresql"
)


class Clock:
    """Stands for the clock: nobody waits."""

    def monotonic_s(self) -> float:
        """No time passes."""
        return 0.0

    def sleep(self, _seconds: float) -> None:
        """Not at all."""


class Target:
    """Stands for the target: refuses as it is told, then takes the batch."""

    is_closed = False

    def __init__(self, refusals: list[PenstockError], *, mends: bool) -> None:
        self.refusals = refusals
        self.mends = mends
        self.applied = 0

    def apply_phases(self, _phases: object) -> None:
        """Refuse, or take it."""
        if self.refusals:
            raise self.refusals.pop(0)
        self.applied += 1

    def resolve_refusal(self, _error: object, _merges: object) -> bool:
        """Whether the reason is gone."""
        return self.mends

    def transaction(self) -> Any:
        """Of no consequence."""
        return nullcontext()

    def __getattr__(self, _name: str) -> Any:
        return lambda *_, **__: None


def interrupted(count: int) -> list[PenstockError]:
    """So many interruptions."""
    return [StatementInterrupted("deadlock") for _ in range(count)]


@pytest.mark.parametrize(
    ("refusals", "mends", "expected"),
    [
        ([], False, None),
        (interrupted(APPLY_ATTEMPTS_MAX - 1), False, None),
        (interrupted(APPLY_ATTEMPTS_MAX), False, StatementInterrupted),
        ([ValueRefused("a label")], False, ValueRefused),
        ([ValueRefused("a label"), ValueRefused("a null")], True, None),
        ([*interrupted(APPLY_ATTEMPTS_MAX - 1), ValueRefused("a label")], True, ValueRefused),
    ],
)
def test_a_batch_is_applied_once_or_its_error_is_raised(
    refusals: list[PenstockError], mends: bool, expected: type[PenstockError] | None
) -> None:
    """Also where the last attempt is the one whose reason could be mended."""
    target: Any = Target(list(refusals), mends=mends)
    clock: Any = Clock()
    if expected is None:
        apply_batch(target, STAGED, log_id="", clock=clock)
    else:
        with pytest.raises(expected):
            apply_batch(target, STAGED, log_id="", clock=clock)
    assert target.applied == (expected is None)


class Witness(Target):
    """Notes what was asked of it, and whether its transaction was open then."""

    def __init__(self) -> None:
        super().__init__([], mends=False)
        self.is_open = False
        self.seen: list[tuple[str, bool]] = []

    def apply_phases(self, _phases: object) -> None:
        """Note it."""
        self.seen.append(("apply_phases", self.is_open))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Open meanwhile; begun once."""
        self.is_open = True
        yield
        self.is_open = False
        self.seen.append(("commit", False))

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self.seen.append((name, self.is_open))


@pytest.mark.parametrize("alone", [False, True])
def test_rows_and_what_is_remembered_of_them_are_one_transaction(alone: bool) -> None:
    """The applied position first, so that another loader waits; then CL rows with the rows."""
    target: Any = Witness()
    clock: Any = Clock()
    at: Any = SimpleNamespace()
    row = TableSync(
        table=TableName("public", "t"),
        state=SyncState.CATCHING_UP,
        copy_id=1,
        start=1,
        applied=Applied(),
    )
    apply_batch(target, STAGED, log_id="", clock=clock, table_sync=row if alone else None, at=at)
    assert target.seen == [
        ("need", False),
        ("reshape", False),
        ("advance", True),
        *([("write_table_sync", True)] if alone else []),
        ("check_staged", True),
        ("apply_phases", True),
        ("end_files", True),
        ("commit", False),
        ("drop_merge_tables", False),
    ]
