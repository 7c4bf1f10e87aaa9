"""Deferred keys of a pipeline: their file, and their creation between two batches of the loader.

A load that takes snapshots of several moments leaves tables in which two rows may have the same
value of a unique key, until changes are applied up to the last of those moments. It records in a
file, which is replaced whole, which keys it has left out; the change loader creates them between
two of its batches, once it is at that position, and then forgets what it knew of the tables: how
rows are applied depends on their keys. Not here: the statements (`ports/deferred_keys.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import structlog

from penstock.host import faults
from penstock.host.files import REAL_FILES, Files
from penstock.host.state_file import Follower, StateFile
from penstock.model import TableDefinition, TableName
from penstock.model.position import PositionKind
from penstock.ports.bulk import BulkTarget, TablePlan
from penstock.ports.deferred_keys import DEFERRED_KEYS_PART, DeferredTable, split_deferred
from penstock.ports.registry import part

logger = structlog.get_logger(__name__)

DEFERRED_KEYS_FILE = "late_keys.json"
faults.declare("load.keys.before", "load.keys.made")

_turn = threading.Lock()  # the loader and copies of single tables, each with a thread of its own


class DeferredKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of the file: the tables with deferred keys."""

    tables: tuple[DeferredTable, ...] = ()


def read_deferred_keys(
    state_directory: Path, files: Files = REAL_FILES
) -> tuple[DeferredTable, ...]:
    """Return the tables with deferred keys. Raises CheckpointCorrupt."""
    found = StateFile(state_directory / DEFERRED_KEYS_FILE, DeferredKeys, files=files).load()
    return () if found is None else found.tables


def put_deferred_keys(
    state_directory: Path, tables: Iterable[DeferredTable], *, instead_of: Collection[TableName]
) -> None:
    """Record tables with deferred keys, replacing those of the tables `instead_of`.

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
    if not table.keys:  # always so in a lake, which has no keys
        return
    for note in part(url, DEFERRED_KEYS_PART).drop_deferred_keys(url, table):
        logger.warning("deferred keys", note=note)


class DeferredKeyFlow:
    """The loader's deferred keys. Only the loader's thread uses them."""

    def __init__(
        self,
        state_directory: Path,
        url: str,
        add_foreign_keys: Callable[[TableName], list[str]] | None,
        files: Files = REAL_FILES,
    ) -> None:
        """Keep the parts.

        url: the target's. add_foreign_keys: creates the foreign keys of one source table and
        returns the shortcomings; None if no table is copied alone.
        """
        self._state_directory = state_directory
        self._url = url
        self._add_foreign_keys = add_foreign_keys
        self._file = Follower(state_directory / DEFERRED_KEYS_FILE, DeferredKeys(), files)

    def waiting(self, left_out: Collection[TableName]) -> list[DeferredTable]:
        """Return the tables in the file, without those with a table sync: they are not in step."""
        self._file.look()
        return [table for table in self._file.value.tables if table.source not in left_out]

    @property
    def settled_positions(self) -> dict[TableName, int]:
        """Return, for each table in the file, the position at which its rows are consistent."""
        return {table.source: table.settled for table in self.waiting(())}

    def due(
        self, left_out: Collection[TableName], covered: Callable[[], int]
    ) -> list[DeferredTable]:
        """Return the tables that are consistent. covered: end of the applied changes."""
        waiting = self.waiting(left_out)
        reached = covered() if waiting else 0
        return [table for table in waiting if table.settled <= reached]

    def create(self, tables: Sequence[DeferredTable]) -> None:
        """Create the keys of these tables and remove the tables from the file; safe to repeat.

        Raises TargetDdlFailed for a key that the target refuses, with its name.
        """
        for table in tables:
            logger.info("unique keys are made", table=str(table.target), count=len(table.keys))
            faults.point("load.keys.before")
            notes: list[str] = []
            if table.keys:
                notes += part(self._url, DEFERRED_KEYS_PART).add_deferred_keys(self._url, table)
            if table.with_foreign_keys:
                assert self._add_foreign_keys is not None, "a copy of single tables gives them"
                notes += self._add_foreign_keys(table.source)
            for note in notes:
                logger.warning("deferred keys", note=note)
            faults.point("load.keys.made")
            put_deferred_keys(self._state_directory, (), instead_of=[table.source])
