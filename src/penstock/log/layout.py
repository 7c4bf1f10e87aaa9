"""Names and numbers of files: where a pipeline keeps its files, and which segments exist.

This module opens no file: see `segment.py` to read one, `reader.py` for the whole log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.host.files import REAL_FILES, TEMPORARY_SUFFIX, FileMissing, Files
from penstock.log.durable import Durable
from penstock.model import LOAD_AGAIN, PenstockError

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
