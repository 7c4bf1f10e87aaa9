"""SQL connections to SQL Server, all opened here, with typed errors and exact settings.

Microsoft's mssql_python handles all of it. Two of its properties decide this module's form:

- Its exceptions have no error number. The number is in the diagnostic records of the statement, so
  it is taken from there before the driver makes its exception (`_remember_number`). Errors of
  log-in, COMMIT by attribute and bulk copy have only a SQLSTATE's name and a text.
- It keeps closed sessions in a pool, with their isolation level and temporary tables. That is
  switched off: a session that is closed here ends at the server.

Transactions are begun and ended by statements (`begin`, `commit`, `rollback`), in sessions that
otherwise commit each statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any, Self

import pyarrow as pa

from penstock.engines.sqlserver.errors import RangeInvalid, SystemLibraryMissing
from penstock.engines.sqlserver.url import SQLServerUrl
from penstock.host.errors import (
    LOST,
    REFUSED,
    ConnectFailed,
    ConnectionLost,
    DatabaseRefused,
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
LIBRARIES_COMMAND = "apt-get install libltdl7 libkrb5-3 libgssapi-krb5-2"
ARROW_ROWS = 8192

BEGIN = "BEGIN TRANSACTION"
COMMIT = "COMMIT TRANSACTION"
ROLLBACK = "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION"

# Conditions of error numbers: sys.messages, and reference section 1c, S15.
_LOST = frozenset(
    {-2, 64, 121, 233, 596, 1236, 6005, 10053, 10054, 10060, 10061, 11001, 17142, 18401, 42108}
)
_BUSY = frozenset(
    {701, 904, 922, 927, 983, 4060, 9001, 10928, 10929, 17809, 17830, 40143, 40197, 40501, 40540}
    | {40613, 40615, 42109, 49918, 49919, 49920}
)
_INTERRUPTED = frozenset({1204, 1205, 1222, 3928, 3935, 3960, 3961, 8645, 8651, 40549, 40550})
_PRIVILEGES = frozenset(
    {
        229,
        230,
        262,
        297,
        300,
        916,
        1088,
        2557,
        3704,
        4834,
        5011,
        6102,
        8189,
        15151,
        15247,
        15406,
        21050,
    }
    | {22902, 22904, 22981}
)
_LOGIN_REFUSED = frozenset({18450, 18451, 18452, 18456, 18461, 18470, 18486, 18487, 18488, 40532})
_RANGE = frozenset({313})  # "insufficient number of arguments" of a change function
_GONE = frozenset({208, 3701})
_READ_ONLY = frozenset({3906, 3908, 976, 978})

# Names that the driver gives to SQLSTATEs; the only trace of what happened without a number.
_STATE_LOST = ("Communication link failure", "Connection failure during transaction")
_STATE_LOST_TOO = ("Connection not open", "Connection timeout expired", "Disconnect error")
_STATE_INTERRUPTED = ("Serialization failure", "Timeout expired", "Operation canceled")
_STATE_LOGIN = "Invalid authorization specification"
_STATE_LINK = ("Client unable to establish connection", "Timeout expired", *_STATE_LOST)

_NUMBER = re.compile(r"\((-?\d+)\)")
_SAYS_TLS = re.compile(r"SSL|TLS|certificate|encryption", re.IGNORECASE)
_SAYS_DATABASE = re.compile(r"Cannot open (?:database|server)|database .* requested by the login")
_LIBRARY = re.compile(r"libltdl|libkrb5|libgssapi|cannot open shared object|shared librar")


class Connection:
    """One session. Not for several threads at once; created by `connect`.

    While the batches of `arrow` are read, no other statement can run in the session.
    """

    def __init__(self, raw: Any, place: str) -> None:
        self._raw = raw
        self._cursor = raw.cursor()
        self._is_closed = False
        self.place = place

    def __enter__(self) -> Self:
        """Return the connection itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection; an open transaction is rolled back by the server."""
        self.close()

    @property
    def is_closed(self) -> bool:
        """Return whether close() was called."""
        return self._is_closed

    def execute(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement; return the rows of its first result, or [] if it has none.

        parameters: values of the `?` in the text. A log sequence number is bytes, and the text has
        `CAST(? AS binary(10))`. Raises the errors of `server_errors`.
        """
        with server_errors(sql):
            self._run(self._cursor, sql, parameters)
            if self._cursor.description is None:
                return []
            return [tuple(row) for row in self._cursor.fetchall()]

    def run(self, sql: str, *parameters: Any) -> int:
        """Run a statement; return the number of rows that it changed, -1 if the server is silent.

        Raises the errors of `server_errors`.
        """
        with server_errors(sql):
            self._run(self._cursor, sql, parameters)
            return int(self._cursor.rowcount)

    def columns(self, sql: str, *parameters: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Run a query; return the names of its columns, and its rows."""
        rows = self.execute(sql, *parameters)
        return [one[0] for one in self._cursor.description or ()], rows

    def arrow(self, sql: str, *parameters: Any, rows: int = ARROW_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query in batches of at most `rows`, none of which is empty.

        Close the iterator before another statement is run. Raises the errors of `server_errors`.
        """
        cursor = self._raw.cursor()
        try:
            with server_errors(sql):
                self._run(cursor, sql, parameters)
            while True:
                with server_errors(sql):
                    batch = cursor.arrow_batch(rows)
                if not batch.num_rows:
                    return
                yield batch
        finally:
            if not self._is_closed:
                cursor.close()

    def begin(self) -> None:
        """Begin a transaction."""
        self.run(BEGIN)

    def commit(self) -> None:
        """Commit the transaction; an error says nothing about whether the commit took effect."""
        self.run(COMMIT)

    def rollback(self) -> None:
        """Roll back the transaction, if one is open."""
        self.run(ROLLBACK)

    def bulk_copy(
        self,
        table: str,
        data: pa.Table | pa.RecordBatch,
        *,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> int:
        """Load rows into a table; return the number of rows.

        The driver opens a session of its own for this, which neither sees temporary tables nor is
        part of this session's transaction, and it keeps the GIL while it waits for the server.

        Args:
            table: Its name as in SQL: `[schema].[name]`.
            data: Columns in the order of the table's, unless `column_mappings` names them.
            options: Those of mssql_python's `bulkcopy_arrow`.
        """
        with server_errors(f"bulk copy into {table}"):
            outcome = self._cursor.bulkcopy_arrow(table, data, **options)
        return int(outcome["rows_copied"])

    def close(self) -> None:
        """End the session; harmless if done twice or if the connection is lost."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._raw.close()
        except driver().Error:
            return  # the server has ended the session already

    @staticmethod
    def _run(cursor: Any, sql: str, parameters: tuple[Any, ...]) -> None:
        if parameters:
            cursor.execute(sql, parameters)
        else:
            cursor.execute(sql)


def connect(url: str, *, autocommit: bool = True, timeout_s: float | None = None) -> Connection:
    """Open a connection.

    Args:
        url: Described in `url.py`.
        autocommit: False begins a transaction at once; `begin` does so after each end of one.
        timeout_s: Seconds that one statement may take; None for any time.

    Raises:
        ConnectFailed: One of its subclasses; messages never contain the password.
    """
    target = SQLServerUrl.parse(url)
    module = driver()
    try:
        raw = module.connect(
            target.connection_string(), autocommit=True, timeout=target.connect_timeout_s
        )
        if timeout_s is not None:
            raw.timeout = max(1, round(timeout_s))
    except (module.Error, module.Warning, RuntimeError, OSError) as error:
        raise connect_error(url, error) from error
    connection = Connection(raw, target.place)
    if not autocommit:
        try:
            connection.begin()
        except BaseException:
            connection.close()
            raise
    return connection


# -- the driver ----------------------------------------------------------------------------------

_loaded: list[ModuleType] = []


def driver() -> ModuleType:
    """Return mssql_python, set up. Raises SystemLibraryMissing, DriverMissing."""
    if not _loaded:
        try:
            module = import_module("mssql_python")
        except ModuleNotFoundError as error:
            raise DriverMissing(
                f"SQL Server needs the Python package {error.name}, which is not installed",
                hint="Run: pip install 'penstock[sqlserver]'",
                engine="sqlserver",
            ) from error
        except (ImportError, OSError, RuntimeError) as error:
            raise library_missing(str(error)) from error
        module.pooling(enabled=False)
        _remember_number(import_module("mssql_python.cursor"))
        _loaded.append(module)
    return _loaded[0]


def library_missing(said: str) -> SystemLibraryMissing:
    """Return the error for a driver whose shared library cannot be loaded."""
    return SystemLibraryMissing(
        f"Microsoft's driver for SQL Server cannot be loaded: {' '.join(said.split())}",
        hint=f"Install the system's libraries that it needs: {LIBRARIES_COMMAND}",
    )


def _remember_number(cursors: ModuleType) -> None:
    """Let the driver's exceptions have the server's number, as attribute `number`.

    cursors: the driver's module whose function `check_error` raises them.
    """
    raises = cursors.check_error
    records = cursors.ddbc_bindings.DDBCSQLGetAllDiagRecords
    failed: tuple[type[Exception], ...] = (driver_base(cursors),)

    def check_error(kind: int, handle: Any, outcome: int) -> None:
        """Raise the driver's exception with the number of the first diagnostic record."""
        if outcome >= 0:
            return
        shown = [str(one[0]) for one in records(handle)] if handle is not None else []
        try:
            raises(kind, handle, outcome)
        except failed as error:
            number = _NUMBER.search(shown[0]) if shown else None
            error.number = int(number[1]) if number else 0  # type: ignore[attr-defined]
            raise

    cursors.check_error = check_error  # type: ignore[attr-defined]


def driver_base(cursors: ModuleType) -> type[Exception]:
    """Return the class of all exceptions of the driver."""
    base: type[Exception] = import_module(f"{cursors.__package__}.exceptions").Exception
    return base


# -- errors --------------------------------------------------------------------------------------


def connect_error(url: str, error: BaseException) -> ConnectFailed:
    """Return the typed error for an error of the driver when a connection failed."""
    said, state = _text_of(error, url), _state(error)
    message = f"no connection to {mask(url)}: {said}"
    if _LIBRARY.search(said):
        return library_missing(said)
    if _SAYS_DATABASE.search(said):
        return DatabaseRefused(
            message,
            hint="Check the database's name in the URL, and let the user in: "
            "USE [DATABASE]; CREATE USER [USER] FOR LOGIN [USER];",
        )
    if state == _STATE_LOGIN or "Login failed" in said:
        return LoginRefused(message, hint="Check user and password in the URL.")
    if _SAYS_TLS.search(said):
        return TlsFailed(
            message,
            hint="Check encrypt, trustServerCertificate and hostNameInCertificate in the URL, and "
            "that the server's certificate names this host.",
        )
    if _number(error) in _BUSY:
        return ServerBusy(message, hint=AGAIN)
    if state in _STATE_LINK or isinstance(error, OSError):
        return ServerUnreachable(
            message, hint="Check host and port in the URL, and that the server runs."
        )
    return ConnectFailed(message, hint="Try the same with Microsoft's client `sqlcmd`.")


@contextmanager
def server_errors(doing: str) -> Iterator[None]:
    """Convert the driver's errors into typed ones; `doing` names the work, or is the statement.

    Raises ConnectionLost, PrivilegeMissing, StatementInterrupted, RangeInvalid or StatementFailed,
    each with the server's own message and its number in `fields["errno"]`, 0 if it is not known.
    """
    module = driver()
    try:
        yield
    except (module.Error, module.Warning, RuntimeError) as error:
        if isinstance(error, PenstockError):
            raise
        raise statement_error(doing, error) from error


def statement_error(doing: str, error: BaseException) -> PenstockError:
    """Return the typed error for one of the driver's; see `server_errors`."""
    return server_error(doing, _number(error), _state(error), _text_of(error))


def server_error(doing: str, number: int, state: str, said: str) -> PenstockError:
    """Return the typed error of a number.

    Args:
        doing: The work, or the statement.
        number: The server's, 0 if the driver does not tell it.
        state: The driver's name for the SQLSTATE.
        said: The server's message.
    """
    message = f"{_shorten(doing)}: {said or 'the connection was closed'}"
    fields = {"errno": number}
    if number in _LOST or (not number and state in (*_STATE_LOST, *_STATE_LOST_TOO)):
        return ConnectionLost(message, hint=LOST, **fields)
    if number in _PRIVILEGES or number in _LOGIN_REFUSED:
        return PrivilegeMissing(
            message, hint="Run `penstock doctor`: it prints the GRANT to type.", **fields
        )
    if number in _INTERRUPTED | _BUSY or (not number and state in _STATE_INTERRUPTED):
        return StatementInterrupted(message, hint=AGAIN, **fields)
    if state in (*_STATE_LOST, *_STATE_LOST_TOO):
        return ConnectionLost(message, hint=LOST, **fields)
    if number in _RANGE:
        return RangeInvalid(message, hint=AGAIN, **fields)
    return StatementFailed(message, hint=_hint(number), **fields)


def _hint(number: int) -> str:
    if number in _GONE:
        return (
            "The table was dropped or renamed meanwhile. Run the same command again: `[source] "
            "tables` is read again."
        )
    if number in _READ_ONLY:
        return "The database accepts no writes: name the primary replica in the URL."
    return REFUSED


def is_gone(error: PenstockError) -> bool:
    """Return whether a statement failed because its table does not exist."""
    return error.fields.get("errno") in _GONE


def _number(error: BaseException) -> int:
    number = getattr(error, "number", 0)
    return number if isinstance(number, int) else 0


def _state(error: BaseException) -> str:
    return str(getattr(error, "driver_error", "") or "")


def _text_of(error: BaseException, url: str = "") -> str:
    text = str(getattr(error, "ddbc_error", "") or error)
    text = re.sub(r"^(\[[^\]]*\])+", "", text)
    password = SQLServerUrl.parse(url).password if url else ""
    return " ".join((text.replace(password, "***") if password else text).split())


_SHOWN_CHARACTERS = 120


def _shorten(doing: str) -> str:
    text = " ".join(doing.split())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


# -- SQL text ------------------------------------------------------------------------------------


def quote(*names: str) -> str:
    """Return identifiers in brackets, joined by dots: for schema s and table t, `[s].[t]`.

    Raises ValueError for an empty name or one with a zero byte, which no catalogue contains.
    """
    for name in names:
        if not name or "\0" in name:
            raise ValueError(f"not an identifier: {name!r}")
    return ".".join(f"[{name.replace(']', ']]')}]" for name in names)


def literal(text: str) -> str:
    """Return a text as an SQL string literal, for statements that take no parameters."""
    return "N'" + text.replace("'", "''") + "'"
