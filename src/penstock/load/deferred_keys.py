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
from penstock.ports import deferred_keys
from penstock.ports.bulk import BulkTarget, TablePlan
from penstock.ports.deferred_keys import DeferredTable, split_deferred

logger = structlog.get_logger(__name__)

DEFERRED_KEYS_FILE = "late_keys.json"
faults.declare("load.keys.before", "load.keys.made")

_turn = threading.Lock()  # the loader and copies of single tables, each with a thread of its own


class DeferredKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What the file holds: the tables that wait."""

    tables: tuple[DeferredTable, ...] = ()


class KeyMaker(Protocol):
    """Makes deferred keys."""

    def make(self, tables: Sequence[DeferredTable]) -> None:
        """Make the keys of these tables and take the tables out of the file; safe to repeat.

        Raises TargetDdlFailed for a key that the target refuses, naming it.
        """
        ...


class DeferredKeyFlow:
    """The loader's deferred keys. Used by its thread alone."""

    def __init__(
        self, state_directory: Path, maker: KeyMaker | None, files: Files = REAL_FILES
    ) -> None:
        """maker: None where no key is made."""
        self._maker = maker
        self._file = Follower(state_directory / DEFERRED_KEYS_FILE, DeferredKeys(), files)

    def waiting(self, left_out: Collection[TableName]) -> list[DeferredTable]:
        """The tables that wait, except those with a table sync: they are not in step yet."""
        if self._maker is None:
            return []
        self._file.look()
        return [table for table in self._file.value.tables if table.source not in left_out]

    @property
    def settled(self) -> dict[TableName, int]:
        """Of those that wait, the position from which on each one's rows are of one moment."""
        return {table.source: table.settled for table in self.waiting(())}

    def due(
        self, left_out: Collection[TableName], covered: Callable[[], int]
    ) -> list[DeferredTable]:
        """Those of them whose rows are of one moment. covered: up to where changes are applied."""
        waiting = self.waiting(left_out)
        reached = covered() if waiting else 0
        return [table for table in waiting if table.settled <= reached]

    def make(self, tables: Sequence[DeferredTable]) -> None:
        """Have their keys made; see `KeyMaker`."""
        assert self._maker is not None, "without a maker nothing waits"
        self._maker.make(tables)


def read_deferred_keys(
    state_directory: Path, files: Files = REAL_FILES
) -> tuple[DeferredTable, ...]:
    """The tables whose keys wait. Raises CheckpointCorrupt."""
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
    """Return those of these tables whose rows are of several moments, with the keys that wait.

    positions: of the source. shift: what the change log adds to them.
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
    """Drop the keys of a table that is to be filled with rows of several moments.

    One that another table's foreign key needs stays: then rows may be refused.
    """
    for note in deferred_keys.drop_deferred_keys(url, table):
        logger.warning("deferred keys", note=note)
