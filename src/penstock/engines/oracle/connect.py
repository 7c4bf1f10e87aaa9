"""SQL connections to Oracle, all opened here, with typed errors and exact settings.

python-oracledb in thin mode handles all of it. A session is of one container: the root, where
changes are mined, or the pluggable database that has the tables; the container is set again with
each new connection. Texts of dates, times and numbers depend on the session's settings, so each
session sets them and then reads what they do: a log-on trigger may have changed them.

Not here: what an error of the driver means (`server_errors.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import pyarrow as pa

from penstock.engines.oracle.errors import NameImpossible, SessionUnset
from penstock.engines.oracle.server_errors import connect_error, driver, server_errors
from penstock.engines.oracle.url import ROOT, OracleUrl
from penstock.host.errors import DatabaseUnknown, StatementFailed, mask

ARRAY_ROWS = 2000
"""Rows of a round trip. The driver's 100 let a large result look hung."""
ARROW_ROWS = 8192

DATE_MASK = "SYYYY-MM-DD HH24:MI:SS"
TIMESTAMP_MASK = f"{DATE_MASK}.FF9"
ZONED_MASK = f"{TIMESTAMP_MASK} TZH:TZM"
SETTINGS: Mapping[str, str] = {
    "NLS_CALENDAR": "GREGORIAN",
    "NLS_DATE_FORMAT": DATE_MASK,
    "NLS_TIMESTAMP_FORMAT": TIMESTAMP_MASK,
    "NLS_TIMESTAMP_TZ_FORMAT": ZONED_MASK,
    "NLS_NUMERIC_CHARACTERS": ".,",
    "NLS_SORT": "BINARY",
    "NLS_COMP": "BINARY",
    "TIME_ZONE": "00:00",
}
SET_FORMATS = "ALTER SESSION SET " + " ".join(f"{key} = '{to}'" for key, to in SETTINGS.items())
READ_FORMATS = (
    "SELECT TO_CHAR(DATE '2026-02-28'), TO_CHAR(TIMESTAMP '2026-02-28 13:45:59.123456789'), "
    "TO_CHAR(TIMESTAMP '2026-02-28 13:45:59.123456789 +05:30'), TO_CHAR(1.5), SESSIONTIMEZONE "
    "FROM DUAL"
)
_NO_SUCH_PDB = 65011
# Rows that an application has archived in the database (ORA_ARCHIVE_STATE) are rows, too.
SHOW_ARCHIVED = "ALTER SESSION SET ROW ARCHIVAL VISIBILITY = ALL"
_FORMATS = (
    "2026-02-28 00:00:00",
    "2026-02-28 13:45:59.123456789",
    "2026-02-28 13:45:59.123456789 +05:30",
    "1.5",
    "+00:00",
)


