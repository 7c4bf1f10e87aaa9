"""Open SQL connections to PostgreSQL, with typed errors and exact text settings.

psycopg runs plain SQL and COPY. The replication protocol has its own client
(`penstock.engines.postgres.source.client`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import LiteralString
from urllib.parse import quote as percent_encode
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg import conninfo

from penstock.host import errors
from penstock.host.errors import (
    LOST,
    REFUSED,
    ConnectFailed,
    ConnectionLost,
    DatabaseRefused,
    DatabaseUnknown,
    LoginRefused,
    PrivilegeMissing,
    ServerBusy,
    ServerUnreachable,
    StatementFailed,
    StatementInterrupted,
    TlsFailed,
    UrlInvalid,
    mask,
)
from penstock.model import PenstockError

CONNECT_TIMEOUT_S = 10

EXACT_TEXT_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        # The text form of a value depends on these; a role or a database may have set others.
        "client_encoding": "UTF8",
        "DateStyle": "ISO, YMD",
        "IntervalStyle": "postgres",
        "TimeZone": "UTC",
        "extra_float_digits": "3",
        "bytea_output": "hex",
        "lc_monetary": "C",
        "search_path": "",
        "quote_all_identifiers": "off",
        "standard_conforming_strings": "on",
        "row_security": "off",  # a policy that hides rows becomes an error, never fewer rows
        # Long copies and an idle snapshot keeper must outlive the limits set for applications.
        "statement_timeout": "0",
        "lock_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
        "idle_session_timeout": "0",
    }
)
"""Settings under which text from COPY and from pgoutput is exact and equal, for 14 to 18.

`transaction_timeout` exists from 17 on only and is refused by older servers at start-up:
`connect` sets it to 0 afterwards where there is one.
"""

# Compiling a query of the catalogue takes the server seconds, running it milliseconds; the planner
# guesses so high on a fresh catalogue that it compiles nearly all of them.
_ALWAYS = {"jit": "off"}

# If one of our machines vanishes, its sessions keep locks that others wait for. By default a server
# notices after two hours. The last limit also ends a session whose other side lives but accepts
# nothing for so long, as a reader that waits for its target. So it is short only for sessions that
# only receive rows. Unix sockets ignore these settings.
SERVER_KEEPALIVE: Mapping[str, str] = MappingProxyType(
    {
        "tcp_keepalives_idle": "20",
        "tcp_keepalives_interval": "5",
        "tcp_keepalives_count": "4",
        "tcp_user_timeout": "300000",
    }
)
TAKING_KEEPALIVE: Mapping[str, str] = MappingProxyType(
    {**SERVER_KEEPALIVE, "tcp_user_timeout": "40000"}
)
"""Keepalive settings of a server to which a worker sends rows, and which answers little."""

CLIENT_KEEPALIVE: Mapping[str, int] = MappingProxyType(
    {
        "keepalives": 1,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 300_000,
    }
)
"""Our side of every session, as libpq's parameters."""


def connect(
    url: str,
    *,
    application_name: str,
    autocommit: bool = True,
    options: Mapping[str, str] = MappingProxyType({}),
) -> psycopg.Connection:
    """Open a SQL connection.

    url: `postgresql://user:password@host:port/database?...`; every libpq parameter is understood.
    options: server settings for the session, such as EXACT_TEXT_SETTINGS; they win over what the
    role, the database or the URL's own `options` set. Statements are not compiled, and never
    prepared automatically: penstock changes tables, and a cached plan would fail afterwards.
    Raises a subclass of ConnectFailed; messages never hold the password.
    """
    settings = {**_ALWAYS, **SERVER_KEEPALIVE, **options}
    parameters = session_parameters(url, application_name=application_name, settings=settings)
    try:
        connection = psycopg.Connection.connect(
            conninfo.make_conninfo("", **parameters), autocommit=autocommit, prepare_threshold=None
        )
    except psycopg.Error as error:
        raise connect_error(url, str(error)) from error
    try:
        if "statement_timeout" in settings and connection.info.server_version >= 170000:
            connection.execute("set transaction_timeout = 0")
            if not autocommit:
                connection.commit()
    except psycopg.Error as error:  # the server is just shutting down
        connection.close()
        raise connect_error(url, str(error)) from error
    return connection


def session_parameters(
    url: str, *, application_name: str, settings: Mapping[str, str]
) -> dict[str, int | str | None]:
    """Return libpq's parameters: those of the URL, and ours for those that it omits.

    settings: server settings of the session; they override the URL's own. Raises UrlInvalid.
    """
    parameters = _parameters(url)
    encoding = settings.get("client_encoding")
    if encoding is not None:
        parameters["client_encoding"] = encoding
    given = str(parameters.get("options") or "")
    ours = " ".join(
        f"-c {name}={_option_value(value)}"
        for name, value in settings.items()
        if name != "client_encoding"
    )
    parameters["options"] = f"{given} {ours}".strip()
    parameters["application_name"] = application_name
    parameters.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
    for name, value in CLIENT_KEEPALIVE.items():
        parameters.setdefault(name, value)
    return parameters


