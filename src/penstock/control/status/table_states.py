"""State of each table of a pipeline: from the ledger, the target and the log. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from penstock.control.status.status import Status
from penstock.control.tables.table_list import LEFT_OUT, TableLine
from penstock.load.bulk_progress import TableProgress, share_of
from penstock.model import TableName
from penstock.ports.target import SyncState


class TableState(StrEnum):
    """State of a table."""

    UNKNOWN = "not known"
    WAITING = "waits for the bulk load"
    LOADING = "bulk load"
    LOADED = "loaded"
    FOLLOWED = "follows changes"
    STOPPED = "stopped"
    PAUSED = "paused"
    COPYING = "rows are copied"
    CATCHING_UP = "catches up"
    REMOVED = "removed"
    ISOLATED = "left behind"
    UNCAPTURED = "waits for the extractor"
    REFUSED = "refused"
    LEFT_OUT = "left out"


TABLE_SYNC = {
    SyncState.PAUSED: TableState.PAUSED,
    SyncState.COPYING: TableState.COPYING,
    SyncState.CATCHING_UP: TableState.CATCHING_UP,
    SyncState.REMOVED: TableState.REMOVED,
    SyncState.ISOLATED: TableState.ISOLATED,
}
ASKED = {
    "waiting": TableState.UNCAPTURED,
    "refused": TableState.REFUSED,
    LEFT_OUT: TableState.LEFT_OUT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """Facts of one table. share: of the bulk load, 0 to 1; None if there is none.

    wanted: the state that it will reach, as in `penstock table ls`; empty if it has. code,
    error, hint: why it is stopped.
    """

    table: TableName
    state: TableState
    share: float | None
    wanted: str = ""
    code: str = ""
    error: str = ""
    hint: str = ""


def table_facts(
    status: Status, names: Iterable[TableName], *, whole: bool = False
) -> list[TableFacts]:
    """Return the facts of every table, by name.

    names: those that the log follows, or whose changes are counted. whole: these are all that are
    followed now; others of the bulk load have another name by now, or were removed.
    """
    bulk = status.target.bulk
    loading = {item.table: item for item in bulk.tables} if bulk is not None else {}
    syncing = {
        t: TABLE_SYNC[row.state]
        for t, row in status.target.table_syncs.items()
        if row.state in TABLE_SYNC
    }
    asked = {line.table: line for line in status.tables}
    every = {*names, *syncing, *asked}
    if not whole:
        every |= {*loading, *_captured_tables(status)}
    facts = []
    for table in sorted(every):
        line = asked.get(table) or TableLine(table=table, state="")
        state = syncing.get(table) or ASKED.get(line.state) or _state(status, loading.get(table))
        facts.append(
            TableFacts(
                table=table,
                state=state,
                share=_share(loading.get(table)),
                wanted=line.wanted,
                code=line.code,
                error=line.error,
                hint=line.hint,
            )
        )
    return facts


def _captured_tables(status: Status) -> list[TableName]:
    tables = status.handover.tables if status.handover is not None else ()
    return [TableName(*text.split(".", 1)) for text in tables if text.count(".") == 1]


def _state(status: Status, progress: TableProgress | None) -> TableState:
    if status.target.unknown:
        return TableState.UNKNOWN
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
    is_followed = running["extract"] and (running["load"] or not status.has_target)
    return TableState.FOLLOWED if is_followed else TableState.STOPPED


def _running(status: Status) -> Mapping[str, bool]:
    return {process.name: bool(process.pid) for process in status.processes}


def _share(progress: TableProgress | None) -> float | None:
    if progress is None:
        return None
    return share_of(progress)
