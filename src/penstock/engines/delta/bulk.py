"""Target of the bulk load: the part `bulk_target`."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.codec.server_pair import ServerPair
from penstock.engines.delta.catalogue import FORMAT
from penstock.engines.lake.bulk import LakeBulk


def open_bulk_target(
    url: str,
    namespaces: Mapping[str, str],
    /,
    *,
    application_name: str,
    servers: ServerPair | None,
) -> LakeBulk:
    """Return the target of the driver; nothing is opened yet."""
    return LakeBulk(FORMAT, url, namespaces, application_name=application_name, servers=servers)
