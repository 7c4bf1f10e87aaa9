"""Things that a pipeline has made at its source, and their removal.

Not here: the decision to remove them (`penstock.control.run.reset`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from penstock.model.removal import Removal
from penstock.ports.config import Config
from penstock.ports.handover import Handover
from penstock.ports.registry import part


class SourceReset(Protocol):
    """Part `reset` of an engine."""

    def find_removals(self, config: Config, handover: Handover | None, /) -> Iterator[Removal]:
        """Yield the removals. Raises DirectoryOfOtherSource if the source is another one."""
        ...

    def owner(self, config: Config, /, *, log_id: str) -> str:
        """Return the owner of the findings, in words; empty if it is unknown or there is none.

        log_id: of our log, or empty. Raises a typed error if another pipeline is certainly the
        owner.
        """
        ...

    def remove(self, config: Config, handover: Handover | None, removal: Removal, /) -> None:
        """Carry one out. Raises PrivilegeMissing and the errors of a connection."""
        ...


def reset_of(config: Config) -> SourceReset:
    """Return the part `reset` of the engine that a pipeline's source URL names."""
    found: SourceReset = part(config.source.url, "reset")
    return found
