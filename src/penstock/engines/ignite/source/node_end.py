"""Present end of a node's log: in the segments that it writes to, which are not archived yet."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

from penstock.codec.ignite import wal
from penstock.codec.ignite.errors import WalBroken
from penstock.engines.ignite.directory import NodeDirectory, Segment
from penstock.engines.ignite.url import IgniteUrl
from penstock.ports.direct import LogPlace

WAL_PATH = "db/wal"
SEGMENTS_MAX = 3  # the last ones, which are read
_HEADER = struct.Struct("<Bq")
_HEADER_KIND = 5


def node_end(url: IgniteUrl, directory: NodeDirectory) -> LogPlace | None:
    """Return a place after the beginning of the last change in the node's own segments.

    Returns None if the last ones have no change, or if the node keeps them elsewhere.
    """
    for number, path in _segments(url.work / WAL_PATH / directory.directory.name)[:SEGMENTS_MAX]:
        place = _last_change(directory, number, path)
        if place is not None:
            return place
    return None


def _segments(folder: Path) -> list[tuple[int, Path]]:
    """Return number and file of each, the newest first. Files are reused: their names are no
    guide.
    """
    found = []
    for path in folder.glob("*.wal"):
        with path.open("rb") as opened:
            head = opened.read(wal.HEADER_BYTES)
        if len(head) == wal.HEADER_BYTES:
            kind, number = _HEADER.unpack_from(head)
            if kind == _HEADER_KIND:
                found.append((number, path))
    return sorted(found, reverse=True)


def _last_change(directory: NodeDirectory, number: int, path: Path) -> LogPlace | None:
    last: int | None = None
    with suppress(WalBroken):  # the node is writing there: later changes do not count
        for entry in directory.walk(number, 0, Segment(path.read_bytes(), 0)):
            last = entry.offset
    return None if last is None else LogPlace(number, last + 1, 0)
