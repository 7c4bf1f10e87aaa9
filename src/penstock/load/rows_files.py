"""Folders for rows that wait in files of this machine, one for each batch that is staged.

What they hold can be had again from the change log at any time: nothing is synced, and whatever a
killed process left is removed when the next one begins. Not here: what stands in the files
(`Engine.write_rows`).
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import structlog

logger = structlog.get_logger(__name__)


class RowsFiles:
    """The folders of one stager: one per place, like the sets of merge tables."""

    def __init__(self, parent: Path | None) -> None:
        """parent: made when it is needed; None: rows never wait in files."""
        self._parent = parent
        self._folders: dict[int, Path] = {}

    def begin(self, place: int) -> Path | None:
        """A new, empty folder for this place; what the batch before had there is removed.

        None where rows never wait in files, and while none can be made: the target may have room.
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
        """Remove all."""
        for place in list(self._folders):
            self._remove(place)

    def _remove(self, place: int) -> None:
        folder = self._folders.pop(place, None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove what an earlier process left; nobody else may stage into this folder."""
    shutil.rmtree(parent, ignore_errors=True)
