"""SQL connections to MySQL and MariaDB, all opened here, with typed errors and exact settings.

PyMySQL handles all plain SQL, and the log-in of the replication client
(`penstock.engines.mysql.source`). The errors are those of `penstock.host.errors`: one
condition has one class, whatever the engine.

A server has a flavour, MySQL or MariaDB, and a version. The two have one protocol and differ in
their names for things, so code that depends on that asks `ServerVersion`. Percona Server and Amazon
Aurora count as MySQL.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Self

import pymysql
from pymysql.constants import CLIENT
from pymysql.cursors import Cursor, DictCursor

from penstock.engines.mysql.url import MySQLUrl
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
    mask,
)
from penstock.host.socket import notice_cuts
from penstock.model import PenstockError

_NUMBER = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
# MariaDB 10 puts "5.5.5-" first, so that old replicas do not refuse it; 11 no longer does.
_REPLICATION_PREFIX = "5.5.5-"


class Flavour(StrEnum):
    """The two families of servers; the value is the scheme of their URLs."""

    MYSQL = "mysql"
    MARIADB = "mariadb"

    @property
    def label(self) -> str:
        """Return the name that messages show."""
        return "MySQL" if self is Flavour.MYSQL else "MariaDB"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerVersion:
    """Flavour and version of a server. number: for example (8, 0, 15)."""

    flavour: Flavour
    number: tuple[int, int, int]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the version text of a server: `8.0.15`, `5.5.5-10.11.19-MariaDB-0+deb12u1-log`.

        Raises ValueError if it contains no version number.
        """
        is_mariadb = "mariadb" in text.lower()
        if is_mariadb:
            text = text.removeprefix(_REPLICATION_PREFIX)
        match = _NUMBER.search(text)
        if match is None:
            raise ValueError(f"no version in {text!r}")
        major, minor, patch = (int(part or 0) for part in match.groups())
        return cls(
            flavour=Flavour.MARIADB if is_mariadb else Flavour.MYSQL, number=(major, minor, patch)
        )

    @property
    def is_mariadb(self) -> bool:
        """Return whether the server is MariaDB."""
        return self.flavour is Flavour.MARIADB

    def mysql(self, *number: int) -> bool:
        """Return whether the server is MySQL of this version or newer."""
        return not self.is_mariadb and self.number >= number

    def mariadb(self, *number: int) -> bool:
        """Return whether the server is MariaDB of this version or newer."""
        return self.is_mariadb and self.number >= number

    def __str__(self) -> str:
        """Return flavour and version, for example `MySQL 8.0.15`."""
        return f"{self.flavour.label} {'.'.join(map(str, self.number))}"


NET_TIMEOUT_S = 3600  # by default a server drops after 60 s a reader that does not drain
# Longest time that a server may leave sent rows unread, because it waits or because it is gone.
USER_TIMEOUT_MS = 300_000
IDLE_TIMEOUT_S = 7 * 86_400

# Values and statements mean the same for all defaults of server and account and any init_connect.
# Numbers are used unchanged, the rest is SQL.
SESSION_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "time_zone": "'+00:00'",
        # Neither ANSI_QUOTES nor NO_BACKSLASH_ESCAPES nor PIPES_AS_CONCAT; dates are unchanged.
        "sql_mode": "'NO_AUTO_VALUE_ON_ZERO,STRICT_ALL_TABLES,ALLOW_INVALID_DATES'",
        "net_read_timeout": str(NET_TIMEOUT_S),
        "net_write_timeout": str(NET_TIMEOUT_S),
        "wait_timeout": str(IDLE_TIMEOUT_S),
        "interactive_timeout": str(IDLE_TIMEOUT_S),
        "sql_safe_updates": "0",
        "sql_auto_is_null": "0",
        "sql_quote_show_create": "1",
        "sql_select_limit": "18446744073709551615",
        "group_concat_max_len": "4294967295",
        "lc_messages": "'en_US'",  # some errors of replication only differ in their text
    }
)


# Conditions of error numbers: those of both servers, and PyMySQL's own from 2000 on.
_LOGIN_REFUSED = frozenset({1045, 1129, 1130, 1251, 1524, 1698, 1820, 1862, 2049, 2059, 2061})
_BUSY = frozenset({1040, 1053, 1203, 1226, 3032})
_LOST = frozenset({1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2006, 2013, 2055})
_LOST_TOO = frozenset({3169, 4031})  # session killed, session idle for too long
_PRIVILEGES = frozenset({1044, 1045, 1142, 1143, 1227, 1370, 1410, 1419, 1873, 3955})
_INTERRUPTED = frozenset({1020, 1205, 1213, 1317, 1412, 1614, 1637, 1969, 3024, 3058, 3572})
_GONE = frozenset({1051, 1146})
_READ_ONLY = frozenset({1290, 1792, 1836, 3100})
_TLS_REQUIRED = 3159
_TLS_FAILED = 2026
_DATABASE_UNKNOWN = 1049
_DATABASE_REFUSED = 1044
_CLOSED = 0  # PyMySQL's InterfaceError: the connection had been closed before

