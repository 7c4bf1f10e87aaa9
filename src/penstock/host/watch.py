"""Waiting until a file is written to, without looking again and again.

By inotify, where the system has it. Elsewhere, and for a file that is not there yet, a wait ends
after some milliseconds, so that whoever waits looks for himself.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import time
from pathlib import Path

_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_MODIFY, _IGNORED = 0x2, 0x8000  # inotify(7)
_READ_BYTES = 4096
BLIND_WAIT_S = 0.02


class FileWatch:
    """Wakes its one thread when a file is written to, by whichever process."""

    def __init__(self, path: Path) -> None:
        """Nothing is opened before the first wait."""
        self._path = path
        self._descriptor = -1
        self._is_watching = False
        self._poll = select.poll()

    def wait(self, timeout_s: float) -> None:
        """Return when the file was written to since the last call, or after this time."""
        if not self._is_watching and not self._begin():
            time.sleep(min(timeout_s, BLIND_WAIT_S))
            return
        if self._poll.poll(timeout_s * 1000):
            self._take(os.read(self._descriptor, _READ_BYTES))

    def _begin(self) -> bool:
        """Watch the file, from now on; False where that cannot be done."""
        if sys.platform != "linux":
            return False
        libc = ctypes.CDLL(None, use_errno=True)
        if self._descriptor < 0:
            self._descriptor = libc.inotify_init1(os.O_CLOEXEC)
            if self._descriptor < 0:
                return False
            self._poll.register(self._descriptor, select.POLLIN)
        added = libc.inotify_add_watch(self._descriptor, os.fsencode(self._path), _MODIFY)
        self._is_watching = added >= 0
        return self._is_watching

    def _take(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            _, mask, _, length = _EVENT.unpack_from(data, at)
            if mask & _IGNORED:  # the file was removed: another may have its name by now
                self._is_watching = False
            at += _EVENT.size + length

    def close(self) -> None:
        """Stop watching; wait() begins again."""
        if self._descriptor >= 0:
            self._poll.unregister(self._descriptor)
            os.close(self._descriptor)
            self._descriptor, self._is_watching = -1, False
