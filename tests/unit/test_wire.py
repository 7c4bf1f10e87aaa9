"""The byte stream to a server: waits that end, and when the reader pauses."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from penstock.engines.postgres.source.stream import (
    FLOOD_BYTES,
    FLOOD_READ_COUNT,
    FLOW_GAP_S,
    FLOW_READ_COUNT,
    LATE_FACTOR,
    LIGHT_BYTES,
    NAP_BYTES,
    NAP_S,
    NAP_S_MAX,
    Flow,
)
from penstock.host.clock import RealClock
from penstock.host.socket import NARROW_BYTES, SO_BUF_LOCK, WIDE_BYTES, Wire, is_near

LONG_S = 60.0
BLOCK_BYTES = 32 * 1024
RECEIVE_LOCK = 2  # Linux's SOCK_RCVBUF_LOCK


@pytest.fixture
def ends() -> Iterator[tuple[Wire, socket.socket]]:
    """A wire and its peer."""
    ours, theirs = socket.socketpair()
    with Wire(ours, "test") as wire, theirs:
        yield wire, theirs


def _receive(wire: Wire, timeout_s: float) -> bytes:
    buffer = bytearray(100)
    return bytes(buffer[: wire.receive_into(memoryview(buffer), timeout_s)])


def test_an_interrupt_ends_the_wait_and_those_that_follow(ends: tuple[Wire, socket.socket]) -> None:
    """A thread that waits for a quiet server returns at once; bytes that are there can be read."""
    wire, peer = ends
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(_receive(wire, LONG_S)))
    thread.start()
    wire.interrupt()
    thread.join(LONG_S / 2)
    assert got == [b""]
    assert _receive(wire, LONG_S) == b""
    peer.sendall(b"late")
    assert _receive(wire, LONG_S) == b"late"
    wire.interrupt()
    wire.resume()
    assert _receive(wire, 0.01) == b""
    peer.sendall(b"more")
    assert _receive(wire, LONG_S) == b"more"


def test_a_closed_wire_can_be_interrupted_and_closed_again(
    ends: tuple[Wire, socket.socket],
) -> None:
    """Threads end in any order."""
    wire, _ = ends
    wire.close()
    wire.interrupt()
    wire.resume()
    wire.close()


def _sent_unread(connected: socket.socket) -> int:
    """Return how many bytes can be sent to a peer that reads nothing."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
    connected.settimeout(0.2)
    count = 0
    with suppress(TimeoutError):
        while count < 4 * WIDE_BYTES:
            count += connected.send(bytes(64 * 1024))
    connected.settimeout(LONG_S)
    return count


def test_a_near_peer_over_tcp_gets_the_window_it_is_given() -> None:
    """The window is wide first, then narrow; all sent bytes arrive nevertheless.

    The system may let either grow: it drops what a buffer that may not grow cannot hold.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with theirs, Wire(ours, "test") as wire:
        held = []
        for size in (WIDE_BYTES, NARROW_BYTES):
            wire.limit_window(size)
            assert ours.getsockopt(socket.SOL_SOCKET, SO_BUF_LOCK) & RECEIVE_LOCK == 0
            buffer = memoryview(bytearray(WIDE_BYTES))
            for _ in range(4 * WIDE_BYTES // BLOCK_BYTES):  # the window that the peer had before
                theirs.sendall(bytes(BLOCK_BYTES))
                count = 0
                while count < BLOCK_BYTES:
                    count += wire.receive_into(buffer, LONG_S)
            sent, count = _sent_unread(theirs), 0
            while count < sent:
                count += wire.receive_into(buffer, LONG_S)
            assert count == sent
            held.append(sent)
        assert held[0] > 2 * held[1]


def test_a_socket_that_is_no_tcp_is_left_as_it_is() -> None:
    """The peer is held back by the buffer."""

    def receive_bytes(connected: socket.socket) -> int:
        return connected.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)

    ours, theirs = socket.socketpair()
    with theirs, Wire(ours, "test") as wire:
        before = receive_bytes(ours)
        wire.limit_window(NARROW_BYTES)
        assert receive_bytes(ours) == before


def test_a_near_peer_that_answers_late_is_near() -> None:
    """The peer's acknowledgement may come with the answer, whose time is not distance."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        for _ in range(20):
            ours.sendall(b"?")
            assert theirs.recv(1) == b"?"
            time.sleep(0.003)
            theirs.sendall(b"!")
            assert ours.recv(1) == b"!"
        assert is_near(ours.fileno())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not is_near(ours.fileno())


def test_a_small_transaction_is_read_without_a_nap() -> None:
    """Messages arrive close together; then none arrives for a while."""
    flow = Flow()
    for transaction in range(20):
        for message in range(FLOW_READ_COUNT):
            flow.read(60, transaction + message * 0.00005)
            assert flow.nap_s == 0.0


def test_a_flow_is_left_alone_between_reads_until_it_ends() -> None:
    """More than a transaction's messages cause naps, shorter the more arrives, none at the end."""
    flow = Flow()
    now_s = 0.0
    for _ in range(FLOW_READ_COUNT + 1):
        flow.read(1000, now_s)
        now_s += FLOW_GAP_S / 2
    assert flow.nap_s == NAP_S
    flow.read(4 * NAP_BYTES, now_s)
    assert flow.nap_s == NAP_S / 4
    flow.read(0, now_s)
    assert flow.nap_s == 0.0
    flow.read(1000, now_s + 2 * FLOW_GAP_S)
    assert flow.nap_s == 0.0


class LateClock(RealClock):
    """Clock whose sleeps take longer by a fixed time."""

    def __init__(self, late_s: float) -> None:
        """Begin at 0."""
        self.late_s = late_s
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds + self.late_s


@pytest.mark.parametrize(
    ("late_s", "size_bytes", "nap_s"),
    [
        (0.0001, 1000, NAP_S),
        (0.003, 1000, LATE_FACTOR * 0.003),
        (0.02, 1000, NAP_S_MAX),
        (0.02, LIGHT_BYTES, NAP_S),
    ],
    ids=["idle", "busy", "full", "heavy"],
)
def test_naps_are_longer_where_the_machine_is_busy(
    late_s: float, size_bytes: int, nap_s: float
) -> None:
    """A flow stays one however late the machine ends the naps. One that brings much has short
    ones.
    """
    flow, clock = Flow(), LateClock(late_s)
    for _ in range(5 * FLOW_READ_COUNT):
        flow.read(size_bytes, clock.now_s)
        if flow.nap_s:
            flow.nap(clock)
        clock.now_s += FLOW_GAP_S / 4
    assert flow.nap_s == pytest.approx(nap_s)


def test_a_backlog_is_seen_and_its_end() -> None:
    """A backlog is many reads in a row that filled the narrow window; a few are not one."""
    flow = Flow()
    changes = [flow.read(1000, 0.0) for _ in range(FLOOD_READ_COUNT)]
    assert changes.count(True) == 1
    assert not flow.floods
    assert not any(flow.read(FLOOD_BYTES, 0.0) for _ in range(FLOOD_READ_COUNT - 1))
    assert not flow.read(1000, 0.0)
    assert not flow.floods
    assert [flow.read(FLOOD_BYTES, 0.0) for _ in range(3)] == [False, True, False]
    assert flow.floods
