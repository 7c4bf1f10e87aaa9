"""The way of long bytes into the socket of an asyncio transport: without a copy on the way.

What a transport cannot send at once it copies; with many clients of the same bytes that is more
work than the bytes were.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

KERNEL_BYTES = 2 << 20  # of one client in the kernel: with less it is woken for a few at a time


class Outlet:
    """Beside what the transport itself writes. For transports without TLS: see `is_plain`."""

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._socket: socket.socket | None = None

    @property
    def is_plain(self) -> bool:
        """Whether bytes go to the socket as they are."""
        return not isinstance(self._transport.get_extra_info("ssl_object"), ssl.SSLObject)

    async def send(self, data: memoryview) -> None:
        """Send all of it; nothing else may wait to be written. Raises OSError."""
        if self._socket is None:
            # asyncio waits for each descriptor once, and the transport has its own.
            self._socket = self._transport.get_extra_info("socket").dup()
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    def end(self) -> None:
        """Whoever sends is told that it is over."""
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:  # the other side was quicker
                return

    def close(self) -> None:
        """Nobody sends any more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
