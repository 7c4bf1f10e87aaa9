"""Keep a pipeline's resume state in a binlog, beside its log.

The log holds positions as numbers; a file's name, the server, its GTIDs and the transactions that
are prepared there are kept here. There are two files. One is durable and may lag behind the log by
a second: from it the stream is read again, and what the log has is dropped. The other is written
before each flush without waiting for the disk, and is exact after all but a crash of the machine.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.codec.mysql.binlog_position import BINLOG_OFFSET_BITS, BinlogPosition
from penstock.engines.mysql.source.assemble import StreamMark
from penstock.engines.mysql.source.unsupported import LOAD_AGAIN
from penstock.host.clock import Clock
from penstock.host.files import FileMissing, Files
from penstock.host.state_file import StateFiles
from penstock.model import PenstockError

RESUME_STATE_FILE = "binlog.json"
EXACT_FILE = "binlog_exact.json"
SAVE_INTERVAL_S = 1.0


class ResumeStateLost(PenstockError):
    """The resume state beside the log is missing, or later than the log."""

    code = "MY89"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Files from this position on: base name, and the difference of the log's numbers to theirs."""

    since: int
    base: str
    shift: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeState:
    """The durable file. server: the identity's name. log_identity: of log_file."""

    mark: StreamMark
    server: str
    log_file: str = ""
    log_identity: str = ""
    epochs: tuple[Epoch, ...] = ()


def physical(mark: StreamMark) -> BinlogPosition:
    """Return a mark's place under the name and offset that its server uses."""
    return BinlogPosition(mark.position - (mark.shift << BINLOG_OFFSET_BITS), mark.base)


def position_text(epochs: tuple[Epoch, ...], position: int) -> str:
    """Return a position of the log as the server of that time names it."""
    if not position:
        return ""
    epoch = next((one for one in reversed(epochs) if one.since <= position), None)
    if epoch is None:
        epoch = epochs[0] if epochs else Epoch(since=0, base="binlog", shift=0)
    return str(BinlogPosition(position - (epoch.shift << BINLOG_OFFSET_BITS), epoch.base))


class ResumeStates:
    """Both files. Used by the extractor's thread."""

    def __init__(self, state: StateFiles, run: Path, files: Files, clock: Clock) -> None:
        """Read the files that exist."""
        self._state = state
        self._exact_path = run / EXACT_FILE
        self._files = files
        self._clock = clock
        self._saved_s = float("-inf")
        self.last: ResumeState | None = state.load(RESUME_STATE_FILE, ResumeState)
        self._exact = self._read_exact()

    def at(self, position: int) -> StreamMark:
        """Return the mark to continue from: exactly at position, or the nearest before it.

        Raises ResumeStateLost.
        """
        for mark in self._exact:
            if mark.position == position:
                return mark
        if self.last is None or self.last.mark.position > position:
            raise ResumeStateLost(
                f"the change log ends at {position}, and the state beside it ({RESUME_STATE_FILE}) "
                "is of another time",
                hint="Restore the whole directory from one copy. " + LOAD_AGAIN,
            )
        return self.last.mark

    def text(self, position: int) -> str:
        """Return a position as the server names it."""
        return position_text(self.last.epochs if self.last is not None else (), position)

    def before_flush(self, mark: StreamMark) -> None:
        """Note that the log is about to be durable up to here."""
        if any(one == mark for one in self._exact):
            return
        self._exact = (*self._exact[-1:], mark)
        raw = msgspec.json.encode(list(self._exact))
        temporary = self._exact_path.with_name(self._exact_path.name + ".new")
        temporary.write_bytes(b"%08x" % zlib.crc32(raw) + raw)
        self._files.rename(temporary, self._exact_path)

    def _read_exact(self) -> tuple[StreamMark, ...]:
        """Return the marks of the exact file; none if the machine crashed while it was written."""
        try:
            data = self._files.read_whole(self._exact_path)
        except FileMissing:
            return ()
        raw = data[8:]
        if data[:8] != b"%08x" % zlib.crc32(raw):
            return ()
        return tuple(msgspec.json.decode(raw, type=list[StreamMark]))

    def is_due(self) -> bool:
        """Return whether the durable file is old enough to be written again."""
        return self._clock.monotonic_s() - self._saved_s >= SAVE_INTERVAL_S

    def save(self, mark: StreamMark, server: str, identity: tuple[str, str] = ("", "")) -> None:
        """Replace the durable file. identity: a binlog file's name and its identity."""
        epochs = self.last.epochs if self.last is not None else ()
        if not epochs or (epochs[-1].base, epochs[-1].shift) != (mark.base, mark.shift):
            since = (mark.position >> BINLOG_OFFSET_BITS) << BINLOG_OFFSET_BITS
            epochs = (
                *epochs,
                Epoch(since=since if epochs else 0, base=mark.base, shift=mark.shift),
            )
        self._put(
            ResumeState(
                mark=mark,
                server=server,
                log_file=identity[0],
                log_identity=identity[1],
                epochs=epochs,
            )
        )

    def _put(self, resume_state: ResumeState) -> None:
        self._state.save(RESUME_STATE_FILE, resume_state)
        self.last = resume_state
        self._saved_s = self._clock.monotonic_s()
