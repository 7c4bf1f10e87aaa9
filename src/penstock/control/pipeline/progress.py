"""CE rows of `wirekite_progress`: the extractor's segments, recorded in the target database.

The segments are the truth and the table a record of them. The extractor calls from a thread of
its own and retries failures, so that a target that is away never stops an extraction. Not
here: CL and DL rows, which are written in the transactions of the rows they record.
"""

from __future__ import annotations

import structlog

from penstock.extract.extractor import ProgressRecorder
from penstock.host.files import FileMissing
from penstock.log.layout import list_segments, segment_name
from penstock.log.segment import ClosedSegment, open_segment
from penstock.ports.config import Config
from penstock.ports.positions import positions_of
from penstock.ports.progress import Progress, open_progress

logger = structlog.get_logger()
APPLICATION_NAME = "penstock extract progress"


class CeRecorder(ProgressRecorder):
    """Writer of CE rows: `ProgressRecorder` of the extractor. Used by one thread.

    Each connection first adds missing rows: closed segments on disk whose row a crash or an outage
    left out get it from their footers.
    """

    def __init__(self, config: Config) -> None:
        """Keep the configuration; nothing is connected before the first call."""
        self._config = config
        self._positions = positions_of(config)
        self._extension = config.change_loader.change_file_extension
        self._target: Progress | None = None

    def note_opened(self, number: int, position: int) -> None:
        """Insert a segment's row. position: from which it can be rebuilt.

        May be repeated. Raises the typed errors of the target's connection.
        """
        file = segment_name(number, self._extension)
        mark, origin = self._positions.text(position), self._positions.origin(position)
        self._connect().begin_segment(slot=origin, file=file, mark=mark)

    def note_closed(self, segment: ClosedSegment) -> None:
        """Finish a segment's row: mark is the position after its last COMMIT. As `note_opened`."""
        self._end(self._connect(), segment)

    def _end(self, target: Progress, segment: ClosedSegment) -> None:
        file = segment_name(segment.number, self._extension)
        mark = self._positions.text(segment.end.position)
        origin = self._positions.origin(segment.start.position)
        target.end_segment(slot=origin, file=file, mark=mark)

    def add_missing(self) -> None:
        """Connect, and so add the rows that an earlier process left out."""
        self._connect()

    def close(self) -> None:
        """Close the connection."""
        target, self._target = self._target, None
        if target is not None:
            target.close()

    def _connect(self) -> Progress:
        if self._target is not None and not self._target.is_closed:
            return self._target
        self.close()
        target = open_progress(self._config.target.url, application_name=APPLICATION_NAME)
        try:
            target.ensure_tables()
            self._add_missing(target)
        except BaseException:
            target.close()
            raise
        self._target = target
        return target

    def _add_missing(self, target: Progress) -> None:
        finished: dict[str, set[str]] = {}
        for file in list_segments(self._config.layout.log, self._extension):
            try:
                with open_segment(file.path, extension=self._extension) as segment:
                    facts = segment.facts()
            except FileMissing:  # loaded and removed meanwhile
                continue
            origin = self._positions.origin(facts.start.position)
            if origin not in finished:
                finished[origin] = target.finished_segments(origin)
            if file.path.name in finished[origin]:
                continue
            self._end(target, facts)
            logger.info("progress row added", segment=file.path.name)
