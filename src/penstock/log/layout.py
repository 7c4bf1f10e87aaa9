"""Files of a log's directory beside the contents of segments: names, the log's state, its mark.

Names and numbers say where a pipeline keeps its files, and which segments exist. To read a segment
see `segment.py`, for the whole log `reader.py`.

`DURABLE` is the durable end of the open segment: the writer notes it after each sync, followers
read it. A flush point that can be read is not durable yet: its bytes may still be on their way to
the disk. So after every fdatasync the writer notes the segment and the byte up to which it is
durable in this small file. It is never synced: after a crash it says at most what was true before.
A reader that does not find it reads closed segments.

`LOG.json` is the log's own small state: facts that must be known even if no segment is left. It is
written before a segment gets its final name, so a consumer that removes the file at once cannot
make the log forget its end. If segments and state disagree, the newer one is right; a missing state
is made again from the segments.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from penstock.codec.ckt import FORMAT_VERSION, format_unknown, place, plain
from penstock.host.files import (
    REAL_FILES,
    TEMPORARY_SUFFIX,
    AppendFile,
    FileMissing,
    Files,
    ReadFile,
)
from penstock.host.state_file import StateFile
from penstock.model import LOAD_AGAIN, FlushPoint, PenstockError
from penstock.model.position import POSITION_BYTES, to_bytes, to_ordinal

DURABLE_NAME = "DURABLE"
_MAGIC = b"CKTd"
_BODY = struct.Struct(f"<QQQQq16s{POSITION_BYTES}s")
_HEAD = struct.Struct("<4sI")  # magic, CRC-32 of the body
_SIZE = _HEAD.size + _BODY.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """Durable part of the open segment: everything before byte size_bytes.

    Attributes:
        number: number of the segment.
        file_id: file id of the segment.
        size_bytes: first byte that is not durable.
        end: the flush point that ends there.
    """

    number: int
    file_id: str
    size_bytes: int
    end: FlushPoint


class DurableMark:
    """Writer's side of the file."""

    def __init__(self, directory: Path, files: Files) -> None:
        """Open nothing before the first note."""
        self._path = directory / DURABLE_NAME
        self._files = files
        self._file: AppendFile | None = None

    def _open(self) -> AppendFile:
        if self._file is None:
            there = self._files.exists(self._path)
            self._file = (self._files.open_append if there else self._files.create)(self._path)
            if self._file.size_bytes < _SIZE:
                self._file.append([bytes(_SIZE - self._file.size_bytes)])
        return self._file

    def tell(self, durable: Durable) -> None:
        """Replace the contents of the file; nothing is synced. Raises FileFailed."""
        end = durable.end
        body = _BODY.pack(
            durable.number,
            durable.size_bytes,
            end.gsn,
            end.trx,
            end.commit_time_us,
            UUID(durable.file_id).bytes,
            to_bytes(end.position),
        )
        self._open().overwrite(0, _HEAD.pack(_MAGIC, zlib.crc32(body)) + body)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class DurableReader:
    """Reader's side: the file stays open, so a look costs one read. Used by one thread."""

    def __init__(self, directory: Path, files: Files = REAL_FILES) -> None:
        """Open nothing before the first look."""
        self._path = directory / DURABLE_NAME
        self._files = files
        self._file: ReadFile | None = None

    def read(self) -> Durable | None:
        """Return the writer's last note; None if there is none, or it is being written."""
        if self._file is None:
            try:
                self._file = self._files.open_read(self._path)
            except FileMissing:
                return None
        return _parse(self._file.read(0, _SIZE))

    def close(self) -> None:
        """Close the file; read() opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_durable(directory: Path, files: Files = REAL_FILES) -> Durable | None:
    """Return the writer's last note with a single look; see DurableReader."""
    reader = DurableReader(directory, files)
    try:
        return reader.read()
    finally:
        reader.close()


def _parse(data: bytes) -> Durable | None:
    if len(data) != _SIZE:
        return None
    magic, checksum = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if magic != _MAGIC or zlib.crc32(body) != checksum:
        return None
    number, size, gsn, trx, time_us, file_id, position = _BODY.unpack(body)
    return Durable(
        number=number,
        file_id=str(UUID(bytes=file_id)),
        size_bytes=size,
        end=FlushPoint(position=to_ordinal(position), gsn=gsn, trx=trx, commit_time_us=time_us),
    )


EXTENSION_DEFAULT = "ckt"
OPEN_SUFFIX = "_"
LOCK_NAME = "LOCK"
STATE_NAME = "LOG.json"
DONE_NAME = "CHANGE.DONE"
_NUMBER = re.compile(r"(0|[1-9][0-9]{0,17})\Z")
_EXTENSION = re.compile(r"[A-Za-z0-9]{1,16}\Z")


