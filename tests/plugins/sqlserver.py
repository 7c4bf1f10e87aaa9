"""A simulated SQL Server for the tests: a process that speaks TDS over a PostgreSQL 15 server.

That server has ICU collations, which SQL Server's comparisons need. `sim_sqlserver` describes the
simulator. It refuses texts of penstock that `tests/data/sqlserver_known_texts.sql` does not have,
and the test that sent one fails, even if penstock passed over the error. With
PENSTOCK_TEST_SQLSERVER_RECORD=FILE it adds such texts to the file instead.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from penstock.engines.postgres.server.embedded import EmbeddedPostgres
from plugins.shared import SharedServers
from sim_sqlserver.texts import read_texts

POSTGRES_VERSION = 15  # Debian's build has ICU
PASSWORD = "Secret#1"
TEST_LOGIN = "tests"  # login of the tests themselves, which may send any text; penstock's is sa
START_TIMEOUT_S = 60.0
TESTS = Path(__file__).parents[1]
TEXTS_HINT = "penstock sent unknown texts; tests/sim_sqlserver/README.md says how to add them:"
KNOWN_TEXTS = TESTS / "data" / "sqlserver_known_texts.sql"
SUITE_TEXTS = TESTS / "data" / "sqlserver_suite_texts.sql"  # of suites, in penstock's sessions
STRICT = ("--strict", str(KNOWN_TEXTS), "--strict", str(SUITE_TEXTS))

_database_numbers = itertools.count(1)


class SimServer:
    """A running simulator.

    Attributes:
        port: TCP port on 127.0.0.1.
        certificate: PEM file of the authority that signed its certificate; None without TLS.
        postgres_url: URL of the PostgreSQL server behind it, as its superuser.
    """

    def __init__(self, postgres_url: str, *options: str) -> None:
        self.postgres_url = postgres_url
        command = [sys.executable, "-m", "sim_sqlserver", "--postgres", postgres_url, *options]
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the simulator ended with {self._process.wait()}")
        ready = json.loads(line)
        self.port: int = ready["port"]
        certificate = ready["certificate"]
        self.certificate = None if certificate is None else Path(certificate)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def url(self, database: str, user: str = "sa", password: str = PASSWORD) -> str:
        """Return the URL of a database, for penstock: a strict server knows its texts."""
        encrypt = "no" if self.certificate is None else "yes"
        login = f"{quote(user, safe='')}:{quote(password, safe='')}"
        return (
            f"sqlserver://{login}@127.0.0.1:{self.port}/{database}"
            f"?encrypt={encrypt}&trustServerCertificate=true"
        )

    def connection_string(
        self, database: str, user: str = TEST_LOGIN, password: str = PASSWORD, **options: str
    ) -> str:
        """Return the text that mssql_python.connect takes: as a test, which may send any text."""
        parts = {
            "Server": f"127.0.0.1,{self.port}",
            "Database": database,
            "UID": user,
            "PWD": password,
            "Encrypt": "no" if self.certificate is None else "yes",
            "TrustServerCertificate": "yes",
            **options,
        }
        return "".join(f"{name}={value};" for name, value in parts.items())

    def make_database(self, prefix: str = "test") -> str:
        """Create a fresh database and return its name; drop_database() removes it."""
        name = f"{prefix}_{os.getpid()}_{next(_database_numbers)}"
        self.execute(f"CREATE DATABASE [{name}]", "master")
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, ending all sessions that still use it."""
        self.execute(f"DROP DATABASE IF EXISTS [{name}]", "master")

    def execute(self, statement: str, database: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run T-SQL in autocommit as an administrator; return the rows of its first result.

        A recording server does not record it, and a strict one does not refuse it.
        """
        import mssql_python

        text = self.connection_string(database, TEST_LOGIN)
        with mssql_python.connect(text, autocommit=True) as connection:
            cursor = connection.cursor()
            cursor.execute(statement, *parameters)
            rows = [tuple(row) for row in cursor.fetchall()] if cursor.description else []
            while cursor.nextset():
                pass
            return rows

    def postgres(self, statement: str, database: str) -> list[tuple[Any, ...]]:
        """Run PostgreSQL's SQL in the database behind one of the simulator."""
        with psycopg.connect(self.postgres_url, dbname=database, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def kill(self) -> None:
        """Kill the simulator with SIGKILL."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Stop the simulator, which ends at the end of its input, and close the pipes to it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(START_TIMEOUT_S)
        self._process.stdout.close()


def as_test(url: str) -> str:
    """Return the URL with the login of tests, whose session may send any text."""
    return url.replace("//sa:", f"//{TEST_LOGIN}:", 1)


@contextmanager
def running(postgres_url: str, *options: str) -> Iterator[SimServer]:
    """Run a simulator for a with block."""
    server = SimServer(postgres_url, *options)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def running_alone(*options: str) -> Iterator[SimServer]:
    """Run a simulator over a PostgreSQL server of its own, for a with block."""
    with (
        EmbeddedPostgres(major=POSTGRES_VERSION) as postgres,
        running(postgres.url(), *options) as server,
    ):
        yield server


def shared_server(servers: SharedServers) -> SimServer:
    """Return the simulator that tests share, or the real server that a user examines."""
    given = os.environ.get("PENSTOCK_TEST_SQLSERVER_URL", "")
    if given:
        from harness.servers.sqlserver_real import RealServer

        real: SimServer = servers.get("sqlserver", lambda: RealServer(given))
        return real
    postgres = servers.get(
        ("first", POSTGRES_VERSION), lambda: EmbeddedPostgres(major=POSTGRES_VERSION)
    )
    record = os.environ.get("PENSTOCK_TEST_SQLSERVER_RECORD", "")
    options = (
        ("--record", record) if record else (*STRICT, "--refused", str(_refused_texts(servers)))
    )
    server: SimServer = servers.get("sqlserver", lambda: running(postgres.url(), *options))
    return server


def _refused_texts(servers: SharedServers) -> Path:
    """Return the file to which the simulator of this process adds the texts that it refused."""
    return Path(servers.get("refused texts", tempfile.TemporaryDirectory)) / "refused.sql"


@pytest.fixture(autouse=True)
def no_unknown_texts(shared_servers: SharedServers) -> Iterator[None]:
    """Fail the test if penstock sent the simulator a text that is not known."""
    yield
    path = _refused_texts(shared_servers)
    if path.exists():
        refused = "\n".join(read_texts(path))
        path.unlink()
        pytest.fail(f"{TEXTS_HINT}\n{refused}")


@pytest.fixture(scope="session")
def sqlserver(shared_servers: SharedServers) -> SimServer:
    """A running simulator, shared by the tests of one process: leave it as you found it."""
    return shared_server(shared_servers)


@pytest.fixture
def sqlserver_database(sqlserver: SimServer) -> Iterator[str]:
    """Name of a fresh database; dropped afterwards."""
    name = sqlserver.make_database()
    yield name
    sqlserver.drop_database(name)


@pytest.fixture
def sqlserver_url(sqlserver: SimServer, sqlserver_database: str) -> str:
    """URL of a fresh database, which is dropped afterwards."""
    return sqlserver.url(sqlserver_database)
