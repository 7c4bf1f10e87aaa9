"""Sending of large buffers through the socket of an asyncio transport, without a copy.

A transport copies the bytes that it cannot send at once; if many clients get the same bytes, these
copies cost more than producing the bytes.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

KERNEL_BYTES = 2 << 20  # one client's send buffer: a smaller one wakes it for a few bytes at a time


class Outlet:
    """Sender beside the transport's own writes. For transports without TLS: see `is_plain`."""

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._socket: socket.socket | None = None

    @property
    def is_plain(self) -> bool:
        """True if bytes go to the socket unencrypted."""
        return not isinstance(self._transport.get_extra_info("ssl_object"), ssl.SSLObject)

    async def send(self, data: memoryview) -> None:
        """Send all of it; no other bytes may be waiting to be written. Raises OSError."""
        if self._socket is None:
            # asyncio waits for each descriptor once, and the transport has its own.
            self._socket = self._transport.get_extra_info("socket").dup()
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    def end(self) -> None:
        """Shut the connection down; a running `send` then raises OSError."""
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:  # the other side was quicker
                return

    def close(self) -> None:
        """Close the socket; no `send` may run."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
