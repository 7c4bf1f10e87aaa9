"""Lag of nodes, by their archived segments. The amount of later changes is not known."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from penstock.engines.ignite.directory import NodeDirectory, open_directory
from penstock.engines.ignite.source.position import OFFSET_BITS, position_of
from penstock.host.clock import REAL_CLOCK
from penstock.ports.config import Config
from penstock.ports.lag import LogEnd, Retention, SourceReader, SourceState
from penstock.ports.registry import is_list, split_urls


class IgniteLag(SourceReader):
    """Reader of how far the log of a node, or of several, is behind.

    The position is the segment that the node writes to. The log never reaches it, so a lag is at
    most the time since the last change, and never 0. For several nodes it is their sum; while one
    of them cannot be reached, the lag is not known.
    """

    is_closed = False

    def __init__(self, config: Config, _application_name: str) -> None:
        """Open the directories. Raises CdcDirectoryMissing."""
        self._is_list = is_list(config.source.url)
        self._nodes = [open_directory(url) for url in split_urls(config.source.url)]

    def close(self) -> None:
        self.is_closed = True

    def state(self, log: LogEnd) -> SourceState:
        """Return the state of the nodes. Raises FileMissing while a node's directory is gone."""
        now_us = REAL_CLOCK.now_us()
        here = log.end.position
        places = [_place(one) if self._is_list else here for one in self._nodes]
        pairs = list(zip(self._nodes, places, strict=True))
        return SourceState(
            now_us=now_us,
            position=here + sum(_end(node, place) - place for node, place in pairs),
            slot_exists=bool(log.log_id),
            slot_active=log.has_writer,
            confirmed=here,
            bytes_between=partial(_between, pairs, is_list=self._is_list),
        )

    def retention(self) -> Retention | None:
        """Return the size of all existing segments. The nodes' limit is not known here."""
        paths = [node.path(one) for node in self._nodes for one in node.segments()]
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


def _place(node: NodeDirectory) -> int:
    """Return the acknowledged position, from the node's own state."""
    saved = node.load_place()
    return 0 if saved is None else position_of(saved)


def _end(node: NodeDirectory, place: int) -> int:
    """Return the position of the segment that a node writes to."""
    last = max(node.segments(), default=place >> OFFSET_BITS)
    return max((last + 1) << OFFSET_BITS, place)


def _between(
    nodes: Sequence[tuple[NodeDirectory, int]], first: int, last: int, *, is_list: bool
) -> int:
    """Return the bytes of archived segments between two positions; 1 if only the open segment lies
    between.

    For a list of nodes: all bytes after the nodes' places.
    """
    ends = [(at, _end(node, at)) if is_list else (first, last) for node, at in nodes]
    found = sum(node.bytes_between(*each) for (node, _), each in zip(nodes, ends, strict=True))
    return max(found, int(first < last))
