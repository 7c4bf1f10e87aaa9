"""Errors that only SQL Server has: one class for each condition.

Errors of every engine's servers (lost connection, wrong password, missing privilege) are those of
`penstock.host.errors`; `connect.py` decides by the server's number which one it is.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.host.errors import ConnectFailed
from penstock.model import PenstockError, Retry


class SystemLibraryMissing(ConnectFailed):
    """A library of the system that Microsoft's driver needs is not installed."""

    code = "MS01"
    retry = "operator"


class RangeInvalid(PenstockError):
    """The server refused a range of log sequence numbers: its change tables no longer have it."""

    code = "MS02"
    retry: ClassVar[Retry] = "backoff"


class CdcDisabled(PenstockError):
    """Change data capture is not enabled for the database."""

    code = "MS03"
    retry: ClassVar[Retry] = "operator"


class InstanceMissing(PenstockError):
    """A table has no capture instance: its changes are not recorded."""

    code = "MS04"
    retry: ClassVar[Retry] = "operator"


class InstanceUnreadable(PenstockError):
    """The user may not read a capture instance: its gating role or SELECT is missing."""

    code = "MS05"
    retry: ClassVar[Retry] = "operator"


class ChangesLost(PenstockError):
    """Changes after the saved position are no longer in the change tables."""

    code = "MS06"
    retry: ClassVar[Retry] = "operator"


class InstanceRecreated(ChangesLost):
    """A capture instance was dropped and created again, without the changes in between."""

    code = "MS07"


class PositionAhead(PenstockError):
    """The saved position is after everything that the server has captured."""

    code = "MS08"
    retry: ClassVar[Retry] = "operator"


class UpdateTorn(PenstockError):
    """A change table has only one of the two rows of an update."""

    code = "MS09"
    retry: ClassVar[Retry] = "operator"


class CaptureStopped(PenstockError):
    """The capture job does not run, so that no change reaches the change tables."""

    code = "MS10"
    retry: ClassVar[Retry] = "backoff"


class TableRenamed(PenstockError):
    """A captured table has another name now, which is not captured."""

    code = "MS13"
    retry: ClassVar[Retry] = "operator"


class NoLockOnSecondary(PenstockError):
    """Rows of a table without a key cannot be copied from a readable secondary."""

    code = "MS14"
    retry: ClassVar[Retry] = "operator"


class DatabaseReplaced(PenstockError):
    """Another database has the source's name, or it was restored to an earlier time."""

    code = "MS12"
    retry: ClassVar[Retry] = "operator"


class EnablingRefused(PenstockError):
    """The server refused to create the capture instance of a table."""

    code = "MS11"
    retry: ClassVar[Retry] = "operator"
