"""The source's side of `penstock verify`: rows at one point, and what lies before it unread.

Not here: the target, and making a loader come to that point (`verify.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.control.compare import APPLICATION_NAME, Side
from penstock.control.ends import source_tables
from penstock.control.log_facts import read_log_end
from penstock.engines.postgres.connect import connect, server_errors
from penstock.engines.postgres.source.snapshot import temporary_consistent_point
from penstock.model import Lsn
from penstock.ports.config import Config
from penstock.ports.verify import Reader

# Row messages (tags I, U, D, T) of transactions that end behind the log. A transaction's last
# message has the position of its end; the slot may stand before the log's end after a crash.
UNREAD_ROWS = """
    select coalesce(sum(row_count), 0)::int8
      from (select count(*) filter (where get_byte(data, 0) in (73, 85, 68, 84)) as row_count,
                   max(lsn) as end_lsn
              from pg_logical_slot_peek_binary_changes(
                       %(slot)s, %(until)s::pg_lsn, null,
                       'proto_version', '1', 'publication_names', %(publications)s)
             group by xid) as transactions
     where end_lsn > %(log_end)s::pg_lsn
"""
SLOT_EXISTS = """
    select exists (select from pg_replication_slots where slot_name = %(slot)s)
"""
# Makes the server's log reach beyond the position, so that an idle source is passed at once.
NUDGE = """
    select case when not pg_is_in_recovery()
                then pg_logical_emit_message(true, 'penstock', 'verify')
           end
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePoint:
    """Where the source's rows are read. position: as the change log counts; text: as people do.

    snapshot_id: of PostgreSQL's exported snapshot; empty elsewhere.
    """

    position: int
    text: str
    snapshot_id: str = ""


def open_source_side(
    config: Config, sessions: int, stack: ExitStack, tell: Callable[[str], None]
) -> tuple[Reader, SourcePoint]:
    """The source at a new consistent point, for as long as the stack is open.

    tell: told how the point is taken, where others may have to wait for it.
    """
    if config.source.is_mysql:
        from penstock.engines.mysql.verify.source import open_binlog_side

        return open_binlog_side(config, sessions, stack, tell)
    # Its slot is gone as soon as the side has taken over.
    with temporary_consistent_point(config.source.url) as point:
        side = stack.enter_context(
            Side(config.source.url, snapshot_id=point.snapshot_id, sessions=sessions)
        )
    text = str(Lsn(point.position))
    return side, SourcePoint(position=point.position, text=text, snapshot_id=side.snapshot_id)


def nudge(config: Config) -> None:
    """Have an idle source's log go beyond the point; a binlog's end is told as it is."""
    if config.source.is_mysql:
        return
    with (
        connect(config.source.url, application_name=APPLICATION_NAME) as connection,
        server_errors("writing a mark into the source's log"),
    ):
        connection.execute(NUDGE)


def unread_changes(config: Config, point: SourcePoint) -> str:
    """What of ours precedes the point and is not in the log, for people; empty for nothing."""
    if config.source.is_mysql:
        from penstock.engines.mysql.verify.source import unread_in_binlog

        return unread_in_binlog(config, point.position, source_tables(config))
    unread = _unread_rows(config, point.position)
    return f"{unread} changes are still in the replication slot" if unread else ""


def _unread_rows(config: Config, position: int) -> int:
    """Row messages in the slot that the log has not taken yet and that precede the position.

    A slot that is not there yet holds none: nothing was captured so far.
    """
    section = config.change_extractor
    names = '"' + section.publication.replace('"', '""') + '"'
    with connect(config.source.url, application_name=APPLICATION_NAME) as connection:
        parameters = {
            "slot": section.replication_slot,
            "until": str(Lsn(position)),
            "publications": names,
            "log_end": str(Lsn(read_log_end(config).end.position)),
        }
        with server_errors("looking into the replication slot"):
            if not _first(connection, SLOT_EXISTS, parameters):
                return 0
            return int(_first(connection, UNREAD_ROWS, parameters))


def _first(connection: psycopg.Connection, query: str, parameters: dict[str, str]) -> Any:
    row: Sequence[Any] | None = connection.execute(query, parameters).fetchone()
    return None if row is None else row[0]
