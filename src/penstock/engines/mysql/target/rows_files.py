"""Local files in which rows, as events or as lines, wait until they are sent to the target.

Each staged batch has one folder. Its rows can be read again from the change log at any time, so
nothing is synced, and files that a killed process left are removed when the next one begins. A file
that has changed since it was written is refused.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from penstock.engines.mysql.target.row_events import EventTable
from penstock.ports.target import MergeSpec, StagedRows, StagingChanged

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsFile:
    """Rows in a file. events: table of events (deletes too); None for lines (only upserts)."""

    path: Path
    row_count: int
    size_bytes: int
    events: EventTable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile(StagedRows):
    """Rows, some of which wait in a file."""

    file: RowsFile

    @property
    def row_count(self) -> int:
        return self.in_table + self.file.row_count


def files_of(spec: MergeSpec) -> tuple[RowsFile, ...]:
    """Return the files in which rows of a merge table wait, in the order of their parts."""
    return tuple(part.file for part in spec.staged if isinstance(part, StagedFile))


class RowsFiles:
    """Folders of one stager: one per place, like the sets of merge tables."""

    def __init__(self, parent: Path | None) -> None:
        """Keep the parent folder, created when needed; None if rows never wait in files."""
        self._parent = parent
        self._folders: dict[int, Path] = {}

    def begin(self, place: int) -> Path | None:
        """Return a new, empty folder for this place; the previous batch's folder is removed.

        Returns None if rows never wait in files, or if no folder can be created: rows then go into
        merge tables.
        """
        self._remove(place)
        if self._parent is None:
            return None
        try:
            self._parent.mkdir(parents=True, exist_ok=True)
            self._folders[place] = Path(tempfile.mkdtemp(dir=self._parent))
        except OSError as error:
            logger.warning("rows cannot wait in files", path=str(self._parent), reason=str(error))
            return None
        return self._folders[place]

    def close(self) -> None:
        """Remove all folders."""
        for place in list(self._folders):
            self._remove(place)

    def _remove(self, place: int) -> None:
        folder = self._folders.pop(place, None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def pieces_of(file: RowsFile, *, size_bytes: int) -> Iterator[Iterator[bytes]]:
    """Read a file's bytes in pieces of at most this size.

    Raises StagingChanged if the file has changed since it was written, or cannot be read.
    """
    try:
        with file.path.open("rb") as opened:
            found = os.fstat(opened.fileno()).st_size
            if found != file.size_bytes:
                raise _file_changed(file, f"holds {found} bytes, {file.size_bytes} were written")
            yield iter(lambda: opened.read(size_bytes), b"")
    except OSError as error:
        raise _file_changed(file, f"cannot be read: {error.strerror}") from error


def _file_changed(file: RowsFile, what: str) -> StagingChanged:
    return StagingChanged(f"{file.path} {what}", hint="penstock stages the batch again.")