class Connection:
    """One session. Not for several threads at once; created by `connect` or `connect_root`.

    Changes are in a transaction until `commit`, except that the server commits at each DDL.
    """

    def __init__(self, raw: Any, place: str) -> None:
        self._raw = raw
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

    @property
    def version(self) -> tuple[int, ...]:
        """Return the server's version, e.g. (19, 22, 0, 0, 0)."""
        return tuple(int(one) for one in str(self._raw.version).split("."))

    def execute(self, sql: str, *values: Any, **binds: Any) -> list[tuple[Any, ...]]:
        """Run a statement; return its rows, or [] if it has none.

        LOBs are read as text or bytes, numbers as int or, with a fraction, as float: read columns
        of tables through `rows`.

        Args:
            sql: The statement.
            values: Those of `:1`, `:2` in order.
            binds: Those of `:name`, if there are no values.

        Raises the errors of `server_errors`.
        """
        return [row for part in self.rows(sql, *values, **binds) for row in part]

    def rows(
        self,
        sql: str,
        *values: Any,
        array_rows: int = ARRAY_ROWS,
        decimals: bool = False,
        **binds: Any,
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a query in lists, none of which is empty.

        Args:
            sql: The statement.
            values: See `execute`.
            array_rows: Rows of a list, which one round trip brings.
            decimals: Numbers are Decimal, which is exact.
            binds: See `execute`.

        Raises the errors of `server_errors`.
        """
        cursor = self._raw.cursor()
        try:
            cursor.arraysize = array_rows
            cursor.prefetchrows = array_rows
            with server_errors(sql):
                cursor.execute(sql, values or binds, fetch_lobs=False, fetch_decimals=decimals)
                if cursor.description is None:
                    return
            while True:
                with server_errors(sql):
                    part = cursor.fetchmany()
                if not part:
                    return
                yield part
        finally:
            self._close_cursor(cursor)

    def columns(self, sql: str, **binds: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Run a query; return the names of its columns, and its rows."""
        with self._cursor() as cursor, server_errors(sql):
            cursor.execute(sql, binds, fetch_lobs=False)
            return [one[0] for one in cursor.description or ()], cursor.fetchall()

    def run(self, sql: str, *values: Any, **binds: Any) -> int:
        """Run a statement that is not a query; return the number of changed rows.

        Values are as for `execute`. Raises the errors of `server_errors`.
        """
        with self._cursor() as cursor, server_errors(sql):
            cursor.execute(sql, values or binds)
            return int(cursor.rowcount)

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]] | pa.Table | pa.RecordBatch) -> int:
        """Run a statement once for each row, in this session's transaction; return changed rows.

        rows: values of `:1`, `:2` in order, as sequences or as the columns of Arrow data.
        """
        with self._cursor() as cursor, server_errors(sql):
            cursor.executemany(sql, rows)
            return int(cursor.rowcount)

    def arrow(
        self, sql: str, *, schema: pa.Schema | None = None, rows: int = ARROW_ROWS, **binds: Any
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query in batches of at most `rows`, none of which is empty.

        schema: wanted types; without it numbers are decimals where their column has a precision.
        Raises the errors of `server_errors`.
        """
        with server_errors(sql):
            frames = self._raw.fetch_df_batches(
                sql, binds, rows, fetch_decimals=True, requested_schema=schema
            )
        while True:
            with server_errors(sql):
                frame = next(frames, None)
            if frame is None:
                return
            table = pa.table(frame)
            yield from (one for one in table.to_batches() if one.num_rows)

    def load_direct(
        self, schema: str, table: str, columns: Sequence[str], data: pa.Table | pa.RecordBatch
    ) -> None:
        """Load rows by the direct path, which commits and locks the table for other writers.

        Args:
            schema: Owner of the table, not quoted.
            table: Its name, not quoted.
            columns: Names of the columns of `data`, in order.
            data: The rows.
        """
        with server_errors(f"direct path load into {schema}.{table}"):
            self._raw.direct_path_load(schema, table, list(columns), data)

    def commit(self) -> None:
        """Commit the transaction; an error says nothing about whether the commit took effect."""
        with server_errors("COMMIT"):
            self._raw.commit()

    def rollback(self) -> None:
        """Roll back the transaction, if one is open."""
        with server_errors("ROLLBACK"):
            self._raw.rollback()

    def set_autocommit(self, *, is_on: bool) -> None:
        """Commit after each statement from now on, or only at `commit`."""
        self._raw.autocommit = is_on

    def make_clob(self, text: str) -> Any:
        """Return a temporary CLOB: a bind with more text than a VARCHAR2 has.

        Raises the errors of `server_errors`.
        """
        module = driver()
        with server_errors("creating a temporary CLOB"):
            return self._raw.createlob(module.DB_TYPE_CLOB, text)

    def cancel(self) -> None:
        """Interrupt the statement that another thread runs in this session (ORA-01013)."""
        with server_errors("cancelling a statement"):
            self._raw.cancel()

    def close(self) -> None:
        """End the session; harmless if done twice or if the connection is lost."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._raw.close()
        except driver().Error:
            return  # the server has ended the session already

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        with server_errors("opening a cursor"):
            cursor = self._raw.cursor()
        try:
            yield cursor
        finally:
            self._close_cursor(cursor)

    def _close_cursor(self, cursor: Any) -> None:
        if self._is_closed:
            return
        try:
            cursor.close()
        except driver().Error:
            return  # the session has ended, and its cursors with it


def connect(url: str, *, autocommit: bool = False, timeout_s: float | None = None) -> Connection:
    """Open a session in the container that has the tables: that of `pdb`, or the service's own.

    Args:
        url: Described in `url.py`.
        autocommit: Commit after each statement.
        timeout_s: Seconds that one round trip may take; None for any time.

    Raises:
        ConnectFailed: One of its subclasses; messages never contain a password.
        SessionUnset: The session does not keep the formats that it was given.
    """
    return _open(url, OracleUrl.parse(url).pdb, autocommit=autocommit, timeout_s=timeout_s)


def connect_root(url: str, *, timeout_s: float | None = None) -> Connection:
    """Open a session for mining: at the root if the URL names a pluggable database.

    Raises the errors of `connect`.
    """
    container = ROOT if OracleUrl.parse(url).pdb else ""
    return _open(url, container, autocommit=False, timeout_s=timeout_s)


def _open(url: str, container: str, *, autocommit: bool, timeout_s: float | None) -> Connection:
    target = OracleUrl.parse(url)
    module = driver()
    try:
        raw = module.connect(**target.parameters())
    except (module.Error, module.Warning, OSError, ValueError) as error:
        raise connect_error(url, error) from error
    connection = Connection(raw, target.place)
    try:
        raw.autocommit = autocommit
        if timeout_s is not None:
            raw.call_timeout = max(1, round(timeout_s * 1000))
        if container:
            _enter(connection, container, url)
        set_formats(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _enter(connection: Connection, container: str, url: str) -> None:
    """Set the session's container. Raises DatabaseUnknown if there is none of the name."""
    try:
        connection.run(f"ALTER SESSION SET CONTAINER = {quote(container)}")
    except StatementFailed as error:
        if error.fields.get("errno") != _NO_SUCH_PDB:
            raise
        raise DatabaseUnknown(
            f"{mask(url)} has no pluggable database {container}",
            hint="Check pdb in the URL: SELECT NAME, OPEN_MODE FROM V$PDBS;",
        ) from error


def set_formats(connection: Connection) -> None:
    """Set the session's formats and visible rows; check the formats. Raises SessionUnset."""
    connection.run(SET_FORMATS)
    connection.run(SHOW_ARCHIVED)
    shown = [str(one).lstrip() for one in connection.execute(READ_FORMATS)[0]]
    for text, wanted in zip(shown, _FORMATS, strict=True):
        if text != wanted:
            raise SessionUnset(
                f"{connection.place} prints {text} where penstock's session settings ask for "
                f"{wanted}",
                hint="Leave this user out of the log-on trigger that changes NLS parameters or the "
                "time zone.",
            )


# -- the driver ----------------------------------------------------------------------------------


def is_possible(name: str) -> bool:
    """Return whether Oracle can have a name: no empty one, and none with a quotation mark or a
    zero.
    """
    return bool(name) and {*name}.isdisjoint('"\0')


def quote(*names: str) -> str:
    """Return identifiers in quotation marks, joined by dots: for owner s and table t, `"s"."t"`.

    Raises NameImpossible for one that is empty or has a quotation mark or a zero.
    """
    for name in names:
        if not is_possible(name):
            raise NameImpossible(
                f"Oracle cannot have the name {name!r}: it is empty, or has a quotation mark or a "
                "zero",
                hint="Rename it at the source, or leave its table out of [source] tables.",
            )
    return ".".join(f'"{name}"' for name in names)


def literal(text: str) -> str:
    """Return a text as an SQL string literal, for statements that take no binds."""
    return "'" + text.replace("'", "''") + "'"
