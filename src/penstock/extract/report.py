"""Contents of run/extract.json, the report of an extraction."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from penstock.extract.bookkeeping import BackgroundTasks, Poll
from penstock.extract.report import ExtractProgress
from penstock.model import FlushPoint
from penstock.ports.source import SourceEngine, SourceStream

WATERMARK = "watermark_us"


def facts_of(
    progress: ExtractProgress,
    *,
    engine: SourceEngine,
    end: FlushPoint,
    segment: int,
    segment_row_count: int,
    source: SourceStream | None,
    background_tasks: BackgroundTasks,
    server: Poll | None,
    watermark_us: int,
    action: Poll | None,
    heartbeats: Poll | None,
    now_us: int,
) -> dict[str, Any]:
    """Return everything for display, fit for JSON; positions are in the source's notation.

    end is the last flush point. segment is the number of the open or next segment. server asks for
    the server's own position, action for the operator's action; heartbeats commits them.
    watermark_us: see `Watermark`. Times are microseconds since 1970.
    """
    position = server.value.position if server is not None else 0
    counted = source.counts if source is not None else None
    return {
        **asdict(progress),
        "pid": os.getpid(),
        "now_us": now_us,
        "slot": engine.name,
        "segment": segment,
        "segment_row_count": segment_row_count,
        "gsn": end.gsn,
        "trx": end.trx,
        "position": engine.text(end.position),
        "commit_time_us": end.commit_time_us,
        "server_position": engine.text(position),
        WATERMARK: watermark_us,
        "lag_bytes": engine.bytes_between(end.position, position),
        "spill_bytes": source.spilled_byte_count if source is not None else 0,
        "received_bytes": counted.byte_count if counted is not None else 0,
        "ignored_row_count": counted.ignored_row_count if counted is not None else 0,
        "recorder_error": background_tasks.error,
        "recorder_pending": background_tasks.pending_count,
        "source_error": server.error if server is not None else "",
        "heartbeat_error": heartbeats.error if heartbeats is not None else "",
        "action": action.value if action is not None else "RUN",
    }
