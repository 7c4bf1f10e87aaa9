"""The server under certification, and the databases that are created on it.

Every database has a mark, a table that only this tool creates. A database without it is never used
and never dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from penstock.engines.sqlserver.connect import Connection, connect, literal, quote
from penstock.engines.sqlserver.source import statements
from penstock.engines.sqlserver.url import SQLServerUrl, check_url, with_database
from penstock.host.errors import DatabaseRefused, PrivilegeMissing, StatementFailed
from penstock.model import PenstockError

DATABASE = "penstock_certify"
TARGET = "penstock_certify_target"
EMPTY = "penstock_certify_empty"
LOGIN = "penstock_certify_reader"
LOGIN_PASSWORD = "Certify#1f7"
MARK = "penstock_certify_made"
ALREADY_THERE = 1801  # number of the error
AZURE_DATABASE = 5  # EngineEdition
STATEMENT_TIMEOUT_S = 120.0

FACTS = (
    "SELECT CONVERT(nvarchar(128), SERVERPROPERTY('ProductVersion')) AS version, "
    "CONVERT(nvarchar(128), SERVERPROPERTY('Edition')) AS edition, "
    "CONVERT(int, SERVERPROPERTY('EngineEdition')) AS engine_edition, "
    "CONVERT(nvarchar(128), SERVERPROPERTY('Collation')) AS collation"
)


class DatabaseTaken(PenstockError):
    """A database of the tool's name exists that the tool did not create."""

    code = "CERTIFY1"
    retry = "never"


class CaptureSilent(PenstockError):
    """The server captures nothing in time."""

    code = "CERTIFY2"
    retry = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts of the server. engine_edition: 5 for Azure SQL Database."""

    version: str
    edition: str
    engine_edition: int
    collation: str

    @property
    def is_azure(self) -> bool:
        """Return whether it is Azure SQL Database, which has no Agent."""
        return self.engine_edition == AZURE_DATABASE


class Server:
    """A server, by the URL that the user gave.

    Attributes:
        url: The URL; its database is only used for the connection that creates databases.
        databases: Those that were created and not dropped yet.
    """

    def __init__(self, url: str) -> None:
        check_url(url)
        SQLServerUrl.parse(url)
        self.url = url
        self.databases: list[str] = []
        self.has_login = False

    def url_of(self, database: str) -> str:
        """Return the URL of another database."""
        return with_database(self.url, database)

    def open(self, database: str) -> Connection:
        """Open a session of a database."""
        return connect(self.url_of(database), timeout_s=STATEMENT_TIMEOUT_S)

    def facts(self) -> Facts:
        """Ask for version and edition. Raises the errors of connecting."""
        with connect(self.url, timeout_s=STATEMENT_TIMEOUT_S) as session:
            ((version, edition, engine, collation),) = session.execute(FACTS)
        return Facts(
            version=str(version),
            edition=str(edition),
            engine_edition=int(engine),
            collation=str(collation),
        )

    def agent_problem(self) -> str:
        """Return why nothing may be captured, empty if that is not known."""
        with connect(self.url, timeout_s=STATEMENT_TIMEOUT_S) as session:
            try:
                states = statements.agent_states(session.execute(statements.SERVICES))
            except (PrivilegeMissing, StatementFailed):
                return ""
        if states and statements.AGENT_RUNS not in states:
            return "SQL Server Agent does not run, whose job fills the change tables"
        return ""

    def create(self, database: str) -> None:
        """Create a database with the mark; one that an interrupted run left is dropped first.

        Raises DatabaseTaken, PrivilegeMissing.
        """
        text = f"CREATE DATABASE {quote(database)}"
        with connect(self.url, timeout_s=STATEMENT_TIMEOUT_S) as session:
            try:
                session.run(text)
            except StatementFailed as error:
                if error.fields.get("errno") != ALREADY_THERE:
                    raise
                self._check_made(database)
                self._drop(session, database)
                session.run(text)
        self.databases.append(database)
        with self.open(database) as session:
            session.run(f"CREATE TABLE dbo.{MARK} (made_at datetime2(6) NOT NULL)")

    def _check_made(self, database: str) -> None:
        """Raise DatabaseTaken for a database without the mark."""
        try:
            with self.open(database) as session:
                marks = session.execute("SELECT name FROM sys.tables WHERE name = ?", MARK)
        except DatabaseRefused:
            marks = []
        if not marks:
            raise DatabaseTaken(
                f"the server has a database {database} that this tool did not create",
                hint=f"Rename or drop it, if nothing needs it: DROP DATABASE {quote(database)};",
            )

    def adopt_databases(self, pid: int) -> None:
        """Remember the databases that a process of the suites has left, to drop them."""
        like = f"{DATABASE}_%_{pid}_%".replace("_", "[_]")
        try:
            with connect(self.url, timeout_s=STATEMENT_TIMEOUT_S) as session:
                rows = session.execute("SELECT name FROM sys.databases WHERE name LIKE ?", like)
        except PenstockError:
            return
        self.databases.extend(str(name) for (name,) in rows)

    def create_login(self, database: str) -> str:
        """Create a login of the tool with a user in a database; return the URL with it."""
        with self.open(database) as session:
            found = "SELECT name FROM sys.server_principals WHERE name = ?"
            if session.execute(found, LOGIN):
                session.run(f"DROP LOGIN {quote(LOGIN)}")
            session.run(f"CREATE LOGIN {quote(LOGIN)} WITH PASSWORD = {literal(LOGIN_PASSWORD)}")
            self.has_login = True
            session.run(f"CREATE USER {quote(LOGIN)} FOR LOGIN {quote(LOGIN)}")
        parts = self.url_of(database)
        scheme, _, rest = parts.partition("://")
        _, at, place = rest.rpartition("@")
        return f"{scheme}://{LOGIN}:{LOGIN_PASSWORD.replace('#', '%23')}@{place if at else rest}"

    def drop_all(self, say: Callable[[str], None]) -> list[str]:
        """Drop what was created; return what could not be dropped."""
        left: list[str] = []
        for database in reversed(self.databases[:]):
            try:
                with connect(self.url, timeout_s=STATEMENT_TIMEOUT_S) as session:
                    self._drop(session, database)
                self.databases.remove(database)
            except PenstockError as error:
                left.append(database)
                say(f"could not drop {database}: {error.message}")
        if self.has_login:
            try:
                with connect(self.url, timeout_s=STATEMENT_TIMEOUT_S) as session:
                    session.run(f"DROP LOGIN {quote(LOGIN)}")
                self.has_login = False
            except PenstockError as error:
                left.append(LOGIN)
                say(f"could not drop the login {LOGIN}: {error.message}")
        return left

    def _drop(self, session: Connection, database: str) -> None:
        """Drop a database. Its sessions are ended first, where that is possible."""
        # Azure SQL Database ends them when it drops the database.
        with suppress(StatementFailed, PrivilegeMissing):
            session.run(f"ALTER DATABASE {quote(database)} SET SINGLE_USER WITH ROLLBACK IMMEDIATE")
        session.run(f"DROP DATABASE {quote(database)}")
