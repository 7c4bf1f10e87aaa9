"""Fake of the module oracledb, thin mode: what tests install under that name.

Only the synchronous part that penstock uses is here. Signatures are those of python-oracledb.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from sim_oracle.cells import Lob
from sim_oracle.driver_binds import rows_of_frame
from sim_oracle.driver_errors import (
    DatabaseError,
    DataError,
    Error,
    ErrorDetails,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,
    details_of,
    raise_database,
    raise_driver,
)
from sim_oracle.driver_lobs import (
    LOB,
    bind_frame_row,
    bind_of,
    call_text,
    delay_of,
    match_binds,
    rows_to_run,
)
from sim_oracle.driver_servers import CONNECT_OPTIONS, SERVERS, defaults
from sim_oracle.driver_types import (
    BINARY,
    DATETIME,
    DB_TYPE_BINARY_DOUBLE,
    DB_TYPE_BINARY_FLOAT,
    DB_TYPE_BLOB,
    DB_TYPE_BOOLEAN,
    DB_TYPE_CHAR,
    DB_TYPE_CLOB,
    DB_TYPE_DATE,
    DB_TYPE_INTERVAL_DS,
    DB_TYPE_INTERVAL_YM,
    DB_TYPE_JSON,
    DB_TYPE_LONG,
    DB_TYPE_LONG_RAW,
    DB_TYPE_NCHAR,
    DB_TYPE_NCLOB,
    DB_TYPE_NUMBER,
    DB_TYPE_NVARCHAR,
    DB_TYPE_RAW,
    DB_TYPE_ROWID,
    DB_TYPE_TIMESTAMP,
    DB_TYPE_TIMESTAMP_LTZ,
    DB_TYPE_TIMESTAMP_TZ,
    DB_TYPE_UROWID,
    DB_TYPE_VARCHAR,
    DB_TYPE_XMLTYPE,
    LOB_TYPES,
    NUMBER,
    PLAIN_TYPES,
    ROWID,
    STRING,
    ApiType,
    DataFrame,
    DbType,
    FetchInfo,
    IntervalYM,
    describe,
    make_frame,
    to_python,
)
from sim_oracle.errors import OraError
from sim_oracle.grammar import bind_names
from sim_oracle.remote import connect_remote, log_on
from sim_oracle.session import Outcome, Server, Session

__all__ = [
    "BINARY",
    "DATETIME",
    "DB_TYPE_BINARY_DOUBLE",
    "DB_TYPE_BINARY_FLOAT",
    "DB_TYPE_BLOB",
    "DB_TYPE_BOOLEAN",
    "DB_TYPE_CHAR",
    "DB_TYPE_CLOB",
    "DB_TYPE_DATE",
    "DB_TYPE_INTERVAL_DS",
    "DB_TYPE_INTERVAL_YM",
    "DB_TYPE_JSON",
    "DB_TYPE_LONG",
    "DB_TYPE_LONG_RAW",
    "DB_TYPE_NCHAR",
    "DB_TYPE_NCLOB",
    "DB_TYPE_NUMBER",
    "DB_TYPE_NVARCHAR",
    "DB_TYPE_RAW",
    "DB_TYPE_ROWID",
    "DB_TYPE_TIMESTAMP",
    "DB_TYPE_TIMESTAMP_LTZ",
    "DB_TYPE_TIMESTAMP_TZ",
    "DB_TYPE_UROWID",
    "DB_TYPE_VARCHAR",
    "DB_TYPE_XMLTYPE",
    "LOB",
    "NUMBER",
    "ROWID",
    "STRING",
    "ApiType",
    "Connection",
    "Cursor",
    "DataError",
    "DataFrame",
    "DatabaseError",
    "DbType",
    "Error",
    "FetchInfo",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "IntervalYM",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Warning",
    "apilevel",
    "connect",
    "defaults",
    "is_thin_mode",
    "paramstyle",
    "threadsafety",
    "version",
]
apilevel = "2.0"
threadsafety = 2
paramstyle = "named"
version = __version__ = "26.1.0"
_BATCH_MAX = 2**32 - 1


def is_thin_mode() -> bool:
    """Return that the driver is in thin mode."""
    return True


def connect(
    dsn: str | None = None, *, user: str | None = None, password: str | None = None, **options: Any
) -> Connection:
    """Connect to a server that listens in this process.

    Args:
        dsn: HOST:PORT/SERVICE; or the options host, port and service_name.
        user: Name of the user.
        password: The user's password.
        options: Other options of python-oracledb, which are checked by name only.
    """
    unknown = options.keys() - CONNECT_OPTIONS
    if unknown:
        raise TypeError(f"connect() got an unexpected keyword argument {min(unknown)!r}")
    if dsn is None:
        dsn = f"{options.get('host')}:{options.get('port', 1521)}/{options.get('service_name')}"
    address, _, service = dsn.partition("/")
    server: Any = SERVERS.get(address)
    try:
        if server is not None and not server.is_down:
            session: Any = log_on(server, user, password, service)
        else:
            session = None if server else connect_remote(address, user, password, service)
            server = session.server if session is not None else None
    except OraError as error:
        if error.code == 12541:
            raise_driver(6005, "simulated")
        if error.code == 12514:
            raise_driver(6001, service)
        raise_database(error)
    if session is None:
        raise_driver(6005, "simulated")
    return Connection(server, session, dsn, user or "")


class Connection:
    """A connection."""

    def __init__(self, server: Server, session: Session, dsn: str, user: str) -> None:
        self._server = server
        self._session: Session | None = session
        self.dsn = dsn
        self.username = user
        self.autocommit = False
        self.call_timeout = 0
        self.inputtypehandler = self.outputtypehandler = None
        self.module = self.action = self.clientinfo = self.client_identifier = None
        self.stmtcachesize = 20
        self.thin = True
        self.version = server.database.settings.version

    def __enter__(self) -> Connection:
        self._check()
        return self

    def __exit__(self, *error: object) -> None:
        if self._session is not None:
            self.close()

    def _check(self) -> Session:
        if self._session is None:
            raise_driver(1001)
        return self._session

    def _run(self, action: Callable[[Session], Any]) -> Any:
        """Run an action of the session; errors become the driver's, and may end the session."""
        session = self._check()
        try:
            return action(session)
        except OraError as error:
            details = details_of(error)
            if details.is_session_dead:
                self._session = None
                session.close()
            raise details.exc_type(details) from error

    @property
    def current_schema(self) -> str | None:
        """Return the schema of names without one."""
        return self._check().schema

    @current_schema.setter
    def current_schema(self, value: str) -> None:
        self._check().schema = value

    @property
    def transaction_in_progress(self) -> bool:
        """Return whether a transaction is open."""
        return self._check().transaction is not None

    def cursor(self, scrollable: bool = False, handle: Any = None) -> Cursor:
        """Return a new cursor."""
        self._check()
        return Cursor(self, scrollable)

    def commit(self) -> None:
        """Commit the transaction."""
        self._run(lambda session: session.commit())

    def rollback(self) -> None:
        """Roll the transaction back."""
        self._run(lambda session: session.rollback())

    def ping(self) -> None:
        """Check that the server answers."""
        self._run(lambda _: self._server.meet("PING"))

    def is_healthy(self) -> bool:
        """Return whether the connection can be used, without a round trip."""
        return self._session is not None

    def cancel(self) -> None:
        """Cancel the statement that another thread runs in this connection."""
        self._check().cancel()

    def close(self) -> None:
        """Close the connection; the transaction is rolled back."""
        self._check().close()
        self._session = None

    def createlob(self, lob_type: DbType, data: str | bytes | None = None) -> LOB:
        """Return a temporary LOB."""
        self._check()
        kind = next(name for name, one in LOB_TYPES.items() if one is lob_type)
        empty: str | bytes = b"" if kind == "BLOB" else ""
        return LOB(self, Lob(kind, data if data is not None else empty))

    def fetch_df_all(
        self,
        statement: str | None = None,
        parameters: list[Any] | tuple[Any, ...] | dict[str, Any] | None = None,
        arraysize: int | None = None,
        *,
        fetch_decimals: bool | None = None,
        requested_schema: Any = None,
        handle: Any = None,
    ) -> DataFrame:
        """Return all rows of a query as one data frame."""
        cursor = self.cursor()
        cursor.arraysize = arraysize or defaults.arraysize
        cursor.execute(statement, parameters)
        return cursor.take_frame(None, fetch_decimals, requested_schema)

    def fetch_df_batches(
        self,
        statement: str | None = None,
        parameters: list[Any] | tuple[Any, ...] | dict[str, Any] | None = None,
        size: int | None = None,
        *,
        fetch_decimals: bool | None = None,
        requested_schema: Any = None,
        handle: Any = None,
    ) -> Iterator[DataFrame]:
        """Yield the rows of a query in data frames of a size; at least one, which may be empty."""
        cursor = self.cursor()
        cursor.arraysize = size or defaults.arraysize
        cursor.execute(statement, parameters)
        is_first = True
        while True:
            frame = cursor.take_frame(cursor.arraysize, fetch_decimals, requested_schema)
            if not frame.num_rows() and not is_first:
                return
            yield frame
            is_first = False

    def direct_path_load(
        self,
        schema_name: str,
        table_name: str,
        column_names: list[str],
        data: Any,
        *,
        batch_size: int = _BATCH_MAX,
    ) -> None:
        """Load rows by the direct path, which commits and locks the table for others."""
        if isinstance(data, list):
            rows = [tuple(bind_of(value) for value in row) for row in data]
        elif hasattr(data, "__arrow_c_stream__"):
            rows = list(rows_of_frame(data))
        else:
            raise_driver(2067)
        if any(len(row) != len(column_names) for row in rows):
            raise_driver(4009, len(column_names), len(rows[0]))
        self._run(lambda session: session.load(schema_name, table_name, column_names, rows))


