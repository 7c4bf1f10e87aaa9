"""Each table of a pipeline and its state: for `penstock table ls`, the web page and /metrics.

Read from the state files and the target, whether or not the pipeline runs. The load process
reports the copies of single tables in a file, for displays only. Not here: making the copies
(`run/table_copy.py`), which needs Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from penstock.control.pipeline.servers import followed_tables
from penstock.control.pipeline.table_requests import read_answers, read_requests
from penstock.control.tables.change_counts import changes_between
from penstock.host.files import REAL_FILES, Files
from penstock.load.isolation import read_isolations
from penstock.load.ledger import read_ledger
from penstock.load.table_sync import next_state
from penstock.model import TableName
from penstock.model.table_requests import (
    Capture,
    CaptureAnswer,
    CaptureAnswers,
    TableRequest,
    TableRequests,
)
from penstock.ports.config import Config
from penstock.ports.progress import open_progress
from penstock.ports.target import SyncState, TableSync

NOTES_NAME = "copies.json"


class CopyNote(msgspec.Struct, frozen=True, kw_only=True):
    """Report about a copy. code, error, hint: why the copy is stopped; empty if it is not."""

    table: TableName
    copy_id: int
    position: str = ""
    code: str = ""
    error: str = ""
    hint: str = ""


def read_notes(config: Config, files: Files = REAL_FILES) -> list[CopyNote]:
    """Return the last reports. Empty if no load process has run."""
    path = config.layout.run / NOTES_NAME
    if not files.exists(path):
        return []
    return msgspec.json.decode(files.read_whole(path), type=list[CopyNote])


def write_notes(config: Config, notes: list[CopyNote]) -> None:
    """Replace the reports."""
    REAL_FILES.make_directory(config.layout.run)
    REAL_FILES.replace(config.layout.run / NOTES_NAME, msgspec.json.encode(notes))


APPLICATION_NAME = "penstock tables"
LEFT_OUT = "left out"
LOADING, LOADED, DROPPED = "loading", "loaded", "dropped"
WAITING = (SyncState.PAUSED, SyncState.COPYING, SyncState.CATCHING_UP)  # changes wait in the log


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLine:
    """Table as `table ls` shows it.

    Attributes:
        state: Its present state.
        wanted: The state that it will reach; empty if it has.
        behind: Row changes of this table that wait and that the others' progress has passed.
        code: With error and hint, why it makes no progress, or is left out; empty otherwise.
    """

    table: TableName
    state: str
    wanted: str = ""
    behind: int = 0
    code: str = ""
    error: str = ""
    hint: str = ""

    @property
    def follows(self) -> bool:
        """Return whether the table is in step with the others."""
        return self.state == SyncState.FOLLOWING

    def as_dict(self) -> dict[str, Any]:
        """Return the object as `penstock table ls --json` prints it."""
        return {
            "table": str(self.table),
            "state": self.state,
            "wanted": self.wanted,
            "behind_rows": self.behind,
            "code": self.code,
            "error": self.error,
            "hint": self.hint,
        }


def table_lines(config: Config) -> list[TableLine]:
    """Return every captured table, and those for which there was a request, by name.

    Raises the typed errors of the target's connection, CheckpointCorrupt and LedgerUnreadable.
    """
    with closing(open_progress(config.target.url, application_name=APPLICATION_NAME)) as target:
        rows, applied = target.read_table_syncs(), target.read_applied()
    asked = lines_from(config, rows, applied_gsn=applied.gsn)
    known = {line.table for line in asked}
    others = [line for line in captured_lines(config) if line.table not in known]
    return sorted([*asked, *others], key=lambda line: line.table)


def captured_lines(config: Config) -> list[TableLine]:
    """Return the tables that the pipeline captures or loads, ignoring requests.

    Empty before the first run. Raises CheckpointCorrupt, LedgerUnreadable.
    """
    mode, ledger = config.pipeline.mode, read_ledger(config.layout.state)
    state = str(SyncState.FOLLOWING) if mode.has_change else LOADED
    if config.has_target and mode.has_data and not ledger.finished:
        state = LOADING
    followed = [followed_tables(one) for one in config.inputs or (config,)]
    dropped = {name for one in followed if one is not None for name in one.missing}
    names = {name for one in followed if one is not None for name in one.names} - dropped
    if not (names or dropped):  # changes are not captured yet, or never
        names = {plan.source for plan in ledger.plans}
    return [
        *(TableLine(table=name, state=state) for name in sorted(names)),
        *(TableLine(table=name, state=DROPPED) for name in sorted(dropped)),
    ]


def lines_from(
    config: Config, rows: Mapping[TableName, TableSync], *, applied_gsn: int
) -> list[TableLine]:
    """Return the tables that have, had or shall have a table sync, by name.

    Args:
        config: The pipeline.
        rows: The table syncs, as the target has them.
        applied_gsn: How far the log is applied to the others.

    Raises:
        CheckpointCorrupt: A state file is damaged.
    """
    notes = {note.table: note for note in read_notes(config) if note.error}
    requests, answers, known = read_requests(config), read_answers(config), followed_tables(config)
    isolations = read_isolations(config.layout.state)
    lines = []
    for table in sorted({*rows, *(request.table for request in requests.tables)}):
        line = line_of(rows.get(table), requests.of(table), answers)
        if not config.has_target:
            line = _without_target(line, requests.of(table), answers)
        if known is not None and line.follows and not line.wanted and not known.has(table):
            continue  # it has another name now, or was never a table
        if known is not None and line.follows and not line.wanted and table in known.missing:
            line = replace(line, state=DROPPED)
        row = rows.get(table)
        if row is not None and row.state in WAITING:
            behind = changes_between(
                config,
                table,
                first_segment=row.applied.segment,
                after_gsn=row.applied.gsn,
                until_gsn=applied_gsn,
            )
            line = replace(line, behind=behind)
        why = isolations.get(table)
        if why is not None and line.state == SyncState.ISOLATED:
            again = f"penstock table resync {config.path.name} {table}"
            line = replace(line, code=why.code, error=why.error, hint=f"{why.hint} Then: {again}")
        note = notes.get(table)
        if note is not None and line.state == "copying" and not line.error:
            line = replace(line, code=note.code, error=note.error, hint=note.hint)
        lines.append(line)
    return lines


def line_of(row: TableSync | None, request: TableRequest, answers: CaptureAnswers) -> TableLine:
    """Return the line about a table. Pure."""
    if row is None and request.capture is Capture.LEFT:
        return TableLine(
            table=request.table,
            state=LEFT_OUT,
            code=request.code,
            error=request.error,
            hint=request.hint,
        )
    state = row.state if row is not None else SyncState.FOLLOWING
    answer = answers.of(request.table)
    refused = answers.refuses(request)
    why: TableRequest | CaptureAnswer | None = None
    if request.capture is Capture.REMOVED:
        why = request
    if refused:
        why = answer
    shown = str(state)
    if row is None and request.capture is Capture.ADDED:
        shown = "refused" if refused else "waiting"
    following = next_state(row, request, answers)
    wanted = str(following) if following is not None else _on_the_way(state, request)
    if shown == "waiting":
        wanted = str(SyncState.COPYING)
    return TableLine(
        table=request.table,
        state=shown,
        wanted="" if refused else wanted,
        code=why.code if why else "",
        error=why.error if why else "",
        hint=why.hint if why else "",
    )


def _without_target(line: TableLine, request: TableRequest, answers: CaptureAnswers) -> TableLine:
    """Return the line without a target, where a table is captured or it is not. Pure."""
    is_refused = answers.refuses(request)
    if request.capture not in (Capture.ADDED, Capture.REMOVED) or is_refused:
        return line
    is_added = request.capture is Capture.ADDED
    asked = str(SyncState.FOLLOWING if is_added else SyncState.REMOVED)
    if answers.is_done(request):
        return replace(line, state=asked, wanted="")
    return replace(line, state="waiting" if is_added else str(SyncState.FOLLOWING), wanted=asked)


def _on_the_way(state: SyncState, request: TableRequest) -> str:
    """Return the state that a table reaches automatically."""
    if state is SyncState.COPYING:
        return str(SyncState.PAUSED if request.paused else SyncState.FOLLOWING)
    if state is SyncState.CATCHING_UP:
        return str(SyncState.FOLLOWING)
    return ""


def states(requests: TableRequests, rows: dict[TableName, TableSync]) -> dict[TableName, str]:
    """Return the state of each table that does not follow with the others."""
    syncing = {t: str(row.state) for t, row in rows.items() if row.state is not SyncState.FOLLOWING}
    shown = {Capture.ADDED: "waiting", Capture.LEFT: LEFT_OUT}
    waiting = {
        request.table: shown[request.capture]
        for request in requests.tables
        if request.capture in shown and request.table not in rows
    }
    return {**waiting, **syncing}


def columns_left_out(config: Config) -> dict[TableName, frozenset[str]]:
    """Return columns that the target lacks, by policy. Raises the errors of `table_lines`."""
    with closing(open_progress(config.target.url, application_name=APPLICATION_NAME)) as target:
        return target.read_left_out()


def tables_in_sync(config: Config) -> dict[TableName, str]:
    """Return the tables that are not in step, and states. Raises the errors of `table_lines`."""
    with closing(open_progress(config.target.url, application_name=APPLICATION_NAME)) as target:
        rows = target.read_table_syncs()
    return states(read_requests(config), rows)
