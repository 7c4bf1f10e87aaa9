"""Database of the simulated SQL Server, as a `Place` of the suites that run on every engine."""

from __future__ import annotations

import re
import time
from typing import Any

from plugins.sqlserver import SimServer

LOCK_WAIT_MS = 20_000
_WAIT_S = 20.0
_CREATE = re.compile(r"\s*create\s+table\s+(?:dbo\.)?(\w+)", re.IGNORECASE)


class SQLServerPlace:
    """Database of a simulated SQL Server; a `Place`.

    Tests create tables with the types that all engines know; `text` becomes nvarchar(max), so it
    may be no key. A table is captured as soon as it is created.
    """

    namespace = "dbo"
    unsent = ""

    def __init__(self, server: SimServer, *, is_captured: bool = True) -> None:
        self._server = server
        self._database = server.make_database("conform")
        self._is_captured = is_captured
        self.url = server.url(self._database)
        if is_captured:
            self._execute("EXEC sys.sp_cdc_enable_db")
            self._execute("ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON")

    def connection_string(self) -> str:
        """Return the text by which the driver connects to the database."""
        return self._server.connection_string(self._database)

    def _execute(self, statement: str) -> list[tuple[Any, ...]]:
        return self._server.execute(statement, self._database)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, each with a limited wait for locks; return the rows of the last one."""
        found: list[tuple[Any, ...]] = []
        for statement in statements:
            found = self._execute(f"SET LOCK_TIMEOUT {LOCK_WAIT_MS}; {in_its_types(statement)}")
            created = _CREATE.match(statement)
            if created is not None and self._is_captured:
                self.capture(created.group(1))
        return found

    def run_unchanged(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement whose types are SQL Server's own; return its rows."""
        return self._execute(statement)

    def capture(self, table: str, instance: str = "") -> None:
        """Create a capture instance for a table."""
        named = f", @capture_instance = N'{instance}'" if instance else ""
        self._execute(
            f"EXEC sys.sp_cdc_enable_table @source_schema = N'dbo', @source_name = N'{table}', "
            f"@role_name = NULL, @supports_net_changes = 0{named}"
        )

    def make_keyless(self, table: str, columns: str) -> None:
        """Create a table without a key."""
        self.run(f"create table {table} ({columns})")

    def make_wide(self, table: str) -> None:
        """Create the table with a column that is left out where it did not change."""
        self.run(f"create table {table} (id int primary key, n int, big text)")

    def forget_log(self) -> None:
        """Remove all change rows, also those that a reader has not read."""
        self._execute("EXEC sys.sp_cdc_scan")
        self._execute("EXEC sim.empty_log")

    def truncate(self, table: str) -> None:
        """Truncate a table, which is captured no longer: the server refuses it otherwise."""
        if self._is_captured:
            self._execute(
                "EXEC sys.sp_cdc_disable_table @source_schema = N'dbo', "
                f"@source_name = N'{table}', @capture_instance = N'all'"
            )
        self._execute(f"TRUNCATE TABLE dbo.{table}")

    def count_rows(self, table: str) -> None:
        """Let the server estimate a table again: SQL Server keeps the count."""
        self._execute(f"UPDATE STATISTICS dbo.{table}")

    def is_running(self, text: str) -> bool:
        """Return whether another session runs a request that contains this text."""
        return bool(self._execute(f"EXEC sim.count_sessions N'{text}'")[0][0])

    def wait_captured(self) -> None:
        """Wait until capture has read everything that is committed."""
        before = self._execute("SELECT MAX([Current LSN]) FROM sys.fn_dblog(NULL, NULL)")[0][0]
        until = time.monotonic() + _WAIT_S
        while True:
            self._execute("EXEC sys.sp_cdc_scan")
            found = self._execute("SELECT sys.fn_cdc_get_max_lsn()")[0][0]
            if found is not None and found.hex() >= before.replace(":", ""):
                return
            if time.monotonic() > until:
                raise TimeoutError("capture does not catch up")
            time.sleep(0.05)

    def forget_penstock(self) -> None:
        """Do nothing: all of it is in this database."""

    def drop(self) -> None:
        """Drop the database."""
        self._server.drop_database(self._database)


def in_its_types(statement: str) -> str:
    """Return a statement with SQL Server's names of the types that other engines call otherwise."""
    if re.match(r"\s*(create|alter)\s+table", statement, re.IGNORECASE) is None:
        return statement
    changed = re.sub(r"\btext\b", "nvarchar(max)", statement, flags=re.IGNORECASE)
    changed = re.sub(r"\bboolean\b", "bit", changed, flags=re.IGNORECASE)
    return re.sub(r"\bdouble precision\b", "float", changed, flags=re.IGNORECASE)
