"""State files that penstock shares with Ignite's utility, byte for byte."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.host.files import REAL_FILES, FileMissing, Files
from penstock.host.state_file import StateFile
from penstock.host.state_of_log import StateOfLog, StateOfOtherLog
from penstock.model import LOAD_AGAIN, PenstockError
from penstock.ports.direct import LogPlace

STATE = "state"
PLACE_FILE = "cdc-wal-state.bin"
MODE_FILE = "cdc-mode.bin"
READER_FILE = "penstock-log.json"
_PLACE = struct.Struct(">qii")
_NODE, _UTILITY = b"IGNITE_NODE_ACTIVE", b"CDC_UTILITY_ACTIVE"
# Output of java.io.ObjectOutputStream for a constant of CdcMode, without the constant's name.
_MODE_HEAD = (
    b"\xac\xed\x00\x05~r\x00&org.apache.ignite.internal.cdc.CdcMode\x00\x00\x00\x00\x00\x00\x00\x00"
    b"\x12\x00\x00xr\x00\x0ejava.lang.Enum\x00\x00\x00\x00\x00\x00\x00\x00\x12\x00\x00xpt\x00\x12"
)


class CdcStateBroken(PenstockError):
    """A file of the state was not written by Ignite's utility or penstock. fields: path."""

    code = "IG51"
    retry = "operator"


class DirectoryOfOtherLog(StateOfOtherLog):
    """A node's segments are not those that were read before. fields: place, expected, actual.

    The node's disk was replaced, or another change log has read the directory since.
    """

    code = "IG87"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Change log into which a node's segments are read. log_id: its id."""

    log_id: str


class CdcState:
    """Folder `state` of a node's CDC directory.

    The place and the active reader are in Ignite's files. What consumers were told is in
    penstock's files: Java's are neither read nor written.
    """

    def __init__(self, directory: Path, files: Files = REAL_FILES) -> None:
        """Store the directory with the segments. Nothing is read yet."""
        self._segments = directory
        self._directory = directory / STATE
        self._files = files
        self._reader = StateOfLog(
            StateFile(
                self._directory / READER_FILE,
                Reader,
                name="reader of a node",
                files=files,
            ),
            hint="Another pipeline has read the node since, and removed segments: let one pipeline "
            f"read it, and {LOAD_AGAIN}",
            error=DirectoryOfOtherLog,
        )

    def make(self) -> None:
        """Create the folder."""
        self._files.make_directory(self._directory)

    def load_place(self) -> LogPlace | None:
        """Return the saved place. Like Ignite, treats a file that is shorter than a place as
        missing.
        """
        data = self._read(PLACE_FILE)
        if data is None or len(data) < _PLACE.size:
            return None
        return LogPlace(*_PLACE.unpack_from(data))

    def save_place(self, place: LogPlace) -> None:
        """Replace the saved place, durably."""
        self._replace(PLACE_FILE, _PLACE.pack(*place))

    def drop_place(self) -> None:
        """Delete the saved place, durably: reading starts at the first segment."""
        with suppress(FileMissing):
            self._files.unlink(self._directory / PLACE_FILE)
            self._files.fsync_directory(self._directory)

    def claim(self, log_id: str) -> None:
        """Note, durably, that a change log begins with this directory."""
        if self._reader_log() != log_id:
            self._reader.save(Reader(log_id=log_id))

    def _reader_log(self) -> str:
        """Return the id of the log that was noted last; empty if none was."""
        found = self._reader.file.load()
        return "" if found is None else found.log_id

    def is_claimed(self, log_id: str) -> bool:
        """Return whether a change log has begun with this directory, and none since.

        Returns False if no log has. Raises DirectoryOfOtherLog if another log has since.
        """
        return self._reader.load(log_id) is not None

    def check_claimed(self, log_id: str) -> None:
        """Raise DirectoryOfOtherLog unless the continuing change log began with this directory.

        The log's segment numbers say nothing about the present segments.
        """
        if not self.is_claimed(log_id):
            raise DirectoryOfOtherLog(
                f"{self._segments} was never read into change log {log_id}, which goes on with it: "
                "the node's disk was replaced",
                hint="The node numbers its segments from 0 again, and none of them was removed. "
                f"Put the old directory back, or {LOAD_AGAIN}",
                place=str(self._segments),
                expected=log_id,
                actual="",
            )

    def check_read(self, segments: Sequence[Path]) -> None:
        """Refuse to continue if a segment written after the saved place was read before it.

        Raises DirectoryOfOtherLog.
        """
        path = self._directory / PLACE_FILE
        saved_ns = path.stat().st_mtime_ns
        for segment in segments:
            if segment.stat().st_mtime_ns > saved_ns:
                raise DirectoryOfOtherLog(
                    f"the saved state in {path} is past {segment.name}, which was written after "
                    "it: the node's segment numbers start again",
                    hint="The node's disk was replaced, or its files were deleted. To get all "
                    f"that is there, remove the saved state: rm {path}",
                    place=str(path),
                    expected=saved_ns,
                    actual=segment.stat().st_mtime_ns,
                )

    def is_active(self) -> bool:
        """Return whether the utility delivers events, not the node itself. Raises
        CdcStateBroken.
        """
        data = self._read(MODE_FILE)
        if data in (None, _MODE_HEAD + _NODE):
            return False
        if data == _MODE_HEAD + _UTILITY:
            return True
        path = self._directory / MODE_FILE
        raise CdcStateBroken(
            f"{path} names no mode of Ignite's utility",
            hint="Put it back from a copy. Without it the node counts as active until a segment "
            "says that it has stopped: events before that would not come.",
            path=str(path),
        )

    def save_active(self) -> None:
        """Note that the utility delivers events from now on."""
        self._replace(MODE_FILE, _MODE_HEAD + _UTILITY)

    def load_told(self, name: str) -> dict[str, Any]:
        """Return the stamps of the facts that consumers know. Raises CdcStateBroken."""
        return self._told_file(name).load() or {}

    def save_told(self, name: str, told: dict[str, Any]) -> None:
        """Replace the stamps of the facts that consumers know, durably."""
        self._told_file(name).save(told)

    def _told_file(self, name: str) -> StateFile[dict[str, Any]]:
        path = self._directory / f"penstock-{name}.json"
        return StateFile(
            path,
            dict[str, Any],
            hint=f"Remove it: rm {path}. The consumer is told of everything once more.",
            error=CdcStateBroken,
            files=self._files,
        )

    def _read(self, name: str) -> bytes | None:
        try:
            return self._files.read_whole(self._directory / name)
        except FileMissing:
            return None

    def _replace(self, name: str, data: bytes) -> None:
        self._files.replace(self._directory / name, data)
