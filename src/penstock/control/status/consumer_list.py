"""State of a pipeline's consumers: from their files, the log, and for the load the target.

No consumer's process is asked: its saved state is true whether it runs or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from penstock.base.manifest import NAME as BASE
from penstock.consume.events import events_of
from penstock.consume.lock import LOCK_FILE
from penstock.consume.position import ConsumerState, ConsumerStateCorrupt, Position
from penstock.consume.report import bytes_before, status_path
from penstock.control.pipeline.consumers import log_place
from penstock.control.pipeline.display import human_seconds
from penstock.control.pipeline.log_facts import outstanding_commit_us, read_log_end
from penstock.control.pipeline.running import processes
from penstock.host.clock import REAL_CLOCK
from penstock.host.errors import ConnectFailed
from penstock.host.files import REAL_FILES, FileMissing
from penstock.host.process import holder_of, process_alive
from penstock.host.state_file import CheckpointCorrupt
from penstock.log import links
from penstock.log.layout import SegmentFile, list_segments
from penstock.log.segment import list_begun_segments, open_segment
from penstock.model.sections import TARGET_NAME
from penstock.model.words import count_words
from penstock.ports.config import Config
from penstock.ports.lag import LogEnd
from penstock.ports.progress import open_progress
from penstock.serve.slots import NAME as SERVE

NAME = "penstock consumers"


class ConsumerReport(msgspec.Struct, frozen=True, kw_only=True):
    """Last report of a consumer's process; see `penstock.consume.report`."""

    state: str = ""
    mode: str = "active"
    directory: str = ""
    pid: int = 0
    read: int | None = None
    commit_time_us: int = 0
    updated_us: int = 0
    metrics: dict[str, Any] = msgspec.field(default_factory=dict)
    own_metrics: dict[str, Any] = msgspec.field(default_factory=dict)
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLine:
    """Line about a consumer.

    Attributes:
        state: reading, waiting, paused, stopped, failed, disabled, ...
        pid: Id of its process, 0 without one.
        segment: Segment of the saved position.
        saved: gsn of the saved position.
        read: gsn of the last event emitted.
        lag_events: Number of changes from the saved position to the log's end; None if unknown.
        links: Number of its segments.
        link_bytes: Their size.
        held_bytes: Size of those that no other reader holds.
        error: The error that ended it.
        hint: The next command.
        is_configured: The pipeline file has it.
    """

    name: str
    state: str
    enabled: bool = True
    pid: int = 0
    segment: int | None = None
    saved: int | None = None
    read: int | None = None
    lag_events: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    links: int = 0
    link_bytes: int = 0
    held_bytes: int = 0
    size_bytes_max: int | None = None
    is_configured: bool = True
    is_paused: bool = False
    error: str = ""
    hint: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the object as `penstock consumers ls --json` prints it."""
        return {
            "consumer": self.name,
            "state": self.state,
            "enabled": self.enabled,
            "pid": self.pid,
            "segment": self.segment,
            "saved": self.saved,
            "read": self.read,
            "lag_events": self.lag_events,
            "lag_bytes": self.lag_bytes,
            "lag_seconds": self.lag_seconds,
            "links": self.links,
            "link_bytes": self.link_bytes,
            "held_bytes": self.held_bytes,
            "size_bytes_max": self.size_bytes_max,
            "configured": self.is_configured,
            "error": self.error,
            "hint": self.hint,
        }

    def line(self) -> str:
        """Return the object in one line, for people."""
        state = self.state if self.is_configured else f"{self.state}, not in the file"
        process = f" (pid {self.pid})" if self.pid else ""
        parts = [f"consumer {self.name}: {state}{process}"]
        if self.saved is None:
            parts.append("nothing saved yet")
        else:
            parts.append(f"saved up to gsn {self.saved}")
        if self.lag_events is not None:
            parts.append(f"{count_words(self.lag_events, 'event')} behind")
        if self.lag_events and self.lag_seconds is not None:
            parts.append(human_seconds(self.lag_seconds))
        return ", ".join(parts)


def consumer_lines(config: Config, *, with_target: bool = True) -> tuple[ConsumerLine, ...]:
    """Return every consumer of the file or the directory, sorted; first the load, as `target`.

    with_target: False asks no server, and leaves the load out.
    """
    end = read_log_end(config)
    known = links.registered_consumers(config.layout.consumers)
    names = sorted({*known, *config.consumers})
    lines = [_line(config, name, end, is_known=name in known) for name in names]
    if with_target and config.has_target and config.pipeline.mode.has_change:
        lines.insert(0, _target_line(config, end))
    return tuple(lines)


def read_report(config: Config, name: str) -> ConsumerReport:
    """Return the last report of its process; empty if there is none."""
    try:
        data = REAL_FILES.read_whole(status_path(config.layout.run, name))
        return msgspec.json.decode(data, type=ConsumerReport)
    except (FileMissing, msgspec.DecodeError):  # a crash of the machine may empty it
        return ConsumerReport()


def _line(config: Config, name: str, end: LogEnd, *, is_known: bool) -> ConsumerLine:
    ours = {BASE: config.has_base, SERVE: config.serve is not None}
    is_configured = name in config.consumers or ours.get(name, False)
    if not is_known:
        error = read_report(config, name).error or {}
        return ConsumerLine(
            name=name,
            state="not registered",
            enabled=False,
            error=str(error.get("error", "")),
            hint=str(error.get("hint", "")),
        )
    try:
        return _known_line(config, name, end, is_configured=is_configured)
    except (CheckpointCorrupt, ConsumerStateCorrupt) as error:
        return ConsumerLine(
            name=name,
            state="failed",
            is_configured=is_configured,
            error=error.message,
            hint=error.hint,
        )


def _known_line(config: Config, name: str, end: LogEnd, *, is_configured: bool) -> ConsumerLine:
    place = log_place(config)
    directory = place.consumers / name
    settings = links.load_consumer(directory) or links.Consumer()
    saved = ConsumerState(directory).load()
    report = read_report(config, name)
    pid = holder_of(directory / LOCK_FILE) or _program(report)
    held = list_segments(directory, place.extension)
    enabled = links.is_linking(directory)
    sizes = [_stat(file.path) for file in held]
    error = report.error if not pid else None
    return ConsumerLine(
        name=name,
        state=_state(name, settings, report, pid, enabled),
        enabled=enabled,
        pid=pid,
        segment=None if saved is None else saved.segment,
        saved=None if saved is None else saved.gsn,
        read=report.read,
        lag_events=None if saved is None else max(0, end.end.gsn - saved.gsn),
        lag_bytes=None if saved is None else _bytes_behind(config, held, saved),
        lag_seconds=None if saved is None else _seconds_behind(config, held, saved, end),
        links=len(held),
        link_bytes=sum(size for size, _ in sizes),
        held_bytes=sum(size for size, names in sizes if names == 1),
        size_bytes_max=settings.size_bytes_max,
        is_configured=is_configured,
        is_paused=settings.paused,
        error="" if error is None else str(error.get("error", "")),
        hint="" if error is None else str(error.get("hint", "")),
    )


def _state(
    name: str, settings: links.Consumer, report: ConsumerReport, pid: int, enabled: bool
) -> str:
    if settings.start:
        return "being registered"
    if settings.paused:
        return "paused"
    if pid and name == SERVE:
        return "running"
    if pid:
        return report.state if report.pid == pid and report.state else "starting"
    if report.state == "failed":
        return "failed"
    return "stopped" if enabled else "disabled"


def _program(report: ConsumerReport) -> int:
    """Return the process of a user's program that runs the consumer, or 0."""
    has_ended = report.state in ("", "stopped", "failed") or report.mode == "passive"
    return report.pid if not has_ended and process_alive(report.pid) else 0


