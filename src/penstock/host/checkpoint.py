"""Small state files, replaced whole and checksummed.

A crash leaves the old content or the new one. A file that was changed in another way is refused as
a whole. Form: `{"crc32c": "89abcdef", "state": {...}}`, the checksum over the state's bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import google_crc32c
import msgspec

from penstock.host.files import REAL_FILES, FileMissing, Files
from penstock.model import PenstockError

_State = TypeVar("_State")


class CheckpointCorrupt(PenstockError):
    """A state file does not hold the bytes that were written to it. fields: path."""

    code = "LG11"
    retry = "operator"


class _Envelope(msgspec.Struct):
    crc32c: str
    state: msgspec.Raw


def save(path: Path, state: Any, files: Files = REAL_FILES) -> None:
    """Write a dataclass or msgspec Struct, durably, in one step. Raises DiskFull, FileFailed."""
    raw = msgspec.json.encode(state)
    envelope = _Envelope(crc32c=_checksum(raw), state=msgspec.Raw(raw))
    files.replace(path, msgspec.json.encode(envelope) + b"\n")


def load(path: Path, kind: type[_State], files: Files = REAL_FILES) -> _State | None:
    """Read a state that save() wrote; return None if there is no file. Raises CheckpointCorrupt."""
    try:
        data = files.read_whole(path)
    except FileMissing:
        return None
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        actual = _checksum(bytes(envelope.state))
        if actual != envelope.crc32c:
            raise corrupt(path, f"checksum {actual}, expected {envelope.crc32c}")
        return msgspec.json.decode(envelope.state, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise corrupt(path, str(error)) from error


def _checksum(raw: bytes) -> str:
    return f"{google_crc32c.value(raw):08x}"


def corrupt(path: Path, why: str) -> CheckpointCorrupt:
    """Return the error for a damaged state file."""
    return CheckpointCorrupt(
        f"state file {path} is damaged: {why}",
        hint="Run penstock log check; with whole segments beside it, move the file away and start "
        "again: the state is then read from the segments.",
        path=str(path),
    )


@dataclass(frozen=True, slots=True)
class _Signature:
    """Facts that show whether a state file was replaced."""

    inode: int = 0
    changed_ns: int = 0


class Follower:
    """State file that another process replaces. value: its content at the last look."""

    def __init__(self, path: Path, empty: Any, files: Files) -> None:
        """Begin with `empty`: the value for a missing file, of the kind that the file holds."""
        self.value = empty
        self._empty = empty
        self._path = path
        self._files = files
        self._seen = _Signature()

    def look(self) -> bool:
        """Read the file again if it was replaced; return whether it was."""
        try:
            found = self._path.stat()
            now = _Signature(found.st_ino, found.st_mtime_ns)
        except FileNotFoundError:
            now = _Signature()
        if now == self._seen:
            return False
        self.value = load(self._path, type(self._empty), self._files) or self._empty
        self._seen = now
        return True
