"""Options of PostgreSQL in the pipeline file; see `penstock.ports.config.EngineOptions`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from penstock.host.errors import UrlInvalid
from penstock.ports.config import ChangeExtractorSection

EXAMPLE = "postgresql://user:${PASSWORD}@host:5432/database"
SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}\Z")


def check_url(url: str) -> None:
    """See EngineOptions. Everything else of a URL is libpq's to understand."""
    hint = f"Write it like {EXAMPLE}."
    try:
        parts = urlsplit(url)
        port_in_range = parts.port is None or parts.port > 0
    except ValueError as error:
        raise UrlInvalid(f"url cannot be read: {error}", hint=hint) from error
    if not port_in_range or not parts.path.strip("/") or not parts.username:
        lack = "user" if not parts.username else "database"
        raise UrlInvalid(f"url names no {lack if port_in_range else 'valid port'}", hint=hint)


def problems(section: ChangeExtractorSection) -> Iterator[tuple[str, str]]:
    """See EngineOptions."""
    if not SLOT_NAME.match(section.replication_slot):
        yield "replicationSlot", "must be 1 to 63 lower-case letters, digits and underscores"
    if not 1 <= len(section.publication.encode()) <= 63:
        yield "publication", "must be 1 to 63 bytes"