def _stat(path: Path) -> tuple[int, int]:
    """Return a file's size and number of names; zeros if it does not exist."""
    with suppress(FileNotFoundError):
        found = path.stat()
        return found.st_size, found.st_nlink
    return 0, 0


def _behind(config: Config, held: Sequence[SegmentFile], saved: Position) -> list[SegmentFile]:
    """Return the segments that have something after a position: links, and the open segment."""
    opened = list_begun_segments(config.layout.log, log_place(config).extension)
    return sorted(file for file in (*held, *opened) if file.number >= saved.segment)


def _bytes_behind(config: Config, held: Sequence[SegmentFile], saved: Position) -> int:
    total = 0
    for file in _behind(config, held, saved):
        with suppress(FileMissing):  # closed, or removed, meanwhile
            if file.number > saved.segment:
                total += _stat(file.path)[0]
                continue
            with open_segment(file.path, extension=log_place(config).extension) as segment:
                total += max(0, segment.size_bytes - bytes_before(saved.gsn, segment))
    return total


def _seconds_behind(
    config: Config, held: Sequence[SegmentFile], saved: Position, end: LogEnd
) -> float | None:
    """Return the seconds since the commit of the first event after the saved position, or 0.0."""
    if end.end.gsn <= saved.gsn:
        return 0.0
    for file in _behind(config, held, saved):
        with (
            suppress(FileMissing),
            open_segment(file.path, extension=log_place(config).extension) as segment,
        ):
            for piece in events_of(
                segment, takes=lambda _: True, gsn_after=saved.gsn, keep_binary=True
            ):
                for event in piece.events:
                    committed_s: float = event.commit_time.timestamp()
                    return max(0.0, round(REAL_CLOCK.now_us() / 1e6 - committed_s, 3))
    return None  # a hole: the next event is missing


def _target_line(config: Config, end: LogEnd) -> ConsumerLine:
    """Return the load: its links are the names in `log/`, its state is the target's progress."""
    held = list_segments(config.layout.log, log_place(config).extension)
    sizes = [_stat(file.path) for file in held]
    pid = next((one.pid for one in processes(config) if one.name == "load"), 0)
    line = ConsumerLine(
        name=TARGET_NAME,
        state="running" if pid else "stopped",
        pid=pid,
        links=len(held),
        link_bytes=sum(size for size, _ in sizes),
        held_bytes=sum(size for size, names in sizes if names == 1),
    )
    try:
        with closing(open_progress(config.target.url, application_name=NAME)) as target:
            applied = target.read_applied()
    except ConnectFailed as error:
        return replace(line, error=error.message, hint=error.hint)
    waiting_us = outstanding_commit_us(config, applied)
    late = 0.0 if waiting_us is None else (REAL_CLOCK.now_us() - waiting_us) / 1e6
    behind = sum(_stat(file.path)[0] for file in held if file.number > applied.segment)
    return replace(
        line,
        segment=applied.segment,
        saved=applied.gsn,
        read=applied.gsn,
        lag_events=max(0, end.end.gsn - applied.gsn),
        lag_bytes=behind,
        lag_seconds=max(0.0, round(late, 3)),
    )
