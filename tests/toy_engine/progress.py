"""Progress of penstock in a target, as notes of the store: parts `progress` and `target_state`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.model import TableName
from penstock.ports.bulk import ChunkCounts, Mark
from penstock.ports.progress import SHOWN_MAX, Progress, ProgressRow, TargetReader
from penstock.ports.target import ActionUnknown, Applied, TableSync
from toy_engine.store import Store

WORDS = ("RUN", "PAUSE", "STOP")


class Following(msgspec.Struct, kw_only=True):
    """The change log that is applied, with the place up to which it is."""

    log_id: str
    applied: Applied


class FileNote(msgspec.Struct, kw_only=True):
    """A segment's row, written by the extractor (CE) or the loader (CL)."""

    source: str
    start: datetime
    mark: str | None = None
    finish: datetime | None = None
    restarts: int = 0


def now() -> datetime:
    """Return the time in UTC, without a zone."""
    return datetime.now(UTC).replace(tzinfo=None)


class ToyProgress(Progress, TargetReader, ChunkCounts):
    """Connection that reads and writes notes: see Progress, TargetReader and ChunkCounts."""

    def __init__(self, url: str, application_name: str) -> None:
        del application_name
        self.store = Store(url)

    def close(self) -> None:
        self.store.close()

    @property
    def is_closed(self) -> bool:
        return self.store.is_closed

    def ensure_tables(self) -> None:
        """Do nothing: notes need no table of their own."""

    # -- RUN, PAUSE, STOP --------------------------------------------------------------------

    def read_action(self) -> str:
        word = self.store.get("action", "", str) or "RUN"
        if word not in WORDS:
            raise ActionUnknown(f"the action is {word!r}", hint="Write RUN, PAUSE or STOP.")
        return word

    action = read_action

    def set_action(self, action: str) -> None:
        if action not in WORDS:
            raise ActionUnknown(f"the action is {action!r}", hint="Write RUN, PAUSE or STOP.")
        self.store.put("action", "", action)

    # -- how far -----------------------------------------------------------------------------

    def following(self) -> Following | None:
        """Return the log that is followed, or None before the first."""
        return self.store.get("log", "", Following)

    def log_id(self) -> str:
        found = self.following()
        return found.log_id if found is not None else ""

    def read_applied(self) -> Applied:
        found = self.following()
        return found.applied if found is not None else Applied()

    def read_table_syncs(self) -> dict[TableName, TableSync]:
        return {row.table: row for row in self.store.all("table_sync", TableSync).values()}

    table_syncs = read_table_syncs

    def read_left_out(self) -> dict[TableName, frozenset[str]]:
        """Return nothing: a table follows every change of its shape."""
        return {}

    # -- segments ----------------------------------------------------------------------------

    def begin_segment(self, *, slot: str, file: str, mark: str) -> None:
        name = f"{slot}/{file}"
        before = self.store.get("CE", name, FileNote)
        again = 0 if before is None else before.restarts + 1
        self.store.put("CE", name, FileNote(source=file, start=now(), mark=mark, restarts=again))

    def end_segment(self, *, slot: str, file: str, mark: str) -> None:
        name = f"{slot}/{file}"
        note = self.store.get("CE", name, FileNote) or FileNote(source=file, start=now())
        note.mark, note.finish = mark, now()
        self.store.put("CE", name, note)

    def finished_segments(self, slot: str) -> set[str]:
        notes = self.store.all("CE", FileNote)
        return {n.source for name, n in notes.items() if n.finish and name.startswith(f"{slot}/")}

    def newest(self, operation: str) -> list[ProgressRow]:
        notes: Any = sorted(self.store.all(operation, FileNote).values(), key=lambda n: n.start)
        return [
            ProgressRow(source=n.source, mark=n.mark, start_time=n.start, finish_time=n.finish)
            for n in reversed(notes[-SHOWN_MAX:])
        ]

    def restarts(self) -> int:
        return sum(note.restarts for note in self.store.all("CE", FileNote).values())

    # -- the bulk load -----------------------------------------------------------------------

    def present(self) -> tuple[bool, bool]:
        marks = bool(self.store.all("bulk table", Mark))
        return bool(self.following() or self.newest("CE") or marks), marks

    @property
    def counts(self) -> ChunkCounts:
        return self

    def read_done(self) -> Mapping[str, Mapping[int, int]]:
        return {name: mark.done for name, mark in self.store.all("bulk table", Mark).items()}

    def under_way(self) -> Mapping[TableName, int]:
        return {}
