"""Listening: an address that cannot be used is an error that shows how to set another one."""

from __future__ import annotations

import socket

import pytest

from penstock.host.listen import (
    ListenFailed,
    PortTaken,
    Written,
    as_key,
    as_options,
    listening_socket,
)
from penstock.model.sections import ServeSection, StageSection


@pytest.mark.parametrize(
    ("written", "other"),
    [
        (as_options, "--host 127.0.0.1 --port {}"),
        (as_key("serve"), 'listen = "127.0.0.1:{}" in [serve]'),
        (as_key("stage"), 'listen = "127.0.0.1:{}" in [stage]'),
    ],
)
def test_a_busy_port_names_another_as_the_user_gives_it(written: Written, other: str) -> None:
    """`penstock serve` and `stage` have no --port: their file has the address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken) as busy:
            listening_socket("127.0.0.1", port, written=written)
    assert busy.value.hint.endswith(other.format(port + 1))


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_an_address_of_another_machine_names_one_of_this(host: str) -> None:
    """The hint is the line to write."""
    with pytest.raises(ListenFailed) as failed:
        listening_socket(host, 5434, written=as_key("serve"))
    assert failed.value.hint.endswith('listen = "127.0.0.1:5434" in [serve]')


def test_a_written_key_is_read_as_the_same_address() -> None:
    """IPv6 addresses are put in brackets."""
    for host in ("127.0.0.1", "::1"):
        text = as_key("serve")(host, 5435).partition('"')[2].partition('"')[0]
        assert ServeSection(listen=text, users={}).address == (host, 5435)
        assert StageSection(listen=text).address == (host, 5435)
