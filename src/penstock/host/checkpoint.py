"""Functions over `StateFile`, for modules that have not moved to it yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from penstock.host.files import REAL_FILES, Files
from penstock.host.state_file import CheckpointCorrupt as CheckpointCorrupt
from penstock.host.state_file import StateFile

_State = TypeVar("_State")


def save(path: Path, state: Any, files: Files = REAL_FILES) -> None:
    """Write a dataclass or msgspec Struct, durably, in one step. Raises DiskFull, FileFailed."""
    StateFile(path, type(state), files=files).save(state)


def load(path: Path, kind: type[_State], files: Files = REAL_FILES) -> _State | None:
    """Read a state that save() wrote; return None if there is no file. Raises CheckpointCorrupt."""
    return StateFile(path, kind, files=files).load()