class Cursor:
    """A cursor."""

    def __init__(self, connection: Connection, scrollable: bool = False) -> None:
        self.connection = connection
        self.scrollable = scrollable
        self.arraysize = defaults.arraysize
        self.prefetchrows = defaults.prefetchrows
        self.statement: str | None = None
        self.rowcount = -1
        self.rowfactory: Callable[..., Any] | None = None
        self.inputtypehandler = self.outputtypehandler = None
        self.lastrowid: str | None = None
        self.warning = None
        self._is_open = True
        self._outcome: Outcome | None = None
        self._infos: list[FetchInfo] = []
        self._buffer: list[tuple[Any, ...]] = []
        self._has_more = False
        self._fetch_lobs = True
        self._decimals = False
        self._batch_errors: list[ErrorDetails] = []
        self._row_counts: list[int] | None = None
        self._sizes: Any = None

    def __enter__(self) -> Cursor:
        self._check_open()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_open = False

    def __iter__(self) -> Iterator[Any]:
        while (row := self.fetchone()) is not None:
            yield row

    def _check_open(self) -> None:
        if not self._is_open:
            raise_driver(1006)
        self.connection._check()

    @property
    def description(self) -> list[FetchInfo] | None:
        """Return the columns of the query; None of other statements."""
        if self._outcome is None or self._outcome.columns is None:
            return None
        return list(self._infos)

    def parse(self, statement: str) -> None:
        """Check a statement without running it."""
        self._check_open()
        bind_names(statement)

    def prepare(self, statement: str, tag: str | None = None, cache_statement: bool = True) -> None:
        """Set the statement of the next execution."""
        self._check_open()
        self.statement = statement

    def bindnames(self) -> list[str]:
        """Return the names of the statement's binds."""
        if self.statement is None:
            raise_driver(2001)
        return bind_names(self.statement)

    def setinputsizes(self, *args: Any, **kwargs: Any) -> list[Any] | dict[str, Any]:
        """Set the types of the next execution's binds; an int is a length of texts."""
        self._check_open()
        if args and kwargs:
            raise_driver(2006)
        self._sizes = kwargs or list(args)
        return kwargs if kwargs else list(args)

    def execute(
        self,
        statement: str | None,
        parameters: list[Any] | tuple[Any, ...] | dict[str, Any] | None = None,
        *,
        suspend_on_success: bool = False,
        fetch_lobs: bool | None = None,
        fetch_decimals: bool | None = None,
        **keyword_parameters: Any,
    ) -> Cursor | None:
        """Run a statement; return the cursor itself for a query."""
        self._check_open()
        if parameters is not None and keyword_parameters:
            raise_driver(2006)
        if parameters is None:
            parameters = keyword_parameters
        text = self._text(statement)
        self._fetch_lobs = defaults.fetch_lobs if fetch_lobs is None else fetch_lobs
        self._decimals = defaults.fetch_decimals if fetch_decimals is None else fetch_decimals
        self._outcome = None
        outcome: Outcome = self._run(text, parameters)
        self._outcome, self._buffer = outcome, []
        self._has_more = outcome.rows is not None
        if outcome.columns is not None:
            self.rowcount = 0
            self._buffer = self._take(max(self.prefetchrows, 1))
            samples = list(zip(*self._buffer, strict=True)) or [()] * len(outcome.columns)
            self._infos = [
                describe(column, values)
                for column, values in zip(outcome.columns, samples, strict=True)
            ]
            return self
        self.rowcount = outcome.count
        if self.connection.autocommit:
            self.connection.commit()
        return None

    def _text(self, statement: str | None) -> str:
        text = statement if statement is not None else self.statement
        if text is None:
            raise_driver(2001)
        self.statement = text
        return text

    def _run(self, text: str, parameters: Any) -> Outcome:
        binds = match_binds(text, parameters, self._sizes)
        self._sizes = None
        self._wait(text)
        outcome: Outcome = self.connection._run(lambda session: session.execute(text, binds))
        return outcome

    def _wait(self, text: str) -> None:
        timeout = self.connection.call_timeout
        delay = delay_of(self.connection._server, text)
        if timeout and delay > timeout:
            raise_driver(4024, timeout)

    def executemany(
        self,
        statement: str | None,
        parameters: Any,
        *,
        batcherrors: bool = False,
        arraydmlrowcounts: bool = False,
        suspend_on_success: bool = False,
        batch_size: int = _BATCH_MAX,
    ) -> None:
        """Run a statement for each row of a list or of an Arrow object."""
        self._check_open()
        text = self._text(statement)
        self._outcome, self._batch_errors = None, []
        is_frame = hasattr(parameters, "__arrow_c_stream__")
        sizes, self._sizes = self._sizes, None
        rows = rows_to_run(parameters, sizes)
        binds: Iterator[dict[str, Any]] = (
            bind_frame_row(text, row) if is_frame else match_binds(text, row, sizes) for row in rows
        )
        if not isinstance(parameters, int) and not is_frame:
            binds = iter(list(binds))  # the driver refuses values before it sends any
        self._wait(text)
        limit = batch_size if self.connection.autocommit else _BATCH_MAX
        counts: list[int] = []
        while batch := list(itertools.islice(binds, limit)):
            counts += self._run_batch(text, batch, len(counts), batcherrors=batcherrors)
            if self.connection.autocommit:
                self.connection.commit()
        self.rowcount = sum(counts)
        self._row_counts = counts if arraydmlrowcounts else None

    def _run_batch(
        self, text: str, batch: list[dict[str, Any]], done: int, *, batcherrors: bool
    ) -> list[int]:
        counts, failed = self.connection._run(
            lambda session: session.execute_many(text, batch, saves_exceptions=batcherrors)
        )
        for number, error in failed:
            details = details_of(error, done + number)
            if not batcherrors:
                self.rowcount = done + sum(counts)
                raise details.exc_type(details) from error
            self._batch_errors.append(details)
        listed: list[int] = counts
        return listed

    def getbatcherrors(self) -> list[ErrorDetails]:
        """Return the errors of the rows that executemany() refused."""
        return self._batch_errors

    def getarraydmlrowcounts(self) -> list[int]:
        """Return how many rows each row of executemany() changed."""
        if self._row_counts is None:
            raise_driver(4000, "array DML row counts mode is not enabled")
        return self._row_counts

    def callproc(
        self,
        name: str,
        parameters: list[Any] | tuple[Any, ...] | None = None,
        keyword_parameters: dict[str, Any] | None = None,
        *,
        keywordParameters: dict[str, Any] | None = None,  # noqa: N803 - the driver's name
    ) -> list[Any]:
        """Call a procedure."""
        self._check_open()
        named = keyword_parameters or keywordParameters or {}
        text, binds = call_text(name, parameters or (), named)
        self.connection._run(lambda session: session.execute(text, binds))
        return list(parameters or [])

    def _verify_query(self) -> Outcome:
        self._check_open()
        if self._outcome is None or self._outcome.rows is None:
            raise_driver(1003)
        return self._outcome

    def _take(self, count: int) -> list[tuple[Any, ...]]:
        """Return raw rows of one round trip."""
        outcome = self._verify_query()
        assert outcome.rows is not None
        rows = outcome.rows

        def take(session: Session) -> list[tuple[Any, ...]]:
            outcome.check()
            with self.connection._server.lock:
                return list(itertools.islice(rows, count))

        if not self._has_more:
            return []
        taken: list[tuple[Any, ...]] = self.connection._run(take)
        self._has_more = len(taken) == count
        return taken

    def _raw(self, count: int | None) -> list[tuple[Any, ...]]:
        out: list[tuple[Any, ...]] = []
        while count is None or len(out) < count:
            if not self._buffer:
                self._buffer = self._take(self.arraysize)
                if not self._buffer:
                    break
            need = len(self._buffer) if count is None else count - len(out)
            out += self._buffer[:need]
            del self._buffer[:need]
        self.rowcount += len(out)
        return out

    def _convert_rows(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        zone = self.connection._check().nls.zone_minutes
        plain = [info.type_code in PLAIN_TYPES for info in self._infos]
        infos = list(zip(self._infos, plain, strict=True))
        values = [
            tuple(
                [
                    value if value is None or is_plain else self._convert(value, info, zone)
                    for value, (info, is_plain) in zip(row, infos, strict=True)
                ]
            )
            for row in rows
        ]
        factory = self.rowfactory
        return values if factory is None else [factory(*one) for one in values]

    def _convert(self, value: Any, info: FetchInfo, zone: int) -> Any:
        if isinstance(value, Lob):
            return LOB(self.connection, value) if self._fetch_lobs else (value.data or None)
        return to_python(value, info, decimals=self._decimals, zone_minutes=zone)

    def fetchone(self) -> Any:
        """Return the next row; None after the last."""
        self._verify_query()
        rows = self._raw(1)
        return self._convert_rows(rows)[0] if rows else None

    def fetchmany(
        self,
        size: int | None = None,
        numRows: int | None = None,  # noqa: N803 - the driver's name
    ) -> list[Any]:
        """Return the next rows; an empty list after the last."""
        self._verify_query()
        count = size if size is not None else numRows
        return self._convert_rows(self._raw(self.arraysize if count is None else count))

    def fetchall(self) -> list[Any]:
        """Return all rows that are left."""
        self._verify_query()
        return self._convert_rows(self._raw(None))

    def take_frame(self, count: int | None, decimals: bool | None, schema: Any) -> DataFrame:
        """Return rows as a data frame; penstock reads it through the connection."""
        rows = self._raw(count)
        wanted = defaults.fetch_decimals if decimals is None else decimals
        zone = self.connection._check().nls.zone_minutes
        requested = None if schema is None else pa.schema(schema)
        return make_frame(
            self._infos, rows, decimals=wanted, zone_minutes=zone, requested=requested
        )

    def close(self) -> None:
        """Close the cursor."""
        self._check_open()
        self._is_open = False
