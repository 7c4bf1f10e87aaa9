"""Typed errors for those of the driver and the server.

The driver's errors carry the server's number in `args[0].code`, and its own name, such as DPY-4011,
in `args[0].full_code`. `server_error` decides by these two only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

from penstock.engines.oracle.errors import SnapshotLost, ThinModeRefused
from penstock.engines.oracle.url import OracleUrl
from penstock.host.errors import (
    LOST,
    REFUSED,
    ConnectFailed,
    ConnectionLost,
    LoginRefused,
    PrivilegeMissing,
    ServerBusy,
    ServerUnreachable,
    StatementFailed,
    StatementInterrupted,
    TlsFailed,
    mask,
)
from penstock.model import PenstockError
from penstock.ports.registry import DriverMissing

AGAIN = "penstock retries automatically."

# Conditions of numbers: Oracle's "Database Error Messages", and reference section 1b.8.
_LOST = frozenset(
    {22, 28, 45, 602, 603, 609, 1012, 1041, 1043, 1092, 2396, 3106, 3108, 3113, 3114, 3122, 3135}
    | {12151, 12152, 12153, 12161, 12170, 12535, 12537, 12541, 12543, 12545, 12547, 12560, 12570}
    | {12571, 12583, 12606, 12608, 25401, 25402, 25403, 25408, 25409}
)
_BUSY = frozenset(
    {18, 20, 1033, 1034, 1089, 1090, 1109, 1219, 12514, 12516, 12518, 12519, 12520, 12526, 12527}
    | {12528, 12757, 25303, 27101, 65054}
)
_INTERRUPTED = frozenset({54, 60, 1013, 3111, 4020, 4021, 8177, 30006, 4030, 4031, 4036, 12805})
_PRIVILEGES = frozenset({1031, 1720, 1749, 1950, 41900, 65050})
_LOGIN_REFUSED = frozenset({1005, 1017, 1045, 28000, 28001, 28040})
_NATIVE_ENCRYPTION = frozenset({12599, 12650, 12660, 12661})
_SNAPSHOT = frozenset({1466, 1555, 8180, 8181, 22924})
_GONE = frozenset({942, 4043})
_RECURSIVE = 604

_DPY_LOST = frozenset({"DPY-1001", "DPY-4011"})
_DPY_TIMEOUT = "DPY-4024"
_DPY_UNKNOWN_SERVICE = frozenset({"DPY-6001", "DPY-6003"})
_DPY_CERTIFICATE = frozenset({"DPY-6002", "DPY-6006", "DPY-6008", "DPY-6009"})
_DPY_THIN = frozenset({"DPY-3001", "DPY-3010", "DPY-3012", "DPY-3015", "DPY-3040"})

_NUMBER = re.compile(r"ORA-(\d{1,5})")
_SAYS_TLS = re.compile(r"\bSSL\b|\bTLS\b|certificate|wallet", re.IGNORECASE)
_READS_VIEW = re.compile(r"\b(?:G?V_?\$|DBA_|CDB_|DBMS_LOGMNR)", re.IGNORECASE)
_PLS_MISSING = re.compile(r"PLS-00(?:201|904)")


def driver() -> ModuleType:
    """Return the module oracledb. Raises DriverMissing."""
    try:
        return import_module("oracledb")
    except ModuleNotFoundError as error:
        raise DriverMissing(
            f"Oracle needs the Python package {error.name}, which is not installed",
            hint="Run: pip install 'penstock[oracle]'",
            engine="oracle",
        ) from error


# -- errors --------------------------------------------------------------------------------------


def connect_error(url: str, error: BaseException) -> ConnectFailed:
    """Return the typed error for an error of the driver when a connection failed."""
    said = _text_of(error, OracleUrl.parse(url).secrets)
    number, name = error_number(error), _name_of(error)
    message = f"no connection to {mask(url)}: {said}"
    if name in _DPY_THIN or number in _NATIVE_ENCRYPTION:
        return ThinModeRefused(
            message,
            hint="python-oracledb's thin mode is used: see docs/oracle.md for what it lacks.",
        )
    if number in _LOGIN_REFUSED or name == "DPY-4001":
        return LoginRefused(message, hint=_login_hint(number))
    if number in _BUSY or name in _DPY_UNKNOWN_SERVICE:
        return ServerBusy(
            message,
            hint="The instance may be starting. If it is open, check the service name in the URL "
            "against `lsnrctl services`.",
        )
    if name in _DPY_CERTIFICATE or (_SAYS_TLS.search(said) and number not in _LOST):
        return TlsFailed(
            message,
            hint="Check protocol, walletLocation and sslServerDnMatch in the URL, and that the "
            "server's certificate names this host.",
        )
    if isinstance(error, ValueError):
        return ConnectFailed(message, hint="Check the options of the URL.")
    return ServerUnreachable(
        message, hint="Check host and port in the URL, and that the listener and the server run."
    )


def _login_hint(number: int) -> str:
    if number == 1045:
        return "Run as a DBA: GRANT CREATE SESSION TO [USER];"
    if number == 28000:
        return "Run as a DBA: ALTER USER [USER] ACCOUNT UNLOCK;"
    if number == 28001:
        return "Run as a DBA: ALTER USER [USER] IDENTIFIED BY [PASSWORD];"
    return "Check user and password in the URL."


@contextmanager
def server_errors(doing: str) -> Iterator[None]:
    """Convert the driver's errors into typed ones; `doing` names the work, or is the statement.

    Raises ConnectionLost, PrivilegeMissing, StatementInterrupted, SnapshotLost, ServerBusy or
    StatementFailed, each with the server's own message and its number in `fields["errno"]`, 0 for
    an error of the driver itself, whose name is in `fields["driver"]`.
    """
    module = driver()
    try:
        yield
    except (module.Error, module.Warning) as error:
        raise statement_error(doing, error) from error


def statement_error(doing: str, error: BaseException) -> PenstockError:
    """Return the typed error for one of the driver's; see `server_errors`."""
    return server_error(doing, error_number(error), _name_of(error), _text_of(error))


