"""Real PostgreSQL servers for the tests.

PENSTOCK_TEST_POSTGRES names the versions to start (such as 15,18; 18 by default): every test that
uses a server runs once on each. PENSTOCK_TEST_POSTGRES_DSN names a running server instead, on
which the tests need a superuser. A server that cannot be started is a failure, never a skip.
Servers start with the first test that asks for one.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest
import trustme
from psycopg import sql

from penstock.engines.postgres.server.embedded import EmbeddedPostgres, StopMode
from penstock.host.server_process import TlsFiles
from plugins.shared import SharedServers

TLS_VERSION = 15  # Debian's build; the servers of the wheel have no TLS
SLOT_RELEASE_TIMEOUT_S = 30.0
RELOAD_TIMEOUT_S = 30.0

_database_numbers = itertools.count(1)


class Server:
    """A running PostgreSQL server, started by the tests or named by a DSN.

    `url()` and `execute()` work as the superuser. `stop`, `start`, `crash`, `set` and `directory`
    need a server that the tests started.
    """

    def __init__(self, *, embedded: EmbeddedPostgres | None = None, dsn: str = "") -> None:
        self._embedded = embedded
        self._dsn = dsn
        self.ca_certificate: Path | None = None
        if embedded is not None:
            self.version = embedded.version
        else:
            with psycopg.connect(dsn, autocommit=True) as connection:
                self.version = connection.info.server_version // 10_000

    @property
    def embedded_server(self) -> EmbeddedPostgres:
        """Server that the tests started; fails if a DSN names the server."""
        assert self._embedded is not None, "this test needs a server of its own, not a DSN"
        return self._embedded

    @property
    def port(self) -> int:
        """TCP port."""
        if self._embedded is not None:
            return self._embedded.port
        return urlsplit(self._dsn).port or 5432

    @property
    def directory(self) -> Path:
        """Data directory."""
        return self.embedded_server.directory

    @property
    def bindir(self) -> Path:
        """Folder of the server's programs and of the clients that came with it."""
        return self.embedded_server.bindir

    def url(
        self, database: str = "postgres", user: str = "postgres", password: str | None = None
    ) -> str:
        """Return the URL of a database, as the superuser unless another user is given."""
        if self._embedded is not None:
            return self._embedded.url(database, user, password)
        parts = urlsplit(self._dsn)
        if user != "postgres":
            netloc = f"{quote(user, safe='')}:{quote(password or '', safe='')}"
            netloc += f"@{parts.hostname}:{parts.port or 5432}"
        else:
            netloc = parts.netloc
        return urlunsplit(parts._replace(netloc=netloc, path=f"/{quote(database, safe='')}"))

    def execute(
        self, statement: str, database: str = "postgres", parameters: Any = None
    ) -> list[tuple[Any, ...]]:
        """Run SQL in autocommit as the superuser; return the rows of its last result, if it has
        any.

        Several statements separated by semicolons may be given when there are no parameters.
        """
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement, parameters)  # type: ignore[arg-type]
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def make_database(self, prefix: str = "test") -> str:
        """Create a fresh database and return its URL; drop_database() removes it."""
        name = f"{prefix}_{os.getpid()}_{next(_database_numbers)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database with its slots, ending all sessions that still use them."""
        name = urlsplit(url).path.lstrip("/")
        with psycopg.connect(self.url(), autocommit=True) as connection:
            _drop_slots(connection, name)
            connection.execute(
                sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
            )

    def reload(self) -> None:
        """Make the server read its configuration and pg_hba.conf again; wait until it has."""
        loaded = "select pg_conf_load_time()"  # that of the postmaster, which starts backends
        before = self.execute(loaded)
        self.execute("select pg_reload_conf()")
        deadline = time.monotonic() + RELOAD_TIMEOUT_S
        while self.execute(loaded) == before:
            if time.monotonic() > deadline:
                raise TimeoutError("the server does not read its configuration again")
            time.sleep(0.01)

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server; start() brings it back on the same port."""
        self.embedded_server.stop(mode)

    def start(self) -> None:
        """Start the server again."""
        self.embedded_server.start()

    def crash(self) -> None:
        """Kill the postmaster with SIGKILL."""
        self.embedded_server.crash()

    def restart_with(self, **settings: str) -> None:
        """Restart the server with changed settings."""
        self.embedded_server.set(**settings)
        self.embedded_server.stop()
        self.embedded_server.start()


def _drop_slots(connection: psycopg.Connection[Any], database: str) -> None:
    """Drop the slots of one database, after ending their walsenders and waiting for them."""
    deadline = time.monotonic() + SLOT_RELEASE_TIMEOUT_S
    while True:
        slots = connection.execute(
            """
            select slot_name, active_pid, temporary
              from pg_replication_slots
             where database = %s
            """,
            (database,),
        ).fetchall()
        if not slots:
            return
        for slot_name, active_pid, temporary in slots:
            if active_pid is not None:
                connection.execute("select pg_terminate_backend(%s)", (active_pid,))
            elif not temporary:
                connection.execute("select pg_drop_replication_slot(%s)", (slot_name,))
        if time.monotonic() > deadline:
            raise TimeoutError(f"slots of {database} are still in use: {slots}")
        time.sleep(0.02)


def versions() -> list[int]:
    """Return the major versions under test; with a DSN, only that of its server."""
    dsn = os.environ.get("PENSTOCK_TEST_POSTGRES_DSN", "")
    if dsn:
        with psycopg.connect(dsn) as connection:
            return [connection.info.server_version // 10_000]
    return [int(text) for text in os.environ.get("PENSTOCK_TEST_POSTGRES", "18").split(",")]


@pytest.fixture(scope="session", params=versions(), ids=lambda version: f"pg{version}")
def postgres_version(request: pytest.FixtureRequest) -> int:
    """Major version under test: all servers of a test have it."""
    version: int = request.param
    return version


@pytest.fixture(scope="session")
def postgres(postgres_version: int, shared_servers: SharedServers) -> Server:
    """A running server, shared by the tests of one process: leave it as you found it."""
    return first_server(shared_servers, postgres_version)


def first_server(servers: SharedServers, version: int) -> Server:
    """Return the running server of this version, or the one that a DSN names."""
    dsn = os.environ.get("PENSTOCK_TEST_POSTGRES_DSN", "")
    if dsn:
        return Server(dsn=dsn)
    return _share_server(servers, "first", version)


@pytest.fixture(scope="session")
def second_postgres(postgres_version: int, shared_servers: SharedServers) -> Server:
    """A second running server, always one that the tests started."""
    return _share_server(shared_servers, "second", postgres_version)


def _share_server(servers: SharedServers, name: str, version: int) -> Server:
    embedded = servers.get((name, version), lambda: EmbeddedPostgres(major=version))
    return Server(embedded=embedded)


@pytest.fixture
def own_postgres(postgres_version: int) -> Iterator[Server]:
    """A server for one test alone, which may crash, stop and reconfigure it."""
    with EmbeddedPostgres(major=postgres_version) as embedded:
        yield Server(embedded=embedded)


@pytest.fixture(scope="session")
def tls_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with TLS: a certificate for `localhost` and 127.0.0.1 signed by a CA of its own.

    `ca_certificate` is the CA's PEM file, which is given as sslrootcert.
    """
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "server.crt")
    certificate.private_key_pem.write_to_path(folder / "server.key")
    tls = TlsFiles(certificate=folder / "server.crt", key=folder / "server.key")
    with EmbeddedPostgres(major=TLS_VERSION, tls=tls) as embedded:
        server = Server(embedded=embedded)
        server.ca_certificate = folder / "ca.pem"
        yield server


@pytest.fixture
def source_url(postgres: Server) -> Iterator[str]:
    """A fresh database to capture from; dropped afterwards with its slots."""
    url = postgres.make_database("source")
    yield url
    postgres.drop_database(url)


@pytest.fixture
def target_url(postgres: Server) -> Iterator[str]:
    """A fresh database to load into; dropped afterwards."""
    url = postgres.make_database("target")
    yield url
    postgres.drop_database(url)
