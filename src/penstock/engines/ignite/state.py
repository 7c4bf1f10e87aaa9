"""The state files that Ignite's utility and ours share, byte for byte."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.host import checkpoint
from penstock.host.checkpoint import CheckpointCorrupt
from penstock.host.files import REAL_FILES, FileMissing, Files
from penstock.model import PenstockError
from penstock.ports.direct import LogPlace

STATE = "state"
PLACE_FILE = "cdc-wal-state.bin"
MODE_FILE = "cdc-mode.bin"
_PLACE = struct.Struct(">qii")
_NODE, _UTILITY = b"IGNITE_NODE_ACTIVE", b"CDC_UTILITY_ACTIVE"
# What java.io.ObjectOutputStream writes of a constant of CdcMode, but for the constant's name.
_MODE_HEAD = (
    b"\xac\xed\x00\x05~r\x00&org.apache.ignite.internal.cdc.CdcMode\x00\x00\x00\x00\x00\x00\x00\x00"
    b"\x12\x00\x00xr\x00\x0ejava.lang.Enum\x00\x00\x00\x00\x00\x00\x00\x00\x12\x00\x00xpt\x00\x12"
)


class CdcStateBroken(PenstockError):
    """A file of the state is not what Ignite's utility or penstock wrote. fields: path."""

    code = "IG51"
    retry = "operator"


class CdcState:
    """The folder `state` of a node's CDC directory.

    Where we are and who is active is in Ignite's files; what consumers were told, in ours: Java's
    are neither read nor written.
    """

    def __init__(self, directory: Path, files: Files = REAL_FILES) -> None:
        """directory: with the segments. Nothing is read yet."""
        self._directory = directory / STATE
        self._files = files

    def make(self) -> None:
        """Make the folder."""
        self._files.make_directory(self._directory)

    def load_place(self) -> LogPlace | None:
        """The saved place. A file that is shorter than a place counts as none, as for Ignite."""
        data = self._read(PLACE_FILE)
        if data is None or len(data) < _PLACE.size:
            return None
        return LogPlace(*_PLACE.unpack_from(data))

    def save_place(self, place: LogPlace) -> None:
        """Replace it, durably."""
        self._replace(PLACE_FILE, _PLACE.pack(*place))

    def drop_place(self) -> None:
        """Forget it, durably: what is there comes from its beginning."""
        with suppress(FileMissing):
            self._files.unlink(self._directory / PLACE_FILE)
            self._files.fsync_directory(self._directory)

    def is_active(self) -> bool:
        """Whether the utility gives events, not the node itself. Raises CdcStateBroken."""
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
        """The utility gives events from now on."""
        self._replace(MODE_FILE, _MODE_HEAD + _UTILITY)

    def load_told(self, name: str) -> dict[str, Any]:
        """See DirectLog. Raises CdcStateBroken."""
        path = self._directory / f"penstock-{name}.json"
        try:
            return checkpoint.load(path, dict[str, Any], self._files) or {}
        except CheckpointCorrupt as error:
            raise CdcStateBroken(
                f"{path} is damaged: {error.message}",
                hint=f"Remove it: rm {path}. The consumer is told of everything once more.",
                path=str(path),
            ) from error

    def save_told(self, name: str, told: dict[str, Any]) -> None:
        """See DirectLog."""
        checkpoint.save(self._directory / f"penstock-{name}.json", told, self._files)

    def _read(self, name: str) -> bytes | None:
        try:
            return self._files.read_whole(self._directory / name)
        except FileMissing:
            return None

    def _replace(self, name: str, data: bytes) -> None:
        self._files.replace(self._directory / name, data)
