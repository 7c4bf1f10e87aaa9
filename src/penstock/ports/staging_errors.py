"""Refusals of a staging database of any engine: one class for each condition.

Not here: errors of servers and connections (`penstock.host.errors`), an empty key
(`penstock.ports.staging`).
"""

from __future__ import annotations

from penstock.model import PenstockError


class StagingUnusable(PenstockError):
    """The database cannot be used for staging: another server, or other tables of its names."""

    code = "ST20"
    retry = "operator"


class StagingMissing(PenstockError):
    """The staging database or its tables do not exist yet."""

    code = "ST21"
    retry = "operator"


class CheckpointGoesBack(PenstockError):
    """A resolved timestamp is older than an earlier one of the feed."""

    code = "ST23"
    retry = "operator"


class CheckpointMoved(PenstockError):
    """A feed resolved the time of a mutation while the mutation was being staged."""

    code = "ST27"
    retry = "backoff"


def checkpoint_moved(partition: str) -> CheckpointMoved:
    """Return the error for a feed."""
    return CheckpointMoved(
        f"feed {partition} resolved a time while mutations of it were being staged",
        hint="Nothing to do: penstock looks at them again.",
        partition=partition,
    )


class KeyTooLong(PenstockError):
    """A mutation's key is longer than an index of the staging database permits."""

    code = "ST24"
    retry = "operator"


class MutationTableGone(PenstockError):
    """A mutation table was dropped while it was in use."""

    code = "ST25"
    retry = "backoff"


class MutationBroken(PenstockError):
    """A staged value looks compressed, and is not."""

    code = "ST26"
    retry = "operator"
