"""Where workers reach the process that passes a snapshot's sessions on: a point of the bulk load.

For engines whose servers export no snapshots. Not here: who listens there (the engine).
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass

from penstock.host.listen import ListenFailed, PortTaken, listening_from, own_address
from penstock.ports.config import SparkSection

LOOPBACK = "127.0.0.1"
PORTS = 16  # as many as Spark tries from a port that is given
ADDRESS_HINT = (
    "Set [spark] snapshotAddress to HOST:PORT of the machine that runs penstock, as executors "
    "reach it, and let its firewall pass that port and the 15 behind it."
)
# A network that there is nowhere: it leads to the address of the default route.
ANYWHERE = "192.0.2.1"
_BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::(\d+))?\Z")
_PLAIN = re.compile(r"([^\s:/\[\]]+)(?::(\d+))?\Z")
_BARE_V6 = re.compile(r"([0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotAddress:
    """host: as workers reach it. bind: where to listen. port: the first to try; 0: any free one."""

    host: str = LOOPBACK
    bind: str = LOOPBACK
    port: int = 0


def snapshot_address(spark: SparkSection) -> SnapshotAddress:
    """Where this pipeline's workers reach this process; loopback where they share its machine.

    As [spark] snapshotAddress says; else Spark's own driver host, or this machine's address as the
    cluster's master sees it.
    """
    if spark.is_local:
        return SnapshotAddress()
    host, port = "", 0
    if spark.snapshot_address:
        host, port = split_address(spark.snapshot_address)
    host = host or spark.conf.get("spark.driver.host", "") or _host_of_spark(spark.master)
    return SnapshotAddress(
        host=host, bind=spark.conf.get("spark.driver.bindAddress", "") or host, port=port
    )


def listen_at(at: SnapshotAddress) -> socket.socket:
    """Listen there. Raises ListenFailed."""
    try:
        return listening_from(at.bind, at.port, PORTS if at.port else 1)
    except (ListenFailed, PortTaken) as error:
        raise ListenFailed(
            f"executors could not read a snapshot through this process: {error.message}",
            hint=ADDRESS_HINT,
        ) from error


def split_address(text: str) -> tuple[str, int]:
    """HOST, HOST:PORT or [V6]:PORT as host and port; 0 where there is none. Raises ValueError."""
    found = _BRACKETED.match(text) or _PLAIN.match(text)
    if found is None:
        if bare := _BARE_V6.match(text):
            return bare[1], 0
        raise ValueError(f"not an address: {text!r}")
    port = int(found[2] or 0)
    if port > 65535:
        raise ValueError(f"not a port: {port}")
    return found[1], port


def _host_of_spark(master: str) -> str:
    """What Spark takes where spark.driver.host is not set, as far as it can be known."""
    for name in ("SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_IP"):
        if given := os.environ.get(name):
            return given
    if master.startswith("local"):  # executors of their own, on this machine
        return LOOPBACK
    first = master.rpartition("//")[2].partition(",")[0]
    return own_address(first.rpartition(":")[0] or ANYWHERE)
