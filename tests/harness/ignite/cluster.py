"""A model of a cluster that logs changes, and of the extractor over the nodes' logs.

The cluster: partitions with a primary and backups, which move when nodes die and come back; backups
log later than primaries, by clocks of their own; the log of a node that died is archived when it is
back; changes that it missed are not logged. The extractor is the product's versions and places,
with a log that loses everything that was not flushed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from harness.ignite.recordings import data_segment, entry_bytes, files_of
from penstock.codec.ignite.types import cache_id
from penstock.codec.ignite.wal import Version
from penstock.engines.ignite import state
from penstock.engines.ignite.source.several import Nodes
from penstock.engines.ignite.source.versions import SLACK_MS, Versions
from penstock.ports.registry import joined_urls

CACHE = 77
PARTITION_COUNT = 3
LATE_MS = SLACK_MS // 3  # clocks differ by this at most, and backups are late by this at most


class Record(NamedTuple):
    """An entry in a node's log.

    Attributes:
        value: Value; None for a removed key.
        resent: True if it was not logged when it changed.
    """

    key: int
    version: Version
    value: int | None
    time_ms: int = 0
    resent: bool = False


@dataclass
class Cluster:
    """Nodes, their logs, and the content of the caches. node_count and backups never change."""

    node_count: int
    backups: int
    now_ms: int = 10 * SLACK_MS
    settled_ms: int = 0
    topology: int = 1
    order: int = 0
    values: dict[int, tuple[Version, int | None]] = field(default_factory=dict)
    late: list[tuple[int, Record]] = field(default_factory=list)  # to a backup's log
    resent: list[tuple[int, Record]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with all nodes up and all partitions empty."""
        nodes = range(self.node_count)
        self.up = set(nodes)
        self.open: list[list[Record]] = [[] for _ in nodes]
        self.archived: list[list[list[Record]]] = [[] for _ in nodes]
        self.holders = [set(nodes) for _ in range(PARTITION_COUNT)]  # of the newest copy
        self._assign()

    def _assign(self) -> None:
        """Give partitions their owners, who get the newest copy if there is one."""
        self.owners: list[list[int]] = []
        for partition in range(PARTITION_COUNT):
            wanted = [(partition + at) % self.node_count for at in range(self.node_count)]
            owners = [node for node in wanted if node in self.up][: self.backups + 1]
            if not self.holders[partition] & self.up:
                owners = []  # lost until one of them is back
            self.holders[partition] |= set(owners)
            self.owners.append(owners)

    def change(self, key: int, value: int | None) -> None:
        """Write a key at its owner, or remove it; backups log that later."""
        owners = self.owners[key % PARTITION_COUNT]
        if not owners:
            return
        self.order += 1
        version = Version(self.topology, self.order, owners[0], 0)
        self.values[key] = version, value
        self.holders[key % PARTITION_COUNT] = set(owners)
        self._log(owners[0], Record(key, version, value, resent=True))
        self.late += [(backup, Record(key, version, value)) for backup in owners[1:]]

    def _log(self, node: int, record: Record) -> None:
        skew_ms = (node - 1) * LATE_MS // 2
        self.open[node].append(record._replace(time_ms=self.now_ms + skew_ms))

    def deliver(self, count: int) -> None:
        """Let backups log received changes."""
        for node, record in self.late[:count]:
            self._log(node, record)
        del self.late[:count]

    def resend(self) -> None:
        """Read all rows, which their primaries will log."""
        for key, (version, value) in self.values.items():
            owners = self.owners[key % PARTITION_COUNT]
            if value is not None and owners:
                self.resent.append((owners[0], Record(key, version, value, resent=True)))

    def log_resent(self, count: int) -> None:
        """Log some of the resent rows, perhaps after later changes."""
        for node, record in self.resent[:count]:
            self._log(node, record)
        del self.resent[:count]

    def wait(self, time_ms: int) -> None:
        """Let time pass. Late changes are logged before it is too late."""
        if self.now_ms + time_ms > self.settled_ms + LATE_MS:
            self.settle()
        self.now_ms += time_ms

    def settle(self) -> None:
        """Let the nodes log all late changes and all resent rows."""
        self.deliver(len(self.late))
        self.log_resent(len(self.resent))
        self.settled_ms = self.now_ms

    def kill(self, node: int) -> None:
        """Kill a node; others take over its partitions. Its clients wait for backups."""
        if node in self.up:
            self.late = [(to, record) for to, record in self.late if to != node]
            self._change_topology(self.up - {node})

    def start(self, node: int) -> None:
        """Start a killed node again."""
        if node not in self.up:
            self._change_topology(self.up | {node})

    def _change_topology(self, up: set[int]) -> None:
        self.deliver(len(self.late))
        self.resent.clear()  # a resend ends when the topology changes
        self.topology += 1
        self.up = up
        self._assign()

    def archive(self, node: int) -> None:
        """Make a node's open segment readable."""
        if node in self.up and self.open[node]:
            self.archived[node].append(self.open[node])
            self.open[node] = []


