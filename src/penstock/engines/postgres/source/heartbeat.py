"""Heartbeats of a PostgreSQL source: logical messages, which need no table and change nothing.

Every slot of the database sees them; each has the slot that it is for. Not here: when one is sent
(`extract.extractor`), and the marker it becomes (`assemble.py`).
"""

from __future__ import annotations

import psycopg

from penstock.codec.postgres.pgoutput_messages import LogicalMessage
from penstock.engines.postgres.connect import connect, server_errors
from penstock.model.change import ANY_SLOT, HEARTBEAT_PREFIX
from penstock.model.whole_number import parse_whole

PREFIX = HEARTBEAT_PREFIX
SEND = "select pg_logical_emit_message(true, %s, %s)"


class Heartbeats:
    """Commits heartbeats on a connection that stays open. Used by one thread."""

    def __init__(self, url: str, slot: str) -> None:
        """Store the URL; the connection is opened with the first heartbeat."""
        self._url = url
        self._slot = slot
        self._connection: psycopg.Connection | None = None

    def send(self, sent_us: int) -> None:
        """Commit a heartbeat. Raises typed errors of a connection; the next call connects again."""
        if self._connection is None or self._connection.closed:
            self._connection = connect(
                self._url, application_name="penstock heartbeat", autocommit=True
            )
        try:
            with server_errors("committing a heartbeat"):
                self._connection.execute(SEND, (PREFIX, f"{self._slot} {sent_us}"))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()


def sent_us_in(message: LogicalMessage, slot: str) -> int | None:
    """Return when a heartbeat for this slot was sent; None for any other message."""
    if message.prefix == PREFIX and message.transactional:
        of, _, sent_us = message.content.decode("utf-8", "replace").rpartition(" ")
        if of in (slot, ANY_SLOT):
            return parse_whole(sent_us)
    return None
