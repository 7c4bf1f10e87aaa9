"""Waiting until a file is written to, without polling it.

If the system has inotify, it watches the file, or its directory while the file is missing.
On other systems a wait ends after some milliseconds, so that the caller looks for itself.
"""

from __future__ import annotations

import ctypes
import functools
import os
import select
import struct
import sys
import time
from pathlib import Path

_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_MODIFY, _MOVED_TO, _CREATE, _IGNORED = 0x2, 0x80, 0x100, 0x8000  # inotify(7)
_READ_BYTES = 4096
NONE = -1  # there is no watch
BLIND_WAIT_S = 0.02


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


class FileWatch:
    """Watch that wakes its one thread when any process writes to a file."""

    def __init__(self, path: Path) -> None:
        """Keep the path; nothing is opened before the first wait."""
        self._path = path
        self._descriptor = -1
        self._file = self._directory = NONE
        self._poll = select.poll()

    def wait(self, timeout_s: float) -> None:
        """Return when the file was written to since the last call, or after this time.

        If the file is missing, returns when its directory gets an entry. Returns at once when
        watching begins, because earlier writes are not reported.
        """
        if self._file == NONE:
            self._begin()
            if self._file != NONE:
                return
        if self._file == self._directory == NONE:
            time.sleep(min(timeout_s, BLIND_WAIT_S))
        elif self._poll.poll(timeout_s * 1000):
            self._take(os.read(self._descriptor, _READ_BYTES))

    def _begin(self) -> None:
        """Watch the file, or its directory while the file is missing, if that can be done."""
        if sys.platform != "linux":
            return
        libc = _libc()
        if self._descriptor < 0:
            self._descriptor = libc.inotify_init1(os.O_CLOEXEC)
            if self._descriptor < 0:
                return
            self._poll.register(self._descriptor, select.POLLIN)

        def add_watch(path: Path, events: int) -> int:
            return int(libc.inotify_add_watch(self._descriptor, os.fsencode(path), events))

        self._file = add_watch(self._path, _MODIFY)
        if self._file == NONE and self._directory == NONE:
            self._directory = add_watch(self._path.parent, _CREATE | _MOVED_TO)
            self._file = add_watch(self._path, _MODIFY)  # it may have been created in between
        if self._file != NONE and self._directory != NONE:
            libc.inotify_rm_watch(self._descriptor, self._directory)
            self._directory = NONE

    def _take(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, at)
            if mask & _IGNORED and watch == self._file:  # removed: another file may have its name
                self._file = NONE
            if mask & _IGNORED and watch == self._directory:
                self._directory = NONE
            at += _EVENT.size + length

    def close(self) -> None:
        """Stop watching; wait() begins again."""
        if self._descriptor >= 0:
            self._poll.unregister(self._descriptor)
            os.close(self._descriptor)
            self._descriptor, self._file, self._directory = -1, NONE, NONE
