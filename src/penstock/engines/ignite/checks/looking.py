"""An Ignite node of a configured pipeline under doctor's eyes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.engines.ignite.checks.probe import (
    CLUSTER_CHECKS,
    NODE_CHECKS,
    PLACE_CHECKS,
    NodeProbe,
)
from penstock.engines.ignite.directory import only_folder
from penstock.engines.ignite.url import IgniteUrl
from penstock.host.files import FileFailed
from penstock.model import PenstockError
from penstock.ports.checks import Examined, Looked, Side, SourceSeen


@contextmanager
def server_errors(doing: str) -> Iterator[None]:
    """Make errors of files typed ones. doing: what was being done."""
    try:
        yield
    except OSError as error:
        raise FileFailed(
            f"{doing}: {error.filename}: {error.strerror}",
            hint="Run penstock as the node's user, or let it read the work directory.",
            path=str(error.filename),
        ) from error


def look_at_source(examined: Examined, looked: Looked) -> SourceSeen:
    """See EngineChecks. Which tables there are is not told: caches have none before their rows."""
    config = examined.config
    url = IgniteUrl.parse(config.source.url)
    try:
        folder = url.folder or only_folder(url)
    except PenstockError as error:
        looked.away(error, Side.SOURCE, PLACE_CHECKS, NODE_CHECKS, CLUSTER_CHECKS)
        return SourceSeen()
    probe = NodeProbe(url=url, folder=folder, file=config.path.name, patterns=config.source.tables)
    looked.look(PLACE_CHECKS, probe, typed=server_errors)
    needed = (probe.stored, probe.directory)
    if all(one.is_dir() and os.access(one, os.R_OK | os.X_OK) for one in needed):
        looked.look(NODE_CHECKS, probe, typed=server_errors)
    else:
        looked.skip(NODE_CHECKS)
    looked.skip(CLUSTER_CHECKS)
    return SourceSeen()
