"""Lag of a YugabyteDB source, in time: LSNs are not bytes, and the log's end is not known.

Changes that the server knows to be confirmed up to a hybrid time were committed by then; the others
were committed later.
"""

from __future__ import annotations

from typing import Any

from penstock.codec.postgres.lsn import Lsn
from penstock.engines.postgres.connect import literal, server_errors
from penstock.engines.yugabyte.catalog import connect_catalog
from penstock.engines.yugabyte.options import retention_s
from penstock.engines.yugabyte.slots import age_s, micros
from penstock.host.clock import REAL_CLOCK
from penstock.ports.config import Config
from penstock.ports.lag import LogEnd, Retention, SourceReader, SourceState, Unread

SLOT = """
    select active, confirmed_flush_lsn, yb_restart_commit_ht
      from pg_replication_slots
     where slot_name = {slot}
"""


class YugabyteLagReader(SourceReader):
    """Reader of how far the log is behind the slot."""

    def __init__(self, config: Config, application_name: str) -> None:
        """Connect. Raises the typed errors of a connection."""
        self._slot = config.change_extractor.replication_slot
        self._retention_s = retention_s(config.source.url)
        self._connection = connect_catalog(config.source.url, application_name=application_name)

    @property
    def is_closed(self) -> bool:
        return self._connection.closed or self._connection.broken

    def _row(self) -> Any:
        with server_errors("reading the slot's position"):
            return self._connection.execute(
                SLOT.format(slot=literal(self._slot)).encode()
            ).fetchone()

    def state(self, _log: LogEnd) -> SourceState:
        """Return the source's state.

        The clock is this machine's: hybrid times follow those of servers.
        """
        now_us = REAL_CLOCK.now_us()
        row = self._row()
        restart_ht = int(row[2] or 0) if row else 0
        return SourceState(
            now_us=now_us,
            position=0,
            slot_exists=row is not None,
            slot_active=bool(row and row[0]),
            confirmed=Lsn.parse(str(row[1])).ordinal if row and row[1] else 0,
            unread=Unread(commit_us=micros(restart_ht)) if restart_ht else None,
            counts_bytes=False,
            bytes_between=lambda _first, _last: 0,
        )

    def retention(self) -> Retention | None:
        row = self._row()
        if row is None:
            return None
        return Retention(
            size_bytes=0,
            age_s=age_s(int(row[2] or 0), REAL_CLOCK.now_us()),
            left_bytes=None,
            state="",
            expires_s=self._retention_s,
        )

    def close(self) -> None:
        self._connection.close()
