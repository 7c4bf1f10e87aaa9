"""Errors of a server that does not send its binlog from our position: one class per condition.

The server answers nearly all conditions with one number and a sentence, so the words decide;
"master" became "source" and "slave" "replica" in MySQL 8.0.26. If a condition can be seen
beforehand, `status.py` raises the same class, before a dump is requested.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from penstock.codec.mysql.mysqlwire import ServerError
from penstock.engines.mysql.connect import AGAIN, server_error
from penstock.host.errors import PrivilegeMissing
from penstock.model import LOAD_AGAIN, PenstockError, Retry

RESNAPSHOT = (
    "Let the server keep its binlogs for longer (set global binlog_expire_logs_seconds = 604800;), "
    f"and {LOAD_AGAIN}"
)
RESET_HINT = f"RESET MASTER was run, or the server was restored: find out why, and {LOAD_AGAIN}"
BEHIND_HINT = (
    "Find out which of the two is right before you continue: name the server that has them in "
    f"source.url, or, from this one, {LOAD_AGAIN}"
)
FATAL_READING_BINLOG = 1236
SLAVE_WITH_SAME_ID = 4052


class LogPurged(PenstockError):
    """The server has deleted the binlog file in which we continue; `fields["oldest"]` is what is
    left.

    The changes in between are lost to us: the tables have to be loaded again.
    """

    code = "MY50"
    retry: ClassVar[Retry] = "operator"


class GtidsPurged(LogPurged):
    """The server has deleted transactions that we have not seen, as its GTID sets show."""

    code = "MY51"


class ServerBehind(PenstockError):
    """We have seen transactions that this server does not have: it lost them, or it diverged.

    Causes are a restored backup, a failover to a replica that was behind, and RESET MASTER.
    """

    code = "MY52"
    retry: ClassVar[Retry] = "operator"


class PositionUnfit(PenstockError):
    """The offset to continue from is not the beginning of an event of that file."""

    code = "MY53"
    retry: ClassVar[Retry] = "operator"


class LogReset(PenstockError):
    """The server restarted its binlog from the beginning (RESET MASTER): its files have other
    contents now.
    """

    code = "MY54"
    retry: ClassVar[Retry] = "operator"


class ServerIdInUse(PenstockError):
    """Another reader with our server id has connected, and the server dropped us for it."""

    code = "MY55"
    retry: ClassVar[Retry] = "operator"


class StreamSilent(PenstockError):
    """The connection is open but the server sends nothing, not even its heartbeats."""

    code = "MY56"
    retry: ClassVar[Retry] = "backoff"


class DumpRefused(PenstockError):
    """The server does not send its binlog for a reason that has no class of its own."""

    code = "MY57"
    retry: ClassVar[Retry] = "operator"


class LogOff(PenstockError):
    """The server keeps no binlog, or no GTIDs although we want to continue by GTID."""

    code = "MY58"
    retry: ClassVar[Retry] = "operator"


class EventTooLong(PenstockError):
    """The server will not send an event that is longer than its max_allowed_packet."""

    code = "MY59"
    retry: ClassVar[Retry] = "operator"


class ServerReplaced(PenstockError):
    """The server at this address is not the one that the change log was filled from."""

    code = "MY60"
    retry: ClassVar[Retry] = "operator"


class LogUnreadable(PenstockError):
    """The server could not read on in its own binlog file.

    Its disk fails, or RESET MASTER deleted the file: the next attempt shows which.
    """

    code = "MY61"
    retry: ClassVar[Retry] = "backoff"


class DumpEnded(PenstockError):
    """The server ended the stream: it is shutting down, or our session was killed."""

    code = "MY62"
    retry: ClassVar[Retry] = "backoff"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Condition:
    pattern: re.Pattern[str]
    kind: type[PenstockError]
    hint: str


def _condition(pattern: str, kind: type[PenstockError], hint: str) -> _Condition:
    return _Condition(pattern=re.compile(pattern, re.IGNORECASE | re.DOTALL), kind=kind, hint=hint)


_CONDITIONS = (
    _condition("could not find first log file name", LogPurged, RESNAPSHOT),
    _condition("could not open log file", LogPurged, RESNAPSHOT),
    _condition("purged required binary logs", GtidsPurged, RESNAPSHOT),
    _condition("purged binary logs containing GTIDs", GtidsPurged, RESNAPSHOT),
    _condition("could not find GTID state requested", GtidsPurged, RESNAPSHOT),
    _condition("has more GTIDs than the (master|source) has", ServerBehind, BEHIND_HINT),
    _condition("which is not in the master's binlog", ServerBehind, BEHIND_HINT),
    _condition("errant transaction|diverged", ServerBehind, BEHIND_HINT),
    _condition(
        "could not find next log",
        LogReset,
        RESET_HINT,
    ),
    _condition(
        "same server_uuid/server_id as this|is already connected|with the same server_(id|uuid)",
        ServerIdInUse,
        "End the other reader, or give each its own: changeExtractor.serverId.",
    ),
    _condition(
        "start replication from position|impossible position|position > file size|position < 4"
        "|truncated in the middle of event|bogus data in log event|event read from .*binlog.* is"
        "|read event length|checksum failure|log event entry exceeded max_allowed_packet.*first "
        "event",
        PositionUnfit,
        f"If the server's disk and file are whole, {LOAD_AGAIN}",
    ),
    _condition("i/o error reading", LogUnreadable, AGAIN),
    _condition(
        "exceeded max_allowed_packet",
        EventTooLong,
        "Run at the server: set global max_allowed_packet = 1073741824;",
    ),
    _condition(
        "binary log is not open|GTID_MODE ?= ?OFF|AUTO_POSITION",
        LogOff,
        "Run `penstock doctor`: it prints what to set at the server.",
    ),
)


def dump_error(said: ServerError, *, place: str, start: str, oldest: str = "") -> PenstockError:
    """Return the typed error for the server's answer to a dump, or in the middle of one.

    place: host and port. start: where the dump began, for the message. oldest: the oldest position
    that the server still has, if it could be queried. `fields` holds start, oldest and the server's
    number.
    """
    fields = {"errno": said.number, "start": start}
    if oldest:
        fields["oldest"] = oldest
    left = f"; the oldest position left is {oldest}" if oldest else ""
    message = f"{place} does not send its binlog from {start}: {said.message}"
    if said.number in (FATAL_READING_BINLOG, SLAVE_WITH_SAME_ID):
        for condition in _CONDITIONS:
            if condition.pattern.search(said.message):
                more = left if issubclass(condition.kind, LogPurged | LogReset) else ""
                return condition.kind(message + more, hint=condition.hint, **fields)
        return DumpRefused(
            message, hint="Run `penstock doctor` for what the server lacks.", **fields
        )
    doing = f"reading the binlog of {place} from {start}"
    typed = server_error(doing, said.number, said.sqlstate, said.message)
    return right_to_dump(typed) if isinstance(typed, PrivilegeMissing) else typed


def right_to_dump(error: PrivilegeMissing) -> PrivilegeMissing:
    """Return the same error, with the GRANT that is missing."""
    hint = "Run at the server: grant replication slave, replication client on *.* to 'USER'@'HOST';"
    return PrivilegeMissing(error.message, hint=hint, **error.fields)
