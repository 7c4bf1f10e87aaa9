"""What a pipeline has made at its source, and taking it back.

Not here: asking whether it may go (`penstock.control.reset`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from penstock.model.removal import Removal
from penstock.ports.config import Config
from penstock.ports.handover import Handover
from penstock.ports.registry import part


class SourceReset(Protocol):
    """An engine's part `reset`."""

    def found(self, config: Config, handover: Handover | None, /) -> Iterator[Removal]:
        """What there is to take back. Raises DirectoryOfOtherSource where the source is another."""
        ...

    def owner(self, config: Config, /, *, log_id: str) -> str:
        """The owner of what is found, in words; empty where that is not known, or nobody's.

        log_id: of our log, or empty. Raises a typed error where it is certainly another pipeline's.
        """
        ...

    def remove(self, config: Config, handover: Handover | None, removal: Removal, /) -> None:
        """Carry one out. Raises PrivilegeMissing and what a connection does."""
        ...


def reset_of(config: Config) -> SourceReset:
    """The part of the engine that a pipeline's source URL names."""
    found: SourceReset = part(config.source.url, "reset")
    return found
