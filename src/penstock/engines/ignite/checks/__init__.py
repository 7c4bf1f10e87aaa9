"""Doctor for Apache Ignite: the checks IG01 to IG22, of a node as source."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

# The modules put their checks into the lists when they are imported, in this order.
from penstock.engines.ignite.checks import cluster_checks, node_checks  # noqa: F401
from penstock.engines.ignite.checks.cluster_checks import ClusterProbe, Told, ask
from penstock.engines.ignite.checks.probe import (
    ARCHIVE_PATH,
    CLUSTER_CHECKS,
    NODE_CHECKS,
    PLACE_CHECKS,
    WAL_PATH,
    NodeProbe,
)
from penstock.engines.ignite.directory import only_folder
from penstock.engines.ignite.tables import read_captured
from penstock.engines.ignite.thin import open_thin
from penstock.engines.ignite.url import IgniteUrl
from penstock.host.files import FileFailed
from penstock.model import PenstockError
from penstock.ports.checks import (
    Examined,
    Finding,
    Looked,
    Severity,
    Side,
    SourceSeen,
    tables_not_read,
    unreachable,
)
from penstock.ports.registry import split_urls

__all__ = [
    "CHECKS",
    "CHECKS_OF",
    "CHECKS_OF_A_NEW_TABLE",
    "DROP_PROGRESS",
    "NOT_FOUND_BEFORE",
    "look_at_source",
    "server_errors",
]

CHECKS = (*PLACE_CHECKS, *NODE_CHECKS, *CLUSTER_CHECKS)
CHECKS_OF_A_NEW_TABLE = ("IG11", "IG16", "IG17")
DROP_PROGRESS = ""  # it cannot be a target
CHECKS_OF = {"IG51": ("IG09",), "IG52": ("IG01",)}
NOT_FOUND_BEFORE: dict[str, str] = {}


@contextmanager
def server_errors(doing: str) -> Iterator[None]:
    """Convert errors of files to typed ones. doing: the action, for the message."""
    try:
        yield
    except OSError as error:
        raise FileFailed(
            f"{doing}: {error.filename}: {error.strerror}",
            hint="Run penstock as the node's user, or let it read the work directory.",
            path=str(error.filename),
        ) from error


def look_at_source(examined: Examined, looked: Looked) -> SourceSeen:
    """Do the source's checks.

    Caches whose columns are not known before their first row are left out.
    """
    urls = [IgniteUrl.parse(one) for one in split_urls(examined.config.source.url)]
    away = [one for one in urls if not _store_path(one).is_dir()]
    for url in urls:
        if url in away and len(away) < len(urls):
            looked.findings.append(_away(url))
            looked.skip(PLACE_CHECKS, NODE_CHECKS, CLUSTER_CHECKS)
        else:
            _look_at_node(examined, url, looked)
    return _tables(examined, looked) if examined.config.has_target else SourceSeen()


def _tables(examined: Examined, looked: Looked) -> SourceSeen:
    """Return the known tables that a target gets."""
    try:
        with server_errors("reading the caches"):
            tables, new = examined.judged(read_captured(examined.config, dropped=frozenset()))
    except PenstockError as error:
        looked.findings.append(tables_not_read(error, Side.SOURCE))
        return SourceSeen()
    looked.findings.extend(new)
    return SourceSeen(tables=tables)


def _store_path(url: IgniteUrl) -> Path:
    return url.work / "db" / url.folder


def _away(url: IgniteUrl) -> Finding:
    """Return the finding for a missing one of several nodes."""
    return Finding(
        code="IG01",
        severity=Severity.WARNING,
        side=Side.SOURCE,
        what=f"there is no {_store_path(url)}",
        why="the other nodes are followed; changes that only this one has arrive when it is "
        "back; their number is not known",
        command="mount it again; if the node is gone for good, remove its URL from [source] url",
    )


def _look_at_node(examined: Examined, url: IgniteUrl, looked: Looked) -> None:
    config = examined.config
    try:
        folder = url.folder or only_folder(url)
    except PenstockError as error:
        looked.away(error, Side.SOURCE, PLACE_CHECKS, NODE_CHECKS, CLUSTER_CHECKS)
        return
    told = _ask_node(examined, url, looked)
    settings = told.settings if told is not None else {}
    probe = NodeProbe(
        url=url,
        folder=folder,
        file=config.path.name,
        patterns=config.source.tables,
        wal_path=settings.get("WalPath") or WAL_PATH,
        archive_path=settings.get("WalArchivePath") or ARCHIVE_PATH,
    )
    looked.look(PLACE_CHECKS, probe, typed=server_errors)
    needed = (probe.store, probe.directory)
    if all(one.is_dir() and os.access(one, os.R_OK | os.X_OK) for one in needed):
        looked.look(NODE_CHECKS, probe, typed=server_errors)
    else:
        looked.skip(NODE_CHECKS)
    if told is not None:
        looked.look(CLUSTER_CHECKS, ClusterProbe(node=probe, told=told), typed=server_errors)


def _ask_node(examined: Examined, url: IgniteUrl, looked: Looked) -> Told | None:
    """Return the node's facts; None if it cannot be queried: its checks are skipped then.

    Changes are read without it: an unreachable node is an error only if rows are copied.
    """
    if not url.addresses:
        looked.skip(CLUSTER_CHECKS)
        return None
    try:
        with open_thin(url) as client:
            return ask(client)
    except PenstockError as error:
        severity = Severity.ERROR if examined.config.pipeline.mode.has_data else Severity.WARNING
        looked.findings.append(replace(unreachable(error, Side.SOURCE), severity=severity))
        looked.skip(CLUSTER_CHECKS)
        return None
