"""A real SQL Server in place of the simulator, for the suites that a user runs on it.

Tests that need a switch of the simulator are skipped there. Not here: which tests are run
(`certify_sqlserver/suites.py`).
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from typing import Any

import pytest

from penstock.engines.sqlserver.connect import Connection, connect, quote
from penstock.engines.sqlserver.url import SQLServerUrl, with_database
from penstock.host.errors import PrivilegeMissing, StatementFailed
from penstock.model import PenstockError
from plugins.sqlserver import SimServer

URL_VARIABLE = "PENSTOCK_TEST_SQLSERVER_URL"
PREFIX = "penstock_certify"
_SWITCH = re.compile(r"\bsim\.", re.IGNORECASE)
_COUNT = re.compile(r"EXEC sim\.count_sessions N'(.*)'\s*$", re.IGNORECASE | re.DOTALL)
_RUNNING = (
    "SELECT COUNT(*) FROM sys.dm_exec_requests AS r "
    "CROSS APPLY sys.dm_exec_sql_text(r.sql_handle) AS t "
    "WHERE r.session_id <> @@SPID AND CHARINDEX(?, t.text) > 0"
)
_ENABLES = "sp_cdc_enable_table"
_SCAN = "EXEC sys.sp_cdc_scan"
SCAN_WAIT_S = 0.5
POLL_S = 1  # seconds between two scans of the log


class RealServer(SimServer):
    """A server by its URL; a `SimServer` without switches."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._made: list[str] = []
        self._hastened: set[str] = set()
        self._count = 0
        self.certificate = None
        self.port = SQLServerUrl.parse(url).port
        self.postgres_url = ""

    @property
    def pid(self) -> int:
        pytest.skip("needs the simulator's process")

    def url(self, database: str, user: str = "", password: str = "") -> str:
        """Return the URL of a database, as the given user or another."""
        whole = with_database(self._url, database)
        if not user or user == "sa":
            return whole
        scheme, _, rest = whole.partition("://")
        return f"{scheme}://{user}:{password}@{rest.rpartition('@')[2]}"

    def connection_string(
        self, database: str, user: str = "", password: str = "", **options: str
    ) -> str:
        """Return the text that mssql_python.connect takes."""
        text = SQLServerUrl.parse(self.url(database)).connection_string()
        return text + "".join(f"{name}={value};" for name, value in options.items())

    def make_database(self, prefix: str = "test") -> str:
        """Create a fresh database and return its name."""
        self._count += 1
        name = f"{PREFIX}_{prefix}_{os.getpid()}_{self._count}"
        self.execute(f"CREATE DATABASE {quote(name)}", "")
        self._made.append(name)
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database that make_database created."""
        if name not in self._made:
            return
        # Azure SQL Database ends the sessions when it drops the database.
        with suppress(StatementFailed, PrivilegeMissing):
            self.execute(
                f"ALTER DATABASE {quote(name)} SET SINGLE_USER WITH ROLLBACK IMMEDIATE", ""
            )
        self.execute(f"DROP DATABASE IF EXISTS {quote(name)}", "")
        self._made.remove(name)

    def execute(self, statement: str, database: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run T-SQL in autocommit. Skips the test if it needs a switch of the simulator."""
        count = _COUNT.match(statement)
        if count is not None:
            statement, parameters = _RUNNING, (count[1],)
        elif _SWITCH.search(statement):
            pytest.skip(f"needs a switch of the simulator: {statement[:80]}")
        elif statement == _SCAN:  # the capture job scans, and allows no other scan
            time.sleep(SCAN_WAIT_S)
            return []
        with connect(self.url(database) if database else self._url) as session:
            rows = session.execute(statement, *parameters)
            if _ENABLES in statement and database not in self._hastened:
                self._hastened.add(database)
                hasten(session)
            return rows

    def postgres(self, statement: str, database: str) -> list[tuple[Any, ...]]:
        """Skip the test: there is no PostgreSQL behind it."""
        pytest.skip("needs the simulator's PostgreSQL")

    def kill(self) -> None:
        """Skip the test: the server is not ours to kill."""
        pytest.skip("needs the simulator's process")

    def close(self) -> None:
        """Drop the databases that are left."""
        for name in self._made[:]:
            self.drop_database(name)

    def __enter__(self) -> RealServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def hasten(session: Connection) -> None:
    """Let the capture job scan the log each second; leave it as it is where that is refused."""
    try:
        session.run(
            f"EXEC sys.sp_cdc_change_job @job_type = N'capture', @pollinginterval = {POLL_S}"
        )
        session.run("EXEC sys.sp_cdc_stop_job @job_type = N'capture'")
    except PenstockError:
        return
    for _ in range(60):  # the job may take a while to stop
        try:
            session.run("EXEC sys.sp_cdc_start_job @job_type = N'capture'")
        except PenstockError:
            session.run("WAITFOR DELAY '00:00:00.500'")
        else:
            return
