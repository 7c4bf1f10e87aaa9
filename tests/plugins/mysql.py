"""Real MySQL and MariaDB servers for the tests.

PENSTOCK_TEST_MYSQL names the kinds to start (`mysql,mariadb`, which is the default): every test
that uses a server runs once on each, unless `@pytest.mark.server("mariadb")` restricts it to one.
`mariadb:/folder` uses the programs below that folder. A server that cannot be started is a failure,
never a skip. Servers start with the first test that asks for one.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest
import trustme
from pymysql.constants import CLIENT

from harness.servers.mysql_embedded import EmbeddedMariaDB, EmbeddedMySQL
from penstock.engines.mysql.connect import ServerVersion
from penstock.engines.mysql.source.status import status_statement
from penstock.host.server_process import TlsFiles
from plugins.shared import SharedServers

KINDS = {"mysql": EmbeddedMySQL, "mariadb": EmbeddedMariaDB}
GTID_SETTINGS: dict[str, dict[str, str]] = {
    "mysql": {"gtid_mode": "ON", "enforce_gtid_consistency": "ON"},
    "mariadb": {"gtid_strict_mode": "ON"},
}
PASSWORD = "secret"

_database_numbers = itertools.count(1)


class MySQLServer:
    """A server that the tests started. `url()` and `execute()` act as the superuser."""

    def __init__(self, embedded: EmbeddedMySQL | EmbeddedMariaDB) -> None:
        self.embedded = embedded
        self.kind: str = str(embedded.flavour)
        self.version: ServerVersion = embedded.version
        self.ca_certificate: Path | None = None

    @property
    def is_mariadb(self) -> bool:
        """Return whether it is MariaDB."""
        return self.version.is_mariadb

    @property
    def replica_word(self) -> str:
        """Word for a replica in statements; MySQL since 8.4 does not know slave."""
        return "replica" if self.version.mysql(8, 4) else "slave"

    @property
    def port(self) -> int:
        """TCP port."""
        return self.embedded.port

    def url(self, database: str = "", user: str = "root", password: str | None = None) -> str:
        """Return the URL of a database, as the superuser unless another user is given."""
        return self.embedded.url(database, user, password)

    def connect(self, database: str = "", **more: Any) -> Any:
        """Open a PyMySQL connection of the superuser, in autocommit, through the socket file."""
        return pymysql.connect(
            unix_socket=str(self.embedded.directory.parent / "server.sock"),
            user="root",
            password=self.embedded.password,
            database=database or None,
            charset="utf8mb4",
            autocommit=True,
            client_flag=CLIENT.MULTI_STATEMENTS,
            **more,
        )

    def execute(
        self, sql: str, database: str = "", parameters: object = None
    ) -> list[tuple[Any, ...]]:
        """Run SQL as the superuser; return the rows of its last result. Semicolons separate
        statements.
        """
        with self.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            rows = cursor.fetchall()
            while cursor.nextset():
                rows = cursor.fetchall()
            return list(rows)

    def value(self, sql: str, database: str = "") -> Any:
        """Return the first column of the first row."""
        return self.execute(sql, database)[0][0]

    def status(self) -> tuple[str, int]:
        """Return the binlog file that is written and the offset of its end."""
        row = self.execute(status_statement(self.version))[0]
        return str(row[0]), int(row[1])

    def reset_log(self) -> None:
        """Delete all binlogs and begin again with file 000001."""
        new = self.version.mysql(8, 4)
        self.execute("reset binary logs and gtids" if new else "reset master")

    def make_database(self, prefix: str = "test") -> str:
        """Create a fresh database and return its URL; drop_database() removes it."""
        name = f"{prefix}_{os.getpid()}_{next(_database_numbers)}"
        self.execute(f"create database `{name}`")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database."""
        self.execute(f"drop database if exists `{database_of(url)}`")

    @contextmanager
    def role(self, *grants: str) -> Iterator[str]:
        """Create an account with these grants for a with block; yield its URL.

        grants: as in "select on db.*". It connects through 127.0.0.1 with PASSWORD.
        """
        name = f"least_{os.getpid()}_{next(_database_numbers)}"
        self.execute(f"create user `{name}`@'127.0.0.1' identified by '{PASSWORD}'")
        try:
            for grant in grants:
                self.execute(f"grant {grant} to `{name}`@'127.0.0.1'")
            yield self.url("", name, PASSWORD)
        finally:
            self.execute(f"drop user `{name}`@'127.0.0.1'")

    @contextmanager
    def globals(self, **settings: str) -> Iterator[None]:
        """Change global variables for the time of a with block. Values are SQL."""
        names = ", ".join(f"@@global.{name}" for name in settings)
        before = self.execute(f"select {names}")[0]
        try:
            for name, text in settings.items():
                self.execute(f"set global {name} = {text}")
            yield
        finally:
            for name, old in reversed(list(zip(settings, before, strict=True))):
                self.execute(f"set global {name} = %s", parameters=(old,))


