"""State files that another process replaces, read again only when they were replaced."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.host import checkpoint
from penstock.host.files import Files


@dataclass(frozen=True, slots=True)
class _Signature:
    """What shows whether a state file was replaced."""

    inode: int = 0
    changed_ns: int = 0


class Follower:
    """A state file that another process replaces. value: what it held at the last look."""

    def __init__(self, path: Path, empty: Any, files: Files) -> None:
        """empty: the value for a missing file; of the kind that it holds."""
        self.value = empty
        self._empty = empty
        self._path = path
        self._files = files
        self._seen = _Signature()

    def look(self) -> bool:
        """Read it again if it was replaced; whether it was."""
        try:
            found = self._path.stat()
            now = _Signature(found.st_ino, found.st_mtime_ns)
        except FileNotFoundError:
            now = _Signature()
        if now == self._seen:
            return False
        self.value = checkpoint.load(self._path, type(self._empty), self._files) or self._empty
        self._seen = now
        return True
