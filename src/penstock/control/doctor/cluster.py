"""Check that the executors of a cluster can do a pipeline's work, before any row is sent there.

Made by the load at its start, and by doctor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.host.listen import listen_at
from penstock.load.cluster import (
    ClusterUnfit,
    Executor,
    Wanted,
    look,
    machine_name,
    nonce_in,
    reachable,
    versions_here,
)
from penstock.load.session import Session
from penstock.ports.config import Config, LogPath, snapshot_address
from penstock.ports.registry import Reach, reach_of

HINT = "docs/cluster.md says what every machine of the cluster needs."
Addresses = tuple[tuple[str, int], ...]
NO_SOCKET = "Name host and port of the server in the URL."


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """Deficiency of a cluster. host: the executor's host; empty if the deficiency is in the
    pipeline file.
    """

    what: str
    hint: str
    host: str = ""


def check_cluster(config: Config, session: Session) -> list[Executor]:
    """Look at every executor. Raises ClusterUnfit for the first deficient one."""
    for lack in lacks_of_urls(config):
        raise ClusterUnfit(lack.what, hint=NO_SOCKET, what=lack.what)
    found = look_around(config, session)
    for one in found:
        if one.lacks:
            more = f" (and: {'; '.join(one.lacks[1:])})" if one.lacks[1:] else ""
            raise ClusterUnfit(
                f"an executor on {one.host} {one.lacks[0]}{more}",
                hint=HINT,
                host=one.host,
                what=one.lacks[0],
            )
    return found


def lacks_of_urls(config: Config) -> Iterator[Lack]:
    """Yield the deficiencies that are visible without asking an executor."""
    for section, need in _needs(config).items():
        if need.socket:
            yield Lack(
                what=f"{section} names a socket file ({need.socket}), which executors on other "
                "machines do not have",
                hint=NO_SOCKET,
            )


def lacks_of(found: list[Executor]) -> Iterator[Lack]:
    """Yield the deficiencies that executors reported, each of them once."""
    for one in found:
        for what in one.lacks:
            yield Lack(what=f"an executor on {one.host} {what}", hint=HINT, host=one.host)


def look_around(config: Config, session: Session) -> list[Executor]:
    """Let every executor look around, with a file in the pipeline's directory meanwhile."""
    needs = _needs(config)
    with nonce_in(config.layout.run) as (path, nonce), _snapshots_there(config) as snapshots:
        return look(
            session,
            Wanted(
                nonce_path=None if config.spark.log is LogPath.SHIP else path.absolute(),
                nonce=nonce,
                # An address that this machine cannot reach either is an outage, which passes.
                addresses={
                    section: need.addresses
                    for section, need in needs.items()
                    if need.addresses and reachable(need.addresses)
                }
                | snapshots,
                files=tuple(path for need in needs.values() for path in need.files),
                versions=versions_here(),
                machine=machine_name(),
            ),
        )


@contextmanager
def _snapshots_there(config: Config) -> Iterator[dict[str, Addresses]]:
    """Listen at the address where executors will read snapshots, if they read them through this
    machine.

    Raises ListenFailed.
    """
    if not (config.pipeline.mode.has_data and config.source.engine.lends_snapshots):
        yield {}
        return
    at = snapshot_address(config.spark)
    with listen_at(at) as listener:
        yield {"spark.snapshotAddress": ((at.host, int(listener.getsockname()[1])),)}


def _needs(config: Config) -> Mapping[str, Reach]:
    """Return the requirements of each section's URL, keyed by section name."""
    sections = {"source.url": config.source.url}
    if config.has_target:
        sections["target.url"] = config.target.url
    return {section: reach_of(url) for section, url in sections.items()}
