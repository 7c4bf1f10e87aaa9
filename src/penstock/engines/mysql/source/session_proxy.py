"""Proxy sessions in snapshots for other processes, in place of an exported snapshot.

These servers cannot hand one snapshot to several sessions, and a session cannot be handed to
another process under TLS. So the process that took the snapshots keeps their sessions and passes
bytes on: clients see one point for as long as it lives, whichever of them is killed. A client that
has finished returns its session with COM_QUIT; if one is killed, the rest of its result is read to
the end, and the session serves the next client. A session is lost only with its connection to the
server, and there are spare ones. If none is left the snapshot is lost: nothing can replace it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import structlog

from penstock.engines.mysql.connect import Connection, run
from penstock.engines.mysql.proxy_protocol import LOOK, NO, OPEN_SESSION, YES
from penstock.engines.mysql.source.client import take_over
from penstock.engines.mysql.source.session_proxy import ProxyListener
from penstock.engines.mysql.source.session_pump import ClientStream, pass_on, settle
from penstock.host.errors import ConnectionLost
from penstock.host.listen import SnapshotAddress
from penstock.host.socket import Wire

logger = structlog.get_logger()
HERE = SnapshotAddress()


class SessionProxy:
    """Proxy of sessions that runs until it is closed. Use as a context manager.

    snapshot_id: what clients need to find it; snapshot_text: the answer that they expect from it.
    """

    def __init__(
        self,
        wires: Sequence[Wire],
        *,
        snapshot_text: str,
        at: SnapshotAddress = HERE,
        encrypts: bool = False,
    ) -> None:
        """Take over sessions and start to listen. wires: to sessions that wait for nothing. at:
        where to listen.

        encrypts: also on loopback. Raises ListenFailed.
        """
        self._wires = set(wires)
        self._free = list(wires)
        self._changed = threading.Condition()
        self.snapshot_text = snapshot_text
        try:
            self._listener = ProxyListener(at, self._serve, encrypts=encrypts)
        except BaseException:
            for wire in wires:
                wire.close()
            raise
        self.snapshot_id = str(self._listener.address)

    @classmethod
    def of(
        cls, connections: Sequence[Connection], *, place: str, snapshot_text: str,
        at: SnapshotAddress = HERE, encrypts: bool = False,
    ) -> Self:  # fmt: skip
        """Take over connections, each in its snapshot. place: names the server in messages."""
        wires = []
        for connection in connections:
            # Text arrives as it is stored: its meaning is decided in one place, by our tables.
            run(connection, "set session character_set_results = null", doing="preparing a session")
            wires.append(take_over(connection, place)[0])
        return cls(wires, snapshot_text=snapshot_text, at=at, encrypts=encrypts)

    def __enter__(self) -> Self:
        """Return itself; the way out closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all sessions."""
        self.close()

    @property
    def session_count(self) -> int:
        """Number of sessions in use or free."""
        with self._changed:
            return len(self._wires)

    def close(self) -> None:
        """End all sessions and with them the snapshot."""
        with self._changed:
            wires = list(self._wires)
            self._wires.clear()
            self._free.clear()
            self._changed.notify_all()
        self._listener.close()
        for wire in wires:
            wire.interrupt()
            wire.close()

    # -- clients ---------------------------------------------------------------------------------

    def _serve(self, client: socket.socket, request: str) -> None:
        yes = YES + self.snapshot_text.encode() + b"\n"
        if request == LOOK:
            client.sendall(yes if self.session_count else NO)
        if request != OPEN_SESSION:
            return
        wire = self._take()
        if wire is None:
            client.sendall(NO)
            return
        is_clean = False
        try:
            client.sendall(yes)
            is_clean = pass_on(ClientStream(client), wire)
        finally:
            with contextlib.suppress(OSError):
                client.close()  # it must not wait for the work on the session
            self._give_back(wire, is_clean=is_clean)

    def _take(self) -> Wire | None:
        """Wait for a free session and return it; return None if none is left."""
        with self._changed:
            while self._wires and not self._free:
                self._changed.wait()
            return self._free.pop() if self._free else None

    def _give_back(self, wire: Wire, *, is_clean: bool) -> None:
        """Let the next client use the session, or note that it is lost."""
        if not is_clean and self._is_ours(wire):
            try:
                settle(wire)
                is_clean = True
                logger.warning("client of a snapshot's session lost, the session is kept")
            except ConnectionLost as error:
                logger.warning("session of a snapshot lost", reason=error.message)
        with self._changed:
            if wire not in self._wires:
                return
            if is_clean:
                self._free.append(wire)
                self._changed.notify()
                return
            self._wires.discard(wire)
            left = len(self._wires)
            if left == 0:
                self._changed.notify_all()
        wire.close()
        logger.warning("snapshot has fewer sessions", left=left)

    def _is_ours(self, wire: Wire) -> bool:
        with self._changed:
            return wire in self._wires
