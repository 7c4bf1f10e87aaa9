"""Small state files, replaced whole and checksummed.

A crash leaves the old content or the new one. A file that was changed in another way is refused as
a whole. Form: `{"crc32c": "89abcdef", "state": {...}}`, the checksum over the state's bytes.
"""

from __future__ import annotations

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
