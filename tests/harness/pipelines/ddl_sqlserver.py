"""SQL Server in random histories: a database as a test sees it, and its careful administrator.

As a source, each table that is created is captured, and each one that is altered gets another
capture instance, as docs/sqlserver.md says. In statements `this.` stands for the history's schema.
Not here: the statements of a history (`ddl_sqlserver_author.py`).
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any

from harness.pipelines.ddl_sides import Facts, Row
from harness.pipelines.ddl_types import SQLSERVER
from penstock.engines.sqlserver.connect import driver
from penstock.engines.sqlserver.url import SQLServerUrl
from plugins.sqlserver import as_test

INSTANCES_MAX = 2  # of a table, at the server
_TABLE = r"table\s+((?:this|\[?\w+\]?)\.\[(?:[^\]]|\]\])+\])"
_CREATED = re.compile(rf"create\s+{_TABLE}")
_ALTERED = re.compile(rf"alter\s+{_TABLE}\s+(?:add\s+\[|drop\s+column|alter\s+column)")
_PLAIN = {"begin": "BEGIN TRANSACTION", "commit": "COMMIT TRANSACTION"}
_PLAIN["rollback"] = "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION"
Error: type[Exception] = driver().Error


class SQLServerSide:
    """A SQL Server database.

    Attributes:
        schema: Meaning of `this`.
        is_captured: Whether tables are captured; `capture` has to be enabled at the database.
        wait_read: Waits until the log has everything that is committed.
    """

    kind = SQLSERVER

    def __init__(self, url: str) -> None:
        self.connection = driver().connect(
            SQLServerUrl.parse(as_test(url)).connection_string(), autocommit=True
        )
        self._cursor = self.connection.cursor()
        self.schema = "dbo"
        self.is_captured = False
        self.wait_read: Callable[[], None] = lambda: None

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows. An altered table is captured as it is then."""
        found = self._run(_PLAIN.get(sql, sql).replace("this.", f"[{self.schema}]."))
        if self.is_captured:
            named = _CREATED.match(sql) or _ALTERED.match(sql)
            if named is not None:
                self._capture(named[1])
        return found

    def _run(self, sql: str) -> list[tuple[Any, ...]]:
        self._cursor.execute(sql)
        rows = [tuple(row) for row in self._cursor.fetchall()] if self._cursor.description else []
        while self._cursor.nextset():
            pass
        return rows

    def begin_capture(self) -> None:
        """Let the database capture changes of its tables."""
        self._run("EXEC sys.sp_cdc_enable_db")
        self._run("ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON")
        self.is_captured = True

    def _capture(self, written: str) -> None:
        """Add a capture instance; the oldest one is dropped once the log has all of it."""
        schema, _, quoted = written.partition(".")
        name = _literal(quoted[1:-1].replace("]]", "]"))
        schema = _literal(self.schema if schema == "this" else schema.strip("[]"))
        table = f"@source_schema = N'{schema}', @source_name = N'{name}'"
        there = self._run(
            "SELECT capture_instance FROM cdc.change_tables WHERE source_object_id = "
            f"OBJECT_ID(QUOTENAME(N'{schema}') + N'.' + QUOTENAME(N'{name}')) ORDER BY start_lsn"
        )
        if len(there) >= INSTANCES_MAX:
            self.wait_read()
            self._run(
                f"EXEC sys.sp_cdc_disable_table {table}, "
                f"@capture_instance = N'{_literal(there[0][0])}'"
            )
        ((count,),) = self._run("SELECT COALESCE(MAX(object_id), 0) FROM cdc.change_tables")
        self._run(
            f"EXEC sys.sp_cdc_enable_table {table}, @role_name = NULL, "
            f"@supports_net_changes = 0, @capture_instance = N'{schema}_i{count}'"
        )

    def tables(self, schema: str) -> list[str]:
        """Return the names of the tables of a schema."""
        rows = self._run(
            f"SELECT name FROM sys.tables WHERE schema_id = SCHEMA_ID(N'{schema}') ORDER BY name"
        )
        return [row[0] for row in rows]

    def facts(self, schema: str, table: str) -> Facts | None:
        """Return the facts about a table; None if there is none."""
        rows = self._run(
            f"""
            SELECT c.name, y.name, c.max_length, c.precision, c.scale, c.is_nullable,
                   c.is_computed,
                   (SELECT COUNT(*) FROM sys.index_columns AS k
                      JOIN sys.indexes AS i
                        ON i.object_id = k.object_id AND i.index_id = k.index_id
                     WHERE i.is_primary_key = 1 AND k.object_id = c.object_id
                       AND k.column_id = c.column_id)
              FROM sys.columns AS c
              JOIN sys.tables AS t ON t.object_id = c.object_id
              JOIN sys.types AS y ON y.user_type_id = c.user_type_id
             WHERE t.schema_id = SCHEMA_ID(N'{schema}') AND t.name = N'{_literal(table)}'
            """
        )
        if not rows:
            return None
        return Facts(
            types={row[0]: _write_type(*row[1:5]) for row in rows},
            key=frozenset(row[0] for row in rows if row[7]),
            nullable=frozenset(row[0] for row in rows if row[5]),
            unsent=frozenset(row[0] for row in rows if row[6]),
        )

    def texts(self, schema: str, table: str, columns: Mapping[str, str]) -> list[Row]:
        """Return all rows as text. columns: kind of value by column."""
        listed = ", ".join(map(_quote, columns))
        rows = self._run(f"SELECT {listed} FROM {_quote(schema)}.{_quote(table)}")
        kinds = list(columns.values())
        return [
            tuple(_show(value, kind) for value, kind in zip(row, kinds, strict=True))
            for row in rows
        ]

    def close(self) -> None:
        """Close the session."""
        with suppress(Error):
            self.connection.close()


def _write_type(name: str, length: int, precision: int, scale: int) -> str:
    """Return a type as it is written."""
    if name in ("decimal", "numeric"):
        return f"{name}({precision},{scale})"
    if name in ("time", "datetime2", "datetimeoffset"):
        return f"{name}({scale})"
    if name in ("char", "varchar", "nchar", "nvarchar", "binary", "varbinary"):
        size = length // 2 if name.startswith("n") and length > 0 else length
        return f"{name}({'max' if length < 0 else size})"
    return name


def _show(value: Any, kind: str) -> str | None:
    """Return a value of the driver as text. kind: by which rule it is compared."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int) and kind == "bits":
        return f"{value:b}"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, dt.datetime):
        zone = "" if value.tzinfo is None else "+00"
        bare = value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
        return bare.isoformat(" ", "microseconds") + zone
    if isinstance(value, float):
        return repr(value)
    text = str(value)
    return text.lower() if kind == "uuid" else text


def _literal(text: str) -> str:
    return text.replace("'", "''")


def _quote(name: str) -> str:
    return "[" + name.replace("]", "]]") + "]"
