"""What each table of a pipeline is at: told from the ledger, the target and the log. Pure.

Not here: counting changes (`change_counts.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from penstock.control.status import Status
from penstock.load.apart import ApartState
from penstock.load.bulk_progress import TableProgress
from penstock.model import TableName


class TableState(StrEnum):
    """What a table is at."""

    WAITING = "waits for the bulk load"
    LOADING = "bulk load"
    LOADED = "loaded"
    FOLLOWED = "follows changes"
    STANDING = "stands still"
    PAUSED = "paused"
    COPYING = "rows are copied"
    JOINING = "catches up"
    REMOVED = "removed"


APART = {
    ApartState.PAUSED: TableState.PAUSED,
    ApartState.COPYING: TableState.COPYING,
    ApartState.JOINING: TableState.JOINING,
    ApartState.REMOVED: TableState.REMOVED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """One table. share: of the bulk load, 0 to 1; None where there is none."""

    table: TableName
    state: TableState
    share: float | None


def table_facts(status: Status, names: Iterable[TableName]) -> list[TableFacts]:
    """Tell of every table, by name. names: those that the log follows, or counts changes of."""
    bulk = status.target.bulk
    loading = {item.table: item for item in bulk.tables} if bulk is not None else {}
    apart = {t: APART[row.state] for t, row in status.target.apart.items() if row.state in APART}
    every = {*loading, *names, *_captured(status), *apart}
    return [
        TableFacts(
            table=table,
            state=apart.get(table) or _state(status, loading.get(table)),
            share=_share(loading.get(table)),
        )
        for table in sorted(every)
    ]


def _captured(status: Status) -> list[TableName]:
    tables = status.handover.tables if status.handover is not None else ()
    return [TableName(*text.split(".", 1)) for text in tables if text.count(".") == 1]


def _state(status: Status, progress: TableProgress | None) -> TableState:
    bulk = status.target.bulk
    if status.mode != "change" and (bulk is None or bulk.phase != "done"):
        if progress is None or (progress.chunks_done == 0 and progress.rows_done == 0):
            return TableState.WAITING
        if progress.chunks_done < progress.chunks_total:
            return TableState.PAUSED if status.target.action == "PAUSE" else TableState.LOADING
        return TableState.LOADED
    if status.mode == "data":
        return TableState.LOADED
    if status.target.action == "PAUSE":
        return TableState.PAUSED
    running = _running(status)
    return TableState.FOLLOWED if running["extract"] and running["load"] else TableState.STANDING


def _running(status: Status) -> Mapping[str, bool]:
    return {process.name: bool(process.pid) for process in status.processes}


def _share(progress: TableProgress | None) -> float | None:
    if progress is None:
        return None
    if progress.chunks_done == progress.chunks_total:
        return 1.0
    return min(progress.bytes_done / max(progress.bytes_total, 1), 1.0)
