"""What becomes of applied segments: removed or moved at once, or kept for a while."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES, Files
from penstock.log.closing import Place
from penstock.log.keeping import SegmentKeeper
from penstock.log.layout import SegmentFile, list_segments
from penstock.model.keeping import Keeping


class AppliedFiles:
    """The segments that the loader has applied. Used by its thread alone.

    `needed`, in each method: the last segment that is applied to every table.
    """

    def __init__(
        self,
        directory: Path,
        extension: str,
        *,
        removes: bool,
        done_directory: Path | None,
        keeping: Keeping,
        clock: Clock = REAL_CLOCK,
        files: Files = REAL_FILES,
    ) -> None:
        """removes, done_directory, keeping: see `LoaderOptions`."""
        self._directory = directory
        self._extension = extension
        self._removes = removes
        self._done_directory = done_directory
        self._keeper = SegmentKeeper(
            Place(directory=directory, extension=extension, files=files, clock=clock), keeping
        )
        self._files = files

    def dispose(self, files: Sequence[SegmentFile], needed: int) -> None:
        """Remove or move files that are applied and committed, to every table."""
        for file in files:
            if file.number > needed:
                continue
            if self._removes:
                self._files.unlink(file.path)
            elif self._done_directory is not None:
                self._files.make_directory(self._done_directory)
                self._files.rename(file.path, self._done_directory / file.path.name)

    def tidy(self, needed: int) -> None:
        """Remove or move segments that a table with a table sync was the last to need."""
        if self._removes or self._done_directory is not None:
            self.dispose(list_segments(self._directory, self._extension, self._files), needed)

    def remove_outlived(self, needed: int) -> None:
        """Now and then: remove those that have been kept for long enough."""
        if self._done_directory is None:
            self._keeper.remove_outlived(needed)
