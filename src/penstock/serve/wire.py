"""One client's connection as bytes: whole messages in, messages out, with a limit on both."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from penstock.codec.postgres.pgwire import FRAME_HEAD_BYTES
from penstock.codec.postgres.pgwire_server import StartPacket, frame_at, start_packet
from penstock.host.outlet import Outlet

READ_LIMIT_BYTES = 8 << 10  # what a client may send ahead of what we have taken
LONG_BYTES = 1 << 16  # what is sent without being kept
WRITE_LIMIT_BYTES = 1 << 20  # what waits for a client that does not read
LOGIN_MESSAGE_BYTES = 10_000  # of a message before a client has said its password
MESSAGE_BYTES = 1 << 20


class Gone(Exception):
    """The client has gone, or was sent away."""


class Incoming(NamedTuple):
    """A message. kind: its letter."""

    kind: bytes
    body: bytes


class Wire:
    """Reads and writes. heard_s: when the client was heard last, monotonic seconds."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        writer.transport.set_write_buffer_limits(high=WRITE_LIMIT_BYTES)
        self._outlet: Outlet | None = None
        self.heard_s = time.monotonic()

    async def start_packet(self) -> StartPacket:
        """The next packet without a letter. Raises Refused, Gone."""
        head = await self._read(4)
        length = int.from_bytes(head)
        if (found := start_packet(head)) is None:
            # The length was looked at, and is one that a packet may have.
            found = start_packet(head + await self._read(length - 4))
        assert found is not None, "the packet is whole"
        return found[0]

    async def message(self, length_max: int = MESSAGE_BYTES) -> Incoming:
        """The next message. Raises Refused for one that is too long, Gone."""
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
        """Whether bytes have come that were not asked for yet."""
        return bool(self.reader._buffer)  # type: ignore[attr-defined]

    def write(self, data: bytes | memoryview) -> None:
        """Send, or keep until the client reads. Raises Gone."""
        if self.writer.transport.is_closing():
            raise Gone
        self.writer.write(data)

    async def drain(self) -> None:
        """Wait until what is kept is little, and let others work. Raises Gone."""
        try:
            await self.writer.drain()
        except OSError as error:
            raise Gone from error
        # Below the limit drain() does not yield, and nobody would read what the client answers.
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
        transport.set_write_buffer_limits(high=0)  # what is kept has to go before
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
        """End it when what is kept has been read, but do not wait long for a client."""
        if self._outlet is not None:
            self._outlet.close()
        self.writer.close()
        try:
            async with asyncio.timeout(2):
                await self.writer.wait_closed()
        except (OSError, TimeoutError):
            self.abort()
