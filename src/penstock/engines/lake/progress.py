"""Progress of a lake for processes without a JVM: the parts `progress` and `target_state`.

They read the copies that the loader keeps (`state.py`), and the marks of the bulk load
(`chunk_records.py`). Two files have a writer of their own: `action.json` an operator,
`extracted.json` the extractor with its CE rows. Not here: what decides about rows, which is in the
tables' own commits (`batches.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from penstock.engines.lake.chunk_records import FOLDER, ChunkRecords
from penstock.engines.lake.state import LOG_NAME, FileRow, LakeState, decode, encode
from penstock.engines.lake.storage import Folder
from penstock.engines.lake.url import parse_url
from penstock.model import TableName
from penstock.ports.bulk import ChunkCounts
from penstock.ports.lake import TableFacts
from penstock.ports.progress import SHOWN_MAX, Progress, ProgressRow, TargetReader
from penstock.ports.target import ActionUnknown, Applied, TableSync, left_out_columns
from penstock.sql.state_store import ACTIONS, check_action

ACTION_NAME = "action.json"
EXTRACTED_NAME = "extracted.json"
EXTRACTED_MAX = 2000
"""Number of CE rows that are kept, the newest by their beginning."""

State = TypeVar("State")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionState:
    """Action of a pipeline: RUN, PAUSE or STOP."""

    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractedRow:
    """CE row of a segment.

    Attributes:
        slot: Where its changes come from.
        mark: From where it can be rebuilt; of a closed one the position after its last COMMIT.
        begun, ended: See `FileRow`.
        begun_count: How often it was begun.
    """

    slot: str
    file: str
    mark: str
    begun: str
    ended: str = ""
    begun_count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractedState:
    """Newest CE rows, by their beginning."""

    rows: tuple[ExtractedRow, ...] = ()
    restart_count: int = 0


def read_action(folder: Folder) -> str:
    """Return the action in penstock's folder of a lake; RUN without a file.

    Raises ActionUnknown.
    """
    state = _load(folder, ACTION_NAME, ActionState)
    word = "RUN" if state is None else state.action.strip().upper()
    if word not in ACTIONS:
        raise ActionUnknown(
            f"{folder.location}/{ACTION_NAME} holds {word!r}, expected RUN, PAUSE or STOP",
            hint='Write {"action": "RUN"} into this file.',
        )
    return word


def _load(folder: Folder, name: str, kind: type[State]) -> State | None:
    data = folder.read(name)
    return None if data is None else decode(data, kind, name=f"{folder.location}/{name}")


class LakeProgress(Progress, TargetReader, ChunkCounts):
    """Reader and writer of progress in a lake's own folder. Used by one thread."""

    def __init__(self, url: str, application_name: str) -> None:
        """Keep the folder that the URL names."""
        del application_name
        lake = parse_url(url)
        self._folder = Folder(lake.state, lake.s3)
        self._state = LakeState(self._folder)
        self._records = ChunkRecords(self._folder)
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """Do nothing: each call opens its files."""
        self._is_closed = True

    def ensure_tables(self) -> None:
        """Check that the folder can be written."""
        self._state.check_writable()

    # -- RUN, PAUSE, STOP --------------------------------------------------------------------

    def read_action(self) -> str:
        return read_action(self._folder)

    def action(self) -> str:
        return self.read_action()

    def set_action(self, action: str) -> None:
        check_action(action)
        self._folder.write(ACTION_NAME, encode(ActionState(action=action)))

    # -- the log that is applied, and how far ------------------------------------------------

    def log_id(self) -> str:
        state = self._state.read_log()
        return "" if state is None else state.log_id

    def read_applied(self) -> Applied:
        state = self._state.read_log()
        return Applied() if state is None else state.applied

    def read_table_syncs(self) -> dict[TableName, TableSync]:
        return self._state.read_syncs()

    def table_syncs(self) -> Mapping[TableName, TableSync]:
        return self._state.read_syncs()

    def read_left_out(self) -> dict[TableName, frozenset[str]]:
        return left_out_columns(self._state.read_records())

    # -- segments ----------------------------------------------------------------------------

    def begin_segment(self, *, slot: str, file: str, mark: str) -> None:
        state, rows = self._read_extracted()
        before = rows.pop((slot, file), None)
        is_again = before is not None
        row = ExtractedRow(slot=slot, file=file, mark=mark, begun=_now())
        if before is not None:
            row = replace(before, mark=mark, ended="", begun_count=before.begun_count + 1)
        self._put(rows, row, state.restart_count + is_again)

    def end_segment(self, *, slot: str, file: str, mark: str) -> None:
        state, rows = self._read_extracted()
        before = rows.get((slot, file)) or ExtractedRow(
            slot=slot, file=file, mark=mark, begun=_now()
        )
        self._put(
            rows, replace(before, mark=mark, ended=before.ended or _now()), state.restart_count
        )

    def finished_segments(self, slot: str) -> set[str]:
        _, rows = self._read_extracted()
        return {row.file for row in rows.values() if row.slot == slot and row.ended}

    def _read_extracted(self) -> tuple[ExtractedState, dict[tuple[str, str], ExtractedRow]]:
        state = _load(self._folder, EXTRACTED_NAME, ExtractedState) or ExtractedState()
        return state, {(row.slot, row.file): row for row in state.rows}

    def _put(
        self, rows: dict[tuple[str, str], ExtractedRow], row: ExtractedRow, restart_count: int
    ) -> None:
        rows[row.slot, row.file] = row
        newest = tuple(rows.values())[-EXTRACTED_MAX:]
        state = ExtractedState(rows=newest, restart_count=restart_count)
        self._folder.write(EXTRACTED_NAME, encode(state))

    # -- for display -------------------------------------------------------------------------

    def present(self) -> tuple[bool, bool]:
        """Return whether there is any progress, and whether a bulk load has begun."""
        has_bulk = next(iter(self._folder.names(FOLDER)), None) is not None
        names = (LOG_NAME, EXTRACTED_NAME, ACTION_NAME)
        has_any = has_bulk or any(self._folder.read(name) is not None for name in names)
        return has_any, has_bulk

    def newest(self, operation: str) -> Sequence[ProgressRow]:
        if operation == "CE":
            rows = sorted(self._read_extracted()[1].values(), key=lambda row: row.begun)
            return [
                _make_row(row.slot, row.mark, row.begun, row.ended)
                for row in reversed(rows[-SHOWN_MAX:])
            ]
        files = self._state.read_files()
        loaded: list[FileRow] = [] if files is None else list(files.rows)
        loaded.sort(key=lambda row: row.begun)
        return [
            _make_row(row.file, str(row.mark), row.begun, row.ended)
            for row in reversed(loaded[-SHOWN_MAX:])
        ]

    def restarts(self) -> int:
        files = self._state.read_files()
        return self._read_extracted()[0].restart_count + (
            0 if files is None else files.restart_count
        )

    @property
    def counts(self) -> ChunkCounts:
        return self

    def read_done(self) -> Mapping[str, Mapping[int, int]]:
        return {str(name): mark.done for name, mark in self._records.marks().items()}

    def under_way(self) -> Mapping[TableName, int]:
        """Return nothing: a file shows its rows when it is complete."""
        return {}


def connect_progress(url: str, application_name: str) -> LakeProgress:
    """Return the progress of the lake that a URL names."""
    return LakeProgress(url, application_name)


def read_table_facts(url: str) -> Mapping[str, TableFacts]:
    """Return the facts of the lake's tables as the loader wrote them: the part `table_facts`."""
    lake = parse_url(url)
    state = LakeState(Folder(lake.state, lake.s3))
    log = state.read_log()
    missing = {} if log is None else log.missing
    return {
        name: replace(facts, missing=missing.get(name, 0))
        for name, facts in state.read_tables().items()
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _make_row(source: str, mark: str, begun: str, ended: str) -> ProgressRow:
    return ProgressRow(
        source=source,
        mark=mark,
        start_time=_naive(begun),
        finish_time=_naive(ended) if ended else None,
    )


def _naive(text: str) -> datetime:
    """Return a time in UTC, without a zone, as databases have it."""
    return datetime.fromisoformat(text).astimezone(UTC).replace(tzinfo=None)
