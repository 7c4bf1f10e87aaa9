"""A network that fails: forwards TCP to a server; cuts, stalls, slows and tears on request.

A cut connection is reset, not closed in order: both ends see it as a broken cable. An orderly close
by one end reaches the other in order, after everything sent before.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

BLOCK_BYTES = 65536
STREAM_BLOCK_BYTES = 2000  # a larger block is of a stream of data, not of login and commands
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST


class Link:
    """One connection through the proxy."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self._ended: list[socket.socket] = []

    def end(self, target: socket.socket) -> bool:
        """Record that one side has closed in order: the other still gets everything that was sent.

        target: the other side. Returns True if both have closed, and the link is closed.
        """
        self._ended.append(target)
        if len(self._ended) < 2:
            target.shutdown(socket.SHUT_WR)
            return False
        self.client.close()
        self.server.close()
        return True

    def reset(self) -> None:
        """Reset it, whatever a thread of the proxy is doing with it."""
        for end in (self.client, self.server):
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            with suppress(OSError):
                end.shutdown(socket.SHUT_RD)  # wakes recv() in the proxy's thread, which closes it
            end.close()


class Proxy:
    """A proxy to a server on this machine; use as a context manager.

    Attributes:
        allowances: Each connection that streams data is cut after so many bytes from the server;
            used in turn, then connections stay open.
        cut_count: Number of connections that were cut by any means.
    """

    def __init__(self, port: int, allowances: Sequence[int] = ()) -> None:
        self.cut_count = 0
        self._target = port
        self._allowances = list(allowances)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._links: list[Link] = []
        self._threads: list[threading.Thread] = []
        self._closing = False
        self._away = False
        self._flowing = threading.Event()
        self._flowing.set()
        self._bytes_per_s = 0
        self._tear: tuple[bytes, bool, bool] | None = None
        self.torn = threading.Event()
        self._start(self._accept)

    # -- actions of tests ------------------------------------------------------------------------

    def cut(self) -> None:
        """Reset all connections; new ones are accepted."""
        links, self._links = self._links, []
        for link in links:
            self.cut_count += 1
            link.reset()

    def away(self, wanted: bool) -> None:
        """Act as a server that is down: cut everything and accept nothing; or act as up again."""
        self._away = wanted
        if wanted:
            self.cut()

    def stall(self, seconds: float) -> None:
        """Stop all traffic, in either direction, for so long, without notifying either side."""
        self._flowing.clear()
        time.sleep(seconds)
        self._flowing.set()

    def slow(self, bytes_per_s: int) -> None:
        """Limit the rate per connection and direction; 0 means no limit."""
        self._bytes_per_s = bytes_per_s

    def tear(self, pattern: bytes = b"", *, to_server: bool = False, whole: bool = False) -> None:
        """Cut the connection on which this pattern passes next; `torn` is set then.

        pattern: empty means any block of a stream of data. whole: the block is passed on first, so
        that the other end acts on it and only the answer is lost; otherwise half of it is.
        """
        self.torn.clear()
        self._tear = (pattern, to_server, whole)

    def url(self, url: str) -> str:
        """Return the URL of the same database, through the proxy."""
        parts = urlsplit(url)
        address = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{address}@127.0.0.1:{self.port}"))

    # -- inside ----------------------------------------------------------------------------------

    def _start(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._away:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # the server is down: as if no process listened
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = Link(client, server)
            self._links.append(link)
            self._start(self._forward, link, client, server, True)
            self._start(self._forward, link, server, client, False)

    def _forward(
        self, link: Link, source: socket.socket, target: socket.socket, to_server: bool
    ) -> None:
        left: int | None = None
        over = True
        try:
            while data := source.recv(BLOCK_BYTES):
                self._flowing.wait()
                is_stream = len(data) > STREAM_BLOCK_BYTES
                if not to_server and left is None and is_stream and self._allowances:
                    left = self._allowances.pop(0)
                passed = min(self._until_torn(data, to_server, is_stream), len(data))
                if left is not None:
                    passed, left = min(passed, left), left - len(data)
                target.sendall(data[:passed])
                if passed < len(data) or self._is_torn_behind(data, to_server):
                    self.cut_count += 1
                    if passed == len(data):
                        time.sleep(0.2)  # the server acts on it
                    break
                if self._bytes_per_s:
                    time.sleep(len(data) / self._bytes_per_s)
            else:
                over = link.end(target)
        except OSError:
            pass
        finally:
            if over:
                link.reset()
            if over and link in self._links:
                self._links.remove(link)

    def _until_torn(self, data: bytes, to_server: bool, is_stream: bool) -> int:
        """Return how much of a block is passed on."""
        if self._tear is None:
            return len(data)
        pattern, direction, whole = self._tear
        matches = pattern in data if pattern else is_stream
        if whole or direction is not to_server or not matches:
            return len(data)
        self._tear = None
        self.torn.set()
        return data.index(pattern) + len(pattern) // 2 if pattern else len(data) // 2

    def _is_torn_behind(self, data: bytes, to_server: bool) -> bool:
        """Return whether the connection ends after a block that was passed on."""
        if self._tear is None:
            return False
        pattern, direction, whole = self._tear
        if not whole or direction is not to_server or pattern not in data:
            return False
        self._tear = None
        self.torn.set()
        return True

    def close(self) -> None:
        """Cut everything and stop listening."""
        self._closing = True
        self._flowing.set()
        # A connection wakes accept(): closing the listener does not.
        with socket.create_connection(("127.0.0.1", self.port)):
            self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(5)

    def __enter__(self) -> Proxy:
        """Return the proxy, which is listening."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


@contextmanager
def broken_network(port: int, allowances: Sequence[int]) -> Iterator[Proxy]:
    """Run a proxy for a with block."""
    with Proxy(port, allowances) as proxy:
        yield proxy
