"""A held lease: it is renewed in time, and its work is told when it is lost."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.feeds.position import HeldLease, LeaseLost, hold_lease
from penstock.ports.feeds import Lease, StagingUnusable

LIFETIME_S = 0.4
LEASE = Lease(names=("sequtil.Lease.shop",), nonce=uuid.UUID(int=1), expires=datetime.now(UTC))


class Database:
    """A staging database whose leases do as told."""

    def __init__(self, renews: str = "yes") -> None:
        self.renews = renews
        self.renewed_count = 0
        self.released: list[Lease] = []
        self.busy_until: datetime | None = None

    @contextmanager
    def open_session(self) -> Iterator[Any]:
        """Return itself as its session."""
        yield self

    def acquire(self, _names: Any, _lifetime_s: float, _hostname: str) -> Lease | datetime:
        """Return our lease, unless another holder has it."""
        return self.busy_until or LEASE

    def renew(self, lease: Lease, _lifetime_s: float) -> Lease | None:
        """Renew the lease, lose it or raise an error, as `renews` says."""
        if self.renews == "error":
            raise StagingUnusable("away", hint="Start it.")
        if self.renews == "defect":
            self.renews = "yes"
            raise KeyError("not foreseen")
        self.renewed_count += 1
        return lease if self.renews == "yes" else None

    def release(self, lease: Lease) -> None:
        """Record which lease was released."""
        self.released.append(lease)


@contextmanager
def holding(database: Any) -> Iterator[HeldLease]:
    """Return the holder of a lease that was acquired."""
    with hold_lease(database, LEASE.names, LIFETIME_S, "host") as lease:
        assert isinstance(lease, HeldLease)
        yield lease


def test_it_is_renewed_for_as_long_as_it_is_held() -> None:
    """The lease is renewed at half of its time, and released at the end."""
    database = Database()
    with holding(database) as lease:
        while database.renewed_count < 4:
            lease.check()
            time.sleep(0.02)
    assert database.released == [LEASE]


@pytest.mark.parametrize(
    ("renews", "why"),
    [("no", "another instance has taken it away"), ("error", "could not be renewed")],
)
def test_a_lease_that_is_lost_is_told(renews: str, why: str) -> None:
    """Another holder took it, or it was not renewed before it expired."""
    database = Database(renews)

    def work(lease: HeldLease) -> None:
        while True:
            lease.check()
            time.sleep(0.02)

    with holding(database) as lease, pytest.raises(LeaseLost, match=why):
        work(lease)


class SlowClock:
    """A clock twenty times slower than real time, so that no lease expires on a busy machine."""

    def monotonic_s(self) -> float:
        """Return the seconds of a clock that is twenty times slower."""
        return time.monotonic() / 20


def test_an_error_that_nobody_foresaw_does_not_end_the_renewals() -> None:
    """The lease would otherwise expire, and another holder would take it while this one works."""
    database: Any = Database("defect")
    clock: Any = SlowClock()
    with hold_lease(database, LEASE.names, LIFETIME_S, "host", clock=clock) as lease:
        assert isinstance(lease, HeldLease)
        while not database.renewed_count:
            lease.check()
            time.sleep(0.02)


def test_a_lease_of_another_is_not_held() -> None:
    """The error says until when it is taken."""
    database: Any = Database()
    database.busy_until = datetime.now(UTC)
    with hold_lease(database, LEASE.names, LIFETIME_S, "host") as lease:
        assert lease == database.busy_until
    assert database.released == []
