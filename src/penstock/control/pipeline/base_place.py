"""Place of a configured pipeline's base."""

from __future__ import annotations

from pathlib import Path

from penstock.base.held import Holder
from penstock.base.manifest import NAME, BasePlace
from penstock.ports.config import Config


def base_place(config: Config) -> BasePlace:
    """Return its directory, and the links of segments that it needs."""
    return BasePlace(
        directory=config.layout.base,
        links=config.layout.consumers / NAME,
        extension=config.change_loader.change_file_extension,
    )


def base_holder(config: Config, owner: str, *links: Path) -> Holder:
    """Return a holder of its states. owner: a name that no other process has.

    links: directories with names of segments, beside the known ones.
    """
    place = base_place(config)
    return Holder(
        place.directory,
        owner=owner,
        log=config.layout.log,
        links=(place.links, *links),
        extension=place.extension,
    )
