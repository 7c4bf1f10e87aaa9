"""Views by which the source knows the database, its logs and its clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from penstock.engines.oracle.source import statements
from penstock.engines.oracle.source.log_choice import (
    ArchivedLog,
    LogViews,
    Member,
    OnlineLog,
    RedoThread,
    Resetlogs,
)


class Session(Protocol):
    """Connection, as far as the source uses it; see `connect.Connection`."""

    def execute(self, sql: str, **binds: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        ...

    def rows(self, sql: str, *, array_rows: int = ..., **binds: Any) -> Iterator[list[Any]]:
        """Yield the rows of a query in lists."""
        ...

    def run(self, sql: str, **binds: Any) -> int:
        """Run a statement that is not a query."""
        ...

    def close(self) -> None:
        """End the session."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """Database and incarnation to which SCNs belong."""

    dbid: int
    name: str
    resetlogs: Resetlogs
    is_forced: bool


def read_incarnation(session: Session) -> Incarnation:
    """Return the present incarnation of the database."""
    ((dbid, name, scn, time, force_logging),) = session.execute(statements.DATABASE)
    return Incarnation(
        dbid=dbid, name=str(name), resetlogs=(scn, time), is_forced=force_logging == "YES"
    )


def read_clock(session: Session) -> datetime:
    """Return the time of the database's host, in its zone."""
    ((text,),) = session.execute(statements.NOW)
    return datetime.strptime(str(text).strip(), "%Y-%m-%d %H:%M:%S.%f %z")


def read_views(session: Session, resetlogs: Resetlogs, low: int) -> LogViews:
    """Return the views of logs. low: archives that end before it are left out."""
    threads = session.execute(statements.THREAD)
    online = session.execute(statements.LOG)
    members = session.execute(statements.LOG_FILE)
    # After the online logs: one that was archived in between is then in both, never in none.
    archived = session.execute(statements.ARCHIVED_LOG, low=low)
    destinations = session.execute(statements.DESTINATIONS)
    return LogViews(
        resetlogs=resetlogs,
        online=[
            OnlineLog(
                group=group,
                thread=thread,
                sequence=sequence,
                is_archived=archived == "YES",
                status=status,
                first_scn=first,
                next_scn=following,
            )
            for group, thread, sequence, _, archived, status, first, following in online
        ],
        members=[
            Member(group=group, status=status or "", kind=kind, name=name)
            for group, status, kind, name in members
        ],
        archived=[
            ArchivedLog(
                name=name,
                destination=destination,
                thread=thread,
                sequence=sequence,
                resetlogs=(scn, time),
                first_scn=first,
                next_scn=following,
            )
            for name, destination, thread, sequence, scn, time, first, following in archived
        ],
        threads=[
            RedoThread(
                number=number,
                is_open=status == "OPEN",
                enabled=enabled,
                enable_scn=enable or 0,
                checkpoint_scn=checkpoint or 0,
                last_scn=last or 0,
            )
            for number, status, enabled, enable, checkpoint, last in threads
        ],
        destinations=[
            number
            for number, _, status, kind in destinations
            if status == "VALID" and kind == "LOCAL"
        ],
    )
