"""Errors for binlog contents that cannot be followed: one class per condition.

Each stops the extraction at the place where it happened, with the log whole up to there. Not here:
events that the server refuses to send (`dump_errors.py`).
"""

from __future__ import annotations

from typing import ClassVar

from penstock.model import LOAD_AGAIN as COMMANDS
from penstock.model import PenstockError, Retry

LOAD_AGAIN = "The changes alone do not say what the rows are now: " + COMMANDS


class RowsChangedUnseen(PenstockError):
    """A captured table's rows changed, and the binlog does not say how. `fields`: table."""

    code = "MY80"
    retry: ClassVar[Retry] = "operator"


class TableMoved(PenstockError):
    """A captured table was renamed, or another took its name. `fields`: table."""

    code = "MY81"
    retry: ClassVar[Retry] = "operator"


class StatementLogged(PenstockError):
    """A captured table was changed by a statement that is logged as text. `fields`: table."""

    code = "MY82"
    retry: ClassVar[Retry] = "operator"


class ChangesMissing(PenstockError):
    """The server itself reports that changes are missing in its binlog (an INCIDENT event)."""

    code = "MY83"
    retry: ClassVar[Retry] = "operator"


class PreparedUnseen(PenstockError):
    """An XA transaction was committed that was prepared before the change log begins."""

    code = "MY84"
    retry: ClassVar[Retry] = "operator"


class StreamUnexpected(PenstockError):
    """Events are in an order that no server writes, or a side file is not as we left it."""

    code = "MY85"
    retry: ClassVar[Retry] = "operator"


class SeenUnknown(PenstockError):
    """The stream has to continue with another server, and which transactions we have is not
    known.
    """

    code = "MY86"
    retry: ClassVar[Retry] = "operator"


class TransactionUndone(PenstockError):
    """A transaction was undone in the log after some of its rows had been emitted."""

    code = "MY87"
    retry: ClassVar[Retry] = "operator"


class StartUnfit(PenstockError):
    """A new change log cannot begin at the given position of the server's binlog."""

    code = "MY88"
    retry: ClassVar[Retry] = "operator"


def changes_missing(said: str) -> ChangesMissing:
    """Return the error for an INCIDENT event. said: its text."""
    return ChangesMissing(
        f"the server says that changes are missing in its binlog: {said}", hint=LOAD_AGAIN
    )


def loaded_by_statement() -> StreamUnexpected:
    """Return the error for the event of a LOAD DATA that holds no rows."""
    return StreamUnexpected(
        "rows were loaded by a LOAD DATA statement that is logged as text, not as rows",
        hint="Set binlog_format = 'ROW' for all sessions. " + LOAD_AGAIN,
    )
