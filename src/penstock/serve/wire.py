"""Client's connection as bytes: whole messages in, messages out, with a limit on both.

Large buffers are sent through the socket of the transport without a copy: a transport copies the
bytes that it cannot send at once, and if many clients get the same bytes, these copies cost more
than producing the bytes.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from typing import NamedTuple

from penstock.codec.postgres.pgwire import FRAME_HEAD_BYTES
from penstock.codec.postgres.pgwire_server import StartPacket, frame_at, start_packet

KERNEL_BYTES = 2 << 20  # one client's send buffer: a smaller one wakes it for a few bytes at a time


class Outlet:
    """Sender that writes to the socket directly, besides the transport. Not for TLS: see
    `is_plain`.
    """

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._socket: socket.socket | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether bytes go to the socket unencrypted."""
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


READ_LIMIT_BYTES = 8 << 10  # unread bytes that a client may send
LONG_BYTES = 1 << 16  # longer data is sent without being kept
WRITE_LIMIT_BYTES = 1 << 20  # unsent bytes for a client that does not read
LOGIN_MESSAGE_BYTES = 10_000  # of a message before a client has sent its password
MESSAGE_BYTES = 1 << 20


class Gone(Exception):
    """The client has disconnected, or was disconnected."""


class Incoming(NamedTuple):
    """Message with the letter of its kind."""

    kind: bytes
    body: bytes


class Wire:
    """Connection to a client.

    Attributes:
        heard_s: time of the client's last message, monotonic seconds.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        writer.transport.set_write_buffer_limits(high=WRITE_LIMIT_BYTES)
        self._outlet: Outlet | None = None
        self.heard_s = time.monotonic()

    async def start_packet(self) -> StartPacket:
        """Return the next packet without a letter. Raises Refused, Gone."""
        head = await self._read(4)
        length = int.from_bytes(head)
        if (found := start_packet(head)) is None:
            # The length was checked, and is allowed for a packet.
            found = start_packet(head + await self._read(length - 4))
        assert found is not None, "the packet is whole"
        return found[0]

    async def message(self, length_max: int = MESSAGE_BYTES) -> Incoming:
        """Return the next message. Raises Refused for one that is too long, Gone."""
        head = await self._read(FRAME_HEAD_BYTES)
        frame_at(head, 0, len(head), length_max)  # refuses a length as soon as it is seen
        length = int.from_bytes(head[1:])
        body = await self._read(length - 4) if length > 4 else b""
        self.heard_s = time.monotonic()
        return Incoming(head[:1], body)

    async def _read(self, count: int) -> bytes:
        try:
            return await self.reader.readexactly(count)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise Gone from error

    @property
    def has_unread(self) -> bool:
        """Return whether bytes have arrived that were not read yet."""
        return bool(self.reader._buffer)  # type: ignore[attr-defined]

    def write(self, data: bytes | memoryview) -> None:
        """Send, or keep until the client reads. Raises Gone."""
        if self.writer.transport.is_closing():
            raise Gone
        self.writer.write(data)

    async def drain(self) -> None:
        """Wait until little is kept, and let other tasks run. Raises Gone."""
        try:
            await self.writer.drain()
        except OSError as error:
            raise Gone from error
        # Below the limit drain() does not yield, and no task would read the client's answers.
        await asyncio.sleep(0)
        if self.writer.transport.is_closing():
            raise Gone

    async def send(self, data: memoryview) -> None:
        """Send, and wait until little of it is kept. Raises Gone."""
        if self._outlet is None:
            self._outlet = Outlet(self.writer.transport)
        if len(data) < LONG_BYTES or not self._outlet.is_plain:
            self.write(data)
            await self.drain()
            return
        transport = self.writer.transport
        transport.set_write_buffer_limits(high=0)  # kept bytes are sent first
        try:
            await self.drain()
            await self._outlet.send(data)
        except OSError as error:
            raise Gone from error
        finally:
            transport.set_write_buffer_limits(high=WRITE_LIMIT_BYTES)

    def abort(self) -> None:
        """End the connection at once."""
        if self._outlet is not None:
            self._outlet.end()
        self.writer.transport.abort()

    async def close(self) -> None:
        """End the connection after kept bytes were read, but do not wait long for a client."""
        if self._outlet is not None:
            self._outlet.close()
        self.writer.close()
        try:
            async with asyncio.timeout(2):
                await self.writer.wait_closed()
        except (OSError, TimeoutError):
            self.abort()
