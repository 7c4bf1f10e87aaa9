"""The log's own small state: facts that must be known even if no segment is left.

It is written before a segment gets its final name, so a consumer that removes the file at once
cannot make the log forget its end. If segments and state disagree, the newer one is right; a
missing state is made again from the segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from penstock.codec.ckt import FORMAT_VERSION, format_unknown, place, plain
from penstock.host.files import REAL_FILES, Files
from penstock.host.state_file import StateFile
from penstock.log.layout import DONE_NAME, STATE_NAME
from penstock.model import FlushPoint

_POINT = "end"  # key of the position in both files
_HINT = (
    "Run penstock log check; with whole segments beside it, move the file away and start again: "
    "the state is then read from the segments."
)


_State = TypeVar("_State")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """Content of `LOG.json`.

    Attributes:
        number_next: number of the first segment that is not closed.
        end: the newest durable flush point when this was written.
        last_file_id: file id of segment number_next - 1, empty before any.
        number_linked: consumers have their links to all segments up to this one; -1 before any.
    """

    log_id: str
    source: dict[str, str]
    number_next: int
    end: FlushPoint
    last_file_id: str = ""
    number_linked: int = -1
    format: int = FORMAT_VERSION


def load_state(directory: Path, files: Files = REAL_FILES) -> LogState | None:
    """Return the state of the log in this directory; None if there is none."""
    return _load(directory / STATE_NAME, LogState, files)


def save_state(directory: Path, state: LogState, files: Files = REAL_FILES) -> None:
    """Replace the state, durably."""
    _file(directory / STATE_NAME, files).save(plain(state, _POINT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Content of `CHANGE.DONE`: nothing follows after this segment and this point."""

    number_last: int
    end: FlushPoint


def load_done(directory: Path, files: Files = REAL_FILES) -> Done | None:
    """Return the end of the log; None while extraction continues."""
    return _load(directory / DONE_NAME, Done, files)


def save_done(directory: Path, done: Done, files: Files = REAL_FILES) -> None:
    """Record, durably, that the log is finished."""
    _file(directory / DONE_NAME, files).save(plain(done, _POINT))


def _file(path: Path, files: Files) -> StateFile[dict[str, Any]]:
    return StateFile(path, dict[str, Any], hint=_HINT, files=files)


def _load(path: Path, kind: type[_State], files: Files) -> _State | None:
    """Return what `save` wrote. Raises CheckpointCorrupt, FormatUnknown."""
    file = _file(path, files)
    found = file.load()
    if found is None:
        return None
    version = found.get("format", FORMAT_VERSION)
    if version != FORMAT_VERSION:
        raise format_unknown(version)
    try:
        return place(found, kind, _POINT)
    except (msgspec.MsgspecError, ValueError) as error:
        raise file.make_damaged(str(error)) from error
