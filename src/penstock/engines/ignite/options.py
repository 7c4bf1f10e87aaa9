"""Options of a node's directory in the pipeline file; see `ports.config.EngineOptions`."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.engines.ignite.url import IgniteUrl
from penstock.ports.config import ChangeExtractorSection
from penstock.ports.registry import is_list


def check_url(url: str) -> None:
    """Refuse a URL that cannot be of this engine."""
    if is_list(url):
        IgniteUrl.parse_nodes(url)
    else:
        IgniteUrl.parse(url)


def problems(_: ChangeExtractorSection) -> Iterator[tuple[str, str]]:
    """Yield nothing: there are no options of extraction."""
    return iter(())
