"""File of lines to which transactions are appended durably; a repeated one is written once."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.host import faults
from penstock.model import PenstockError

faults.declare("flexcdc.lines.half", "flexcdc.lines.written")


class LineFileUnusable(PenstockError):
    """A plugin's file cannot be opened or written, or has lines that no plugin wrote."""

    code = "FX15"


class LineFile:
    """File that is open for appending. Used by one thread."""

    def __init__(
        self, path: Path, unit_of: Callable[[bytes], int | None] | None = None, *, section: str
    ) -> None:
        """Open the file, and cut off a line that a crash left unfinished.

        Raises LineFileUnusable.

        Args:
            path: the file.
            unit_of: returns the transaction of a line; None: that of the previous line. Without
                the function it is unknown, and a repeated transaction is written again.
            section: of the settings, for messages.
        """
        self._path = path
        self._section = section
        self._unit_of = unit_of
        try:
            is_new = not path.exists()
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise self._unusable(f"cannot be opened: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                raise self._unusable("is not a file")
            if is_new:
                _sync_directory(path.parent)
            # The last transaction of the file, with its lines: the next one may be the same.
            self._last = self._repair()
        except BaseException:
            self.close()
            raise

    def append(
        self, unit: int, lines: Sequence[bytes], *, same: Callable[[bytes], Any] = lambda line: line
    ) -> None:
        """Write a transaction's lines, without line ends, and wait until they are on disk.

        Lines of the first transaction that the file already ends with are left out. Raises
        LineFileUnusable.

        Args:
            unit: the transaction.
            lines: its lines.
            same: returns the part of a line that is equal in a repeated line.
        """
        (last, written), self._last = self._last, (None, [])
        if last == unit and [*map(same, written)] == [*map(same, lines[: len(written)])]:
            lines = lines[len(written) :]
        try:
            body = b"".join(line + b"\n" for line in lines)
            half = len(body) // 2
            self._write(body[:half])
            faults.point("flexcdc.lines.half")
            self._write(body[half:])
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._unusable(f"cannot be written: {error.strerror}") from error
        faults.point("flexcdc.lines.written")

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, body: bytes) -> None:
        view = memoryview(body)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def _repair(self) -> tuple[int | None, list[bytes]]:
        size = os.fstat(self._descriptor).st_size
        if not size:
            return None, []
        with mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ) as content:
            end = content.rfind(b"\n") + 1
            if end < size and content[end : end + 1] != b"{":
                raise self._unusable("ends with a line that is not JSON")
            found = self._last_lines(content, end)
        if end < size:
            os.ftruncate(self._descriptor, end)
            os.fsync(self._descriptor)
        return found

    def _last_lines(self, content: mmap.mmap, end: int) -> tuple[int | None, list[bytes]]:
        last: int | None = None
        lines: list[bytes] = []
        pending: list[bytes] = []  # lines that belong to the line before them
        while self._unit_of is not None and end > 0:
            start = content.rfind(b"\n", 0, end - 1) + 1
            line = content[start : end - 1]
            try:
                unit = self._unit_of(line)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise self._unusable("has lines that this plugin did not write") from error
            pending.append(line)
            end = start
            if unit is None:
                continue
            if last is not None and unit != last:
                break
            last = unit
            lines += pending
            pending = []
        return last, lines[::-1]

    def _unusable(self, said: str) -> LineFileUnusable:
        return LineFileUnusable(
            f"{self._path} {said}",
            hint=f"Make the place writable, or name another file: path = FILE below "
            f"[{self._section}]. Then start again: nothing is lost.",
            path=str(self._path),
        )


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
