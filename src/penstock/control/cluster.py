"""Whether the executors of a cluster can do a pipeline's work; asked before any row goes there."""

from __future__ import annotations

from penstock.host.files import REAL_FILES
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
from penstock.ports.config import Config
from penstock.ports.reach import reach_of

HINT = "docs/cluster.md says what every machine of the cluster needs."


def check_cluster(config: Config, session: Session) -> list[Executor]:
    """Look at every executor. Raises ClusterUnfit for the first that lacks something."""
    sections = {"source.url": config.source.url}
    if config.has_target:
        sections["target.url"] = config.target.url
    needs = {section: reach_of(url) for section, url in sections.items()}
    for section, need in needs.items():
        if need.socket:
            raise ClusterUnfit(
                f"{section} names a socket file ({need.socket}), which executors on other machines "
                "do not have",
                hint="Name host and port of the server in the URL.",
                what=section,
            )
    REAL_FILES.make_directory(config.layout.run)
    with nonce_in(config.layout.run) as (path, nonce):
        found = look(
            session,
            Wanted(
                nonce_path=path.absolute(),
                nonce=nonce,
                # What this machine cannot reach either is an outage, which passes.
                addresses={
                    section: need.addresses
                    for section, need in needs.items()
                    if need.addresses and reachable(need.addresses)
                },
                files=tuple(path for need in needs.values() for path in need.files),
                versions=versions_here(),
                machine=machine_name(),
            ),
        )
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