def follow_primary(replica: MySQLServer, primary: MySQLServer) -> None:
    """Make a server a replica of another, with everything from the beginning."""
    how = "master_use_gtid=slave_pos"
    if not primary.is_mariadb:
        how = "master_auto_position=1, get_master_public_key=1"
    statement = (
        f"change master to master_host='127.0.0.1', master_port={primary.port}, "
        f"master_user='root', master_password='{primary.embedded.password}', {how}"
    )
    if replica.version.mysql(8, 4):  # it knows only the new words
        statement = statement.replace("master to", "replication source to")
        statement = statement.replace("master_", "source_")
    replica.execute(statement)
    replica.execute(f"start {replica.replica_word}")


def database_of(url: str) -> str:
    """Return the database's name in a URL."""
    return urlsplit(url).path.lstrip("/")


def kinds() -> dict[str, Path | None]:
    """Return the kinds under test, with the folder of their programs if one is given."""
    parts = os.environ.get("PENSTOCK_TEST_MYSQL", "mysql,mariadb").split(",")
    split = [part.partition(":") for part in parts]
    return {kind: Path(folder) if folder else None for kind, _, folder in split}


@pytest.fixture(scope="session", params=list(kinds()))
def mysql_kind(request: pytest.FixtureRequest) -> str:
    """Kind of server under test: all MySQL servers of a test are of it."""
    kind: str = request.param
    return kind


@contextmanager
def running(
    kind: str, settings: Mapping[str, str] | None = None, **more: Any
) -> Iterator[MySQLServer]:
    """Run a server of this kind with GTIDs, for a with block."""
    every = {**GTID_SETTINGS[kind], **(settings or {})}
    with KINDS[kind](settings=every, basedir=kinds().get(kind), **more) as embedded:
        yield MySQLServer(embedded)


@pytest.fixture(scope="session")
def mysql(mysql_kind: str, shared_servers: SharedServers) -> MySQLServer:
    """A running server, shared by the tests of one process: leave it as you found it."""
    server: MySQLServer = shared_servers.get(mysql_kind, lambda: running(mysql_kind))
    return server


@pytest.fixture(scope="session")
def other_mysql(mysql_kind: str, shared_servers: SharedServers) -> MySQLServer:
    """A running server of the other family, shared like the first: leave it as you found it."""
    other = "mysql" if mysql_kind == "mariadb" else "mariadb"
    server: MySQLServer = shared_servers.get(other, lambda: running(other))
    return server


@pytest.fixture(autouse=True)
def _no_progress_of_others(request: pytest.FixtureRequest) -> None:
    """Remove progress and actions that another test left on a shared server."""
    for name in ("mysql", "other_mysql"):
        if name in request.fixturenames:
            server: MySQLServer = request.getfixturevalue(name)
            server.execute("drop database if exists wirekite")


@pytest.fixture(scope="module")
def tuned_mysql(mysql_kind: str) -> Iterator[MySQLServer]:
    """A server for one module alone, whose settings and logs its tests may change."""
    with running(mysql_kind) as server:
        yield server


@pytest.fixture
def own_mysql(mysql_kind: str) -> Iterator[Callable[..., MySQLServer]]:
    """Make servers for one test alone: `own_mysql(settings={...})`."""
    with ExitStack() as stack:
        yield lambda **more: stack.enter_context(running(mysql_kind, **more))


@pytest.fixture(scope="session")
def tls_mysql(mysql_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MySQLServer]:
    """A server with a certificate for `localhost` and 127.0.0.1, signed by a CA of its own.

    `ca_certificate` is the CA's PEM file, which is given as sslrootcert.
    """
    folder = tmp_path_factory.mktemp("tls")
    # The OpenSSL of MySQL 8.0.15 does not present certificates with elliptic curves.
    authority = trustme.CA(key_type=trustme.KeyType.RSA)
    certificate = authority.issue_cert("localhost", "127.0.0.1", key_type=trustme.KeyType.RSA)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "server.crt")
    certificate.private_key_pem.write_to_path(folder / "server.key")
    tls = TlsFiles(certificate=folder / "server.crt", key=folder / "server.key")
    with running(mysql_kind, tls=tls) as server:
        server.ca_certificate = folder / "ca.pem"
        yield server


@pytest.fixture
def mysql_url(mysql: MySQLServer) -> Iterator[str]:
    """A fresh database; dropped afterwards."""
    url = mysql.make_database()
    yield url
    mysql.drop_database(url)