@dataclass
class Extraction:
    """Reader of a cluster's logs into `log`: node, record.

    Attributes:
        path: Path of the versions.
    """

    cluster: Cluster
    path: Path
    listed: list[int]
    gives_copies: bool = False
    log: list[tuple[int, Record]] = field(default_factory=list)
    durable: tuple[int, int] = (0, 0)  # position, and number of records in the log
    flushing: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        """Start on an empty log."""
        self.restart()

    def restart(self, listed: list[int] | None = None) -> None:
        """Crash, and continue after the last durable flush point; perhaps with other nodes."""
        self.listed = self.listed if listed is None else listed
        position, count = self.durable
        del self.log[count:]
        self.versions = Versions(self.path, gives_copies=self.gives_copies, memory_max=4)
        saved = self.versions.go_on(position)
        self.nodes = Nodes([str(node) for node in self.listed], saved)
        assert self.nodes.position == position

    def read(self, node: int, count: int) -> int:
        """Read some records of a node; return how many there were."""
        if node not in self.listed:
            return 0
        name = str(node)
        segment, at = divmod(self.nodes[name].position, 1 << 32)
        segments = self.cluster.archived[node]
        while segment < len(segments) and at == len(segments[segment]):
            segment, at = segment + 1, 0
        if segment == len(segments):
            return 0
        records = segments[segment][at : at + count]
        for record in records:
            self._take(name, record)
        end = (segment << 32) + at + len(records)
        self.nodes.read(name, end, max(record.time_ms for record in records))
        self.versions.ends(self.nodes.position, self.nodes.dump(), self.nodes.floor_ms)
        return len(records)

    def _take(self, name: str, record: Record) -> None:
        if not self.nodes.takes(name, record.time_ms):
            return
        key = b"\3" + record.key.to_bytes(4, "little")
        if self.versions.accepts(CACHE, key, record.version, record.time_ms):
            self.log.append((int(name), record))

    def begin_flush(self) -> None:
        """Do the steps before the log's own flush."""
        self.flushing = self.nodes.position, len(self.log)
        self.versions.before_flush(self.nodes.position)

    def end_flush(self) -> None:
        """Record that the log is durable."""
        self.durable = self.flushing
        self.versions.acknowledge(self.durable[0])

    def flush(self) -> None:
        """Flush the log in both steps."""
        self.begin_flush()
        self.end_flush()

    def flush_unknown(self) -> None:
        """Make the log durable, and crash the extractor before it knows."""
        self.begin_flush()
        self.durable = self.flushing
        self.restart()

    def read_all(self) -> None:
        """Read everything that is archived."""
        while any(self.read(node, 1 << 30) for node in self.listed):
            self.flush()

    def last(self) -> dict[int, tuple[Version, int | None]]:
        """Return the last version and value of each key in the log."""
        return {record.key: (record.version, record.value) for _, record in self.log}


# -- the same cluster as directories, read by the product's engine ------------------------------

CACHE_NAME = "both"
ACTIVE_MODE = state._MODE_HEAD + b"CDC_UTILITY_ACTIVE"
INT = struct.Struct("<bi")
VERSION = struct.Struct("<biiq")


class Directories:
    """A cluster's archived logs as files.

    Attributes:
        node_count: Number of nodes, each with one work directory.
    """

    def __init__(self, root: Path, cluster: Cluster) -> None:
        """Make directories with a cache each, and with penstock as the events' utility."""
        self.root, self.cluster = root, cluster
        self.written = [0] * cluster.node_count
        config = files_of("one")["db/node_1/cache-words/cache_data.dat"]
        for node in range(cluster.node_count):
            for folder in (f"db/n{node}/cache-{CACHE_NAME}", f"db/wal/cdc/n{node}/state"):
                (self.work(node) / folder).mkdir(parents=True)
            (self.work(node) / f"db/n{node}/cache-{CACHE_NAME}/cache_data.dat").write_bytes(config)
            (self.cdc(node) / "state/cdc-mode.bin").write_bytes(ACTIVE_MODE)

    def work(self, node: int) -> Path:
        """Return a node's work directory."""
        return self.root / str(node)

    def cdc(self, node: int) -> Path:
        """Return the directory of a node's segments."""
        return self.work(node) / f"db/wal/cdc/n{node}"

    @property
    def url(self) -> str:
        """URL of all nodes, as the configuration has it."""
        nodes = range(self.cluster.node_count)
        return joined_urls(f"ignite://{self.work(node)}?consistentId=n{node}" for node in nodes)

    def write(self) -> None:
        """Write newly archived segments, for nodes whose directory exists."""
        for node, segments in enumerate(self.cluster.archived):
            while self.work(node).exists() and self.written[node] < len(segments):
                number = self.written[node]
                data = segment_of(segments[number], number)
                (self.cdc(node) / f"{number:016}.wal").write_bytes(data)
                self.written[node] += 1

    def away(self, node: int) -> None:
        """Move a node's directory away, or back."""
        there, away = self.work(node), self.root / f"away-{node}"
        there.rename(away) if there.exists() else away.rename(there)


def segment_of(records: list[Record], number: int) -> bytes:
    """Return a node's segment."""
    return data_segment(
        [[entry_of(one)] for one in records],
        number=number,
        times_ms=[one.time_ms for one in records],
        kinds=[78 if one.resent else 70 for one in records],
    )


def entry_of(record: Record) -> bytes:
    """Return an entry of the model as a node writes it."""
    version = record.version
    return entry_bytes(
        key=INT.pack(3, record.key),
        value=None if record.value is None else INT.pack(3, record.value),
        op=3 if record.value is None else 2,
        write=VERSION.pack(1, version.topology, version.node_order, version.order),
        cache=cache_id(CACHE_NAME),
    )
