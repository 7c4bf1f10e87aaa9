"""Servers that listen in this process, and the options of connect()."""

from __future__ import annotations

import itertools
import sys

import pytest

from sim_oracle.remote import Listening
from sim_oracle.session import Server

SERVERS: dict[str, Server] = {}  # by host:port
PORTS = itertools.count(15210)
CONNECT_OPTIONS = frozenset(
    [
        "pool",
        "pool_alias",
        "conn_class",
        "params",
        "proxy_user",
        "newpassword",
        "wallet_password",
        "access_token",
        "host",
        "port",
        "protocol",
        "https_proxy",
        "https_proxy_port",
        "service_name",
        "instance_name",
        "sid",
        "server_type",
        "cclass",
        "purity",
        "expire_time",
        "retry_count",
        "retry_delay",
        "tcp_connect_timeout",
        "ssl_server_dn_match",
        "ssl_server_cert_dn",
        "wallet_location",
        "events",
        "externalauth",
        "mode",
        "disable_oob",
        "stmtcachesize",
        "edition",
        "tag",
        "matchanytag",
        "config_dir",
        "appcontext",
        "shardingkey",
        "supershardingkey",
        "debug_jdwp",
        "connection_id_prefix",
        "ssl_context",
        "sdu",
        "pool_boundary",
        "use_tcp_fast_open",
        "ssl_version",
        "program",
        "machine",
        "terminal",
        "osuser",
        "driver_name",
        "use_sni",
        "thick_mode_dsn_passthrough",
        "extra_auth_params",
        "pool_name",
        "on_connect_callback",
        "operation_callback",
        "round_trip_callback",
        "transaction_priority",
        "use_eztls",
        "handle",
    ]
)


def install(monkeypatch: pytest.MonkeyPatch, server: Server) -> str:
    """Let a server listen and the fake be the module oracledb; return host and port."""
    from sim_oracle import oracledb

    monkeypatch.setitem(sys.modules, "oracledb", oracledb)
    return listen(server)


def listen(server: Server) -> str:
    """Let a server listen; return its host and port."""
    address = f"127.0.0.1:{next(PORTS)}"
    SERVERS[address] = server
    return address


def listen_for_others(server: Server) -> Listening:
    """Let a server listen for this process and, on a real port, for others."""
    listening = Listening(server)
    SERVERS[listening.address] = server
    return listening


class Defaults:
    """Default values of the module."""

    def __init__(self) -> None:
        self.arraysize = 100
        self.prefetchrows = 2
        self.fetch_lobs = True
        self.fetch_decimals = False
        self.stmtcachesize = 20


defaults = Defaults()
