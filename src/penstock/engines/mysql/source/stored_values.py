"""Read the value that existing rows get in an added column, as the server itself stores it.

The definition is tried on a temporary table with one row, in a session with the settings that the
statement had: no rule of conversion is repeated here. Needs CREATE TEMPORARY TABLES in the table's
schema; without it only integers are known, and for others the table is read again.
"""

from __future__ import annotations

from penstock.codec.mysql.binlog_query import NO_BACKSLASH_ESCAPES, Query
from penstock.codec.mysql.types import parse_type
from penstock.engines.mysql.connect import Connection, connect, quote, rows, run, value
from penstock.engines.mysql.source.added_columns import Added, certain_value
from penstock.host.errors import StatementFailed
from penstock.model import TableName

APPLICATION_NAME = "penstock added columns"
DOING = "asking for the value of an added column"
TEMPORARY = "penstock_added_column"

TABLE_COLLATION = """
    select table_collation
      from information_schema.tables
     where table_schema = %s
       and cast(table_name as binary) = cast(%s as binary)
"""
_BYTES = frozenset(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"))
_TEXTS = frozenset(
    ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json")
)
_OTHERS = frozenset(
    (
        *("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double"),
        *("bit", "year", "date", "time", "datetime", "timestamp"),
    )
)


class ValueUnknown(Exception):
    """The server does not return the value; the text has the reason."""


def read_stored_value(url: str, table: TableName, added: Added, query: Query) -> str | None:
    """Return the text, in the form of the log, of the value that existing rows got; None is NULL.

    Args:
        url: URL of the source.
        table: the table to which the column was added.
        added: the column, its value not unclear.
        query: the statement, for the settings of its session.

    Raises:
        ValueUnknown: the server does not return the value.
        ConnectFailed, ConnectionLost: the server cannot be reached.
    """
    if added.is_null:
        return None
    if (certain := certain_value(added)) is not None:
        return certain
    connection = connect(url, application_name=APPLICATION_NAME)
    try:
        return _ask(connection, table, added, query)
    except StatementFailed as error:
        raise ValueUnknown(f"the server does not tell its value: {error.message}") from error
    finally:
        connection.close()


def _ask(connection: Connection, table: TableName, added: Added, query: Query) -> str | None:
    place = quote(table.schema, TEMPORARY)
    for setting in _settings(query, added):
        run(connection, f"set session {setting}", doing=DOING)
    collation = value(connection, TABLE_COLLATION, tuple(table), doing=DOING)
    options = f" collate {collation}" if collation else ""
    run(connection, f"create temporary table {place} (penstock_id int){options}", doing=DOING)
    run(connection, f"insert into {place} values (1)", doing=DOING)
    column = quote(added.name)
    run(connection, f"alter table {place} add column {column} {added.definition}", doing=DOING)
    kind = _type_of(connection, place, added.name)
    run(connection, "set session time_zone = '+00:00'", doing=DOING)
    found = value(connection, f"select {_as_text(column, kind)} from {place}", doing=DOING)
    if found is None:
        return None
    return f"\\x{found.lower()}" if kind in _BYTES else str(found)


def _settings(query: Query, added: Added) -> list[str]:
    settings = [
        # Strings are written without escapes (`added_columns.py`).
        f"sql_mode = {query.sql_mode | NO_BACKSLASH_ESCAPES}",
    ]
    if query.time_us:
        settings.append(f"timestamp = {query.time_us / 1_000_000:.6f}")
    if query.time_zone:
        settings.append("time_zone = '" + query.time_zone.replace("'", "''") + "'")
    if query.has_explicit_timestamps is not None and "timestamp" in added.definition.lower():
        settings.append(f"explicit_defaults_for_timestamp = {int(query.has_explicit_timestamps)}")
    return settings


def _type_of(connection: Connection, place: str, name: str) -> str:
    found = rows(connection, f"show columns from {place}", doing=DOING)
    printed = next(str(row["type"]) for row in found if row["field"].lower() == name.lower())
    kind = parse_type(printed)
    base = kind.base if kind is not None else printed
    if kind is None or base not in _OTHERS | _BYTES | _TEXTS:
        raise ValueUnknown(f"a value of type {printed} is not asked for")
    return base


def _as_text(column: str, kind: str) -> str:
    """Return the expression that prints a value in the form of the binlog's rows."""
    if kind in _BYTES:
        return f"hex({column})"
    if kind in _TEXTS:
        return f"convert({column} using utf8mb4)"
    if kind in ("float", "double"):
        return f"cast({column} * 1e0 as char)"
    if kind in ("bit", "decimal"):
        return f"cast({column} + 0 as char)"
    if kind == "year":
        return f"lpad(cast({column} as char), 4, '0')"
    return f"cast({column} as char)"
