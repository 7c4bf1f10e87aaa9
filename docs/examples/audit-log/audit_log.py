"""Audit log: every change of every table as a row in SQLite, exactly once."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.consume import CdcConsumer, CdcEvent

SCHEMA = """
create table if not exists audit (
    gsn integer, op text, table_name text, key text, old text, new text,
    commit_time text, source_xid text, primary key (gsn, op, table_name)
);
create table if not exists place (gsn integer);
insert into place select 0 where not exists (select 1 from place);
"""


class AuditLog(CdcConsumer):
    """Consumer that keeps its position in the log beside the rows, in one transaction."""

    def __init__(self, file: str) -> None:
        """Open the database; a relative path starts at the folder in which penstock is started."""
        self.db = sqlite3.connect(file)
        self.db.execute("pragma synchronous = full")
        self.db.executescript(SCHEMA)

    def on_events(self, events: Iterator[CdcEvent]) -> bool:
        """Write a row for each event that has no row yet."""
        (done,) = self.db.execute("select gsn from place").fetchone()
        gsn = done
        with self.db:
            for event in events:
                if event.gsn <= done:
                    continue  # delivered again after a crash
                gsn = event.gsn
                if not event.resent:  # read again, not changed
                    self.db.execute(
                        "insert into audit values (?, ?, ?, ?, ?, ?, ?, ?)", row_of(event)
                    )
            self.db.execute("update place set gsn = ?", (gsn,))
        return True

    def on_truncate(self, table: str, gsn: int) -> None:
        """Write a row with the gsn of the previous change."""
        self.note(gsn, "T", table)

    def on_reload(self, table: str, gsn: int) -> None:
        """Record that the table was read again: changes before that may be missing."""
        self.note(gsn, "R", table)

    def note(self, gsn: int, op: str, table: str) -> None:
        """Write a row about a whole table, only once even if the call is repeated after a crash."""
        with self.db:
            self.db.execute(
                "insert or ignore into audit (gsn, op, table_name) values (?, ?, ?)",
                (gsn, op, table),
            )

    def stop(self) -> None:
        """Close the file."""
        self.db.close()


def row_of(event: CdcEvent) -> tuple[Any, ...]:
    """Return an event as a row of the table."""
    return (
        event.gsn,
        event.op,
        event.table,
        json.dumps(event.key, default=str),
        to_json(event.before),
        to_json(event.value),
        event.commit_time.isoformat(),
        str(event.source_xid),
    )


def to_json(row: Mapping[str, Any] | None) -> str | None:
    """Return the columns that were sent as JSON."""
    return None if row is None else json.dumps(dict(row), default=str)
