"""Packets of TDS over a socket, with TLS inside the packets while the session begins."""

from __future__ import annotations

import select
import socket
import ssl
import struct

HEADER = 8
BATCH, RPC, RESPONSE, ATTENTION, BULK, MANAGER, LOGIN, PRELOGIN = 1, 3, 4, 6, 7, 14, 16, 18
STATUS_END, STATUS_IGNORE, STATUS_RESET = 0x01, 0x02, 0x08


class Disconnected(Exception):
    """The client has closed the connection."""


class PacketStream:
    """Messages of a client's connection; a message is one or more packets of a type.

    Attributes:
        packet_size: Bytes of the packets that are sent, header included.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._tls: ssl.SSLObject | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._buffer = bytearray()
        self.packet_size = 4096
        self._number = 1

    @property
    def is_encrypted(self) -> bool:
        """Return whether TLS is on."""
        return self._tls is not None

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    # --- reading ----------------------------------------------------------------------------------

    def has_input(self) -> bool:
        """Return whether bytes are waiting that a read would return without blocking."""
        if len(self._buffer) >= HEADER or (self._tls is not None and self._tls.pending()):
            return True
        return bool(select.select([self._socket], [], [], 0)[0])

    def read_message(self) -> tuple[int, int, bytes]:
        """Return type, status of the first packet, and body of the next message."""
        parts: list[bytes] = []
        first = 0
        while True:
            header = self._take(HEADER)
            kind, status = header[0], header[1]
            length = int.from_bytes(header[2:4], "big")
            first = first or status
            parts.append(self._take(length - HEADER))
            if status & STATUS_END:
                if status & STATUS_IGNORE:
                    parts, first = [], 0
                    if kind != ATTENTION:
                        return kind, status, b""
                return kind, first, b"".join(parts)

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._buffer += self._receive()
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _receive(self) -> bytes:
        if self._tls is None:
            return self._receive_raw()
        while True:
            try:
                data = self._tls.read(65_536)
            except ssl.SSLWantReadError:
                self._incoming.write(self._receive_raw())
                continue
            if not data:
                raise Disconnected
            return data

    def _receive_raw(self) -> bytes:
        try:
            data = self._socket.recv(262_144)
        except OSError as error:
            raise Disconnected from error
        if not data:
            raise Disconnected
        return data

    # --- writing ----------------------------------------------------------------------------------

    def send_message(self, body: bytes, kind: int = RESPONSE) -> None:
        """Send a whole message."""
        self._number = 1
        self.send_part(body, kind, is_last=True)

    def send_part(self, body: bytes, kind: int = RESPONSE, *, is_last: bool) -> bytes:
        """Send the whole packets of a part of a message; return what is left over."""
        room = self.packet_size - HEADER
        out = []
        view = memoryview(body)
        position, end = 0, len(body)
        while end - position > room or (is_last and position <= end):
            piece = view[position : position + room]
            position += len(piece)
            ends = is_last and position >= end
            header = struct.pack(
                ">BBHHBB", kind, int(ends), len(piece) + HEADER, 0, self._number & 255, 0
            )
            self._number += 1
            out.append(header)
            out.append(bytes(piece))
            if ends:
                position = end + 1
        self._write(b"".join(out))
        if is_last:
            self._number = 1
        return bytes(view[position:]) if position <= end else b""

    def _write(self, data: bytes) -> None:
        if not data:
            return
        try:
            if self._tls is None:
                self._socket.sendall(data)
                return
            for start in range(0, len(data), 16_384):
                self._tls.write(data[start : start + 16_384])
                self._socket.sendall(self._outgoing.read())
        except OSError as error:
            raise Disconnected from error

    # --- TLS --------------------------------------------------------------------------------------

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Do the handshake; its records travel in packets of type PRELOGIN (MS-TDS 2.2.6.5)."""
        tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._send_handshake()
                _, _, body = self.read_message()
                self._incoming.write(body)
            except ssl.SSLError as error:
                raise Disconnected from error
        self._send_handshake()
        self._tls = tls

    def start_strict_tls(self, context: ssl.SSLContext) -> None:
        """Do the handshake of TDS 8.0, before any packet."""
        tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                if self._outgoing.pending:
                    self._socket.sendall(self._outgoing.read())
                self._incoming.write(self._receive_raw())
            except ssl.SSLError as error:
                raise Disconnected from error
        if self._outgoing.pending:
            self._socket.sendall(self._outgoing.read())
        self._tls = tls

    def stop_tls(self) -> None:
        """Continue in clear text: only the login was encrypted."""
        self._tls = None

    def peek(self) -> bytes:
        """Return the first byte of the connection without taking it."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK)
        except OSError as error:
            raise Disconnected from error

    def _send_handshake(self) -> None:
        if self._outgoing.pending:
            self.send_message(self._outgoing.read(), PRELOGIN)
