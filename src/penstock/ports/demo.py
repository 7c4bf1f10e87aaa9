"""Port of `penstock demo`: servers of our own, and a shop with customers on the source."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from penstock.ports.registry import PartName, engines


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """Duration and rate. The two big moments are at these shares of the time.

    transaction_count_max: stop after as many, if that is before duration_s; None: no such
    bound.
    """

    duration_s: float = 60.0
    transaction_count_max: int | None = None
    transactions_per_s_max: int = 120
    column_added_at: float = 0.55
    large_transaction_at: float = 0.75


@dataclass(slots=True)
class WorkloadCounts:
    """Counts of the workload so far; others read them while it runs."""

    transactions: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoServer:
    """Server for a with block. url: of an empty database; shown: its version, for people."""

    url: str = field(repr=False)
    port: int
    shown: str


class DemoWorkload(Protocol):
    """Customers who keep the shop busy, as a context manager, on a thread of their own.

    Attributes:
        counts: Counts of their work so far.
    """

    counts: WorkloadCounts

    @abstractmethod
    def __enter__(self) -> DemoWorkload:
        """Start the customers."""
        ...

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """Send the customers home."""
        ...

    @abstractmethod
    def stop(self) -> None:
        """Let the transaction in progress be the last one."""
        ...

    @abstractmethod
    def join(self) -> None:
        """Wait for the end; raise the workload's error, if it failed."""
        ...


class Demo(Protocol):
    """Part `demo` of an engine."""

    def demo_server(self) -> AbstractContextManager[DemoServer]:
        """Start a server with an empty database."""
        ...

    def open_shop(self, url: str, /) -> None:
        """Create the shop's tables and fill them."""
        ...

    def Workload(self, url: str, options: WorkloadOptions, /) -> DemoWorkload:  # noqa: N802 - a class
        """Return the customers."""
        ...


DEMO_PART: PartName[Demo] = PartName("demo")


def demo_engine() -> Demo:
    """Return the first engine that has its own servers and a shop."""
    return next(one for one in engines() if DEMO_PART in one.parts).part(DEMO_PART)
