"""The change log: numbered segments of checksummed frames, written once, read by any process.

`Writer` appends and recovers; `open_segment` reads one file; `reader` covers the whole directory.
The file format is in `penstock.codec.ckt`, byte by byte in docs/ckt-format.md.
"""

from penstock.log.frames import SegmentCorrupt
from penstock.log.layout import (
    Done,
    LogState,
    SegmentFile,
    SegmentMissing,
    list_segments,
    load_done,
    load_state,
    next_segments,
)
from penstock.log.reader import LogFinding, check, open_chain
from penstock.log.recovery import ChainBroken, LogForeign
from penstock.log.segment import ClosedSegment, Segment, SegmentMisnamed, open_segment
from penstock.log.writer import (
    LogBehindSource,
    LogLocked,
    Writer,
    WriterBroken,
    WriterOptions,
)

__all__ = [
    "ChainBroken",
    "ClosedSegment",
    "Done",
    "LogBehindSource",
    "LogFinding",
    "LogForeign",
    "LogLocked",
    "LogState",
    "Segment",
    "SegmentCorrupt",
    "SegmentFile",
    "SegmentMisnamed",
    "SegmentMissing",
    "Writer",
    "WriterBroken",
    "WriterOptions",
    "check",
    "list_segments",
    "load_done",
    "load_state",
    "next_segments",
    "open_chain",
    "open_segment",
]
