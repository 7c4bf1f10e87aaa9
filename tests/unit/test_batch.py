"""Application of a staged batch: it is applied, or the error says why the target refused it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.host.errors import StatementInterrupted
from penstock.model import PenstockError, TableName
from penstock.ports.sql_target import APPLY_ATTEMPTS_MAX, SqlTarget
from penstock.ports.target import (
    Applied,
    MergeBatch,
    SyncState,
    TableSync,
    ValueRefused,
)

STAGED = MergeBatch(before=Applied(), after=Applied(), source_engine="postgresql")


class Clock:
    """Fake clock that never waits."""

    def monotonic_s(self) -> float:
        """Return 0: no time passes."""
        return 0.0

    def sleep(self, _seconds: float) -> None:
        """Return without waiting."""


class Target:
    """Fake target: refuses as often as it is told, then accepts the batch."""

    is_closed = False
    log_id = ""
    clock = Clock()
    apply: Any = SqlTarget.apply

    def __init__(self, refusals: list[PenstockError], *, is_resolved: bool) -> None:
        self.refusals = refusals
        self.is_resolved = is_resolved
        self.applied = 0
        self.progress = self

    def apply_phases(self, _phases: object) -> None:
        """Refuse or accept the batch."""
        if self.refusals:
            raise self.refusals.pop(0)
        self.applied += 1

    def resolve_refusal(self, _error: object, _merges: object) -> bool:
        """Return whether the reason is gone."""
        return self.is_resolved

    def transaction(self) -> Any:
        """Return a context that does nothing."""
        return nullcontext()

    def __getattr__(self, _name: str) -> Any:
        return lambda *_, **__: None


def make_interruptions(count: int) -> list[PenstockError]:
    """Return that many interruptions."""
    return [StatementInterrupted("deadlock") for _ in range(count)]


@pytest.mark.parametrize(
    ("refusals", "is_resolved", "expected"),
    [
        ([], False, None),
        (make_interruptions(APPLY_ATTEMPTS_MAX - 1), False, None),
        (make_interruptions(APPLY_ATTEMPTS_MAX), False, StatementInterrupted),
        ([ValueRefused("a label")], False, ValueRefused),
        ([ValueRefused("a label"), ValueRefused("a null")], True, None),
        (
            [*make_interruptions(APPLY_ATTEMPTS_MAX - 1), ValueRefused("a label")],
            True,
            ValueRefused,
        ),
    ],
)
def test_a_batch_is_applied_once_or_its_error_is_raised(
    refusals: list[PenstockError], is_resolved: bool, expected: type[PenstockError] | None
) -> None:
    """The error is raised after the last attempt, even if its reason could be removed."""
    target: Any = Target(list(refusals), is_resolved=is_resolved)
    if expected is None:
        target.apply(STAGED)
    else:
        with pytest.raises(expected):
            target.apply(STAGED)
    assert target.applied == (expected is None)


class Witness(Target):
    """Fake target that notes each call, and whether its transaction was open then."""

    def __init__(self) -> None:
        super().__init__([], is_resolved=False)
        self.is_open = False
        self.seen: list[tuple[str, bool]] = []

    def apply_phases(self, _phases: object) -> None:
        """Note the call."""
        self.seen.append(("apply_phases", self.is_open))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Open a transaction, at most once."""
        self.is_open = True
        yield
        self.is_open = False
        self.seen.append(("commit", False))

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self.seen.append((name, self.is_open))


@pytest.mark.parametrize("alone", [False, True])
def test_rows_and_what_is_remembered_of_them_are_one_transaction(alone: bool) -> None:
    """The applied position is first, so that another loader waits; CL rows are written with the
    rows.
    """
    target: Any = Witness()
    at: Any = SimpleNamespace()
    row = TableSync(
        table=TableName("public", "t"),
        state=SyncState.CATCHING_UP,
        copy_id=1,
        start=1,
        applied=Applied(),
    )
    target.apply(STAGED, table_sync=row if alone else None, at=at)
    assert target.seen == [
        ("need", False),
        ("reshape", False),
        ("advance", True),
        *([("write_table_sync", True)] if alone else []),
        ("check_ahead", True),
        ("check_staged", True),
        ("apply_phases", True),
        ("end_files", True),
        ("commit", False),
        ("drop_merge_tables", False),
    ]