AGAIN = "penstock retries automatically."


class Connection(pymysql.connections.Connection):  # type: ignore[misc]
    """PyMySQL's connection, which sends a password only to a server that may have it.

    Created by `connect`. server: flavour and version.
    """

    def __init__(self, target: MySQLUrl, *, server_public_key: bytes | None, **more: Any) -> None:
        self._target = target
        self._server_public_key = server_public_key
        self._may_learn_key = True  # while __init__ assigns what we gave it
        super().__init__(server_public_key=server_public_key, **more)
        self._may_learn_key = target.may_ask_for_key

    @property
    def server(self) -> ServerVersion:
        """Return the server's flavour and version."""
        return ServerVersion.parse(self.get_server_info())

    @property
    def server_public_key(self) -> bytes | None:
        """Return the RSA key that a password is encrypted with if there is no TLS."""
        return self._server_public_key

    @server_public_key.setter
    def server_public_key(self, key: bytes | None) -> None:
        """Set the key that PyMySQL received if the URL trusts the server that answers.

        Otherwise a program between client and server could send its own key and read the password.
        """
        if not self._may_learn_key:
            raise LoginRefused(
                f"the server at {self._target.place} takes a password over TLS or under its RSA "
                "key only",
                hint="Use TLS (sslmode=require or better), name the server's key with "
                "server_public_key=FILE, or trust the network: get_server_public_key=true.",
            )
        self._server_public_key = key

    def _process_auth(self, plugin_name: bytes, auth_packet: Any, handler: Any = None) -> Any:
        """Answer the request for another method; send a bare password to trusted servers only."""
        is_bare = plugin_name in (b"mysql_clear_password", b"dialog")
        if is_bare and not (self._secure and self._target.may_send_clear_text):
            raise LoginRefused(
                f"the server at {self._target.place} asks for the password in clear text, and has "
                "not proved who it is",
                hint="Add sslmode=verify-full and sslrootcert=FILE to the URL; or, over TLS, trust "
                "any server: enable_cleartext_plugin=true.",
            )
        if plugin_name == b"mysql_old_password":
            raise LoginRefused(
                f"the server at {self._target.place} asks for a password hash from before 2004",
                hint="Give the account a current method: alter user ... identified by '...';",
            )
        return super()._process_auth(plugin_name, auth_packet, handler)

    def close(self) -> None:
        """Say good-bye and close; harmless if done twice or if the connection is lost."""
        if not self._closed:
            super().close()


def connect(
    url: str,
    *,
    application_name: str,
    autocommit: bool = True,
    options: Mapping[str, str] = MappingProxyType({}),
    rows_as_dicts: bool = False,
    read_timeout_s: float | None = None,
    local_infile: bool = False,
    found_rows: bool = False,
) -> Connection:
    """Open a SQL connection.

    url: described in `url.py`. application_name: shown by the server as program_name. options:
    session variables by name, as SQL (`{"foreign_key_checks": "0"}`); they override
    SESSION_SETTINGS. rows_as_dicts: cursors return rows as dicts. read_timeout_s: how long the
    server may be silent while a statement runs. local_infile: let LOAD DATA LOCAL send what we
    stream. found_rows: an update counts the rows that it found, not only those that it changed.
    Raises a subclass of ConnectFailed; messages never contain the password.
    """
    target = MySQLUrl.parse(url)
    context = target.tls_context()
    public_key = target.public_key()
    try:
        connection = Connection(
            target,
            host=target.host,
            port=target.port,
            user=target.user,
            password=target.password.encode(),  # PyMySQL would send text in latin1
            database=target.database or None,
            unix_socket=target.options.get("unix_socket"),
            charset="utf8mb4",
            autocommit=autocommit,
            connect_timeout=target.connect_timeout_s,
            read_timeout=target.connect_timeout_s,
            program_name=application_name,
            server_public_key=public_key,
            ssl=context if target.sslmode != "prefer" else None,
            ssl_disabled=context is None,
            cursorclass=DictCursor if rows_as_dicts else Cursor,
            local_infile=local_infile,
            client_flag=CLIENT.FOUND_ROWS if found_rows else 0,
            defer_connect=True,
        )
        if context is not None:
            connection.ctx = context
        connection.connect()
        if connection.unix_socket is None:
            notice_cuts(connection._sock, user_timeout_ms=USER_TIMEOUT_MS)
        # A program that answers in the server's place could request any file, in answer to any
        # statement: PyMySQL sends none, and `load_local` sends only what it is given.
        connection._local_infile = False
    except (pymysql.Error, OSError, ssl.SSLError, RuntimeError, ValueError) as error:
        raise connect_error(url, error) from error
    try:
        connection._read_timeout = read_timeout_s
        with server_errors(f"setting up a session at {target.place}"):
            _set_up(connection, options)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: Connection, options: Mapping[str, str]) -> None:
    settings = dict(SESSION_SETTINGS)
    server = connection.server
    if server.is_mariadb:
        settings["max_statement_time"] = "0"
    elif server.mysql(5, 7, 8):
        settings["max_execution_time"] = "0"
    if server.mysql(8):
        settings["information_schema_stats_expiry"] = "0"  # current sizes, not cached ones
    settings.update(options)
    assignments = ", ".join(f"session {name} = {value}" for name, value in settings.items())
    with connection.cursor() as cursor:
        cursor.execute(f"set {assignments}")