def _parameters(url: str) -> dict[str, int | str | None]:
    if not url.startswith(("postgresql://", "postgres://")):
        raise UrlInvalid(
            f"not the URL of a PostgreSQL database: {mask(url)}",
            hint="Write it as postgresql://user:password@host:5432/database.",
        )
    try:
        found = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        # libpq's text may repeat parts of the URL, so it is not passed on.
        raise UrlInvalid(
            f"the URL {mask(url)} cannot be read",
            hint="Write it as postgresql://user:password@host:5432/database and percent-encode "
            "special characters in user and password.",
        ) from error
    return {name: value for name, value in found.items() if value is not None}


def _option_value(value: str) -> str:
    # The server splits the options text at blanks; a backslash protects the next character.
    return re.sub(r"([\\\s])", r"\\\1", value)


_CAUSES: tuple[tuple[type[ConnectFailed], str, str], ...] = (
    (
        TlsFailed,
        r"\bSSL\b|\bTLS\b|certificate|no encryption",
        "Check sslmode and sslrootcert in the URL, and that the server's certificate names this "
        "host.",
    ),
    (
        DatabaseUnknown,
        r'database ".*" does not exist',
        "Check the database's name in the URL: `psql -l` lists those that there are.",
    ),
    (
        LoginRefused,
        r"authentication|password|pg_hba|role \".*\" does not exist|not permitted to log in"
        r"|no pg_hba\.conf entry",
        "Check user and password in the URL, and that pg_hba.conf has a line for this user, "
        "database and address.",
    ),
    (
        ServerBusy,
        r"starting up|shutting down|recovery|too many (clients|connections)|remaining connection"
        r"|connection limit|not (yet )?accepting connections",
        "Wait until the server accepts connections; raise max_connections if it is full.",
    ),
    (
        ServerUnreachable,
        r"refused|timeout|timed out|resolve|translate host|No such file|unreachable|No route"
        r"|Is the server running|closed the connection unexpectedly|reset by peer",
        "Check host and port in the URL, and that the server runs: `pg_isready -h HOST -p PORT`.",
    ),
)


_NOT_ALLOWED = re.compile(r'permission denied for database "(.+?)"')


def connect_error(url: str, text: str) -> ConnectFailed:
    """Return the typed error for a message of libpq or the server about a failed connection.

    text: the message; SQLSTATE is not known before a connection is made, so the words decide. A
    message in another language becomes the plain ConnectFailed, with the message as it came.
    """
    said = " ".join(_scrub(text, url).split())
    if refused := _NOT_ALLOWED.search(text):
        role = unquote(urlsplit(url).username or "ROLE")
        return DatabaseRefused(
            f"no connection to {mask(url)}: {said}",
            hint=f"As its owner: grant connect on database {quote(refused[1])} to {quote(role)};",
        )
    # The password and role cases name TLS words in a suffix ("no encryption") on every pg_hba
    # refusal, so these come first.
    first = LoginRefused if re.search(r"pg_hba|password authentication failed", text) else None
    for kind, pattern, hint in _CAUSES:
        if kind is first or (first is None and re.search(pattern, text, re.IGNORECASE)):
            return kind(f"no connection to {mask(url)}: {said}", hint=hint)
    return ConnectFailed(
        f"no connection to {mask(url)}: {said}",
        hint="Try the same URL with psql; penstock needs what psql needs.",
    )


def _password(url: str) -> str:
    match = re.match(r"\w+://[^@/?]*?:([^@]*)@", url)
    return unquote(match[1]) if match else ""


def _scrub(text: str, url: str) -> str:
    password = _password(url)
    return text.replace(password, "***") if password else text


def with_database(url: str, database: str) -> str:
    """Return the same URL for another database of that server."""
    match = re.match(r"(\w+://[^/?#]*)(?:/[^?#]*)?(.*)\Z", url, re.DOTALL)
    if match is None:
        raise UrlInvalid(f"not the URL of a PostgreSQL database: {mask(url)}")
    return f"{match[1]}/{percent_encode(database, safe='')}{match[2]}"


def is_table_in_motion(error: psycopg.Error) -> bool:
    """Return whether a catalogue query failed because a table is being altered.

    The functions that print types and expressions read the newest catalogue, which may lack what
    the query's snapshot still has: "cache lookup failed for attribute 1 of relation", or "could not
    open relation with OID" where it is dropped.
    """
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return True
    said = error.diag.message_primary or ""
    return isinstance(error, psycopg.errors.InternalError_) and said.startswith(
        ("cache lookup failed", "could not open relation with OID")
    )


