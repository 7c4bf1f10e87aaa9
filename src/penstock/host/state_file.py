"""Small state files: one JSON value each, replaced whole.

A crash leaves the old content or the new one. A file that was changed in another way is refused as
a whole. Form: `{"crc32c": "89abcdef", "state": {...}}`, the checksum over the state's bytes; or the
value alone. A `StatusFile` is one in which a process reports its progress to readers. Not here:
states that belong to one change log (`state_of_log.py`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import google_crc32c
import msgspec

from penstock.host.clock import REAL_CLOCK, Clock
from penstock.host.files import REAL_FILES, FileMissing, Files
from penstock.model import LOAD_AFRESH, PenstockError

State = TypeVar("State")


class CheckpointCorrupt(PenstockError):
    """A state file does not hold the bytes that were written to it. fields: path."""

    code = "LG11"
    retry = "operator"


class _Envelope(msgspec.Struct):
    crc32c: str
    state: msgspec.Raw


@dataclass(frozen=True, slots=True)
class StateFile(Generic[State]):
    """JSON file with one state.

    Attributes:
        path: The file.
        kind: Type of the state: a dataclass, a Struct, or what else msgspec decodes.
        name: The state in a few words, for messages.
        hint: How to continue if the state cannot be used; a sentence with the next command.
        error: Class to raise for a damaged file, if a package has a code of its own.
        has_checksum: The state is written with its checksum.
        is_durable: A saved state survives a crash of the machine.
        is_indented: The state is written in several lines, for people.
        is_report: The state is for display only: a damaged file counts as none.
    """

    path: Path
    kind: type[State]
    _: KW_ONLY
    name: str = "state file"
    hint: str = LOAD_AFRESH
    error: type[PenstockError] = CheckpointCorrupt
    has_checksum: bool = True
    is_durable: bool = True
    is_indented: bool = False
    is_report: bool = False
    files: Files = REAL_FILES

    def load(self) -> State | None:
        """Return the saved state; None if there is no file. Raises `error` if it is damaged."""
        try:
            data = self.files.read_whole(self.path)
        except FileMissing:
            return None
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            if self.is_report:
                return None
            raise self.make_damaged(str(error)) from error

    def _decode(self, data: bytes) -> State:
        if not self.has_checksum:
            return msgspec.json.decode(data, type=self.kind)
        envelope = msgspec.json.decode(data, type=_Envelope)
        actual = _checksum(bytes(envelope.state))
        if actual != envelope.crc32c:
            raise self.make_damaged(f"checksum {actual}, expected {envelope.crc32c}")
        return msgspec.json.decode(envelope.state, type=self.kind)

    def save(self, state: State) -> None:
        """Replace the file in one step; its folder exists. Raises DiskFull, FileFailed."""
        raw = msgspec.json.encode(state)
        if self.has_checksum:
            envelope = _Envelope(crc32c=_checksum(raw), state=msgspec.Raw(raw))
            raw = msgspec.json.encode(envelope)
        elif self.is_indented:
            raw = msgspec.json.format(raw, indent=1)
        self.files.replace(self.path, raw + b"\n", durable=self.is_durable)

    def remove(self) -> bool:
        """Remove the file, durably if it is written so; return whether there was one."""
        try:
            self.files.unlink(self.path)
        except FileMissing:
            return False
        if self.is_durable:
            self.files.fsync_directory(self.path.parent)
        return True

    def make_damaged(self, why: str) -> PenstockError:
        """Return the error for a damaged file."""
        return self.error(
            f"{self.name} {self.path} is damaged: {why}",
            hint=f"Put {self.path} back from a copy. Without one: {self.hint}",
            path=str(self.path),
        )


def report_file(path: Path, kind: type[State], files: Files = REAL_FILES) -> StateFile[State]:
    """Return a file for display: after a crash of the machine its old content is of no use."""
    return StateFile(path, kind, has_checksum=False, is_durable=False, is_report=True, files=files)


class StateFiles(Protocol):
    """Small files of a pipeline, by name, replaced whole and durably."""

    @abstractmethod
    def load(self, name: str, kind: type[State]) -> State | None:
        """Return what was saved under this name, or None. Raises CheckpointCorrupt."""
        ...

    @abstractmethod
    def save(self, name: str, state: Any) -> None:
        """Replace it, durably. Raises DiskFull, FileFailed."""
        ...


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
        self._file = StateFile(path, type(empty), files=files)
        self._seen = _Signature()

    def look(self) -> bool:
        """Read the file again if it was replaced; return whether it was."""
        try:
            found = self._file.path.stat()
            now = _Signature(found.st_ino, found.st_mtime_ns)
        except FileNotFoundError:
            now = _Signature()
        if now == self._seen:
            return False
        self.value = self._file.load() or self._empty
        self._seen = now
        return True


def _checksum(raw: bytes) -> str:
    return f"{google_crc32c.value(raw):08x}"


class StatusFile:
    """JSON file for display, replaced whole; readers never see half of it."""

    def __init__(
        self,
        path: Path,
        *,
        every_s: float = 1.0,
        files: Files = REAL_FILES,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Create the directory; the first `write` creates the file."""
        files.make_directory(path.parent)
        self._file: StateFile[Any] = report_file(path, dict, files)
        self._every_s = every_s
        self._clock = clock
        self._written_s: float | None = None

    def due(self) -> bool:
        """Return whether the last write was long enough ago."""
        now_s = self._clock.monotonic_s()
        return self._written_s is None or now_s - self._written_s >= self._every_s

    def write(self, facts: Mapping[str, Any]) -> None:
        """Replace the file."""
        self._written_s = self._clock.monotonic_s()
        self._file.save(facts)
