"""State of a pipeline beside a lake's tables: small JSON files in `<lake>/_penstock/`.

Each file has one writer and is written whole. What decides about rows is in the tables' own commits
(`batches.py`); `log.json`, `syncs.json` and `records.json` are copies of it for other processes,
which have no JVM. Not here: the marks and chunks of the bulk load (`chunk_records.py`).

- `log.json`: the log that the lake follows, and how far it is applied (`LogState`).
- `syncs.json`: the tables that have, or had, a table sync (`SyncsState`).
- `records.json`: the shapes of captured tables as applied (`RecordsState`).
- `files.json`: the newest CL rows (`FilesState`).
- `tables.json`: size and versions of the lake's tables (`TablesState`).
- `upkeep.json`: when the whole upkeep was done last (`UpkeepState`).
- `staged/<name>.json`: files that are staged and may never be committed (`StagedState`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from penstock.engines.lake.format import LakeFailed, LakeUnreachable
from penstock.engines.lake.storage import Folder
from penstock.model import LOAD_AGAIN, TableName
from penstock.ports.lake import TableFacts
from penstock.ports.target import (
    Applied,
    FileProgress,
    ProgressUnwritable,
    TableRecord,
    TableSync,
)

LOG_NAME = "log.json"
SYNCS_NAME = "syncs.json"
RECORDS_NAME = "records.json"
FILES_NAME = "files.json"
TABLES_NAME = "tables.json"
UPKEEP_NAME = "upkeep.json"
STAGED_FOLDER = "staged"
SIDE_FOLDER = "side"
FILES_MAX = 200

State = TypeVar("State")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """Progress of the lake.

    Attributes:
        versions: By the lake's name of a table (`schema.name`), its newest known version.
        missing: By the same name the number of rows that the log changed and the table lacked.
        updated_us: When it was written, microseconds since 1970 UTC.
    """

    log_id: str
    applied: Applied = field(default_factory=Applied)
    versions: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    updated_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncsState:
    """Table syncs of one log."""

    log_id: str
    rows: tuple[TableSync, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsState:
    """Shapes of captured tables as applied, of one log."""

    log_id: str
    rows: tuple[TableRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """CL row of a segment.

    Attributes:
        mark: Its last applied gsn.
        begun, ended: Times in ISO 8601, UTC; `ended` is empty until the whole file is applied.
        begun_count: How often a batch has begun with it.
    """

    file: str
    mark: int = 0
    begun: str = ""
    ended: str = ""
    begun_count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesState:
    """Newest CL rows of one log, by their beginning.

    Attributes:
        restart_count: How often a batch began with a file that had begun before.
    """

    log_id: str
    rows: tuple[FileRow, ...] = ()
    restart_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesState:
    """Facts of the lake's tables by `schema.name`, those of a batch as of its end."""

    tables: Mapping[str, TableFacts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepState:
    """Times of upkeep, microseconds since 1970 UTC; 0: never.

    Attributes:
        expired_us: When earlier versions of all tables were removed.
        vacuumed_us: When files of all tables were deleted that no version needs.
    """

    expired_us: int = 0
    vacuumed_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedState:
    """Files of a batch that is staged.

    Attributes:
        token: Names of its files begin with it.
        folders: For each table of the batch its lake name, and the folders with such files.
        host, pid: Machine and process that stages it.
        begun_us: When it began, microseconds since 1970 UTC.
    """

    log_id: str
    token: str
    folders: tuple[tuple[TableName, tuple[str, ...]], ...] = ()
    host: str = ""
    pid: int = 0
    begun_us: int = 0


def encode(state: object) -> bytes:
    """Return a state as JSON."""
    return json.dumps(msgspec.to_builtins(state), indent=1).encode()


def decode(data: bytes, kind: type[State], *, name: str) -> State:
    """Return the state in JSON bytes. name: of the file, for messages. Raises LakeFailed."""
    try:
        return msgspec.convert(json.loads(data), type=kind)
    except (ValueError, msgspec.ValidationError) as error:
        raise LakeFailed(
            f"{name} does not have the form that penstock writes: {error}",
            hint=f"Restore the file from a copy. Otherwise {LOAD_AGAIN}",
        ) from error


class LakeState:
    """State files of a lake. Several threads of one process may use one object."""

    def __init__(self, folder: Folder) -> None:
        """Keep the folder. Nothing is read yet."""
        self.folder = folder
        self._lock = threading.Lock()

    # --- log, syncs, records ----------------------------------------------------------------------

    def read_log(self) -> LogState | None:
        """Return how far which log is applied, or None if no log was bound yet."""
        return self._read(LOG_NAME, LogState)

    def write_log(self, state: LogState) -> None:
        """Replace the log's progress."""
        self._write(LOG_NAME, state)

    def read_syncs(self) -> dict[TableName, TableSync]:
        """Return the tables that have, or had, a table sync."""
        state = self._read(SYNCS_NAME, SyncsState)
        return {} if state is None else {row.table: row for row in state.rows}

    def write_syncs(self, log_id: str, rows: Iterable[TableSync]) -> None:
        """Replace all table syncs."""
        self._write(SYNCS_NAME, SyncsState(log_id=log_id, rows=tuple(rows)))

    def read_records(self) -> dict[TableName, TableRecord]:
        """Return the shapes of captured tables as applied, by source table."""
        state = self._read(RECORDS_NAME, RecordsState)
        return {} if state is None else {row.source: row for row in state.rows}

    def write_records(self, log_id: str, rows: Iterable[TableRecord]) -> None:
        """Replace all records."""
        self._write(RECORDS_NAME, RecordsState(log_id=log_id, rows=tuple(rows)))

    def put_records(self, log_id: str, rows: Iterable[TableRecord]) -> None:
        """Add records, or replace those of the same source tables."""
        with self._lock:
            known = {**self.read_records(), **{row.source: row for row in rows}}
            self.write_records(log_id, known.values())

    def read_tables(self) -> Mapping[str, TableFacts]:
        """Return the facts of the lake's tables, as far as they are known, by `schema.name`."""
        state = self._read(TABLES_NAME, TablesState)
        return {} if state is None else state.tables

    def write_tables(self, tables: Mapping[str, TableFacts]) -> None:
        """Replace the facts of all tables."""
        self._write(TABLES_NAME, TablesState(tables=tables))

    def read_upkeep(self) -> UpkeepState:
        """Return when the whole upkeep was done last."""
        return self._read(UPKEEP_NAME, UpkeepState) or UpkeepState()

    def write_upkeep(self, state: UpkeepState) -> None:
        """Record when the whole upkeep was done last."""
        self._write(UPKEEP_NAME, state)

    # --- CL rows ----------------------------------------------------------------------------------

    def read_files(self) -> FilesState | None:
        """Return the CL rows, or None if there were none yet."""
        return self._read(FILES_NAME, FilesState)

    def begin_files(self, log_id: str, files: Sequence[str]) -> None:
        """Record that a batch begins with these files."""
        if not files:
            return
        with self._lock:
            state = self._files_of(log_id)
            known = {row.file: row for row in state.rows}
            again = sum(file in known for file in files)
            for file in files:
                row = known.pop(file, None)
                known[file] = (
                    FileRow(file=file, begun=_now())
                    if row is None
                    else replace(row, begun_count=row.begun_count + 1)
                )
            self._put_files(state, known, state.restart_count + again)

    def end_files(self, log_id: str, files: Iterable[FileProgress]) -> None:
        """Record how far these files are applied."""
        files = list(files)
        if not files:
            return
        with self._lock:
            state = self._files_of(log_id)
            known = {row.file: row for row in state.rows}
            for file in files:
                row = known.get(file.file) or FileRow(file=file.file, begun=_now())
                known[file.file] = replace(
                    row, mark=file.mark, ended=(row.ended or _now()) if file.finished else ""
                )
            self._put_files(state, known, state.restart_count)

    def _files_of(self, log_id: str) -> FilesState:
        state = self.read_files()
        return state if state is not None and state.log_id == log_id else FilesState(log_id=log_id)

    def _put_files(
        self, state: FilesState, rows: Mapping[str, FileRow], restart_count: int
    ) -> None:
        newest = tuple(rows.values())[-FILES_MAX:]
        self._write(FILES_NAME, replace(state, rows=newest, restart_count=restart_count))

    # --- staged files -----------------------------------------------------------------------------

    def write_staged(self, name: str, state: StagedState) -> None:
        """Record a batch's files before the first is written."""
        self._write(f"{STAGED_FOLDER}/{name}.json", state)

    def remove_staged(self, name: str) -> None:
        """Forget a batch's files: they are committed or removed."""
        self.folder.remove(f"{STAGED_FOLDER}/{name}.json")

    def read_staged(self, log_id: str) -> dict[str, StagedState]:
        """Return the batches of this log whose files may never have been committed, by name."""
        found = {}
        for path in self.folder.names(STAGED_FOLDER):
            state = self._read(path, StagedState)
            if state is not None and state.log_id == log_id:
                name = path.removeprefix(f"{STAGED_FOLDER}/").removesuffix(".json")
                found[name] = state
        return found

    # --- files ------------------------------------------------------------------------------------

    def _read(self, name: str, kind: type[State]) -> State | None:
        data = self.folder.read(name)
        where = f"{self.folder.location}/{name}"
        return None if data is None else decode(data, kind, name=where)

    def _write(self, name: str, state: object) -> None:
        self.folder.write(name, encode(state))

    def check_writable(self) -> None:
        """Write and remove a file. Raises ProgressUnwritable."""
        try:
            self.folder.write("check", b"")
            self.folder.remove("check")
        except LakeUnreachable as error:
            raise ProgressUnwritable(error.message, hint=error.hint) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