def quote(*names: str) -> str:
    """Return identifiers in quotes, joined by dots: `quote("s", "t")` is `"s"."t"`.

    Raises ValueError for an empty name or one with a zero byte: no catalogue holds such.
    """
    for name in names:
        if not name or "\0" in name:
            raise ValueError(f"not an identifier: {name!r}")
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    """Return text as an SQL string literal, for statements that take no parameters.

    Safe whatever standard_conforming_strings is: a backslash makes it an escape string.
    """
    if "\0" in text:
        raise ValueError("a string literal cannot hold a zero byte")
    doubled = text.replace("'", "''")
    if "\\" in doubled:
        return "E'" + doubled.replace("\\", "\\\\") + "'"
    return "'" + doubled + "'"


def statement(text: str) -> LiteralString:
    """Mark SQL that `quote` and `literal` made safe as fit for psycopg's signatures."""
    return text


_RETRY_STATES = frozenset({"40001", "40P01", "55P03", "57014", "53300", "55006", "25P03"})


def safe_to_retry(error: BaseException) -> bool:
    """Return the same as `host.errors.safe_to_retry`, for psycopg's errors too."""
    if isinstance(error, psycopg.Error):
        state = error.sqlstate
        if state is None:
            return isinstance(error, psycopg.OperationalError)
        return state in _RETRY_STATES or state.startswith(("08", "57P"))
    return errors.safe_to_retry(error)


def commit_durably(connection: psycopg.Connection, *, once: bool = False) -> None:
    """Have the session's commits wait for the disk, even where its role or database says otherwise.

    For commits after which something is forgotten here. Nothing stricter is weakened: a standby may
    have to confirm them, too. once: only for the open transaction.
    """
    connection.execute(
        "select set_config('synchronous_commit', 'on', %s)"
        " where current_setting('synchronous_commit') = 'off'",
        (once,),
    )


@contextmanager
def server_errors(doing: str) -> Iterator[None]:
    """Turn psycopg's errors into typed ones; `doing` names the work, as in "reading chunk 3".

    Raises ConnectionLost, PrivilegeMissing, StatementInterrupted or StatementFailed, each with
    the server's own message and SQLSTATE in `fields["sqlstate"]`.
    """
    try:
        yield
    except psycopg.Error as error:
        raise statement_error(doing, error) from error


def statement_error(doing: str, error: psycopg.Error) -> PenstockError:
    """Return the typed error for one of psycopg's; see `server_errors`."""
    state = error.sqlstate
    said = error.diag.message_primary or str(error).strip() or type(error).__name__
    message = f"{doing}: {said}"
    if state is None and isinstance(error, psycopg.OperationalError):
        return ConnectionLost(message, hint=LOST)
    if state is not None and state.startswith(("08", "57P")):
        return ConnectionLost(message, hint=LOST, sqlstate=state)
    if state == "42501":
        return PrivilegeMissing(
            message, hint="Run `penstock doctor`: it prints the GRANT to type.", sqlstate=state
        )
    if safe_to_retry(error):
        return StatementInterrupted(message, hint="penstock retries automatically.", sqlstate=state)
    hint = (error.diag.message_hint or "") or _value_hint(state, said)
    if column := _COPY_COLUMN.search(error.diag.context or ""):
        message += f" (column {column[2]} of {column[1]})"
    return StatementFailed(message, hint=hint or REFUSED, sqlstate=state)


TARGET_TYPES = "target.types"
# Refused values that [target.types] can say something about, by SQLSTATE.
_VALUE_CHOICES = {
    "22007": ("zero dates", "null"),
    "22008": ("zero dates", "null"),
    "22021": ("nul characters", "remove"),
}
_JSON_REFUSED = "invalid input syntax for type json"
_COPY_COLUMN = re.compile(r"COPY (\S+), line \d+, column (\S+?):")


def choice_hint(state: str | None, said: str = "", *, section: str = TARGET_TYPES) -> str:
    """Return the entry of [target.types] about a value that the target refuses; else empty.

    said: the server's message. section: the one that has the choices in place of [target.types].
    """
    shown = "; `penstock plan FILE` shows the choices." if section == TARGET_TYPES else "."
    if state == "22P02" and _JSON_REFUSED in said:
        again = ", and run `penstock table resync FILE TABLE`" if section == TARGET_TYPES else ""
        return f'Write "loose json" = "text" in [{section}]{again}{shown}'
    if state not in _VALUE_CHOICES:
        return ""
    loss, choice = _VALUE_CHOICES[state]
    return f'Write "{loss}" = "{choice}" in [{section}]{shown}'


def _value_hint(state: str | None, said: str) -> str:
    """Return what to do about a value that the target refuses; empty for another error."""
    if hint := choice_hint(state, said):
        return hint
    if state in ("22001", "22003", "22P02", "22P05"):
        return "Change the value in the source, or the type of the target's column."
    return ""
