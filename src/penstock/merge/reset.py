"""Links that a merge has made at its logs; see `ports.reset.SourceReset`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from penstock.host.files import REAL_FILES, FileMissing, remove_tree
from penstock.log.links import CONSUMER_FILE
from penstock.merge.extraction import consumer_name
from penstock.model.removal import Removal
from penstock.ports.config import Config
from penstock.ports.handover import Handover


def _places(config: Config) -> Iterator[Path]:
    """Yield the directory of links that each log keeps for this merge."""
    for one in config.inputs:
        place = one.layout.consumers / consumer_name(config)
        if place.exists():
            yield place


def _removal(place: Path) -> Removal:
    return Removal(what=f"links of this merge in {place}", statements=())


def find_removals(config: Config, handover: Handover | None) -> Iterator[Removal]:
    """Yield the removals."""
    del handover
    yield from map(_removal, _places(config))


def owner(config: Config, *, log_id: str) -> str:
    """Return an empty text: links have the merge's name."""
    del config, log_id
    return ""


def remove(config: Config, handover: Handover | None, removal: Removal) -> None:
    """Remove the settings first, so that the log makes no further links."""
    del handover
    for place in _places(config):
        if _removal(place) == removal:
            with suppress(FileMissing):
                REAL_FILES.unlink(place / CONSUMER_FILE)
            remove_tree(place)