def rows(
    connection: Connection, sql: str, parameters: object = None, *, doing: str
) -> list[dict[str, Any]]:
    """Run a statement and return its rows as dicts, names in lower case.

    doing: names the work in errors. Raises the errors of `server_errors`.
    """
    with server_errors(doing), connection.cursor(Cursor) as cursor:
        cursor.execute(sql, parameters)
        names = [column[0].lower() for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def value(connection: Connection, sql: str, parameters: object = None, *, doing: str) -> Any:
    """Return the first column of a statement's first row; None if there is no row."""
    found = rows(connection, sql, parameters, doing=doing)
    return next(iter(found[0].values())) if found else None


# Errors of a server that refuses tables without a primary key: sql_require_primary_key of MySQL,
# innodb_force_primary_key of MariaDB.
KEY_REQUIRED = frozenset({1173, 3750})


def run(connection: Connection, sql: str, parameters: object = None, *, doing: str) -> int:
    """Run a statement without a result; return the number of rows that it changed."""
    with server_errors(doing), connection.cursor(Cursor) as cursor:
        return int(cursor.execute(sql, parameters))


# -- errors --------------------------------------------------------------------------------------


def connect_error(url: str, error: BaseException) -> ConnectFailed:
    """Return the typed error for an error of PyMySQL or the system when a connection failed."""
    number, said = _number(error), _text_of(error, url)
    cause = getattr(error, "original_exception", None) or error
    message = f"no connection to {mask(url)}: {said}"
    fields = {"errno": number} if number else {}
    if isinstance(cause, ssl.SSLError) or number in (_TLS_FAILED, _TLS_REQUIRED):
        return TlsFailed(
            message,
            hint="Check sslmode and sslrootcert in the URL, and that the server's certificate "
            "names this host.",
            **fields,
        )
    if number == _DATABASE_UNKNOWN:
        return DatabaseUnknown(
            message,
            hint="Check the database's name in the URL: `show databases;` lists the existing ones.",
            **fields,
        )
    if number == _DATABASE_REFUSED:
        return DatabaseRefused(message, hint=_database_hint(said), **fields)
    if number in _LOGIN_REFUSED or isinstance(cause, RuntimeError | ValueError):
        return LoginRefused(message, hint=_login_hint(number, cause), **fields)
    if number in _BUSY:
        return ServerBusy(
            message,
            hint=_busy_hint(number, said),
            **fields,
        )
    if isinstance(cause, OSError) or number in (2002, 2003, 2005) or number in _LOST:
        return ServerUnreachable(
            message, hint="Check host and port in the URL, and that the server runs.", **fields
        )
    return ConnectFailed(
        message, hint="Try the same with the client `mysql` or `mariadb`.", **fields
    )


_FULL_HINT = "Wait until the server accepts connections; raise max_connections if it is full."
_USER_FULL_HINT = (
    "Let the account have more sessions at once: alter user 'USER'@'HOST' with "
    "max_user_connections N; (or set global max_user_connections). A run opens maxThreads + 3: "
    "lower maxThreads in [dataLoader] and [changeLoader] if N may not grow. `penstock doctor` "
    "counts them."
)


def _busy_hint(number: int, said: str) -> str:
    """Return what to change for the limit that the server names."""
    if number == 1203 or (number == 1226 and "max_user_connections" in said):
        return _USER_FULL_HINT
    if number == 1226:
        return "Raise the account's limit that the server names: alter user 'USER'@'HOST' with ...;"
    return _FULL_HINT


def _login_hint(number: int, cause: BaseException) -> str:
    if number == 1129:
        return "Too many failed attempts: type `flush hosts;` at the server."
    if number in (1820, 1862):
        return "Give the account a password that has not expired: alter user ... identified by ...;"
    if isinstance(cause, RuntimeError):
        return "Run `pip install 'penstock[mysql]'`: it installs what this log-in needs."
    if isinstance(cause, ValueError):
        return "Name the server's public_key.pem in server_public_key, or use TLS."
    return "Check user and password in the URL: `show grants for 'user'@'host';` at the server."


_REFUSED = re.compile(r"for user '(.*)'@'(.*)' to database '(.*)'")


def _database_hint(said: str) -> str:
    """Return the GRANTs that let an account in, with its name from the server's message."""
    found = _REFUSED.search(said.replace("`", "'"))
    user, host, database = found.groups() if found else ("USER", "HOST", "DATABASE")
    on = f"on {quote(database)}.* to {literal(user)}@{literal(host)};"
    return (
        "Check the database's name in the URL. To let the account use it, as a source: "
        f"grant select {on} as a target: grant all {on} `penstock doctor` says what else it "
        "needs."
    )


def _number(error: BaseException) -> int:
    arguments = error.args
    if isinstance(error, pymysql.Error) and arguments and isinstance(arguments[0], int):
        return arguments[0]
    return 0


def _text_of(error: BaseException, url: str = "") -> str:
    has_number = isinstance(error, pymysql.Error) and len(error.args) > 1
    text = str(error.args[1] if has_number else error)
    password = MySQLUrl.parse(url).password if url else ""
    return " ".join((text.replace(password, "***") if password else text).split())


def safe_to_retry(error: BaseException) -> bool:
    """Return whether the same work may succeed if repeated without operator action.

    This does not tell whether a COMMIT that broke took effect: read the progress row for that.
    """
    if isinstance(error, pymysql.Error):
        error = statement_error("", error)
    if isinstance(error, PenstockError):
        return error.retry == "backoff"
    return isinstance(error, ConnectionError | TimeoutError)


@contextmanager
def server_errors(doing: str) -> Iterator[None]:
    """Convert PyMySQL's errors into typed ones; `doing` names the work, such as "reading chunk 3".

    Raises ConnectionLost, PrivilegeMissing, StatementInterrupted or StatementFailed, each with
    the server's own message, its number in `fields["errno"]` and the SQLSTATE in
    `fields["sqlstate"]`.
    """
    try:
        yield
    except pymysql.Error as error:
        raise statement_error(doing, error) from error


def statement_error(doing: str, error: pymysql.Error) -> PenstockError:
    """Return the typed error for one of PyMySQL's; see `server_errors`."""
    number = _number(error)
    return server_error(doing, number, str(getattr(error, "sqlstate", "") or ""), _text_of(error))


def server_error(doing: str, number: int, sqlstate: str, said: str) -> PenstockError:
    """Return the typed error for an error number of the server, or of PyMySQL from 2000 on."""
    message = f"{doing}: {said or 'the connection was closed'}"
    fields = {"errno": number, "sqlstate": sqlstate}
    if number in (_CLOSED, *_LOST, *_LOST_TOO):
        return ConnectionLost(message, hint=LOST, **fields)
    if number in _PRIVILEGES:
        return PrivilegeMissing(
            message, hint="Run `penstock doctor`: it prints the GRANT to type.", **fields
        )
    if number in _INTERRUPTED or number in _BUSY:
        return StatementInterrupted(message, hint=AGAIN, **fields)
    hint = REFUSED
    if number in _GONE:
        hint = (
            "The table was dropped or renamed meanwhile. Run the same command again: `[source] "
            "tables` is read again."
        )
    if number in _READ_ONLY:
        hint = (
            "The server accepts no writes from us: name its primary, or `set global read_only = "
            "0;`."
        )
    return StatementFailed(message, hint=hint, **fields)


def is_gone(error: PenstockError) -> bool:
    """Return whether a statement failed because its table does not exist."""
    return error.fields.get("errno") in _GONE


# -- SQL text ------------------------------------------------------------------------------------


def quote(*names: str) -> str:
    """Return identifiers in backticks, joined by dots: for schema s and table t, `` `s`.`t` ``.

    Raises ValueError for an empty name or one with a zero byte, which no catalogue contains.
    """
    for name in names:
        if not name or "\0" in name:
            raise ValueError(f"not an identifier: {name!r}")
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def literal(text: str) -> str:
    """Return a text as an SQL string literal, for statements that take no parameters.

    This is correct in sessions of `connect`, whose sql_mode lets a backslash protect the next
    character.
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0") + "'"
