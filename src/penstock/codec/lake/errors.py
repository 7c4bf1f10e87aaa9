"""Error of the bytes of deletion files."""

from __future__ import annotations

from penstock.model import PenstockError


class DeletionCorrupt(PenstockError):
    """A deletion vector, or a file of deleted positions, has other bytes than its format allows.

    Nothing is guessed: without the deleted positions, deleted rows would come back.
    """

    code = "LK04"
    retry = "operator"


def corrupt(what: str, reason: str) -> DeletionCorrupt:
    """Return the error for broken bytes. what: the file or vector; reason: what is wrong."""
    return DeletionCorrupt(
        f"{what} is broken: {reason}",
        hint="Restore the file from a backup, or copy the table again: "
        "penstock table resync FILE TABLE.",
    )
