"""Where a node's log ends now: in the segments that it writes to, which are not archived yet."""

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
SEGMENTS_MAX = 3  # looked at, the last ones
_HEADER = struct.Struct("<Bq")
_HEADER_KIND = 5


def node_end(url: IgniteUrl, directory: NodeDirectory) -> LogPlace | None:
    """A place behind the beginning of the last change in the node's own segments.

    None where the last ones have none, or where the node keeps them elsewhere.
    """
    for number, path in _segments(url.work / WAL_PATH / directory.directory.name)[:SEGMENTS_MAX]:
        place = _last_change(directory, number, path)
        if place is not None:
            return place
    return None


def _segments(folder: Path) -> list[tuple[int, Path]]:
    """Number and file of each, the newest first. Files are used again: their names do not tell."""
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
    with suppress(WalBroken):  # the node is writing there: what comes behind is later than we asked
        for entry in directory.walk(number, 0, Segment(path.read_bytes(), 0)):
            last = entry.offset
    return None if last is None else LogPlace(number, last + 1, 0)
