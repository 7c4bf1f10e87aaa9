"""PostgreSQL's part of `penstock verify`; see `Verifier` of `ports/verify.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg

from penstock.codec.postgres.lsn import Lsn
from penstock.engines.postgres.connect import connect, server_errors
from penstock.engines.postgres.source.snapshot import (
    plain_point,
    temporary_consistent_point,
)
from penstock.engines.postgres.verify.reader import PostgresVerifyReader
from penstock.model import TableDefinition
from penstock.model.words import count_words
from penstock.ports.config import Config
from penstock.ports.verify import APPLICATION_NAME, PART_BYTES, SourcePoint, Verifier, VerifyReader

# Row messages (tags I, U, D, T) of transactions that end behind the log. A transaction's last
# message has the position of its end; the slot may be before the log's end after a crash.
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


class PostgresVerifier(Verifier):
    """Verifier of a PostgreSQL server."""

    @contextmanager
    def open_source(
        self,
        config: Config,
        _tables: Callable[[], Sequence[TableDefinition]],
        _tell: Callable[[str], None],
        /,
        *,
        sessions: int,
        part_bytes: int = PART_BYTES,
    ) -> Iterator[tuple[VerifyReader, SourcePoint]]:
        """Open sessions in one snapshot. Nothing has to wait for the point, so nothing is
        reported.
        """
        url = config.source.url
        with ExitStack() as stack:
            # A temporary slot is dropped as soon as the reader has imported the snapshot.
            follows = config.pipeline.mode.has_change
            with (temporary_consistent_point if follows else plain_point)(url) as point:
                reader = stack.enter_context(
                    PostgresVerifyReader(
                        url,
                        snapshot_id=point.snapshot_id,
                        sessions=sessions,
                        part_bytes=part_bytes,
                    )
                )
            yield reader, SourcePoint(position=point.position, text=str(Lsn(point.position)))

    def open_target(
        self, url: str, *, sessions: int, part_bytes: int = PART_BYTES
    ) -> PostgresVerifyReader:
        return PostgresVerifyReader(url, snapshot_id=None, sessions=sessions, part_bytes=part_bytes)

    def nudge(self, url: str) -> None:
        """Make the server's log reach beyond the point."""
        with (
            connect(url, application_name=APPLICATION_NAME) as connection,
            server_errors("writing a mark into the source's log"),
        ):
            connection.execute(NUDGE)

    def unread(
        self,
        config: Config,
        point: SourcePoint,
        _tables: Callable[[], Sequence[TableDefinition]],
        /,
        *,
        since: int,
    ) -> str:
        """Return what is unread: nothing if there is no slot, because nothing was captured."""
        section = config.change_extractor
        names = '"' + section.publication.replace('"', '""') + '"'
        parameters = {
            "slot": section.replication_slot,
            "until": str(Lsn(point.position)),
            "publications": names,
            "log_end": str(Lsn(since)),
        }
        with (
            connect(config.source.url, application_name=APPLICATION_NAME) as connection,
            server_errors("looking into the replication slot"),
        ):
            if not _first(connection, SLOT_EXISTS, parameters):
                return ""
            unread = int(_first(connection, UNREAD_ROWS, parameters))
        return f"the replication slot still holds {count_words(unread, 'change')}" if unread else ""


VERIFIER: Verifier = PostgresVerifier()


def _first(connection: psycopg.Connection, query: str, parameters: dict[str, str]) -> Any:
    row: Sequence[Any] | None = connection.execute(query, parameters).fetchone()
    return None if row is None else row[0]
