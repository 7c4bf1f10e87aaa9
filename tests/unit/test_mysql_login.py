"""Takeover of a socket: no byte that was read ahead is lost."""

from __future__ import annotations

import socket

import pytest

from penstock.engines.mysql.source.client import (
    SERVER_ID_MAX,
    SERVER_ID_MIN,
    _read_ahead,
    probe_server_id,
    server_id_for,
)


@pytest.mark.parametrize("size", [0, 1, 100, 8192, 8193, 50_000])
def test_what_was_read_ahead_comes_first(size: int) -> None:
    """Bytes in the reader's buffer come first, then those that the system has, without a wait."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 200_000)
        reader = ours.makefile("rb")
        data = bytes(number % 251 for number in range(size))
        theirs.sendall(b"greeting" + data)
        assert reader.read(8) == b"greeting"  # the buffer now holds more than was requested
        ours.setblocking(False)
        assert _read_ahead(reader) == data
        assert _read_ahead(reader) == b""
        reader.close()
        theirs.sendall(b"later")
        assert ours.recv(100) == b"later", "the socket lives on"


def test_ids_are_above_those_that_people_give() -> None:
    """There are many: two pipelines rarely collide."""
    ids = {server_id_for(f"pipeline {number}") for number in range(1000)}
    assert len(ids) == 1000
    assert all(SERVER_ID_MIN <= one <= SERVER_ID_MAX for one in (*ids, probe_server_id()))
