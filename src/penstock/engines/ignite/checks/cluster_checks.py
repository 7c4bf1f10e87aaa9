"""Doctor's checks of a running node: its configuration, the cluster's state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.codec.ignite.types import cache_id
from penstock.engines.ignite.checks.node_checks import DELETE
from penstock.engines.ignite.checks.probe import CLUSTER_CHECKS, NodeProbe, names
from penstock.engines.ignite.thin import ThinClient
from penstock.engines.ignite.url import folder_of
from penstock.model.whole_number import parse_whole
from penstock.ports.checks import Finding, Severity

STORAGE = "DataStorageConfiguration."
ENABLE_LINKS = "control.sh --property set --name cdc.disabled --val false"
RESTART = "in DataStorageConfiguration, and restart the node"
NEARLY_FULL = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Facts from the connected node.

    Attributes:
        consistent_id: its own.
        settings: its configuration, keyed by the name after DataStorageConfiguration.
        properties: properties of the cluster that were ever set.
        kept: keys of the node's own metastorage.
    """

    consistent_id: str
    settings: Mapping[str, str]
    properties: Mapping[str, str]
    kept: frozenset[str]


def ask(client: ThinClient) -> Told:
    """Query the input of the checks from the views of SYS. Raises StatementFailed."""
    settings = client.texts("select NAME, VALUE from SYS.CONFIGURATION", 2)
    set_ones = client.texts("select NAME, VALUE from SYS.DISTRIBUTED_METASTORAGE", 2)
    local = client.texts("select CONSISTENT_ID from SYS.NODES where IS_LOCAL", 1)
    kept = client.texts("select NAME from SYS.METASTORAGE", 1)
    return Told(
        consistent_id=local[0][0] or "",
        settings={
            name.removeprefix(STORAGE): value or ""
            for name, value in settings
            if name is not None and name.startswith(STORAGE)
        },
        properties={
            name.removeprefix("distrConf-"): value or ""
            for name, value in set_ones
            if name is not None and name.startswith("distrConf-")
        },
        kept=frozenset(name for (name,) in kept if name),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterProbe:
    """Directories of a node, and the facts from the node."""

    node: NodeProbe
    told: Told

    def number(self, name: str) -> int:
        """Return a setting; 0 if the node does not report it."""
        return int(self.told.settings.get(name) or 0)


@CLUSTER_CHECKS.check("IG15", "node of the address", change_only=True)
def right_node(probe: ClusterProbe) -> Iterator[Finding]:
    """Check that the queried settings are those of the node whose directory is read."""
    actual = probe.told.consistent_id
    if folder_of(actual) != probe.node.folder:
        yield probe.node.finding(
            "IG15",
            Severity.WARNING,
            f"address= is that of the node {actual}, and the directory that of {probe.node.folder}",
            "doctor looks at the settings of another node than that whose changes are read",
            "put the address of the directory's node first",
        )


@CLUSTER_CHECKS.check("IG16", "data regions of caches", change_only=True)
def regions(probe: ClusterProbe) -> Iterator[Finding]:
    """Check that caches are in a region with cdcEnabled: only these are logged for consumers."""
    enabled = _regions(probe.told.settings)
    default = next((name for name, (is_default, _) in enabled.items() if is_default), None)
    off = [
        one.name
        for one in probe.node.caches
        if not enabled.get(one.region or default or "", (False, True))[1]
    ]
    if off:
        yield probe.node.finding(
            "IG16",
            Severity.ERROR if len(off) == len(probe.node.caches) else Severity.WARNING,
            f"caches are in a data region without change data capture: {names(off)}",
            "their changes are not given",
            "set cdcEnabled in DataRegionConfiguration of the region, and restart the node",
        )


def _regions(settings: Mapping[str, str]) -> dict[str, tuple[bool, bool]]:
    """Return for each data region by name whether it is the default one, and whether it has CDC."""
    found = {}
    for key, name in settings.items():
        if key.endswith("Configuration.Name") or key.endswith("].Name"):
            place = key.removesuffix("Name")
            is_on = settings.get(f"{place}CdcEnabled", "").lower() == "true"
            found[name] = (place.startswith("DefaultDataRegion"), is_on)
    return found


@CLUSTER_CHECKS.check("IG17", "WAL mode", change_only=True)
def wal_mode(probe: ClusterProbe) -> Iterator[Finding]:
    """Check that the node writes a log."""
    if probe.told.settings.get("WalMode") == "NONE":
        yield probe.node.finding(
            "IG17",
            Severity.ERROR,
            "walMode of the node is NONE",
            "it writes no log, so there are no changes to read",
            f"set walMode to LOG_ONLY or FSYNC {RESTART}",
        )
    names_of = {cache_id(one.group or one.name): one for one in probe.node.caches}
    keys = (key.removeprefix("grp-wal-disabled-") for key in sorted(probe.told.kept))
    off = [names_of[int(key)].name for key in keys if _number(key) in names_of]
    if off:
        yield probe.node.finding(
            "IG17",
            Severity.ERROR,
            f"the log is switched off for caches: {names(off)}",
            "their changes are not written to it, and are lost to consumers",
            "; ".join(f"alter table of {one} logging, or cluster().enableWal({one})" for one in off)
            + f"; then penstock ignite resend {probe.node.file} --caches {','.join(off)}",
        )


def _number(text: str) -> int | None:
    number = parse_whole(text.removeprefix("-"))
    return -number if number is not None and text.startswith("-") else number


@CLUSTER_CHECKS.check("IG18", "walForceArchiveTimeout", change_only=True)
def forced_rotation(probe: ClusterProbe) -> Iterator[Finding]:
    """Check for the setting that closes a segment before it is full."""
    if probe.number("WalForceArchiveTimeout") <= 0:
        size = probe.number("WalSegmentSize") / 2**20
        yield probe.node.finding(
            "IG18",
            Severity.WARNING,
            "walForceArchiveTimeout of the node is off",
            f"changes reach consumers only when {size:.0f} MiB of log are full, which may take "
            "hours",
            f"set walForceArchiveTimeout, for example to 5000 (ms), {RESTART}",
        )


@CLUSTER_CHECKS.check("IG19", "cdcWalDirectoryMaxSize", change_only=True)
def size_limit(probe: ClusterProbe) -> Iterator[Finding]:
    """Check that links do not exceed the limit: others are skipped, which leaves a hole."""
    limit = probe.number("CdcWalDirectoryMaxSize")
    if limit <= 0 or not probe.node.directory.is_dir():
        return
    there = probe.node.size_bytes
    if there + probe.number("WalSegmentSize") > limit or there > NEARLY_FULL * limit:
        yield probe.node.finding(
            "IG19",
            Severity.WARNING,
            f"segments for consumers have {there / 2**20:.1f} MiB, and cdcWalDirectoryMaxSize is "
            f"{limit / 2**20:.1f} MiB",
            "a link that exceeds it is skipped, and changes are lost to consumers",
            f"penstock consume {probe.node.file} NAME  -- or a higher limit {RESTART}",
        )


@CLUSTER_CHECKS.check("IG20", "cdc.disabled", change_only=True)
def links_disabled(probe: ClusterProbe) -> Iterator[Finding]:
    """Check the cluster's switch for all links."""
    if probe.told.properties.get("cdc.disabled", "").lower() == "true":
        yield probe.node.finding(
            "IG20",
            probe.node.link_severity,
            "the distributed property cdc.disabled is true",
            "no node keeps segments for consumers, and changes are lost to them",
            f"{ENABLE_LINKS}; then {DELETE.format(file=probe.node.file)}",
        )


@CLUSTER_CHECKS.check("IG21", "paths", change_only=True)
def paths(probe: ClusterProbe) -> Iterator[Finding]:
    """Check that the node keeps segments for consumers in the directory of url."""
    told, work = probe.told.settings.get("CdcWalPath", ""), probe.node.url.work
    if not told or folder_of(probe.told.consistent_id) != probe.node.folder:
        return
    if (work / told).resolve() != (work / probe.node.url.cdc_path).resolve():
        yield probe.node.finding(
            "IG21",
            Severity.ERROR,
            f"cdcWalPath of the node is {told}, and url says {probe.node.url.cdc_path}",
            "another directory is read than that with the segments for consumers",
            f"add cdcWalPath={told} to [source] url",
        )
