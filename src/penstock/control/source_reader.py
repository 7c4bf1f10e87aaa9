"""A connection to a pipeline's source on which its side of the lag is asked, again and again.

`open_source` picks the engine. Not here: what follows from the answers (`lag.py`).
"""

from __future__ import annotations

from typing import Protocol

from penstock.control.lag import SourceState, read_source_state
from penstock.control.log_facts import LogEnd
from penstock.control.retention import Retention, read_retention
from penstock.engines.postgres.connect import connect
from penstock.ports.config import Config


class SourceReader(Protocol):
    """Who asks the source. Used by one thread; every error comes out typed."""

    @property
    def is_closed(self) -> bool:
        """Whether the connection is gone."""
        ...

    def state(self, log: LogEnd) -> SourceState:
        """Where the source is, and what it has written behind our log."""
        ...

    def retention(self) -> Retention | None:
        """What the source keeps of its log; None where there is nothing that it keeps for us."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class PostgresReader:
    """The reader of a PostgreSQL source; see `SourceReader`."""

    def __init__(self, config: Config, application_name: str) -> None:
        """Connect. Raises the typed errors of a connection."""
        self._slot = config.change_extractor.replication_slot
        self._connection = connect(config.source.url, application_name=application_name)

    @property
    def is_closed(self) -> bool:
        """See SourceReader."""
        return self._connection.closed or self._connection.broken

    def state(self, _log: LogEnd) -> SourceState:
        """See SourceReader: the slot tells what is behind our log."""
        return read_source_state(self._connection, self._slot)

    def retention(self) -> Retention | None:
        """See SourceReader."""
        return read_retention(self._connection, self._slot)

    def close(self) -> None:
        """See SourceReader."""
        self._connection.close()


def open_source(config: Config, *, application_name: str) -> SourceReader:
    """Connect to a pipeline's source, whichever engine its URL names."""
    if config.source.is_mysql:
        from penstock.engines.mysql.lag import BinlogReader

        return BinlogReader(config, application_name)
    return PostgresReader(config, application_name)
