"""Where the base of a configured pipeline is."""

from __future__ import annotations

from penstock.base.manifest import NAME, BasePlace
from penstock.ports.config import Config


def base_place(config: Config) -> BasePlace:
    """Its directory, and the links of segments that it needs."""
    return BasePlace(
        directory=config.directory / NAME,
        links=config.layout.consumers / NAME,
        extension=config.change_loader.change_file_extension,
    )
