"""Errors between us and a server of any engine: one class for each condition.

An engine gives its driver's errors these types, so that the same condition has the same code, and
the same answer, everywhere. Not here: the class of each of a driver's errors (the engines'
`connect`), and retries (`retry.py`).
"""

from __future__ import annotations

import re
from typing import ClassVar

from penstock.model import PenstockError, Retry

# The hints of the two errors that every engine's server can cause at any statement.
LOST = (
    "penstock retries automatically. If this repeats, read the server's log of that time: it has a "
    "line if the server restarted or ended the session, and none if a proxy, a firewall or the "
    "network cut the connection."
)
REFUSED = (
    "The message has what penstock was doing and then the server's own words. `penstock doctor "
    "FILE` checks settings, rights and room; the server's log of that time has the statement."
)


class ConnectFailed(PenstockError):
    """The server could not be reached or refused the connection for a reason not listed below."""

    code = "HS20"
    retry: ClassVar[Retry] = "backoff"


class UrlInvalid(ConnectFailed):
    """The text given as URL is not the URL of a database."""

    code = "HS21"
    retry = "operator"


class ServerUnreachable(ConnectFailed):
    """The server is down, the host name is unknown, or there is no route to the host."""

    code = "HS22"


class LoginRefused(ConnectFailed):
    """The user or password is wrong, or no line of pg_hba.conf admits this user."""

    code = "HS23"
    retry = "operator"


class DatabaseUnknown(ConnectFailed):
    """The server has no database of this name."""

    code = "HS24"
    retry = "operator"


class TlsFailed(ConnectFailed):
    """The TLS handshake failed, or the server's certificate is not trusted."""

    code = "HS25"
    retry = "operator"


class ServerBusy(ConnectFailed):
    """The server is starting, stopping, recovering or has no free connection."""

    code = "HS26"


class DatabaseRefused(ConnectFailed):
    """The account may not use this database, or, on some servers, there is no such database."""

    code = "HS31"
    retry = "operator"


class ConnectionLost(PenstockError):
    """An open connection broke: server stopped, session ended by an operator, network cut."""

    code = "HS27"
    retry = "backoff"


class PrivilegeMissing(PenstockError):
    """The role lacks a privilege for the operation."""

    code = "HS28"
    retry = "operator"


class StatementFailed(PenstockError):
    """The server refused a statement; the message is the server's own."""

    code = "HS29"
    retry = "operator"


class StatementInterrupted(PenstockError):
    """Deadlock, serialization failure, lock timeout or cancel: a retry may succeed."""

    code = "HS30"
    retry = "backoff"


def safe_to_retry(error: BaseException) -> bool:
    """Return whether the same work, begun again, may succeed without operator action.

    True for typed errors that are marked so (lost connections, servers that stop or start,
    deadlocks, serialization failures, timeouts) and for broken sockets. It does not say whether a
    COMMIT that broke took effect: read the progress row for that.
    """
    if isinstance(error, PenstockError):
        return error.retry == "backoff"
    return isinstance(error, ConnectionError | TimeoutError)


def mask(url: str) -> str:
    """Return the URL with its secrets replaced by `***`, fit for messages and pages.

    Works on broken URLs and on key=value connection strings too: in doubt too much is hidden.
    """
    masked = re.sub(r"(://[^:@/?\s]*):.*@", r"\1:***@", url, count=1)
    # A URL in the query of another one.
    masked = re.sub(
        r"(%3A%2F%2F[^%&\s]*)%3A[^&\s]*%40", r"\1%3A***%40", masked, flags=re.IGNORECASE
    )
    return re.sub(
        r"((?:ssl)?password|passphrase|secret|token|credential|access[.\-]?key)"
        r"([\w.\-]*)\s*(=|%3D)\s*('(?:[^'\\]|\\.)*'|[^&\s]*)",
        r"\1\2\3***",
        masked,
        flags=re.IGNORECASE,
    )
