"""Removal of a pipeline from an Oracle source: penstock has made nothing there.

Supplemental logging and grants are the operator's, and stay.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.model.removal import Removal
from penstock.ports.config import Config
from penstock.ports.handover import Handover


def find_removals(_config: Config, _handover: Handover | None) -> Iterator[Removal]:
    """Yield nothing."""
    yield from ()


def owner(_config: Config, *, log_id: str) -> str:
    """Return an empty text: there is nothing to own."""
    del log_id
    return ""


def remove(_config: Config, _handover: Handover | None, removal: Removal) -> None:
    """Raise ValueError: no removal was offered."""
    raise ValueError(f"not a removal of this engine: {removal}")
