"""Errors that only Oracle has: one class for each condition.

Errors of every engine's servers (lost connection, wrong password, missing privilege) are those of
`penstock.host.errors`; `connect.py` decides by the server's number which one it is.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.host.errors import ConnectFailed
from penstock.model import PenstockError, Retry


class ThinModeRefused(ConnectFailed):
    """The server demands what the driver lacks in thin mode, e.g. Native Network Encryption."""

    code = "OR01"
    retry: ClassVar[Retry] = "operator"


class SessionUnset(PenstockError):
    """A session does not print dates, times or numbers in the formats that penstock sets."""

    code = "OR02"
    retry: ClassVar[Retry] = "operator"


class NameImpossible(PenstockError, ValueError):
    """A database, table or column has a name that Oracle cannot have."""

    code = "OR33"
    retry: ClassVar[Retry] = "operator"


class SnapshotLost(PenstockError):
    """The server can no longer read a table as of the chosen system change number."""

    code = "OR03"
    retry: ClassVar[Retry] = "backoff"


class ArchivingOff(PenstockError):
    """The database is in NOARCHIVELOG mode, in which its redo is overwritten."""

    code = "OR06"
    retry: ClassVar[Retry] = "operator"


class SupplementalLoggingOff(PenstockError):
    """The database or a table does not log the columns that identify a changed row."""

    code = "OR07"
    retry: ClassVar[Retry] = "operator"


class DatabaseNotPrimary(PenstockError):
    """The database is a standby."""

    code = "OR08"
    retry: ClassVar[Retry] = "operator"


class MiningOutsideRoot(PenstockError):
    """The URL of the source names the service of a pluggable database, where logs are not mined."""

    code = "OR10"
    retry: ClassVar[Retry] = "operator"


class DatabaseClosed(PenstockError):
    """The pluggable database of the tables is not open for changes."""

    code = "OR09"
    retry: ClassVar[Retry] = "operator"
