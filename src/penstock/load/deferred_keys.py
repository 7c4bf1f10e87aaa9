"""Deferred unique keys, which wait until a table's rows are of one moment, and their file.

A bulk load that takes snapshots of several moments leaves tables in which two rows may have the
same value of a unique key, until changes are applied up to the last of those moments. The bulk load
records here which keys it has left out; the change loader has them made between two of its batches,
once it is at that position, and then forgets what it knew of the tables: how rows are applied
depends on their keys. The file is replaced whole. Not here: the statements (`deferred_keys.py` of
each target).
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from penstock.host import faults
from penstock.host.files import REAL_FILES, Files
from penstock.host.state_file import Follower, StateFile
from penstock.model import TableDefinition, TableName
from penstock.model.position import PositionKind
from penstock.ports.bulk import BulkTarget, DeferredTable, TablePlan, split_deferred
from penstock.ports.bulk import drop_deferred_keys as drop_at_target

logger = structlog.get_logger(__name__)

DEFERRED_KEYS_FILE = "late_keys.json"
faults.declare("load.keys.before", "load.keys.made")

_turn = threading.Lock()  # the loader and copies of single tables, each with a thread of its own


class DeferredKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of the file: the tables whose keys wait."""

    tables: tuple[DeferredTable, ...] = ()


class KeyMaker(Protocol):
    """Creator of deferred keys."""

    @abstractmethod
    def make(self, tables: Sequence[DeferredTable]) -> None:
        """Create the keys of these tables and remove the tables from the file; safe to repeat.

        Raises TargetDdlFailed for a key that the target refuses, with its name.
        """
        ...


class DeferredKeyFlow:
    """The loader's deferred keys. Only the loader's thread uses them."""

    def __init__(
        self, state_directory: Path, maker: KeyMaker | None, files: Files = REAL_FILES
    ) -> None:
        """Keep the file's directory. maker: None if no key is created."""
        self._maker = maker
        self._file = Follower(state_directory / DEFERRED_KEYS_FILE, DeferredKeys(), files)

    def waiting(self, left_out: Collection[TableName]) -> list[DeferredTable]:
        """Return the waiting tables without those with a table sync, which are not in step yet."""
        if self._maker is None:
            return []
        self._file.look()
        return [table for table in self._file.value.tables if table.source not in left_out]

    @property
    def settled_positions(self) -> dict[TableName, int]:
        """Return for each waiting table the position from which its rows are of one moment."""
        return {table.source: table.settled for table in self.waiting(())}

    def due(
        self, left_out: Collection[TableName], covered: Callable[[], int]
    ) -> list[DeferredTable]:
        """Return the waiting tables whose rows are of one moment. covered: end of the applied
        changes.
        """
        waiting = self.waiting(left_out)
        reached = covered() if waiting else 0
        return [table for table in waiting if table.settled <= reached]

    def make(self, tables: Sequence[DeferredTable]) -> None:
        """Create their keys; see `KeyMaker`."""
        assert self._maker is not None, "without a maker nothing waits"
        self._maker.make(tables)


def read_deferred_keys(
    state_directory: Path, files: Files = REAL_FILES
) -> tuple[DeferredTable, ...]:
    """Return the tables whose keys wait. Raises CheckpointCorrupt."""
    found = StateFile(state_directory / DEFERRED_KEYS_FILE, DeferredKeys, files=files).load()
    return () if found is None else found.tables


def put_deferred_keys(
    state_directory: Path, tables: Iterable[DeferredTable], *, instead_of: Collection[TableName]
) -> None:
    """Record tables whose keys wait, replacing those of the tables `instead_of`.

    Raises CheckpointCorrupt, DiskFull, FileFailed.
    """
    with _turn:
        before = read_deferred_keys(state_directory)
        after = (*(one for one in before if one.source not in instead_of), *tables)
        if after != before:
            REAL_FILES.make_directory(state_directory)
            file = StateFile(state_directory / DEFERRED_KEYS_FILE, DeferredKeys)
            file.save(DeferredKeys(tables=after))


def deferred_tables(
    plans: Iterable[TablePlan],
    definitions: Mapping[TableName, TableDefinition],
    target: BulkTarget,
    *,
    positions: PositionKind,
    shift: int,
    with_foreign_keys: bool,
) -> list[DeferredTable]:
    """Return the tables whose rows are of several moments, with their deferred keys.

    positions: positions of the source. shift: number that the change log adds to them.
    """
    mixed = [plan for plan in plans if plan.is_mixed and plan.source in definitions]
    found = [
        DeferredTable(
            source=plan.source,
            target=plan.target,
            settled=plan.ordinals(positions)[1] + shift,
            keys=target.deferred_keys(split_deferred(definitions[plan.source])[1]),
            with_foreign_keys=with_foreign_keys,
        )
        for plan in mixed
    ]
    return [one for one in found if one.keys or one.with_foreign_keys]


def drop_deferred_keys(url: str, table: DeferredTable) -> None:
    """Drop the keys of a table that will receive rows of several moments.

    A key that another table's foreign key needs stays: then rows may be refused.
    """
    for note in drop_at_target(url, table):
        logger.warning("deferred keys", note=note)
