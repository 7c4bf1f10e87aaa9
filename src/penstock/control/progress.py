"""CE rows of `wirekite_progress`: the extractor's segments, recorded in the target database.

The segments are the truth and the table a record of them. The extractor calls from a thread of
its own and tries again what fails, so that a target that is away never stops an extraction. Not
here: CL and DL rows, which are written in the transactions of the rows they stand for.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import psycopg
import structlog

from penstock.control.config import Config
from penstock.control.positions import positions_of
from penstock.host.connect import connect, server_errors
from penstock.host.files import FileMissing
from penstock.load.postgres.progress import (
    begin_segment,
    end_segment,
    ensure_tables,
    finished_segments,
)
from penstock.log.layout import list_segments, segment_name
from penstock.log.segment import ClosedSegment, open_segment

logger = structlog.get_logger()
APPLICATION_NAME = "penstock extract progress"


class CeRecorder:
    """Writes CE rows: `ProgressRecorder` of the extractor. Used by one thread.

    Each connection begins with mending: closed segments on disk whose row a crash or an outage
    left out get it from their footers.
    """

    def __init__(self, config: Config) -> None:
        """Nothing is connected before the first call."""
        self._config = config
        self._positions = positions_of(config)
        self._extension = config.change_loader.change_file_extension
        self._connection: psycopg.Connection | None = None

    def opened(self, number: int, position: int) -> None:
        """Insert a segment's row. position: from which it can be rebuilt.

        May be repeated. Raises the typed errors of the target's connection.
        """
        file = segment_name(number, self._extension)
        mark, origin = self._positions.text(position), self._positions.origin(position)
        connection = self._connected()
        with self._errors():
            begin_segment(connection, slot=origin, file=file, mark=mark)

    def closed(self, segment: ClosedSegment) -> None:
        """Finish a segment's row: mark is the position behind its last COMMIT. As `opened`."""
        connection = self._connected()
        with self._errors():
            self._end(connection, segment)

    def _end(self, connection: psycopg.Connection, segment: ClosedSegment) -> None:
        file = segment_name(segment.number, self._extension)
        mark = self._positions.text(segment.end.position)
        origin = self._positions.origin(segment.start.position)
        end_segment(connection, slot=origin, file=file, mark=mark)

    def mend(self) -> None:
        """Connect, and with that mend what an earlier process left out."""
        self._connected()

    def close(self) -> None:
        """Let go of the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _errors(self) -> AbstractContextManager[None]:
        return server_errors("recording the change log's segments")

    def _connected(self) -> psycopg.Connection:
        if self._connection is not None and not self._connection.broken:
            return self._connection
        self.close()
        connection = connect(self._config.target.url, application_name=APPLICATION_NAME)
        try:
            with self._errors():
                ensure_tables(connection)
                self._mend(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _mend(self, connection: psycopg.Connection) -> None:
        finished: dict[str, set[str]] = {}
        for file in list_segments(self._config.layout.log, self._extension):
            try:
                with open_segment(file.path, extension=self._extension) as segment:
                    facts = segment.facts()
            except FileMissing:  # loaded and removed meanwhile
                continue
            origin = self._positions.origin(facts.start.position)
            if origin not in finished:
                finished[origin] = finished_segments(connection, origin)
            if file.path.name in finished[origin]:
                continue
            self._end(connection, facts)
            logger.info("progress row mended", segment=file.path.name)
