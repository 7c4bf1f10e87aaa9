"""Identity of server and database, the end of its log, and whether our log was filled from it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.codec.postgres.lsn import Lsn
from penstock.engines.postgres.connect import connect, server_errors
from penstock.engines.postgres.source.client import ReplicationConnection
from penstock.model import LOAD_AGAIN, PenstockError
from penstock.ports.source import ServerEnd

SERVER_END = """
    select (extract(epoch from clock_timestamp()) * 1e6)::int8,
           case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
                else pg_current_wal_flush_lsn()
           end
"""


class SourceReplaced(PenstockError):
    """Another server, or another database, answers at the address."""

    code = "PG56"


class TimelineForked(PenstockError):
    """The server was promoted from a copy that had not seen all that the log has."""

    code = "PG57"


class ServerTooOld(PenstockError):
    """Penstock reads PostgreSQL 14 and later."""

    code = "PG61"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIdentity:
    """Server and database; the timeline grows with every promotion of a standby."""

    system_id: str
    timeline: int
    database: str
    database_id: int


def identify(connection: ReplicationConnection) -> ServerIdentity:
    """Ask the server for its identity. Raises ServerTooOld below 14."""
    if connection.server_version < 14:
        raise ServerTooOld(
            f"the server is PostgreSQL {connection.settings.get('server_version', '?')}",
            hint="Upgrade the source to PostgreSQL 14 or later.",
        )
    row = connection.query("IDENTIFY_SYSTEM", doing="identifying the server")[0]
    oid = connection.query(
        "select oid from pg_database where datname = current_database()",
        doing="identifying the database",
    )[0]
    return ServerIdentity(
        system_id=row["systemid"] or "",
        timeline=int(row["timeline"] or 0),
        database=row["dbname"] or "",
        database_id=int(oid["oid"] or 0),
    )


def check_identity(expected: ServerIdentity, now: ServerIdentity) -> None:
    """Compare with the identity to which the directory belongs; raise SourceReplaced. Pure.

    The timeline is checked separately: see `check_timeline`.
    """
    for what, ours, theirs in (
        ("system identifier", expected.system_id, now.system_id),
        ("database", expected.database, now.database),
        ("database oid", expected.database_id, now.database_id),
    ):
        if ours != theirs:
            raise SourceReplaced(
                f"another server answers at the source's address: its {what} is {theirs}, the "
                f"log was filled from {ours}",
                hint="Name the old server again in source.url, or give this pipeline a new "
                "directory and load again.",
                expected=ours,
                actual=theirs,
            )


def check_timeline(expected: int, now: int, history: str, position: int) -> None:
    """Check that everything up to position is also in the server's present timeline. Pure.

    history: the timeline history file of `now`, lines of `timeline<tab>switch LSN<tab>reason`;
    empty if the timeline has not changed. Raises TimelineForked.
    """
    if now == expected or position == 0:
        return
    for line in history.splitlines():
        match = re.match(r"\s*(\d+)\s+([0-9A-Fa-f]+/[0-9A-Fa-f]+)", line)
        if match and int(match[1]) == expected:
            if position <= Lsn.parse(match[2]).ordinal:
                return
            raise TimelineForked(
                f"the server was promoted at {match[2]} on timeline {expected}, but the log has "
                f"changes up to {Lsn(position)} that it never saw",
                hint="Source and target cannot be brought together by changes: " + LOAD_AGAIN,
            )
    raise TimelineForked(
        f"the server is on timeline {now}, which does not come from timeline {expected}",
        hint="Name the old server again in source.url, or " + LOAD_AGAIN,
    )


def checked_server(
    connection: ReplicationConnection, expected: ServerIdentity | None, position: int
) -> ServerIdentity:
    """Return the server's identity, if a log filled from `expected` to position may go on there.

    The caller stores the answer before anything new is in the log: after a promotion positions of
    the old timeline mean nothing any more. Raises ServerTooOld,
    SourceReplaced, TimelineForked.
    """
    now = identify(connection)
    if expected is not None:
        check_identity(expected, now)
        if now.timeline != expected.timeline:
            history = timeline_history(connection, now.timeline)
            check_timeline(expected.timeline, now.timeline, history, position)
    return now


def timeline_history(connection: ReplicationConnection, timeline: int) -> str:
    """Return the history file of a timeline; empty for the first."""
    if timeline <= 1:
        return ""
    rows = connection.query(f"TIMELINE_HISTORY {timeline}", doing="reading the timeline's history")
    return rows[0]["content"] or ""


def server_end(url: str) -> ServerEnd:
    """Return the end of the server's log as an LSN, on a separate connection."""
    with (
        connect(url, application_name="penstock position") as sql,
        server_errors("reading the server's position"),
    ):
        row = sql.execute(SERVER_END).fetchone()
    if row is None or not row[1]:
        return ServerEnd()
    return ServerEnd(position=Lsn.parse(row[1]).ordinal, now_us=row[0])