def server_error(doing: str, number: int, name: str, said: str) -> PenstockError:
    """Return the typed error of a number.

    Args:
        doing: The work, or the statement.
        number: The server's, 0 if the driver itself failed.
        name: The driver's own, such as DPY-4011.
        said: The message.
    """
    message = f"{_shorten(doing)}: {said or 'the connection was closed'}"
    fields: dict[str, Any] = {"errno": number}
    if name.startswith("DPY-"):
        fields["driver"] = name
    if name in _DPY_LOST or number in _LOST:
        return ConnectionLost(message, hint=LOST, **fields)
    if number in _BUSY:
        return ServerBusy(message, hint=AGAIN, **fields)
    if number in _SNAPSHOT:
        return SnapshotLost(
            message,
            hint="penstock reads the table again as of a newer system change number. If this "
            "repeats, raise UNDO_RETENTION above the time that the largest table takes.",
            **fields,
        )
    if number in _INTERRUPTED or name == _DPY_TIMEOUT:
        return StatementInterrupted(message, hint=AGAIN, **fields)
    if _lacks_privilege(doing, number, said):
        return PrivilegeMissing(
            message, hint="Run `penstock doctor`: it prints the GRANT to type.", **fields
        )
    return StatementFailed(message, hint=_hint(number), **fields)


def _lacks_privilege(doing: str, number: int, said: str) -> bool:
    """Return whether a right is missing; without one, views and packages seem not to exist."""
    if number in _PRIVILEGES or number in _LOGIN_REFUSED:
        return True
    if number in _GONE:
        return _READS_VIEW.search(doing) is not None
    return number == 6550 and _PLS_MISSING.search(said) is not None


def _hint(number: int) -> str:
    if number in _GONE:
        return (
            "The table was dropped or renamed meanwhile, or this user may not read it. Run the "
            "same command again: `[source] tables` is read again."
        )
    return REFUSED


def is_gone(error: PenstockError) -> bool:
    """Return whether a statement failed because its table does not exist, or is not visible."""
    return error.fields.get("errno") in _GONE


def error_number(error: BaseException) -> int:
    """Return the server's number of a driver's error, 0 if there is none.

    For ORA-00604, an error of recursive SQL, it is the number of the error inside. For an error of
    the listener, which the driver reports as its own, it is the number that its text names.
    """
    details = error.args[0] if error.args else None
    number = getattr(details, "code", 0)
    number = number if isinstance(number, int) else 0
    text = str(error)
    if number == _RECURSIVE:
        inner = [int(one) for one in _NUMBER.findall(text) if int(one) != _RECURSIVE]
        return inner[0] if inner else number
    if not number and "Similar to ORA-" in text:
        match = _NUMBER.search(text)
        return int(match[1]) if match else 0
    return number


def _name_of(error: BaseException) -> str:
    return str(getattr(error.args[0] if error.args else None, "full_code", "") or "")


def _text_of(error: BaseException, secrets: Sequence[str] = ()) -> str:
    text = " ".join(
        line.strip() for line in str(error).splitlines() if not line.startswith("Help: ")
    )
    for secret in secrets:
        text = text.replace(secret, "***")
    return " ".join(text.split())


_SHOWN_CHARACTERS = 120


def _shorten(doing: str) -> str:
    text = " ".join(doing.split())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


# -- SQL text ------------------------------------------------------------------------------------
