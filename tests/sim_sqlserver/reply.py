"""An answer that is sent while it is made."""

from __future__ import annotations

import struct

from sim_sqlserver import replies
from sim_sqlserver.errors import SqlError
from sim_sqlserver.wire import PacketStream

FLUSH_BYTES = 65_536


class Reply:
    """Tokens of one answer; a DONE waits until it is known whether more follows."""

    def __init__(self, stream: PacketStream, *, is_procedure: bool) -> None:
        self._stream = stream
        self._is_procedure = is_procedure
        self._parts: list[bytes] = []
        self._size = 0
        self._done: tuple[int, int, int] | None = None
        self._left = b""
        self.has_error = False

    def add(self, data: bytes) -> None:
        """Add tokens."""
        self._settle(more=True)
        self._put(data)

    def add_done(self, status: int, command: int, rows: int) -> None:
        """Add the end of a statement."""
        self._settle(more=True)
        self._done = (status, command, rows)

    def error(self, error: SqlError) -> None:
        """Add an error."""
        self.has_error = True
        self.add(replies.message(error))

    def finish(self, *, status: int | None = None, tail: bytes = b"", end: int = 0) -> None:
        """Send the rest.

        Args:
            status: Return status of a procedure.
            tail: Tokens before the last DONE.
            end: Further flags of the last DONE.
        """
        if self._is_procedure:
            self._settle(more=True)
            if status is not None:
                self._put(replies.return_status(status))
            self._put(tail)
            flags = (replies.ERROR if self.has_error else 0) | end
            self._put(replies.make_done(flags, 0xE0, 0, token=replies.DONEPROC))
        else:
            if self._done is None:
                self._done = (0, 0, 0)
            flags, command, rows = self._done
            self._done = (flags | end, command, rows)
            self._put(tail)
            self._settle(more=False)
        self._stream.send_part(self._left + b"".join(self._parts), is_last=True)
        self._parts, self._left = [], b""

    def _settle(self, *, more: bool) -> None:
        if self._done is None:
            return
        status, command, rows = self._done
        self._done = None
        token = replies.DONEINPROC if self._is_procedure else replies.DONE
        flags = status | (replies.MORE if more or self._is_procedure else 0)
        self._put(struct.pack("<BHHQ", token, flags, command, rows))

    def _put(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size >= FLUSH_BYTES:
            self._left = self._stream.send_part(self._left + b"".join(self._parts), is_last=False)
            self._parts, self._size = [], 0
