"""A network that breaks: forwards TCP to a server and cuts connections where it is told to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """Cuts each connection after so many bytes from the server; `allowances` are used in turn.

    After the last allowance connections live on. cut_count: connections that were cut.
    """

    def __init__(self, port: int, allowances: list[int]) -> None:
        self.cut_count = 0
        self._target = port
        self._allowances = allowances
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._closing = False
        self._start(self._accept)

    def _start(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                continue
            self._open += [client, server]
            self._start(self._forward, client, server, None)
            self._start(self._forward, server, client, True)

    def _forward(self, source: socket.socket, target: socket.socket, counted: object) -> None:
        left = None
        try:
            while data := source.recv(65536):
                # Only a stream of data uses up an allowance: log-in and commands are small.
                if counted and left is None and len(data) > 2000 and self._allowances:
                    left = self._allowances.pop(0)
                if left is not None:
                    if len(data) >= left:
                        target.sendall(data[:left])
                        self.cut_count += 1
                        break
                    left -= len(data)
                target.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, target):
                end.close()

    def url(self, url: str) -> str:
        """The same database, through the proxy."""
        parts = urlsplit(url)
        address = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{address}@127.0.0.1:{self.port}"))

    def close(self) -> None:
        """Cut everything."""
        self._closing = True
        # Waking accept() by a connection: closing the listener does not.
        with socket.create_connection(("127.0.0.1", self.port)):
            self._listener.close()
        for end in self._open:
            end.close()
        for thread in self._threads:
            thread.join(5)


@contextmanager
def broken_network(port: int, allowances: list[int]) -> Iterator[Proxy]:
    """A proxy for the length of a with block."""
    proxy = Proxy(port, allowances)
    try:
        yield proxy
    finally:
        proxy.close()