class SegmentMissing(PenstockError):
    """The numbers of the segments have a gap: changes are lost. Fields: after, next."""

    code = "LG03"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SegmentFile:
    """One segment by name; closed ones never change.

    Attributes:
        durable: how far an open segment is read.
    """

    number: int
    path: Path
    is_open: bool = False
    durable: Durable | None = field(default=None, compare=False)


def segment_name(number: int, extension: str = EXTENSION_DEFAULT) -> str:
    """Return the name of a closed segment: `7.ckt`."""
    return f"{number}.{extension}"


def open_name(number: int, extension: str = EXTENSION_DEFAULT) -> str:
    """Return the name of a segment while it is being written: `7.ckt_`."""
    return segment_name(number, extension) + OPEN_SUFFIX


def closed_path(path: Path) -> Path:
    """Return the final name of an open segment; a closed one already has it."""
    return path.with_name(path.name.removesuffix(OPEN_SUFFIX))


def checked_extension(extension: str) -> str:
    """Return the extension; raises ValueError if it could be taken for something else."""
    if not _EXTENSION.match(extension) or extension in ("tmp", "json"):
        raise ValueError(f"not a usable file extension: {extension!r}")
    return extension


def parse_name(name: str, extension: str = EXTENSION_DEFAULT) -> tuple[int, bool] | None:
    """Return number and is_open of a segment's name; None for any other name (such as `07.ckt`)."""
    stem, dot, ending = name.partition(".")
    if not dot or not _NUMBER.match(stem) or ending not in (extension, extension + OPEN_SUFFIX):
        return None
    return int(stem), ending != extension


def _segment_files(directory: Path, extension: str, names: Iterable[str]) -> list[SegmentFile]:
    parsed = ((name, parse_name(name, extension)) for name in names)
    return sorted(
        SegmentFile(number=found[0], path=directory / name, is_open=found[1])
        for name, found in parsed
        if found
    )


def list_segments(
    directory: Path, extension: str = EXTENSION_DEFAULT, files: Files = REAL_FILES
) -> list[SegmentFile]:
    """Return closed segments in numeric order; empty if the directory does not exist yet."""
    return [file for file in _list_files(directory, extension, files) if not file.is_open]


def list_open_segments(
    directory: Path, extension: str = EXTENSION_DEFAULT, files: Files = REAL_FILES
) -> list[SegmentFile]:
    """Return segments still named `N.ckt_`: at most one, except after a crash."""
    return [file for file in _list_files(directory, extension, files) if file.is_open]


def _list_files(directory: Path, extension: str, files: Files) -> list[SegmentFile]:
    try:
        names = files.listdir(directory)
    except FileMissing:
        return []
    return _segment_files(directory, extension, names)


def list_temporary(directory: Path, files: Files = REAL_FILES) -> list[Path]:
    """Return left-overs of files that were being replaced when the process ended."""
    return sorted(
        directory / name for name in files.listdir(directory) if name.endswith(TEMPORARY_SUFFIX)
    )


def next_segments(
    directory: Path,
    *,
    after: int,
    count_max: int,
    extension: str = EXTENSION_DEFAULT,
    files: Files = REAL_FILES,
) -> list[SegmentFile]:
    """Return the closed segments after + 1, after + 2, ..., at most `count_max`.

    Args:
        directory: the log.
        after: the last one already applied; -1 for none.
        count_max: maximum number of segments.
        extension: of segments.
        files: the disk.

    Raises:
        SegmentMissing: after + 1 is missing but a later one exists, or there is a gap among the
            returned ones.
    """
    found = _after(directory, after, extension, files)
    if _first_hole(after, found[:count_max]) is not None:
        # A listing takes time, and a rename meanwhile can hide a name. List again.
        found = _after(directory, after, extension, files)
    chosen = found[:count_max]
    hole = _first_hole(after, chosen)
    if hole is not None:
        raise missing(directory, *hole, extension=extension)
    return chosen


def _after(directory: Path, after: int, extension: str, files: Files) -> list[SegmentFile]:
    return [file for file in list_segments(directory, extension, files) if file.number > after]


def _first_hole(after: int, found: Sequence[SegmentFile]) -> tuple[int, int] | None:
    for expected, file in enumerate(found, after + 1):
        if file.number != expected:
            return expected - 1, file.number
    return None


def missing(directory: Path, last: int, following: int, *, extension: str) -> SegmentMissing:
    """Return the error for a gap between segments `last` and `following` (last -1: from the
    start).
    """
    return SegmentMissing(
        f"found missed segments in {directory}: {segment_name(last + 1, extension)} is not there "
        f"but {segment_name(following, extension)} is (last segment {last}, next {following})",
        hint=f"Put the missing files back (penstock log check names them), or {LOAD_AGAIN}",
        after=last,
        next=following,
    )


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
