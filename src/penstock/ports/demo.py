"""What `penstock demo` needs: servers of our own, and a shop with customers on the source."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from penstock.ports.registry import engines


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """How long and how fast. The two big moments come at these shares of the time.

    transaction_count_max: stop after as many, if before duration_s; None: no such
    bound.
    """

    duration_s: float = 60.0
    transaction_count_max: int | None = None
    transactions_per_s_max: int = 120
    column_added_at: float = 0.55
    large_transaction_at: float = 0.75


@dataclass(slots=True)
class WorkloadCounts:
    """What the workload has done so far; read by others while it runs."""

    transactions: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoServer:
    """A server for a with block. url: of an empty database; shown: its version, for people."""

    url: str = field(repr=False)
    port: int
    shown: str


class DemoWorkload(Protocol):
    """Customers who keep the shop busy, as a context manager, on a thread of their own."""

    @property
    def counts(self) -> WorkloadCounts:
        """What they have done so far."""
        ...

    def __enter__(self) -> DemoWorkload:
        """Start the customers."""
        ...

    def __exit__(self, *_: object) -> None:
        """Send the customers home."""
        ...

    def stop(self) -> None:
        """Let the transaction in progress be the last one."""
        ...

    def join(self) -> None:
        """Wait for the end; raise what the workload failed with, if it did."""
        ...


class Demo(Protocol):
    """An engine's part `demo`."""

    def demo_server(self) -> AbstractContextManager[DemoServer]:
        """Start a server with an empty database."""
        ...

    def open_shop(self, url: str, /) -> None:
        """Make the shop's tables and fill them."""
        ...

    def Workload(self, url: str, options: WorkloadOptions, /) -> DemoWorkload:  # noqa: N802 - a class
        """The customers."""
        ...


def demo_engine() -> Demo:
    """The first engine that brings its own servers and a shop."""
    found: Demo = next(one for one in engines() if "demo" in one.parts).part("demo")
    return found
