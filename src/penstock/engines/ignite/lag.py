"""What a node has written: segments that are archived. What is behind them nobody knows."""

from __future__ import annotations

from penstock.engines.ignite.directory import open_directory
from penstock.engines.ignite.source.position import OFFSET_BITS
from penstock.host.clock import REAL_CLOCK
from penstock.ports.config import Config
from penstock.ports.lag import LogEnd, Retention, SourceState


class IgniteLag:
    """See SourceReader.

    The position is the segment that the node writes to: never reached by the log, so that a lag is
    at most the time since the last change, and never 0.
    """

    def __init__(self, config: Config, _application_name: str) -> None:
        """Raises CdcDirectoryMissing."""
        self._directory = open_directory(config.source.url)
        self.is_closed = False

    def close(self) -> None:
        """See SourceReader."""
        self.is_closed = True

    def state(self, log: LogEnd) -> SourceState:
        """See SourceReader."""
        now_us = REAL_CLOCK.now_us()
        here = log.end.position
        last = max(self._directory.segments(), default=here >> OFFSET_BITS)
        return SourceState(
            now_us=now_us,
            position=(last + 1) << OFFSET_BITS,
            slot_exists=bool(log.log_id),
            slot_active=log.has_writer,
            confirmed=here,
            bytes_between=self._between,
        )

    def _between(self, first: int, last: int) -> int:
        """Bytes of archived segments; at least one, for what the node writes to."""
        return max(self._directory.bytes_between(first, last), int(first < last))

    def retention(self) -> Retention | None:
        """See SourceReader: all segments that are there. The node's limit is not known here."""
        paths = [self._directory.path(one) for one in self._directory.segments()]
        found = [path.stat() for path in paths if path.exists()]
        if not found:
            return None
        oldest_s = min(one.st_mtime for one in found)
        return Retention(
            size_bytes=sum(one.st_size for one in found),
            age_s=max(REAL_CLOCK.now_us() / 1e6 - oldest_s, 0.0),
            left_bytes=None,
            state="reserved",
        )
