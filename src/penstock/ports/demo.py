"""Ports of `penstock demo`: a server of our own with a shop and its customers, and lakes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from penstock.model import TableName
from penstock.ports.registry import PartName, engines
from penstock.ports.verify import VerifyReader


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
    """Part `demo` of an engine.

    Attributes:
        EXAMPLE: A table of the shop, whose column `state` has few values.
        LAKE_CHOICES: [target.types] for values of the shop that a lake's types cannot hold.
    """

    EXAMPLE: TableName
    LAKE_CHOICES: Mapping[str, str]

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


class DemoLake(Protocol):
    """Part `demo_lake` of an engine: a lake in a folder, read by a library that is not Spark.

    Attributes:
        reader: Name of the library.
    """

    reader: str

    @abstractmethod
    def check(self) -> None:
        """Check that jars and library are there. Raises ReaderMissing and the errors of jars."""
        ...

    @abstractmethod
    def url(self, folder: Path) -> str:
        """Return [target] url for a lake in a folder."""
        ...

    @abstractmethod
    def properties(self, folder: Path) -> Mapping[str, str]:
        """Return [spark.conf] for it."""
        ...

    @abstractmethod
    def open_reader(self, url: str, *, sessions: int) -> AbstractContextManager[VerifyReader]:
        """Return the newest rows as the library reads them, for a comparison.

        url: complete. Raises ReaderMissing, ReaderFailed, VersionExpired.
        """
        ...

    @abstractmethod
    def reading_lines(self, folder: Path, table: TableName) -> tuple[str, ...]:
        """Return three lines of Python that count a table's rows by its column `state`."""
        ...


DEMO_LAKE_PART: PartName[DemoLake] = PartName("demo_lake")


def demo_lakes() -> dict[str, DemoLake]:
    """Return the lakes that a demo can have, by the name of their engine."""
    return {one.name: one.part(DEMO_LAKE_PART) for one in engines() if DEMO_LAKE_PART in one.parts}


def demo_engine() -> Demo:
    """Return the first engine that has its own servers and a shop."""
    return next(one for one in engines() if DEMO_PART in one.parts).part(DEMO_PART)
