"""Errors of reading Oracle's redo: one class for each condition."""

from __future__ import annotations

from typing import ClassVar

from penstock.model import PenstockError, Retry

RELOAD = "Load the tables again: penstock reset --target, then penstock run."


class RedoLost(PenstockError):
    """Redo after the saved position is in no log any more, neither online nor archived."""

    code = "OR20"
    retry: ClassVar[Retry] = "operator"


class IncarnationChanged(PenstockError):
    """The database was opened with RESETLOGS or replaced: its SCNs are others than the log's."""

    code = "OR21"
    retry: ClassVar[Retry] = "operator"


class RedoUnreadable(PenstockError):
    """LogMiner found a gap or a corrupt block in the redo."""

    code = "OR22"
    retry: ClassVar[Retry] = "operator"


class RedoAwaited(PenstockError):
    """A log is not listed or not readable yet: the archiver is late, or a log was just switched."""

    code = "OR23"
    retry: ClassVar[Retry] = "backoff"


class TransactionTorn(PenstockError):
    """A transaction began before the oldest redo that can be read."""

    code = "OR24"
    retry: ClassVar[Retry] = "operator"


class TransactionTooLarge(PenstockError):
    """A transaction has more rows than transactionRowsMax."""

    code = "OR25"
    retry: ClassVar[Retry] = "operator"


class TransactionTooOld(PenstockError):
    """A transaction has been open for longer than transactionHoursMax."""

    code = "OR26"
    retry: ClassVar[Retry] = "operator"


class ParallelChild(PenstockError):
    """A part of a parallel statement has no commit of its own."""

    code = "OR27"
    retry: ClassVar[Retry] = "operator"


class RowsUnlogged(PenstockError):
    """Rows were loaded without redo (NOLOGGING), or a DDL statement moved rows in or out."""

    code = "OR28"
    retry: ClassVar[Retry] = "operator"


class LobLost(PenstockError):
    """A large object's value is neither in the redo nor can it be read as of its commit."""

    code = "OR29"
    retry: ClassVar[Retry] = "operator"


class SpillBroken(PenstockError):
    """A side file of a large transaction was changed from outside."""

    code = "OR30"
    retry: ClassVar[Retry] = "backoff"


class KeysSwapped(PenstockError):
    """One statement exchanged keys, and the log lacks columns of the rows."""

    code = "OR31"
    retry: ClassVar[Retry] = "operator"


class ScnAhead(PenstockError):
    """startScn is after everything that the server has done."""

    code = "OR32"
    retry: ClassVar[Retry] = "operator"
